"""Channels between processes over NATS: frames that arrive once and in order, though the server may drop them."""
