"""The model: what is computed.

Immutable values only: items, metas, batches, graphs, plans, messages. No I/O, no asyncio, no plugin; it imports nothing
but the ground (errors, escapes, events, logs, suggest).
"""
