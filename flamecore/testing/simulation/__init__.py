"""Simulation: the real parts of a job under a seeded scheduler.

It runs in a simulated world without processes.
"""
