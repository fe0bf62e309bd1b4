"""A source, a sink and an operation for flamestream.

Entry points name the drivers; a flow imports the operation.
"""
