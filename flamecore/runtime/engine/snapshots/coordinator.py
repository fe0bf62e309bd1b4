"""Snapshots while the job runs, on the control's side.

At intervals the control takes the time T below which every rear has stored all outputs, and tells the workers to
prepare (paper 000, "Fault tolerance"; `flamecore.runtime.engine.snapshots.participant`). When all parts are stored, and
the sinks have made their outputs below T durable, the snapshot is recorded. Outputs never wait for this.

Between two snapshots the control repeatedly sends the workers a lower bound of the next T. So a worker need not keep
all history until then: it sums up older history, a little at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from flamecore.errors import JobError
from flamecore.model.messages import Committed, Prepare, Prepared, Settled
from flamecore.model.plan import Plan
from flamecore.model.settings import StateTable
from flamecore.runtime.parts.completion import Completion
from flamecore.runtime.state.format import Manifest
from flamecore.runtime.state.history import History
from flamecore.runtime.tasks.rear_task import RearTask
from flamecore.runtime.tasks.sender import Sender

_SETTLED_S: Final = 0.02
"""Fewest seconds between two such bounds. History kept until then is in no snapshot, and must be scanned as a whole."""


class SnapshotCoordinator:
    """The control's side of snapshots: when to take one, and when it is complete.

    Args:
        plan: The job's plan.
        history: History that records snapshots.
        completion: Completion of the job, with the stored time.
        settings: Interval and time limit of snapshots.
        sender: Sender of the control.
        rears: Rears whose sinks make outputs durable.
        taken: Function called with every snapshot.
    """

    def __init__(
        self,
        plan: Plan,
        history: History,
        completion: Completion,
        settings: StateTable,
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
        """Note that a worker has stored its parts."""
        if message.number == self._number:
            self._answers[message.worker] = message
            if len(self._answers) == self._plan.workers:
                self._complete.set()

    def advance(self) -> None:
        """Send the workers a new bound of snapshots, if it is due.

        Called after each message to the control. Every snapshot from now on is of the bound or a later time.
        """
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
        """Take a snapshot whenever it is due, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            await self.commit()

    async def commit(self, *, first: bool = False) -> None:
        """Take a snapshot now, if there is anything new.

        Args:
            first: Whether to take the first one even without progress.

        Raises:
            JobError: The workers do not answer in time.
            StoreError, SinkError: State or outputs cannot be made durable.
        """
        async with self._busy:
            # Snapshots go on until a sink reaches a failing record, so that the next run repeats as little as possible.
            first = first and self._history.snapshot is None
            if (first or self._completion.stored > self._time) and not self._completion.reached:
                await self._take_snapshot(max(self._completion.stored, self._plan.start), first=first)

    async def finish(self) -> None:
        """Take the last snapshot of a job that is done, even if time has not advanced.

        Raises:
            JobError, StoreError, SinkError: As `commit`.
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
        """Take a snapshot.

        If it fails or is interrupted, no later one may be taken: workers do not repeat their cuts, so it would lack
        them.
        """
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
                # Announced before any sink is told: with the wall clock a sink whose snapshot then fails would be ahead
                # of all that the state accounts for.
                await self._history.announce(self._number, time)
                for syncing in self._rears:
                    await syncing.writer.sync(time)
                syncing = None
                manifest = await self._history.commit(self._number, time, answers)
        except TimeoutError:
            late = sorted(set(range(self._plan.workers)) - self._answers.keys())
            why = "the store does not answer"
            if late:
                why = f"no answer of worker {', '.join(map(str, late))}"
            elif syncing is not None:  # or it waits for a batch being written
                why = (
                    syncing.writer.deadline.pending
                    or f"sink {syncing.collector.name!r} has not made its output durable"
                )
            raise JobError(
                f"snapshot {self._number} is not complete after {limit:g} s; {why}",
                hint="Look at what is slow; state.commit_timeout_s says how long a snapshot may take.",
            ) from None
        self._time = time
        self._tell()
        self._taken(manifest)

    def _tell(self) -> None:
        if self._history.beginning:
            return  # rollback to the beginning is still possible
        oldest = self._history.snapshots[0]
        positions = tuple((front.number, front.position) for front in oldest.fronts)
        for worker in range(self._plan.workers):
            self._sender.send(f"worker/{worker}", Committed(self._number, oldest.time, positions))
