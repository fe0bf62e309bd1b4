"""Tables: payloads as columns of Arrow and back, and outputs.

Outputs are folders and Delta tables that take batches exactly once.
"""
