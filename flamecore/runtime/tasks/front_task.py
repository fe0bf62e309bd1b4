"""The tasks of fronts: reading within their credit, and heartbeats.

Partitions whose readers never wait share a task: with a task for each of two hundred files, the event loop would cost
more than a small batch does. Any other has a task of its own, since a read may take as long as its source likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from flamecore.abc.source import Batch, Reader
from flamecore.model.messages import CONTROL, FrontEnded, Full
from flamecore.model.plan import Plan
from flamecore.runtime.config.guard import check_batch
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.lowest import Lowest
from flamecore.runtime.parts.room import Room
from flamecore.runtime.tasks.deadlines import CallDeadline, Deadlines
from flamecore.runtime.tasks.event_loop import clock, ended_by_errors, monotonic
from flamecore.runtime.tasks.worker_task import WorkerTask

_STEP_S: Final = 0.005
_LONG_STEP_S: Final = 0.02
"""Seconds that one batch should keep the event loop, which others wait for. The longer one holds while the source has
more records than asked for: these wait longer anyway, and larger batches cost less."""

_LEAST: Final = 1
# Half of the records that a job admits by default, so that the next batch is read while the one before is on its way.
# The cost of tasks and messages for each batch is then small beside that of its records. Partitions that are read in
# turn share it: their records run together, and a whole credit of them would not stay in the processor's cache so long.
_MOST: Final = 4096
_FEW: Final = 64
"""Records of a batch below which reading it costs more than a smaller round saves."""

_MANY: Final = 1024
_TURNS: Final = 8
"""After a round of so many records others have so many turns at most, until nothing of it is in flight, if rears are
here. What they do then finds it in the caches of the processor; and a snapshot that is due has less to set apart."""


class Ended(Reader):
    """A reader of a partition that had ended before."""

    waits = False

    async def read(self, limit: int) -> Batch | None:
        return None


class StopSignal(asyncio.Event):
    """The order to read no more.

    Attributes:
        failing: Whether a failed record ends the job.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failing = False

    def fail(self) -> None:
        """Stop reading because of a failed record.

        Sinks that its operation does not lead to may go past it, but not past what is left unread: a later run that
        continues such a sink would not deliver that any more.
        """
        self.failing = True
        self.set()


class Reading:
    """A partition that is read, and its front.

    Args:
        front: Front of the partition.
        reader: Reader of the partition.
        policy: Treatment of malformed records, as for `Worker.admit`.
        deadline: Deadline of the reader.
        again: Whether a later run may give the unread records the same times: then outputs behind them are left to it.
    """

    __slots__ = ("again", "deadline", "exhausted", "front", "limit", "policy", "read", "read_s", "reader", "unfinished")

    def __init__(
        self,
        front: Front,
        reader: Reader,
        policy: str = "fail",
        deadline: CallDeadline | None = None,
        *,
        again: bool = False,
    ) -> None:
        self.front, self.reader, self.policy, self.again = front, reader, policy, again
        self.deadline = deadline or Deadlines().source(front.name)
        self.exhausted = front.ended
        self.limit = _LEAST
        """Most records of the next batch. At first the least, for a function may take seconds."""
        self.read_s = 0.0
        """Seconds of reading. If a read may wait, they are not known: others work meanwhile."""
        self.read = 0
        """Number of records read."""
        self.unfinished: str | None = None
        """A description of the rest of a record at its end. Empty: nothing, whatever an earlier epoch has left there.
        None: its end was not read."""

    def adapt(self, took_s: float, records: int) -> None:
        """Fit the limit to the last step, so that a costly flow does not delay others."""
        full = records >= self.limit
        step = _LONG_STEP_S if full else _STEP_S
        if took_s > step:
            self.limit = max(int(self.limit * step / took_s), _LEAST)  # as in a worker's steps
        elif took_s < step / 2 and full:
            self.limit = min(self.limit * 2, _MOST)


