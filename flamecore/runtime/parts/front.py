"""Fronts, which give the records of a partition global times and keep positions.

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
    """Split a batch into its first `first` records, and the others."""
    places = sorted([*batch.positions, *(rejected.position for rejected in batch.rejected)])
    last = places[first - 1]
    count = sum(position <= last for position in batch.positions)
    early = [rejected for rejected in batch.rejected if rejected.position <= last]
    late = [rejected for rejected in batch.rejected if rejected.position > last]
    return (
        Batch(batch.values[:count], batch.positions[:count], early, batch.ahead),
        Batch(batch.values[count:], batch.positions[count:], late, batch.ahead),
    )


def merge_rejected(batch: Batch) -> tuple[list[object], list[object]]:
    """Return values and malformed records by position, and their positions."""
    records = list(zip(batch.positions, repeat(0), batch.values, strict=False))
    records += [(rejected.position, 1, Malformed(rejected)) for rejected in batch.rejected]
    records.sort(key=lambda record: record[:2])
    return [record[2] for record in records], [record[0] for record in records]


class LatestTime:
    """The time after all wall clock times taken by the fronts of a worker."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = MIN_TIME


class Admitted(NamedTuple):
    """Consecutive records of one batch, with times from `first` on, admitted at `at`."""

    first: int
    positions: Sequence[Any]
    at: float


class Front:
    """The source of global times of one partition, which strictly grow.

    It keeps the positions of records until they are delivered.

    Args:
        name: Source and partition.
        number: Its number among the job's fronts, from 1: the front part of global times.
        clock: "sequence" counts records from `start`: a replay gives the same times. "wall" takes microseconds since
            the epoch, so that fronts interleave by arrival.
        start: Lower bound of new times; those of `journal` may be below.
        now_us: The wall clock, in microseconds; default: `WALL_CLOCK`.
        describe: Function that formats a position.
        original: Function that returns the record at a position as it was read, or None.
        position: Position of the last record before `start`, in a continuing front; None: the beginning.
        snapshots: Whether snapshots are taken: positions are then kept until the next one.
        ended: Whether it had ended before `start`, and is not read again.
        journal: Times given earlier, as (first, number of records), in a continuing front of the wall clock. They are
            given again to the first records it reads.
        end: Time at which a continuing front of the sequence clock ended earlier.

    Attributes:
        latest: Latest time, shared by the fronts of a worker: of two records read one after the other, the second has
            the later time.
    """

    def __init__(
        self,
        name: FrontId,
        number: int,
        *,
        clock: ClockName = "sequence",
        start: int = 0,
        now_us: Callable[[], int] | None = None,
        describe: Callable[[object], str] = str,
        original: Callable[[object], bytes | None] = lambda position: None,
        position: object = None,
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
        self._trimmed = 0  # number of these below the time of the last trim
        self._floor = start
        self._snapshots = snapshots
        self._admitted: deque[Admitted] = deque()
        self._uncut: deque[Admitted] = deque()
        self._journal = deque(journal)
        self._end = end

    @property
    def records_left(self) -> int | None:
        """Return the number of records until its earlier end; None if it has none."""
        return None if self._end is None else max(self._end - self.next_time, 0)

    @property
    def times_left(self) -> int | None:
        """Return the number of records for the next journaled times; None: no limit."""
        return self._journal[0][1] if self._journal else None

    def stamp(self, positions: Sequence[object], at: float) -> int:
        """Give consecutive times to as many records as positions; return the first.

        Args:
            positions: Position of each record.
            at: Arrival of the batch, on a monotonic clock in seconds: release latency is measured from here.
        """
        if self._journal and positions:
            first, count = self._journal.popleft()
            self.next_time = first
            # Fewer records than were journaled together: the rest get the rest of the times.
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

    def stamp_end(self) -> int:
        """Give its end a time of its own, and return it.

        For snapshots and journals it is that of one more record at the last position: where a front goes on from before
        it, its end gets the same time again.
        """
        position = self._uncut[-1].positions[-1] if self._uncut else self.position
        admitted, in_flight = self._admitted.copy(), self.in_flight
        time = self.stamp((position,), 0.0)
        self._admitted, self.in_flight = admitted, in_flight  # nothing is delivered of it
        return time

    @property
    def moves_on(self) -> bool:
        """Return whether its time advances by itself.

        Its next record then comes after all records that its worker has read before.
        """
        return self.clock == "wall" and not self._journal

    def promise(self) -> int:
        """Return a time below which no later record will be; for a front without records."""
        if self._journal:
            return self._journal[0][0]
        self._move_on()
        return self.next_time

    def _move_on(self) -> None:
        now = max(self._now_us(), self.latest.time) if self.clock == "wall" else self._floor
        self.next_time = max(self.next_time, self._floor, now)

    def cut(self, time: int) -> tuple[object, int]:
        """Return (position of the last record below `time`, next time).

        A front that continues from `time` begins there. Positions below `time` are dropped: the next cut is no earlier.
        """
        self.trim(time)
        self.uncommitted -= self._trimmed
        self._trimmed = 0
        return self.position, self._uncut[0].first if self._uncut else max(self.next_time, time)

    def trim(self, time: int) -> None:
        """Drop the positions of records below `time`, except the last.

        The next cut is no earlier.
        """
        uncut = self._uncut
        while uncut and uncut[0].first < time:
            first, positions, at = uncut.popleft()
            count = min(time - first, len(positions))
            self.position = positions[count - 1]
            self._trimmed += count
            if count < len(positions):
                uncut.appendleft(Admitted(first + count, positions[count:], at))

    def delivered(self, before: int) -> list[tuple[float, int]]:
        """Drop records below `before`; return their (arrival time, number of records)."""
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
        """Return the formatted position of the record of a time; empty if it was dropped."""
        found = self._positions(time)
        return self._describe(found[0]) if found else ""

    def original(self, time: int) -> bytes | None:
        """Return the record of a time as its source has it; None if unavailable."""
        found = self._positions(time)
        return self._original(found[0]) if found else None

    def _positions(self, time: int) -> Sequence[object]:
        """Return a sequence with the position of the record of a time; empty if dropped."""
        place = bisect_right(self._admitted, time, key=lambda batch: batch.first) - 1
        if place < 0:
            return ()
        first, positions, _ = self._admitted[place]
        return (positions[time - first],) if time - first < len(positions) else ()
