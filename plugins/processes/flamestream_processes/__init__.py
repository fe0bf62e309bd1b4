"""The host whose nodes are processes of this machine."""
