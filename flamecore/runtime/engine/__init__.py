"""The engine: one process of a job: its node, its epochs, and the whole job when one process is enough."""
