"""State stores, which keep the snapshots of a job."""
