"""A running count of each row's key."""

from __future__ import annotations

from benchmarks.sparkfeed import counting

flow = counting(all_outputs=True)
