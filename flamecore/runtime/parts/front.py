"""Fronts, which give the records of a partition global times and keep positions.

A batch is admitted with its malformed records at their places among the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from flamecore.abc.source import Batch, Rejected
from flamecore.model.clock import WALL_CLOCK, ClockName
from flamecore.model.failure import Cause, Failure, shorten_repr
from flamecore.model.meta import MIN_TIME, FrontId, GlobalTime
from flamecore.runtime.state.journal import IDLE_MARK, LAST_MARK


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
            cause=Cause(self.rejected.reason),
            fatal=fatal,
            at=GlobalTime(time, front.number),
        )


def split(batch: Batch, first: int) -> tuple[Batch, Batch]:
    """Split a batch into its first `first` records, and the others."""
    # By position, since rejected records stand anywhere among the others.
    places = sorted([*batch.positions, *(rejected.position for rejected in batch.rejected)])
    last = places[first - 1]
    count = sum(position <= last for position in batch.positions)
    early = [rejected for rejected in batch.rejected if rejected.position <= last]
    late = [rejected for rejected in batch.rejected if rejected.position > last]
    return (
        Batch(batch.values[:count], batch.positions[:count], early, batch.fresh),
        Batch(batch.values[count:], batch.positions[count:], late, batch.fresh),
    )


def merge_rejected(batch: Batch) -> tuple[list[object], list[object]]:
    """Return values and malformed records by position, and their positions."""
    records = list(zip(batch.positions, batch.values, strict=False))
    records += [(rejected.position, Malformed(rejected)) for rejected in batch.rejected]
    records.sort(key=itemgetter(0))
    return [value for _, value in records], [position for position, _ in records]


class LatestTime:
    """The time after all wall clock times taken by the fronts of a worker."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = MIN_TIME


class Admitted(NamedTuple):
    """Consecutive records of one batch, with times from `first` on, admitted at `at`.

    Their number, `size`, is stored: positions may be of any class, whose length takes longer to tell.
    """

    first: int
    positions: Sequence[object]
    at: float
    size: int


class Undelivered:
    """The admitted records of a front that are not delivered, with their positions.

    Args:
        describe, original: As for `Front`.

    Attributes:
        count: Number of the records.
    """

    __slots__ = ("_batches", "_describe", "_original", "count")

    def __init__(self, describe: Callable[[object], str], original: Callable[[object], bytes | None]) -> None:
        self._describe, self._original = describe, original
        # No deque, which takes half a KiB for its first entry: there may be ten thousands of fronts.
        self._batches: list[Admitted] = []
        self.count = 0

    def add(self, batch: Admitted) -> None:
        """Add a batch that was admitted."""
        self._batches.append(batch)
        self.count += batch.size

    @property
    def first(self) -> int | None:
        """Return the time of the first of them; None if there are none."""
        return self._batches[0].first if self._batches else None

    def remove(self, before: int) -> list[tuple[float, int]]:
        """Remove records below a time; return their (arrival time, number of records)."""
        done, gone = [], 0
        for first, positions, at, total in self._batches:
            if first >= before:
                break
            if first + total <= before:  # as mostly
                done.append((at, total))
                gone += 1
                continue
            count = before - first
            # A batch may be delivered in part: the rest keeps its positions, which errors and dead
            # letters show.
            self._batches[gone] = Admitted(before, positions[count:], at, total - count)
            done.append((at, count))
            break
        del self._batches[:gone]
        self.count -= sum([count for _, count in done])
        return done

    def where(self, time: int) -> str:
        """Return the formatted position of the record of a time; empty if it was removed."""
        found = self._positions(time)
        return self._describe(found[0]) if found else ""

    def original(self, time: int) -> bytes | None:
        """Return the record of a time as its source has it; None if unavailable."""
        found = self._positions(time)
        return self._original(found[0]) if found else None

    def _positions(self, time: int) -> Sequence[object]:
        """Return a sequence with the position of the record of a time; empty if removed."""
        place = bisect_right(self._batches, time, key=lambda batch: batch.first) - 1
        if place < 0:
            return ()
        first, positions, _, count = self._batches[place]
        return (positions[time - first],) if time - first < count else ()


