"""The asyncio tasks that drive the parts: one for each worker, tracker, front and rear; deadlines and shutdown.

Knows endpoints, sources and sinks; knows no job and no epoch.
"""
