"""Snapshots of a running job: the coordinator tells the workers when, a participant writes for each worker."""