class Uncut:
    """The admitted records of a front that are in no snapshot, with their positions.

    Args:
        position: Position of the last record before them; None: the beginning.
        kept: Whether there are snapshots; without them nothing is kept.

    Attributes:
        count: Number of the records.
    """

    __slots__ = ("_batches", "_kept", "_position", "_trimmed", "count")

    def __init__(self, position: object, *, kept: bool) -> None:
        self._position, self._kept = position, kept
        self._batches: list[Admitted] = []
        self._trimmed = 0  # number of these below the time of the last trim
        self.count = 0

    @property
    def last(self) -> object:
        """Return the position of the last record."""
        return self._batches[-1].positions[-1] if self._batches else self._position

    def add(self, batch: Admitted) -> None:
        """Add a batch that was admitted."""
        if self._kept:
            self._batches.append(batch)
            self.count += batch.size

    def trim(self, time: int) -> None:
        """Drop the positions of records below a time, except the last."""
        batches, gone = self._batches, 0
        for first, positions, at, total in batches:
            if first >= time:
                break
            count = min(time - first, total)
            self._position = positions[count - 1]
            self._trimmed += count
            if count < total:
                batches[gone] = Admitted(first + count, positions[count:], at, total - count)
                break
            gone += 1
        del batches[:gone]

    def cut(self, time: int, next_time: int) -> tuple[object, int]:
        """Remove the records below a time; return the last position and the next time.

        Args:
            time: Time of the snapshot.
            next_time: Next time of the front.
        """
        self.trim(time)
        self.count -= self._trimmed
        self._trimmed = 0
        return self._position, self._batches[0].first if self._batches else max(next_time, time)


class EarlierTimes:
    """The times that an earlier run gave, which a continuing front gives again.

    Args:
        journal, end: As for `Front`.
    """

    __slots__ = ("_before_end", "_end", "_times")

    def __init__(self, journal: Iterable[tuple[int, int]], end: int | None) -> None:
        self._times = deque(journal)
        self._end = end
        numbers = [records for _, records in self._times]
        # The first end counts: what came later was read by another run, and is read again by another one.
        ended = numbers.index(LAST_MARK) if LAST_MARK in numbers else None
        self._before_end = None if ended is None else sum(records for records in numbers[:ended] if records > 0)

    @property
    def first(self) -> int | None:
        """Return the first of these times; None if there are none left."""
        return self._times[0][0] if self._times else None

    @property
    def count(self) -> int | None:
        """Return the number of records for the first of them; None if there are none left."""
        return max(self._times[0][1], 1) if self._times else None

    @property
    def is_idle(self) -> bool:
        """Return whether the first of them is that of a mark of an idle front."""
        return bool(self._times) and self._times[0][1] == IDLE_MARK

    def take(self, most: int) -> int:
        """Take the times of so many records at most; return the first."""
        first, count = self._times.popleft()
        # Fewer records than were journaled together: the rest get the rest of the times.
        if count > most:
            self._times.appendleft((first + most, count - most))
        if count > 0 and self._before_end is not None:
            self._before_end -= min(count, most)
        return first

    def left(self, next_time: int) -> int | None:
        """Return the number of records from a time to its earlier end; None if it had none."""
        return self._before_end if self._end is None else max(self._end - next_time, 0)


