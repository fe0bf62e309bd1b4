"""Snapshots of a running job.

The coordinator tells the workers when to take one; a participant writes for each worker.
"""
