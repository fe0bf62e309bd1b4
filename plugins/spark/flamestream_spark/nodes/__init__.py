"""Nodes as tasks of Spark: stage, program, and the effects of where each runs."""
