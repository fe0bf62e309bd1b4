"""Flows of jobs on several processes: what their workers import."""
