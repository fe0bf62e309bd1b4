"""Windows, triggers and watermarks: event time cut into panes.

The same in every run, with any number of workers.
"""
