"""Nodes as tasks of Spark: the barrier stage, what a task runs, and what follows from where it runs."""
