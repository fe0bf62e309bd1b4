"""The two clocks of a front, and what a front remembers of the records it has admitted (paper 000, "front")."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from flamecore.meta import FrontId

ClockName = Literal["sequence", "wall"]


class Admitted(NamedTuple):
    """Consecutive records that one batch brought: times `first` … `first + len(positions) - 1`."""

    first: int
    positions: Sequence[Any]
    at: float


class Front:
    """Gives records their global times, which strictly grow, and remembers where they stood until they are delivered.

    Args:
        name: Source and partition.
        number: Its rank among the job's fronts, from 1: the front part of global times.
        clock: "sequence" counts records from `start`: a replay gives the same times. "wall" takes microseconds since
            the epoch, so that fronts interleave by arrival.
        start: No time below it is given.
        now_us: The wall clock, in microseconds.
        describe: Puts a position in words.
    """

    def __init__(
        self,
        name: FrontId,
        number: int,
        *,
        clock: ClockName = "sequence",
        start: int = 0,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        describe: Callable[[Any], str] = str,
    ) -> None:
        self.name = name
        self.number = number
        self.clock = clock
        self.next_time = start
        self.suffix = number.to_bytes(4, "big")
        self.in_flight = 0
        self._now_us = now_us
        self._describe = describe
        self._admitted: deque[Admitted] = deque()

    def stamp(self, positions: Sequence[Any], at: float) -> int:
        """Take times for as many records; returns the first, the others follow it one by one.

        Args:
            positions: Where each record stood.
            at: When the batch arrived, on a monotonic clock in seconds: release latency is measured from here.
        """
        if self.clock == "wall":
            self.next_time = max(self.next_time, self._now_us())
        first = self.next_time
        if positions:
            self.next_time = first + len(positions)
            self.in_flight += len(positions)
            self._admitted.append(Admitted(first, positions, at))
        return first

    def promise(self) -> int:
        """No later record will get a time below this; for a front that has nothing to send."""
        if self.clock == "wall":
            self.next_time = max(self.next_time, self._now_us())
        return self.next_time

    def delivered(self, before: int) -> list[tuple[float, int]]:
        """Forget what has a time below `before`; returns (when it arrived, how many) of the records now done."""
        done = []
        while self._admitted:
            first, positions, at = self._admitted[0]
            if first >= before:
                break
            self._admitted.popleft()
            count = min(before - first, len(positions))
            if count < len(positions):
                self._admitted.appendleft(Admitted(before, positions[count:], at))
            self.in_flight -= count
            done.append((at, count))
        return done

    def where(self, time: int) -> str:
        """Where the record of that time stood, in words; empty when it is no longer remembered."""
        place = bisect_right(self._admitted, time, key=lambda batch: batch.first) - 1
        if place < 0:
            return ""
        first, positions, _ = self._admitted[place]
        return self._describe(positions[time - first]) if time - first < len(positions) else ""
