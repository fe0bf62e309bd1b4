"""Tables: payloads as columns of Arrow and back, and folders and Delta tables that take batches exactly once."""
