"""The operators: an item's way on one worker, from first operation to barrier.

Synchronous: no socket, no task, no asyncio. The time of day comes from `model.clock`, which a simulation sets.
"""
