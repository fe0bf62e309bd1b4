"""Simulation: the real parts of a job under a seeded scheduler, in a made-up world without processes."""
