"""The configuration: from files and code to a checked `JobSpec`.

Starts nothing.
"""
