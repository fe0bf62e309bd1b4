"""Streams of JetStream: reading and writing them in order, and the requests for it."""
