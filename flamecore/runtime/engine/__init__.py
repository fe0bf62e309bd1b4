"""The engine: one process of a job.

Its node, its epochs, and the whole job when one process is enough.
"""
