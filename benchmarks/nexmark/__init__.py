"""Nexmark: queries over people, auctions and bids: flows, plain Python, Bytewax.

The queries are q0 to q8, q11 and q12 of the suite as it is run on other engines; the events are our own.
"""
