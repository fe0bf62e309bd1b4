"""Links: numbered, acknowledged and repeated frames between two processes.

A transport brings the connections, which may break. `LinkedTransport` is the half of a driver that knows addresses,
channels and lost processes.
"""
