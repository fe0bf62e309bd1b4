"""The watch on nodes that are no processes of the supervisor's own.

Beside each of them is a small process, which says whether the node runs, is stopped, or is gone.
"""
