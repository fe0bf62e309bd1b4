"""Executable models: a graph on several workers, by the rules of one meta.

They contain no optimisation. A model may be slow; it must be short, and read as the paper it comes from. It shares with
the engine the graph, the hashes and the meta (`flamecore.model`), and nothing of how a job runs; it runs on
`DataItem`s, one at a time.
"""
