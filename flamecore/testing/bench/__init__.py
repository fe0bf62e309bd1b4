"""The places where the checks try a driver: its processes, and what goes wrong with them."""
