"""Reliable channels between processes over NATS: frames arrive once and in order."""
