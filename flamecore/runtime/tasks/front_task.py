"""The tasks of fronts: reading within their credit, and heartbeats."""

from __future__ import annotations

import asyncio
from typing import Final

from flamecore.abc.source import Batch, Reader
from flamecore.model.failure import ending_error
from flamecore.model.messages import CONTROL, FrontEnded
from flamecore.model.plan import Plan
from flamecore.runtime.config.guard import check_batch
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.room import Room
from flamecore.runtime.tasks.deadlines import CallDeadline, Deadlines
from flamecore.runtime.tasks.event_loop import monotonic
from flamecore.runtime.tasks.worker_task import WorkerTask

_STEP_S: Final = 0.005
_LONG_STEP_S: Final = 0.02
"""Seconds that one batch should keep the event loop, which others wait for. The longer one holds while the source has
more records than asked for: these wait longer anyway, and larger batches cost less."""

_LEAST: Final = 1
_MOST: Final = 1024


class Ended(Reader):
    """A reader of a partition that had ended before."""

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


class FrontTask:
    """The task that reads one partition and admits its records.

    Args:
        front: Front of the partition.
        reader: Reader of the partition.
        worker_task: Task of the worker that hosts the front.
        plan: The job's plan, with the policies for malformed records.
        room: Credit of the worker's fronts.
        stop: Event that stops reading.
        deadline: Deadline of the reader.
        again: Whether a later run may give the unread records the same times: then outputs behind them are left to it.
    """

    def __init__(
        self,
        front: Front,
        reader: Reader,
        worker_task: WorkerTask,
        plan: Plan,
        room: Room,
        stop: StopSignal,
        deadline: CallDeadline | None = None,
        *,
        again: bool = False,
    ) -> None:
        self.front = front
        self._deadline = deadline or Deadlines().source(front.name)
        self._reader = reader
        self._worker_task = worker_task
        self._room = room
        self._policy = plan.settings.source_policies.get(front.name.source, "fail")
        self._stop = stop
        self._snapshots, self._again = plan.snapshots, again or plan.snapshots
        self._exhausted = front.ended
        self._given_up = False
        self._limit = 16
        self.held_back = False
        """True while it waits for credit."""
        self._woken = asyncio.Event()

    def counts(self) -> NodeStats:
        """Return this front's share of the counters."""
        return NodeStats(in_flight=self.front.in_flight, held_back=int(self.held_back))

    def wake(self) -> None:
        """Continue if there is room, after records were delivered or committed."""
        if self.held_back and self._may_read():
            self._woken.set()

    async def run(self) -> None:
        """Run to the end of the partition, or until stopped.

        Raises:
            SourceError: The partition cannot be read, or its reader does not stop.
        """
        front, worker_task = self.front, self._worker_task
        if self._snapshots:  # it may continue from a later time than others
            worker_task.worker.heartbeat(front.number)
            worker_task.flush()
        # One task reads from the first batch to the last: a task for each read costs more than a small batch does.
        reading, stopping = asyncio.create_task(self._read_to_the_end()), asyncio.create_task(self._stop.wait())
        worker_task.open_fronts[front.number] = None
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._given_up = True
            raise
        finally:
            stopping.cancel()
            if not reading.done():
                reading.cancel()
                await self._deadline.wait_cancelled(reading, "leave off reading")
            elif not reading.cancelled():
                reading.exception()  # reported by the canceller, as after a second Ctrl-C
            del worker_task.open_fronts[front.number]
        if not reading.cancelled():
            reading.result()
        stopped = (self._again or self._stop.failing) and not self._exhausted
        end = (worker_task.worker.stop_front if stopped else worker_task.worker.end_front)(front.number)
        worker_task.flush()
        worker_task.sender.send(CONTROL, FrontEnded(front.number, end, stopped))

    async def _read_to_the_end(self) -> None:
        """Read and admit to the end, or until cancelled.

        User code that raises `SystemExit` cannot end the program.
        """
        try:
            await self._read_on()
        except SystemExit as error:
            raise ending_error(error, f"the work of a {type(self).__name__}") from error

    async def _read_on(self) -> None:
        # A batch that a reader returns in spite of cancellation is admitted, too.
        front, reader, room = self.front, self._reader, self._room
        while not self._stop.is_set() and not front.ended:
            left = front.records_left
            if left == 0:
                self._exhausted = True
                return
            limit = await self._turn()
            try:
                batch = await reader.read(limit if left is None else min(limit, left))
            finally:
                room.release(front.number)
            check_batch(reader, batch, left)
            if self._given_up:
                return
            if batch is None:
                self._exhausted = True
                return
            self._admit(batch)

    async def _turn(self) -> int:
        """Return the number of records to read, once others had a turn and there is room."""
        while True:
            if self._may_read():
                await asyncio.sleep(0)
            else:
                self.held_back = True
                self._woken.clear()
                await self._woken.wait()
                self.held_back = False
            if limit := self._room.take(self.front.number, self._limit):
                return limit

    def _may_read(self) -> bool:
        return self._room.has_room(self.front.number, self._limit)

    def _admit(self, batch: Batch) -> None:
        start = monotonic()
        self._worker_task.admit(self.front.number, batch, start, self._policy)
        # The limit follows the step, so that a costly flow does not keep others waiting.
        took = monotonic() - start
        full = len(batch.values) >= self._limit
        step = _LONG_STEP_S if full else _STEP_S
        if took > step:
            self._limit = max(self._limit // 2, _LEAST)
        elif took < step / 2 and full:
            self._limit = min(self._limit * 2, _MOST)


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
            for number in worker_task.open_fronts:
                worker_task.worker.heartbeat(number)
            if worker_task.open_fronts:
                worker_task.flush()
