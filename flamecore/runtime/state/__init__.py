"""The state: everything that outlives a process, and how to go on from it.

Knows stores and the codec; knows no transport and no worker.
"""
