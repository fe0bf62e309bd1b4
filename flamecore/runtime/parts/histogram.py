"""Latencies in constant memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Final

_BASE: Final = 1.07
"""Width of a latency bucket: 7 %."""

_WIDTH: Final = log(_BASE)

_FLOOR_S: Final = 1e-6


class Histogram:
    """Latencies in buckets that grow by 7 %, in constant memory.

    Percentiles are right to within 7 %.
    """

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` latencies of `seconds`."""
        bucket = _bucket(seconds)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count

    def buckets(self) -> dict[int, int]:
        """Return the counts by bucket, which another histogram can `merge`."""
        return dict(self._buckets)

    def merge(self, buckets: Mapping[int, int]) -> None:
        """Add the counts of another histogram."""
        for bucket, count in buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
            self.count += count

    def percentile(self, share: float) -> float | None:
        """Return the latency in seconds below which `share` (0 … 1) lies; None if empty."""
        if not self.count:
            return None
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return float(_FLOOR_S * _BASE ** (bucket + 0.5))
        raise AssertionError("the buckets hold fewer than the count says")


def _bucket(seconds: float) -> int:
    return int(log(seconds / _FLOOR_S) / _WIDTH) if seconds > _FLOOR_S else 0
