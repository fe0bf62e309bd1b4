"""Nodes as tasks of Spark: the stage of each, what its task runs, and what follows from where it runs."""
