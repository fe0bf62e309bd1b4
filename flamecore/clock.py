"""The two clocks of a front, and what a front remembers of the records it has admitted (paper 000, "front")."""

from __future__ import annotations

import time
from asyncio import get_running_loop
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple

from flamecore.meta import FrontId

ClockName = Literal["sequence", "wall"]

WALL_CLOCK: Final[ContextVar[Callable[[], int]]] = ContextVar("wall clock", default=lambda: time.time_ns() // 1000)
"""Microseconds since the epoch. A simulation sets another one."""

STOPWATCH: Final[ContextVar[Callable[[], float]]] = ContextVar("stopwatch", default=time.perf_counter)
"""Seconds, to time work with. A simulation sets another one."""


def monotonic() -> float:
    """Seconds, on the clock of the event loop: those of the machine, or of a simulation."""
    return get_running_loop().time()


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
        start: No time below it is given, but those of `journal`.
        now_us: The wall clock, in microseconds; default: `WALL_CLOCK`.
        describe: Puts a position in words.
        position: Of the last record before `start`, in a front that goes on; None: it is at its beginning.
        kept: Whether snapshots are taken: then positions are remembered until the next one.
        ended: It had come to its end before `start`, and is not read again.
        journal: In a front of the wall clock that goes on: times given before, as (first, how many), to be given
            again to the first records it reads.
        end: In a front of the sequence clock that goes on: the time at which it has come to its end before.
    """

    def __init__(
        self,
        name: FrontId,
        number: int,
        *,
        clock: ClockName = "sequence",
        start: int = 0,
        now_us: Callable[[], int] | None = None,
        describe: Callable[[Any], str] = str,
        position: Any = None,
        kept: bool = False,
        ended: bool = False,
        journal: Iterable[tuple[int, int]] = (),
        end: int | None = None,
    ) -> None:
        self.name = name
        self.number = number
        self.clock = clock
        self.next_time = start
        self.suffix = number.to_bytes(4, "big")
        self.in_flight = 0
        self._now_us = now_us or WALL_CLOCK.get()
        self._describe = describe
        self.position = position
        self.ended = ended
        self.uncommitted = 0
        self._settled = 0  # how many of these no snapshot will be in the midst of
        self._floor = start
        self._kept = kept
        self._admitted: deque[Admitted] = deque()
        self._uncut: deque[Admitted] = deque()
        self._journal = deque(journal)
        self._end = end

    @property
    def left(self) -> int | None:
        """How many records there are until it comes to its end, if it has been there before."""
        return None if self._end is None else max(self._end - self.next_time, 0)

    @property
    def given(self) -> int | None:
        """How many records at most can be stamped at once, because their times were given before; None: any."""
        return self._journal[0][1] if self._journal else None

    def stamp(self, positions: Sequence[Any], at: float) -> int:
        """Take times for as many records; returns the first, the others follow it one by one.

        Args:
            positions: Where each record stood.
            at: When the batch arrived, on a monotonic clock in seconds: release latency is measured from here.
        """
        if self._journal and positions:
            first, count = self._journal.popleft()
            self.next_time = first
            if count > len(positions):
                self._journal.appendleft((first + len(positions), count - len(positions)))
        elif not self._journal:
            self._move_on()
        first = self.next_time
        if positions:
            self.next_time = first + len(positions)
            self.in_flight += len(positions)
            batch = Admitted(first, positions, at)
            self._admitted.append(batch)
            if self._kept:
                self.uncommitted += len(positions)
                self._uncut.append(batch)
        return first

    def promise(self) -> int:
        """No later record will get a time below this; for a front that has nothing to send."""
        if self._journal:
            return self._journal[0][0]
        self._move_on()
        return self.next_time

    def _move_on(self) -> None:
        now = self._now_us() if self.clock == "wall" else self._floor
        self.next_time = max(self.next_time, self._floor, now)

    def cut(self, time: int) -> tuple[Any, int]:
        """Where a front begins that goes on from `time`: (position of the last record below it, its next time).

        What is below `time` is forgotten: the next cut is no earlier.
        """
        self.settle(time)
        self.uncommitted -= self._settled
        self._settled = 0
        return self.position, self._uncut[0].first if self._uncut else max(self.next_time, time)

    def settle(self, time: int) -> None:
        """The next cut is no earlier than `time`: where the records below it stood is forgotten, but for the last."""
        uncut = self._uncut
        while uncut and uncut[0].first < time:
            first, positions, at = uncut.popleft()
            count = min(time - first, len(positions))
            self.position = positions[count - 1]
            self._settled += count
            if count < len(positions):
                uncut.appendleft(Admitted(first + count, positions[count:], at))

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
