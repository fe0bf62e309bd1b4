"""State stores: where a job keeps its snapshots."""
