"""The parts of a job as plain state, driven by calls.

They are worker, front, collector and completion. No socket, no task, no asyncio: a task drives them in a job, a seeded
scheduler in a simulation.
"""
