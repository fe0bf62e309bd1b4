"""The parts of a job as plain state, driven by calls: worker, front, collector, completion.

No socket, no task, no asyncio: a task drives them in a job, a seeded scheduler in a simulation.
"""