class _Group:
    """Partitions that have not ended, and whose records wait for each other.

    Args:
        readings: The partitions.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = dict(enumerate(readings))
        self._places = {reading: place for place, reading in self._readings.items()}
        self._behind = Lowest(self._readings, self._coming)

    def __bool__(self) -> bool:
        return bool(self._readings)

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._readings.values())

    def remove(self, reading: Reading) -> None:
        """Remove a partition that has ended."""
        del self._readings[self._places.pop(reading)]

    def furthest_behind(self) -> Reading:
        """Return the partition whose next time is the least."""
        found = self._behind.first()
        assert found is not None
        return self._readings[found[1]]

    def _coming(self, place: int) -> int | None:
        reading = self._readings.get(place)
        return None if reading is None else reading.front.coming


class FrontTask:
    """The task that reads a partition, or several in turn, and admits their records.

    Args:
        readings: A partition; or several whose readers never wait, so that none keeps the others waiting.
        worker_task: Task of the worker that hosts the fronts.
        plan: The job's plan.
        room: Credit of the worker's fronts.
        stop: Event that stops reading.

    Attributes:
        rears_here: Whether the rears are in this process.
    """

    def __init__(
        self, readings: Sequence[Reading], worker_task: WorkerTask, plan: Plan, room: Room, stop: StopSignal
    ) -> None:
        self.fronts = [reading.front for reading in readings]
        self._readings = readings
        merge_of = worker_task.worker.ingress.merge_of
        groups: dict[object, list[Reading]] = {}
        for reading in readings:
            groups.setdefault(merge_of.get(reading.front.number, reading), []).append(reading)
        self._groups = [_Group(group) for group in groups.values()]
        self._may_idle = [reading.front for reading in readings if reading.reader.waits]
        self._left = {reading: group for group in self._groups for reading in group}
        self._waiting: dict[Reading, None] = {}
        """Partitions that have nothing to read behind the end of the job, and wait for what others find."""
        self._decided = asyncio.Event()
        self._current = readings[0]
        self._limits: dict[str, int] = {}  # by source, the limit of the last partition that was read
        self._worker_task = worker_task
        self._room = room
        self._stop = stop
        self._snapshots = plan.snapshots
        self._given_up = False
        self.held_back = 0
        """Number of fronts, while all of them wait for credit."""
        self.rears_here = False
        self._admitted = 0  # number of records of the last round
        self._woken = asyncio.Event()
        self._time = monotonic
        self._now = 0.0  # time at the end of the last read, which the event loop is not asked for again
        worker_task.search.tasks.append(self)

    def counts(self) -> NodeStats:
        """Return the share of these fronts in the counters."""
        return NodeStats(
            in_flight=sum(front.in_flight for front in self.fronts),
            held_back=self.held_back,
            read={reading.front.number: reading.read for reading in self._readings},
            read_s={reading.front.number: reading.read_s for reading in self._readings},
            unfinished={each.front.number: each.unfinished for each in self._readings if each.unfinished is not None},
        )

    def wake(self) -> None:
        """Continue if there is room, after records were delivered or have come into a snapshot."""
        if self.held_back:
            if self._may_read():
                self._woken.set()
            else:
                self._ask_for_snapshot()

    async def run(self) -> None:
        """Run to the end of the partitions, or until stopped.

        Raises:
            SourceError: A partition cannot be read, or its reader does not stop.
        """
        worker_task = self._worker_task
        self._time = clock()  # looked up once, and not for each batch
        if self._snapshots:  # fronts may continue from a later time than others
            with worker_task.working:
                for front in self.fronts:
                    worker_task.worker.heartbeat(front.number)
                worker_task.flush()
        # One task reads from the first batch to the last: a task for each read costs more than a small batch does.
        reading, stopping = asyncio.create_task(self._read_to_the_end()), asyncio.create_task(self._stop.wait())
        worker_task.open_fronts.update(dict.fromkeys(front.number for front in self.fronts))
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._given_up = True
            raise
        finally:
            stopping.cancel()
            if not reading.done():
                reading.cancel()
                deadline = self._current.deadline
                with deadline.during("leave off reading"):
                    # Cancelled, and then waited for: a read in a thread goes on after the task has
                    # been cancelled, and its reader must not be closed meanwhile.
                    await deadline.wait_done(reading)
            elif not reading.cancelled():
                reading.exception()  # reported by the canceller, as after a second Ctrl-C
            for each in self._left:
                del worker_task.open_fronts[each.front.number]
        if not reading.cancelled():
            reading.result()
        rest, self._waiting = (*self._left, *self._waiting), {}
        if rest:
            await self._catch_up()
            self._end(rest)

    def end_waiting(self) -> None:
        """End the partitions that have waited for what others find behind the end of the job."""
        waiting, self._waiting = tuple(self._waiting), {}
        self._decided.set()
        if waiting:
            self._end(waiting)

    def _end_or_wait(self, readings: Sequence[Reading]) -> None:
        """End fronts, unless they wait for what others find behind the end of the job."""
        search, ended = self._worker_task.search, []
        for reading in readings:
            if search.must_wait(reading.front.number):
                self._waiting[reading] = None
                search.find_nothing(reading.front.number)
            else:
                ended.append(reading)
        if ended:
            self._end(ended)
        if len(ended) < len(readings):
            self._room.note()
            search.wake()

    def _end(self, readings: Sequence[Reading]) -> None:
        """End fronts, or stop those that a later run continues."""
        worker_task, ends = self._worker_task, []
        with worker_task.working:
            for reading in readings:
                number = reading.front.number
                goes_on = not reading.exhausted or worker_task.search.must_wait(number)
                stopped = (self._snapshots or reading.again or self._stop.failing) and goes_on
                end = (worker_task.worker.stop_front if stopped else worker_task.worker.end_front)(number)
                ends.append(FrontEnded(number, end, stopped))
            self._room.note()  # of what they no longer need others may read
            worker_task.flush()
        for word in ends:
            worker_task.sender.send(CONTROL, word)

    async def _read_to_the_end(self) -> None:
        """Read and admit to the end, or until cancelled."""
        with ended_by_errors(f"the work of a {type(self).__name__}"):
            while self._left and not self._stop.is_set():
                await self._wait_for_turn()
                await self._read_round()
            if self._waiting:
                await self._decided.wait()

    async def _wait_for_turn(self) -> None:
        """Yield to other tasks, and wait until there is room."""
        if self._may_read():
            await asyncio.sleep(0)
            await self._catch_up()
            for _ in range(_TURNS if self.rears_here and self._admitted >= _MANY else 0):
                if not self._room.in_flight:
                    break
                await asyncio.sleep(0)
            return
        self.held_back = len(self._left)
        for front in self._may_idle:
            front.waits_since = None  # not for its source, so it is not idle
        self._woken.clear()
        self._ask_for_snapshot()
        await self._woken.wait()
        self.held_back = 0

    async def _catch_up(self) -> None:
        """Yield to other tasks until nothing is left of the last round: records and marks come behind it."""
        while self._worker_task.is_behind:
            await asyncio.sleep(0)

    def _ask_for_snapshot(self) -> None:
        """Ask the control for a snapshot if no more may be read before it: the interval may be long."""
        if self._room.asks_for_snapshot():
            self._worker_task.sender.send(CONTROL, Full(self._worker_task.worker.index))

    def _may_read(self) -> bool:
        for group in self._groups:  # noqa: SIM110 - for each batch, in which a generator is a cost
            if group and self._has_room(group):
                return True
        return False

    # Of partitions whose records wait for each other, all others wait for the one that is furthest behind, and that
    # never waits for them. A round for any with room would read from some of many files, and the next from the others,
    # each in smaller batches that the merge then cuts.
    def _has_room(self, group: _Group) -> bool:
        """Return whether the partition that is furthest behind has room for a batch."""
        reading = group.furthest_behind()
        return reading.exhausted or self._room.has_room(reading.front.number, reading.limit)

    async def _read_round(self) -> None:
        """Read a batch of each partition of a group that has room; end those that are exhausted."""
        turn = self._now = self._time()
        self._admitted = 0
        most = max(_MOST // len(self._left), _FEW)
        ended = []
        for reading in chain.from_iterable([group for group in self._groups if group and self._has_room(group)]):
            if self._stop.is_set() or self._given_up:
                return
            # Others have a turn between two batches: many files that never wait would otherwise
            # keep the loop for a whole round.
            if turn < self._now - _STEP_S:
                await asyncio.sleep(0)
                await self._catch_up()
                turn = self._now = self._time()
            self._current = reading
            # Partitions that are read one after the other need not find out each for itself.
            if not reading.read:
                reading.limit = self._limits.get(reading.front.name.source, reading.limit)
            if not reading.exhausted and (limit := self._room.take(reading.front.number, min(reading.limit, most))):
                await self._read_all(reading, limit)
            if reading.exhausted:
                ended.append(reading)
        for reading in ended:
            self._left.pop(reading).remove(reading)
            del self._worker_task.open_fronts[reading.front.number]
        if ended:
            await self._catch_up()
            self._end_or_wait(ended)

    async def _read_all(self, reading: Reading, limit: int) -> None:
        """Read as many records as there is room for, in several batches if need be.

        A file returns fewer at the end of a chunk. Records of all other partitions would then wait for the rest, round
        after round: of many files some are always at the end of a chunk.
        """
        while limit:
            read = await self._read(reading, limit)
            if not read or len(self._left) == 1 or self._given_up or self._stop.is_set():
                return
            limit = self._room.take(reading.front.number, limit - read) if read < limit else 0

    async def _read(self, reading: Reading, limit: int) -> int:
        """Read and admit a batch, also one that a reader returns in spite of cancellation.

        Returns:
            The number of records; 0: there is nothing more to read.
        """
        front, left = reading.front, reading.front.records_left
        if left == 0:
            self._room.release(front.number)
            reading.exhausted = True
            return 0
        if reading.reader.waits and front.waits_since is None:
            front.waits_since = self._time()
        begun = self._time() if reading.reader.waits else self._now
        try:
            batch = await reading.reader.read(limit if left is None else min(limit, left))
        finally:
            self._room.release(front.number)
        # A reader that returns more values than positions would lose records without a word.
        check_batch(reading.reader, batch, left)
        if batch is None or len(batch.values) or batch.rejected:
            front.waits_since = None
        # Given up: what it returns is not admitted, and must not count as the end of the partition.
        if batch is None:
            reading.exhausted = not self._given_up
            if reading.exhausted:
                left_over = reading.reader.unfinished()
                reading.unfinished = "" if left_over is None else f"{left_over.place}: {left_over.reason}"
            return 0
        if not self._given_up:
            start = self._time()
            if not reading.reader.waits:
                reading.read_s += start - begun
            reading.read += len(batch.values)
            self._worker_task.admit(front.number, batch, start, reading.policy)
            self._now = self._time()
            reading.adapt(self._now - start, len(batch.values))
            self._admitted += len(batch.values)
            self._limits[reading.front.name.source] = reading.limit
        return len(batch.values) + len(batch.rejected)


class Heartbeats:
    """The heartbeats of a worker's fronts, whose time others wait for.

    Only the wall clock needs them. The sequence clock counts records: its time stands still without them.

    Args:
        worker_task: Task of the worker that hosts the fronts.
        interval_s: Seconds between heartbeats.
    """

    def __init__(self, worker_task: WorkerTask, interval_s: float) -> None:
        self._worker_task, self._interval_s = worker_task, interval_s

    async def run(self) -> None:
        """Run until cancelled."""
        worker_task = self._worker_task
        while True:
            await asyncio.sleep(self._interval_s)
            worker, now = worker_task.worker, monotonic()
            if not worker_task.open_fronts:
                continue
            with worker_task.working:
                for number in worker_task.open_fronts:
                    if (since := worker.fronts[number].waits_since) is not None:
                        worker.idle_front(number, (now - since) * 1_000_000)
                    worker.heartbeat(number)
                worker_task.flush()
