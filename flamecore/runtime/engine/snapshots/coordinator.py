"""Snapshots while the job runs (paper 000, "Fault tolerance"): the control's side.

Every so often the control takes the time T below which every rear has stored all, and tells the workers to prepare
(`flamecore.runtime.engine.snapshots.participant`). When all parts are stored, and the sinks have made durable what is
below T, the snapshot is recorded. Outputs never wait for any of this.

Between two snapshots the control tells the workers, again and again, of a time that the next T will not be below. So a
worker need not keep all that happens until then: what is older it sums up, a little at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from flamecore.errors import JobError
from flamecore.model.messages import Committed, Prepare, Prepared, Settled
from flamecore.model.plan import Plan
from flamecore.runtime.config.settings import StateSettings
from flamecore.runtime.parts.completion import Completion
from flamecore.runtime.state.format import Manifest
from flamecore.runtime.state.history import History
from flamecore.runtime.tasks.rear_task import RearTask
from flamecore.runtime.tasks.sender import Sender

_SETTLED_S: Final = 0.02
"""How often workers are told what is settled, at most: what they hold until then is in no snapshot, and all of it has
to be looked at once."""


class SnapshotCoordinator:
    """The control's side: when a snapshot is taken, and when it is one.

    Args:
        plan: The job's.
        history: Records snapshots.
        completion: Knows what is stored.
        settings: How often, and how long one may take.
        sender: Sends to the workers.
        rears: Make durable what a snapshot relies on.
        taken: Told of every snapshot.
    """

    def __init__(
        self,
        plan: Plan,
        history: History,
        completion: Completion,
        settings: StateSettings,
        sender: Sender,
        rears: Sequence[RearTask],
        taken: Callable[[Manifest], None] = lambda manifest: None,
    ) -> None:
        self._plan, self._history, self._completion = plan, history, completion
        self._settings, self._sender, self._rears, self._taken = settings, sender, rears, taken
        last = history.snapshot
        self._number = last.number if last is not None else 0
        self._time = last.time if last is not None else plan.start - 1
        self._settled = self._time
        self._told_at = -_SETTLED_S
        self._answers: dict[int, Prepared] = {}
        self._complete = asyncio.Event()
        self._busy = asyncio.Lock()
        self._torn = False

    def receive(self, message: Prepared) -> None:
        """A worker has stored its part."""
        if message.number == self._number:
            self._answers[message.worker] = message
            if len(self._answers) == self._plan.workers:
                self._complete.set()

    def advance(self) -> None:
        """The control has heard something. Tells the workers what is settled, if there is anything new, now and then:
        every snapshot from now on is of that time or a later one."""
        time = self._completion.stored
        if time <= self._settled:
            return
        now = asyncio.get_running_loop().time()
        if now - self._told_at < _SETTLED_S:
            return
        self._settled, self._told_at = time, now
        for worker in range(self._plan.workers):
            self._sender.send(f"worker/{worker}", Settled(time))

    async def run(self) -> None:
        """A snapshot whenever it is due; until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            await self.commit()

    async def commit(self, *, first: bool = False) -> None:
        """Take a snapshot now, if there is anything new.

        Args:
            first: Whether there is to be one even if nothing has been done yet.

        Raises:
            JobError: The workers do not get ready in time.
            StoreError, SinkError: What must be durable cannot be made so.
        """
        async with self._busy:
            # While a slow sink is yet to come to a record that fails, the next run is to repeat as little as ever.
            first = first and self._history.snapshot is None
            if (first or self._completion.stored > self._time) and not self._completion.reached:
                await self._take_snapshot(max(self._completion.stored, self._plan.start), first=first)

    async def finish(self) -> None:
        """Take the last snapshot of a job that is done: also where time stands still, for fronts have ended.

        Raises as `commit`.
        """
        async with self._busy:
            await self._take_snapshot(max(self._completion.stored, self._plan.start))

    async def _take_snapshot(self, time: int, *, first: bool = False) -> None:
        if self._torn:
            raise JobError("an earlier snapshot has failed, and with it what was cut for it: none is taken any more")
        self._torn = True
        await self._try_snapshot(time, first=first)
        self._torn = False

    async def _try_snapshot(self, time: int, *, first: bool) -> None:
        """Take a snapshot. Once that has failed, or was broken off, what the workers have cut for it they do not cut
        again, and a later snapshot would lack it."""
        self._number += 1
        self._answers.clear()
        self._complete.clear()
        self._settled = max(self._settled, time)
        for worker in range(self._plan.workers):
            self._sender.send(f"worker/{worker}", Prepare(self._number, time))
        limit = self._settings.commit_timeout_s
        syncing: RearTask | None = None
        try:
            async with asyncio.timeout(limit):
                await self._complete.wait()
                answers = [self._answers[worker] for worker in range(self._plan.workers)]
                if not first and not self._history.changed_by(answers):
                    self._time = time
                    await self._history.tidy_once()
                    return
                await self._history.announce(self._number, time)
                for syncing in self._rears:
                    await syncing.sync(time)
                syncing = None
                manifest = await self._history.commit(self._number, time, answers)
        except TimeoutError:
            late = sorted(set(range(self._plan.workers)) - self._answers.keys())
            why = "the store does not answer"
            if late:
                why = f"no answer of worker {', '.join(map(str, late))}"
            elif syncing is not None:  # or waiting until it may be
                why = syncing.deadline.pending or f"sink {syncing.collector.name!r} has not made its output durable"
            raise JobError(
                f"snapshot {self._number} is not complete after {limit:g} s; {why}",
                hint="Look at what is slow; state.commit_timeout_s says how long a snapshot may take.",
            ) from None
        self._time = time
        self._tell()
        self._taken(manifest)

    def _tell(self) -> None:
        if self._history.beginning:
            return  # which may have to be gone back to
        oldest = self._history.snapshots[0]
        positions = tuple((front.number, front.position) for front in oldest.fronts)
        for worker in range(self._plan.workers):
            self._sender.send(f"worker/{worker}", Committed(self._number, oldest.time, positions))
