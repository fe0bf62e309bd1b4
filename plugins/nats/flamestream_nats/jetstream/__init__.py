"""Streams of JetStream: requests, and reading and writing messages in order."""
