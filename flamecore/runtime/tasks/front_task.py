"""Feeds a front: reads its partition within its credit, and lets time go on while nothing comes."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from flamecore.abc.source import Batch, Reader
from flamecore.model.messages import CONTROL, FrontEnded
from flamecore.model.plan import Plan
from flamecore.runtime.config.guard import check_batch
from flamecore.runtime.parts.front import Front
from flamecore.runtime.tasks.deadlines import CallDeadline, Deadlines
from flamecore.runtime.tasks.event_loop import monotonic
from flamecore.runtime.tasks.worker_task import WorkerTask

_STEP_S: Final = 0.005
_LONG_STEP_S: Final = 0.02
"""How long one batch should keep the event loop: what follows waits that long at most. Long while the source has more
than is asked for: what it has waits for longer anyway, and larger batches cost less."""

_LEAST: Final = 1
_MOST: Final = 1024


class Ended(Reader):
    """A partition that was read to its end before."""

    async def read(self, limit: int) -> Batch | None:
        return None


class FrontTask:
    """Reads one partition and admits its records.

    Args:
        front: Stamps the records.
        reader: Reads them.
        worker_task: The worker that hosts the front.
        plan: Says how much credit a front has, and what becomes of malformed records.
        stop: Set when no more is to be read.
        max_uncommitted: Most records admitted since the last snapshot; None: there are no snapshots.
        deadline: Of the reader.
    """

    def __init__(
        self,
        front: Front,
        reader: Reader,
        worker_task: WorkerTask,
        plan: Plan,
        stop: asyncio.Event,
        max_uncommitted: int | None = None,
        deadline: CallDeadline | None = None,
    ) -> None:
        self.front = front
        self._uncommitted = max_uncommitted
        self._deadline = deadline or Deadlines().source(front.name)
        self._reader = reader
        self._worker_task = worker_task
        self._credit = max(plan.max_in_flight // len(plan.fronts), 1)
        self._policy = plan.policies.get(front.name.source, "fail")
        # The sequence clock counts records: its time stands still without them, and there is nothing to tell.
        # An only front keeps nobody waiting either.
        ticking = plan.clock == "wall" and len(plan.fronts) > 1
        self._interval = plan.heartbeat_interval_s if ticking else None
        self._stop = stop
        self._snapshots = plan.snapshots
        self._exhausted = front.ended
        self._limit = 16
        self.held_back = False
        """Whether it stands still until there is credit again."""
        self._room = asyncio.Event()

    def wake(self) -> None:
        """Some of what was admitted has been delivered, or is in a snapshot."""
        self._room.set()

    async def run(self) -> None:
        """To the end of the partition, or until stopped.

        Raises:
            SourceError: The partition cannot be read, or its reader does not leave off.
        """
        front, worker_task = self.front, self._worker_task
        if self._snapshots:  # it may go on from a later time than others
            worker_task.worker.heartbeat(front.number)
            worker_task.flush()
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set() and not front.ended:
                batch = await self._next(stopping)
                if batch is None:
                    break
                self._admit(batch)
                await asyncio.sleep(0)  # everyone else's turn
        finally:
            stopping.cancel()
        stopped = self._snapshots and not self._exhausted
        end = (worker_task.worker.stop_front if stopped else worker_task.worker.end_front)(front.number)
        worker_task.flush()
        worker_task.sender.send(CONTROL, FrontEnded(front.number, end, stopped))

    async def _next(self, stopping: asyncio.Task[Any]) -> Batch | None:
        """The next batch, when there is credit for it; None at the end or when stopped.

        Credit comes back bit by bit: waiting for a batch's worth of it keeps batches from becoming ever smaller.
        """
        if self.front.records_left == 0:
            self._exhausted = True
            return None
        wanted = min(self._limit, max(self._credit // 4, 1))
        while self._credit - self.front.in_flight < wanted or self._waits_for_a_snapshot():
            self.held_back = True
            self._room.clear()
            room = asyncio.ensure_future(self._room.wait())
            await self._first(room, stopping)
            if stopping.done():
                return None
        self.held_back = False
        limit = min(self._limit, self._credit - self.front.in_flight)
        left = self.front.records_left
        reading = asyncio.ensure_future(self._reader.read(limit if left is None else min(limit, left)))
        await self._first(reading, stopping)
        if reading.cancelled():
            return None
        batch = reading.result()
        check_batch(self._reader, batch, left)
        self._exhausted = batch is None
        return batch

    def _waits_for_a_snapshot(self) -> bool:
        return self._uncommitted is not None and self.front.uncommitted >= self._uncommitted

    async def _first(self, wanted: asyncio.Future[Any], stopping: asyncio.Task[Any]) -> None:
        """Wait for one thing or for the order to stop, letting time go on meanwhile."""
        try:
            while not wanted.done() and not stopping.done():
                await asyncio.wait((wanted, stopping), timeout=self._interval, return_when=asyncio.FIRST_COMPLETED)
                if not wanted.done() and not stopping.done():
                    self._worker_task.worker.heartbeat(self.front.number)
                    self._worker_task.flush()
        finally:
            if not wanted.done():
                wanted.cancel()
                await self._deadline.wait_cancelled(wanted, "leave off reading")

    def _admit(self, batch: Batch) -> None:
        start = monotonic()
        self._worker_task.admit(self.front.number, batch, start, self._policy)
        # As many records at a time as fit the step, so that a costly flow does not keep the others waiting.
        took = monotonic() - start
        full = len(batch.values) >= self._limit
        step = _LONG_STEP_S if full else _STEP_S
        if took > step:
            self._limit = max(self._limit // 2, _LEAST)
        elif took < step / 2 and full:
            self._limit = min(self._limit * 2, _MOST)
