"""The asyncio tasks that drive the parts; deadlines and shutdown.

There is one task for each worker, tracker, front and rear. The package uses endpoints, sources and sinks, but no job
and no epoch.
"""
