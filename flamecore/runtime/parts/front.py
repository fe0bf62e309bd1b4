"""Fronts: each gives the records of one partition their global times, and remembers where they stood.

A batch is admitted with its malformed records at their places among the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from flamecore.abc.source import Batch, Rejected
from flamecore.model.clock import WALL_CLOCK, ClockName
from flamecore.model.failure import Failure, shorten_repr
from flamecore.model.meta import MIN_TIME, FrontId, GlobalTime


class Malformed:
    """A malformed record at its place among the others."""

    __slots__ = ("rejected",)

    def __init__(self, rejected: Rejected) -> None:
        self.rejected = rejected

    def failure(self, front: Front, time: int, *, fatal: bool) -> Failure:
        return Failure(
            source=front.name.source,
            vertex=None,
            record=shorten_repr(self.rejected.raw),
            key=None,
            reason=self.rejected.reason,
            fatal=fatal,
            at=GlobalTime(time, front.number),
        )


def split(batch: Batch, first: int) -> tuple[Batch, Batch]:
    """A batch in two: its first records, as many as `first`, and the others."""
    places = sorted([*batch.positions, *(rejected.position for rejected in batch.rejected)])
    last = places[first - 1]
    count = sum(position <= last for position in batch.positions)
    early = [rejected for rejected in batch.rejected if rejected.position <= last]
    late = [rejected for rejected in batch.rejected if rejected.position > last]
    return (
        Batch(batch.values[:count], batch.positions[:count], early, batch.ahead),
        Batch(batch.values[count:], batch.positions[count:], late, batch.ahead),
    )


def merge_rejected(batch: Batch) -> tuple[list[Any], list[Any]]:
    """Values and malformed records together, in the order of their positions."""
    records = list(zip(batch.positions, repeat(0), batch.values, strict=False))
    records += [(rejected.position, 1, Malformed(rejected)) for rejected in batch.rejected]
    records.sort(key=lambda record: record[:2])
    return [record[2] for record in records], [record[0] for record in records]


class LatestTime:
    """The time that follows all those that the fronts of a worker have taken from the wall clock."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = MIN_TIME


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
        original: Returns the record at a position as it was read, or None.
        position: Of the last record before `start`, in a front that goes on; None: it is at its beginning.
        snapshots: Whether snapshots are taken: then positions are remembered until the next one.
        ended: It had come to its end before `start`, and is not read again.
        journal: In a front of the wall clock that goes on: times given before, as (first, how many), to be given
            again to the first records it reads.
        end: In a front of the sequence clock that goes on: the time at which it has come to its end before.

    Attributes:
        latest: Shared by the fronts of a worker: they take their times from one clock, so what one reads after another
            comes after it.
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
        original: Callable[[Any], bytes | None] = lambda position: None,
        position: Any = None,
        snapshots: bool = False,
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
        self.latest = LatestTime()
        self._now_us = now_us or WALL_CLOCK.get()
        self._describe, self._original = describe, original
        self.position = position
        self.ended = ended
        self.uncommitted = 0
        self._trimmed = 0  # how many of these no snapshot will be in the midst of
        self._floor = start
        self._snapshots = snapshots
        self._admitted: deque[Admitted] = deque()
        self._uncut: deque[Admitted] = deque()
        self._journal = deque(journal)
        self._end = end

    @property
    def records_left(self) -> int | None:
        """How many records there are until it comes to its end, if it has been there before."""
        return None if self._end is None else max(self._end - self.next_time, 0)

    @property
    def times_left(self) -> int | None:
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
            self.latest.time = max(self.latest.time, self.next_time)
            self.in_flight += len(positions)
            batch = Admitted(first, positions, at)
            self._admitted.append(batch)
            if self._snapshots:
                self.uncommitted += len(positions)
                self._uncut.append(batch)
        return first

    @property
    def moves_on(self) -> bool:
        """Whether its time goes on by itself: the next record comes after all that its worker has read by then."""
        return self.clock == "wall" and not self._journal

    def promise(self) -> int:
        """No later record will get a time below this; for a front that has nothing to send."""
        if self._journal:
            return self._journal[0][0]
        self._move_on()
        return self.next_time

    def _move_on(self) -> None:
        now = max(self._now_us(), self.latest.time) if self.clock == "wall" else self._floor
        self.next_time = max(self.next_time, self._floor, now)

    def cut(self, time: int) -> tuple[Any, int]:
        """Where a front begins that goes on from `time`: (position of the last record below it, its next time).

        What is below `time` is forgotten: the next cut is no earlier.
        """
        self.trim(time)
        self.uncommitted -= self._trimmed
        self._trimmed = 0
        return self.position, self._uncut[0].first if self._uncut else max(self.next_time, time)

    def trim(self, time: int) -> None:
        """The next cut is no earlier than `time`: where the records below it stood is forgotten, but for the last."""
        uncut = self._uncut
        while uncut and uncut[0].first < time:
            first, positions, at = uncut.popleft()
            count = min(time - first, len(positions))
            self.position = positions[count - 1]
            self._trimmed += count
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
        found = self._positions(time)
        return self._describe(found[0]) if found else ""

    def original(self, time: int) -> bytes | None:
        """Return the record of that time as its source has it; None if that cannot be had."""
        found = self._positions(time)
        return self._original(found[0]) if found else None

    def _positions(self, time: int) -> Sequence[Any]:
        """Return the position of the record of that time, alone; nothing when it is no longer remembered."""
        place = bisect_right(self._admitted, time, key=lambda batch: batch.first) - 1
        if place < 0:
            return ()
        first, positions, _ = self._admitted[place]
        return (positions[time - first],) if time - first < len(positions) else ()
