"""Ackers: `centralized`, `local` (aggregates on each worker, wraps any other) and `sharded` (by time)."""