class FrontClock:
    """The clock that new times of a front are taken from.

    Args:
        kind, now_us: As for `Front`.
        floor: Lower bound of new times.
    """

    __slots__ = ("_floor", "_now_us", "is_wall")

    def __init__(self, kind: ClockName, now_us: Callable[[], int] | None, floor: int) -> None:
        self.is_wall = kind == "wall"
        self._now_us = now_us or WALL_CLOCK.get()
        self._floor = floor

    def read(self, latest: int) -> int:
        """Return a lower bound of the next time.

        Args:
            latest: Latest time of all fronts of the worker.
        """
        return max(self._floor, self._now_us(), latest) if self.is_wall else self._floor


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
            given again to the first records it reads. With the number `IDLE_MARK` or `LAST_MARK`: to the same mark.
        end: Time at which a continuing front ended earlier, if its clock counts.
        is_behind_end: Whether it goes on behind the end of the job, and no record is known to be there; see
            `flamecore.runtime.parts.search`.

    Attributes:
        is_behind_end: As the argument, until a record is found.
        latest: Latest time, shared by the fronts of a worker: of two records read one after the other, the second has
            the later time.
        is_idle: Whether it has been said that it is idle since its last record.
        end_time: Time of the mark of its end; None: it has said none.
        changed: Function called with the front after each change of what it has in flight or in no snapshot, and of
            whether it has ended or waits for others.
        waits_since: Since when it waits for its source, on a monotonic clock in seconds; None: it does not.
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
        is_behind_end: bool = False,
    ) -> None:
        self.name = name
        self.number = number
        self._clock = FrontClock(clock, now_us, start)
        self.is_behind_end = is_behind_end
        self._waits_for_others = False
        self.next_time = start
        self.suffix = number.to_bytes(4, "big")
        self.latest = LatestTime()
        self._ended = ended
        self.changed: Callable[[Front], None] | None = None
        self.is_idle = False
        self.end_time: int | None = None
        self.waits_since: float | None = None
        earlier = EarlierTimes(journal, end)
        # Nothing to look for in most fronts, at each of many small reads.
        self._earlier = None if earlier.first is None and end is None else earlier
        self._undelivered = Undelivered(describe, original)
        self._uncut = Uncut(position, kept=snapshots)

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self._ended

    @ended.setter
    def ended(self, ended: bool) -> None:
        self._ended = ended
        self._tell()

    @property
    def waits_for_others(self) -> bool:
        """Return whether it has nothing more to read, and waits for what others find behind the end."""
        return self._waits_for_others

    @waits_for_others.setter
    def waits_for_others(self, waits: bool) -> None:
        self._waits_for_others = waits
        self._tell()

    def _tell(self) -> None:
        if self.changed is not None:
            self.changed(self)

    @property
    def in_flight(self) -> int:
        """Return the number of records that are not delivered."""
        return self._undelivered.count

    @property
    def first_in_flight(self) -> int | None:
        """Return the time of the first record that is not delivered; None if there is none."""
        return self._undelivered.first

    @property
    def uncommitted(self) -> int:
        """Return the number of records that are in no snapshot."""
        return self._uncut.count

    @property
    def records_left(self) -> int | None:
        """Return the number of records until its earlier end; None if it has none."""
        return None if self._earlier is None else self._earlier.left(self.next_time)

    @property
    def times_left(self) -> int | None:
        """Return the number of records for the next journaled times, the most of one batch; None: no limit."""
        return None if self._earlier is None else self._earlier.count

    def stamp(self, positions: Sequence[object], at: float) -> int:
        """Give consecutive times to as many records as positions; return the first.

        Args:
            positions: Position of each record, `times_left` at most.
            at: Arrival of the batch, on a monotonic clock in seconds: release latency is measured from here.
        """
        count = len(positions)
        first = self._next(count)
        if count:
            self.is_idle = False
            batch = Admitted(first, positions, at, count)
            self._undelivered.add(batch)
            self._uncut.add(batch)
            self._tell()
        return first

    def stamp_end(self) -> int:
        """Give its end a time of its own, and return it.

        For snapshots and journals it is that of one more record at the last position: where a front goes on from before
        it, its end gets the same time again. Nothing is delivered of it.
        """
        self.end_time = self._stamp_mark()
        return self.end_time

    # A time of its own, since the wall clock decides when a front is idle: in the journal, a later
    # run finds the same mark at the same place.
    def stamp_idle(self) -> int:
        """Give the mark that it is idle a time of its own, as to its end, and return it."""
        self.is_idle = True
        return self._stamp_mark()

    @property
    def was_idle(self) -> bool:
        """Return whether the next of its earlier times is that of a mark that it was idle."""
        return self._earlier is not None and self._earlier.is_idle

    def _stamp_mark(self) -> int:
        position = self._uncut.last
        time = self._next(1)
        self._uncut.add(Admitted(time, (position,), 0.0, 1))
        self._tell()
        return time

    def _next(self, count: int) -> int:
        """Take consecutive times for so many records; return the first."""
        if self._earlier is None or self._earlier.first is None:
            self._move_on()
        elif count:
            # While there are earlier times no clock is asked: the same records get the same times, or
            # the sink would take them for new ones.
            self.next_time = self._earlier.take(count)
        first = self.next_time
        if count:
            self.next_time = next_time = first + count
            if next_time > self.latest.time:
                self.latest.time = next_time
        return first

    @property
    def coming(self) -> int:
        """Return its next time, as far as is known without a look at the clock; it never goes back."""
        if self._earlier is None or (first := self._earlier.first) is None:
            return self.next_time
        return first

    @property
    def moves_on(self) -> bool:
        """Return whether its time advances by itself.

        Its next record then comes after all records that its worker has read before.
        """
        return self._clock.is_wall and (self._earlier is None or self._earlier.first is None)

    def promise(self) -> int:
        """Return a time below which no later record will be; for a front without records."""
        if self._earlier is None or (first := self._earlier.first) is None:
            self._move_on()
            return self.next_time
        return first

    # Never back, whatever the clock of the machine does: after a jump backwards times go on from
    # the last one until it has caught up.
    def _move_on(self) -> None:
        if self._clock.is_wall:  # the others count from `start` on
            self.next_time = max(self.next_time, self._clock.read(self.latest.time))

    def cut(self, time: int) -> tuple[object, int]:
        """Return (position of the last record below `time`, next time).

        A front that continues from `time` begins there. Positions below `time` are dropped: the next cut is no earlier.
        """
        found = self._uncut.cut(time, self.next_time)
        self._tell()
        return found

    def trim(self, time: int) -> None:
        """Drop the positions of records below `time`, except the last.

        The next cut is no earlier.
        """
        self._uncut.trim(time)

    def delivered(self, before: int) -> list[tuple[float, int]]:
        """Drop records below `before`; return their (arrival time, number of records)."""
        done = self._undelivered.remove(before)
        if done:
            self._tell()
        return done

    def where(self, time: int) -> str:
        """Return the formatted position of the record of a time; empty if it was dropped."""
        return self._undelivered.where(time)

    def original(self, time: int) -> bytes | None:
        """Return the record of a time as its source has it; None if unavailable."""
        return self._undelivered.original(time)
