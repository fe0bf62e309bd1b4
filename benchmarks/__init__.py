"""Measures flamestream beside a plain loop and beside its peers: `python -m benchmarks`. See README.md here."""
