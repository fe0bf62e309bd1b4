"""Benchmarks of flamestream, a plain loop and peers: `python -m benchmarks`.

See README.md here.
"""
