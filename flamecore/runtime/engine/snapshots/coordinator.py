"""Snapshots while the job runs, on the control's side.

At intervals, and when a worker has read as much as may be read between two snapshots, the control takes the time T
below which every rear has stored all outputs, and tells the workers to prepare (paper 000, "Fault tolerance";
`flamecore.runtime.engine.snapshots.participant`). When all parts are stored, and the sinks have made their outputs
below T durable, the snapshot is recorded. Outputs never wait for this.

A cut sets apart what workers have processed behind T, which is least right behind a delivery. So a snapshot that is due
is asked for with the next delivery, before the worker that hears of it admits more.

Between two snapshots the control repeatedly sends the workers a lower bound of the next T. So a worker need not keep
all history until then: it sums up older history, a little at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
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

_NEXT_DELIVERY_S: Final = 0.05
"""Most seconds that a snapshot that is due waits for a delivery."""


class _Ballot:
    """The answers of all workers to one request to prepare.

    Args:
        number: Number of the snapshot.
        workers: Number of workers.
    """

    def __init__(self, number: int, workers: int) -> None:
        self.number = number
        self._workers = range(workers)
        self._answers: dict[int, Prepared] = {}
        self._complete = asyncio.Event()

    def receive(self, message: Prepared) -> None:
        """Note an answer; one to another request does not count."""
        if message.number == self.number:
            self._answers[message.worker] = message
            if len(self._answers) == len(self._workers):
                self._complete.set()

    async def all_in(self) -> list[Prepared]:
        """Wait for all answers; return them in the order of the workers."""
        await self._complete.wait()
        return [self._answers[worker] for worker in self._workers]

    @property
    def late(self) -> list[int]:
        """Return the workers that have not answered."""
        return [worker for worker in self._workers if worker not in self._answers]


class _Bound:
    """The bound of later snapshots, as the workers were told it last.

    Args:
        time: The bound that they know from the start.
    """

    def __init__(self, time: int) -> None:
        self._time = time
        self._told_at = -_SETTLED_S

    def raise_to(self, time: int) -> None:
        """Note that the workers learn a time in another way."""
        self._time = max(self._time, time)

    def is_due(self, time: int, now: float) -> bool:
        """Return whether to tell the workers this time now; then they count as told."""
        if time <= self._time or now - self._told_at < _SETTLED_S:
            return False
        self._time, self._told_at = time, now
        return True


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
        self._ballot = _Ballot(last.number if last is not None else 0, plan.workers)
        self._time = last.time if last is not None else plan.start - 1
        self._bound = _Bound(self._time)
        self._busy = asyncio.Lock()
        self._stored = asyncio.Event()  # set when completion has come on
        self._asked = False  # whether the workers were asked to prepare a snapshot that nobody completes yet
        self._wanted = False  # whether a worker waits for the next snapshot, or it is due
        self._due = asyncio.Event()
        self._torn = False

    def receive(self, message: Prepared) -> None:
        """Note that a worker has stored its parts."""
        self._ballot.receive(message)

    def advance(self) -> None:
        """Send the workers a new bound of snapshots, if it is due.

        Called after each message to the control. Every snapshot from now on is of the bound or a later time.
        """
        self._stored.set()
        time = self._completion.stored
        if self._bound.is_due(time, asyncio.get_running_loop().time()):
            self._send(Settled(time))
        if self._wanted and time > self._time:
            # At once, and not by the task that completes it: until that has its turn, a worker admits more.
            if not (self._torn or self._asked or self._busy.locked() or self._completion.reached):
                self._ask(max(time, self._plan.start))
            self._due.set()

    def hasten(self) -> None:
        """Take the next snapshot before the interval is over: a worker waits for it.

        It is taken as soon as it would cover more than the last one.
        """
        self._wanted = True
        self.advance()

    async def run(self) -> None:
        """Take a snapshot whenever it is due, until cancelled."""
        while True:
            if not await self._is_due_within(self._settings.interval_s) and self._covers_more():
                self._wanted = True
                await self._is_due_within(min(_NEXT_DELIVERY_S, self._settings.interval_s))
            self._due.clear()
            async with self._busy:
                await self._take_snapshot()

    async def _is_due_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._due.wait()
        return self._due.is_set()

    async def commit(self, *, first: bool = False) -> None:
        """Take a snapshot now, if there is anything new.

        Args:
            first: Whether to take the first one even without progress.

        Raises:
            JobError: The workers do not answer in time.
            StoreError, SinkError: State or outputs cannot be made durable.
        """
        # One at a time: workers answer by number, and a cut holds what has changed since the one
        # before.
        async with self._busy:
            if self._asked:  # of an earlier time
                await self._take_snapshot()
            await self._take_snapshot(first=first)

    async def finish(self) -> None:
        """Take the last snapshot of a job that is done, even if time has not advanced.

        Raises:
            JobError, StoreError, SinkError: As `commit`.
        """
        async with self._busy:
            if self._asked:
                await self._take_snapshot()
            self._ask(max(self._completion.stored, self._plan.start))
            await self._take_snapshot()

    def _covers_more(self) -> bool:
        """Return whether a snapshot of now would cover more than the last one."""
        return self._completion.stored > self._time

    async def _take_snapshot(self, *, first: bool = False) -> None:
        """Complete the snapshot that the workers were asked for; if there is none, take one if there is anything new.

        If it fails or is interrupted, no later one may be taken: workers do not repeat their cuts, so it would lack
        them.
        """
        # Snapshots go on until a sink reaches a failing record, so that the next run repeats as little as possible.
        first = first and self._history.snapshot is None
        if not self._asked:
            if not (first or self._covers_more()) or self._completion.reached:
                return
            self._ask(max(self._completion.stored, self._plan.start))
        self._asked = False
        await self._complete()
        self._torn = False

    def _ask(self, time: int) -> None:
        """Ask the workers to prepare a snapshot."""
        if self._torn:
            raise JobError(
                "an earlier snapshot has failed, and the changes cut for it are lost: no further one is taken"
            )
        # Set before, and cleared only at the end: an error, a timeout and a cancellation all leave
        # it set.
        self._torn = self._asked = True
        self._ballot = _Ballot(self._ballot.number + 1, self._plan.workers)
        self._bound.raise_to(time)
        self._time, self._wanted = time, False
        self._send(Prepare(self._ballot.number, time))

    async def _complete(self) -> None:
        """Complete the snapshot that the workers were asked for last."""
        ballot, number, time = self._ballot, self._ballot.number, self._time
        limit = self._settings.commit_timeout_s
        syncing: RearTask | None = None
        try:
            async with asyncio.timeout(limit):
                answers = await ballot.all_in()
                # Nothing new but time: the workers have nothing to store, and neither has the store.
                if not self._history.changed_by(answers):
                    await self._history.tidy_once()
                    return
                time = self._time = max(time, *[answer.time for answer in answers])
                await self._wait_until_stored(time)
                # Announced before any sink is told: with the wall clock a sink whose snapshot then fails would be ahead
                # of all that the state accounts for.
                await self._history.announce(number, time)
                # After the parts, and before the manifest: from the manifest on, nobody reads again what is
                # below, so the sinks must hold it for good.
                for syncing in self._rears:
                    await syncing.writer.sync(time)
                syncing = None
                manifest = await self._history.commit(number, time, answers)
        except TimeoutError:
            why = "the store does not answer"
            if ballot.late:
                why = f"no answer of worker {', '.join(map(str, ballot.late))}"
            elif (slow := self._behind(time)) is not None:
                why = slow.writer.deadline.pending or f"sink {slow.collector.name!r} has not stored its output"
            elif syncing is not None:  # or it waits for a batch being written
                why = (
                    syncing.writer.deadline.pending
                    or f"sink {syncing.collector.name!r} has not made its output durable"
                )
            raise JobError(
                f"snapshot {number} is not complete after {limit:g} s; {why}",
                hint="Look at what is slow; state.commit_timeout_s says how long a snapshot may take.",
            ) from None
        self._tell()
        self._taken(manifest)

    async def _wait_until_stored(self, time: int) -> None:
        """Wait until every rear has stored everything below the time of a snapshot, which a worker may have chosen."""
        while max(self._completion.stored, self._plan.start) < time:
            self._stored.clear()
            await self._stored.wait()

    def _behind(self, time: int) -> RearTask | None:
        """Return a rear that has not stored everything below a time; None: there is none."""
        behind = max(self._completion.stored, self._plan.start) < time
        return min(self._rears, key=lambda rear: rear.reached, default=None) if behind else None

    def _tell(self) -> None:
        if self._history.beginning:
            return  # rollback to the beginning is still possible
        oldest = self._history.snapshots[0]
        positions = tuple((front.number, front.position) for front in oldest.fronts)
        self._send(Committed(self._ballot.number, oldest.time, positions))

    def _send(self, message: Prepare | Settled | Committed) -> None:
        """Send a message to every worker."""
        for worker in range(self._plan.workers):
            self._sender.send(f"worker/{worker}", message)
