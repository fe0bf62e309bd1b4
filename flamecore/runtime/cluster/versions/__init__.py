"""Other versions of the flow of a running job.

Each is tried in a process of its own first. The supervisor imports it only when that process has.
"""
