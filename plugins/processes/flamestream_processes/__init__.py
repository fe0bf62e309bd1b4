"""The host of nodes that are processes of this machine."""
