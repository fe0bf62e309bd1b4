"""Ackers: `centralized`, `local` (aggregates on workers) and `sharded` (by time).

`local` wraps any other.
"""
