"""Snapshots while the job runs (paper 000, "Fault tolerance"): the control's side and the workers' side.

Every so often the control takes the time T below which every rear has stored all, and tells the workers to prepare.
A worker notes at once what has changed below T; what is noted it encodes and stores little by little, between the
messages it goes on to process. When all parts are stored, and the sinks have made durable what is below T, the snapshot
is recorded. Outputs never wait for any of this.

Between two snapshots the control tells the workers, again and again, of a time that the next T will not be below. So a
worker need not keep all that happens until then: what is older it sums up, a little at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flamecore.codec import Codec
from flamecore.control import Control
from flamecore.errors import JobError, StoreError
from flamecore.front import Reader
from flamecore.history import History
from flamecore.keeper import Keeper, PartWriter
from flamecore.messages import Committed, Prepare, Prepared, Settled
from flamecore.patience import Patience
from flamecore.plan import Plan
from flamecore.post import CONTROL, Post
from flamecore.rear_host import RearHost
from flamecore.recovery import encode_journal, end_of
from flamecore.snapshot import Manifest, Part, Section, journal_blob, part_blob
from flamecore.store import Store
from flamecore.worker import Cut, Worker

_SHORT_SLICE_S: Final = 0.0002
_SLICE_S: Final = 0.001
"""For so long a worker that stores its part keeps everything else waiting. Short while there is little to do: an item
that comes meanwhile waits for nothing else. If there is much, a slice is worth the turn that all the others take then.
"""

_IDLE_S: Final = 0.00005
_IDLE_TURNS: Final = 5
"""So many turns of the event loop that take no longer had nothing to do: an item goes through the job in several, and
not all of them are as short."""

_OTHERS_S: Final = 0.001
"""For so long at least the items have their turn, if they need it: they go through without a break."""

_PART_BYTES: Final = 4 * 2**20
"""A part that is larger is stored in several: while one is put together nothing else is done."""

_SETTLED_S: Final = 0.02
"""How often workers are told what is settled, at most: what they hold until then is in no snapshot, and all of it has
to be looked at once."""


@dataclass(frozen=True, slots=True)
class StateSettings:
    """How a job keeps its state; see `flamecore.config.StateTable`."""

    interval_s: float = 0.5
    max_uncommitted: int = 1_000_000
    commit_timeout_s: float = 100.0


class WorkerCommits:
    """A worker's side: cuts, stores, journals, acknowledges.

    Args:
        worker: Whose state it is.
        keeper: What of it is committed.
        store: Takes the blobs.
        codec: Encodes them.
        epoch: This start's.
        post: Sends to the control.
        readers: Of the fronts it hosts, by number.
        patience: Of the job.
        flush: Sends what the worker has to send.
        taken: Called when a cut has been taken: what is below it counts no longer as uncommitted.
    """

    def __init__(
        self,
        worker: Worker,
        keeper: Keeper,
        store: Store,
        codec: Codec,
        epoch: int,
        post: Post,
        readers: Mapping[int, Reader],
        patience: Patience,
        flush: Callable[[], None],
        taken: Callable[[], None],
    ) -> None:
        self.worker, self.keeper, self.store, self.codec, self.epoch = worker, keeper, store, codec, epoch
        self._post, self._readers, self._flush, self._taken = post, readers, flush, taken
        self._watches = {
            number: patience.source(worker.plan.fronts[number - 1], apart=True) for number in readers
        }  # a read may be under way
        self._cuts: asyncio.Queue[tuple[int, Cut, Iterator[tuple[Section, bytes]]]] = asyncio.Queue(1)
        self._given = asyncio.Event()
        self._journals: list[tuple[str, int]] = []
        self._journal_number = 0
        self._committed: Committed | None = None
        self._told = asyncio.Event()

    def prepare(self, message: Prepare) -> None:
        """Take part in a snapshot."""
        cut = self.worker.cut(message.time)
        self._cuts.put_nowait((message.number, cut, self.keeper.take(message.number, cut.changes)))
        self._taken()

    def committed(self, message: Committed) -> None:
        """A snapshot is recorded."""
        self._committed = message
        self._told.set()

    def wake(self) -> None:
        """The worker may have given times."""
        if self.worker.given:
            self._given.set()

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            StoreError, CodecError, SourceError: State cannot be stored, or upstream not be told.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store_cuts())
                group.create_task(self._write_journal())
                group.create_task(self._acknowledge())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _store_cuts(self) -> None:
        while True:
            number, cut, sections = await self._cuts.get()
            keeper, parts, more = self.keeper, list[Part](), True
            while more:
                blob = part_blob(self.epoch, number, self.worker.index, len(parts))
                writer = PartWriter(blob, self.codec, keeper.groups, number, keeper.since)
                more = await self._collect(sections, writer)
                if (finished := writer.finish()) is not None:
                    parts.append(finished[0])
                    await self._create(*finished)
            self._post.send(
                CONTROL, Prepared(number, self.worker.index, cut.fronts, tuple([(*part,) for part in parts]))
            )

    async def _collect(self, sections: Iterator[tuple[Section, bytes]], writer: PartWriter) -> bool:
        """Fill a part, while everything else goes on. Returns whether it is full, and there may be more."""
        clock = asyncio.get_running_loop().time
        limit = _SHORT_SLICE_S if await self._others(clock, 0.0) else _SLICE_S
        begun = clock()
        for section, encoded in sections:
            writer.add(section, encoded)
            if writer.size >= _PART_BYTES:
                return True
            spent = clock() - begun
            if spent >= limit:
                limit = _SHORT_SLICE_S if await self._others(clock, spent) else _SLICE_S
                begun = clock()
        return False

    async def _others(self, clock: Callable[[], float], spent: float) -> bool:
        """The items' turn: until there is nothing for them to do, or they have had as much time. Returns which."""
        now = clock()
        until = now + max(spent, _OTHERS_S)
        idle = 0
        while idle < _IDLE_TURNS and now < until:
            before = now
            await asyncio.sleep(0)
            now = clock()
            idle = idle + 1 if now - before < _IDLE_S else 0
        return idle == _IDLE_TURNS

    async def _create(self, part: Part, data: bytes) -> None:
        if not await self.store.create(part.blob, data):
            raise StoreError(f"there is a blob {part.blob} already", store=self.store.name, blob=part.blob)

    async def _write_journal(self) -> None:
        """Write down times that were given, all there are at once; then what came of them may be released."""
        worker = self.worker
        while True:
            await self._given.wait()
            self._given.clear()
            given, worker.given = worker.given, []
            if not given:
                continue
            self._journal_number += 1
            blob = journal_blob(self.epoch, worker.index, self._journal_number)
            if not await self.store.create(blob, encode_journal(given)):
                raise StoreError(f"there is a blob {blob} already", store=self.store.name, blob=blob)
            self._journals.append((blob, end_of(given)))
            worker.written(given)
            self._flush()

    async def _acknowledge(self) -> None:
        """Tell upstream what it may forget; forget journals that nobody will need."""
        while True:
            await self._told.wait()
            self._told.clear()
            message = self._committed
            assert message is not None
            for number, position in message.positions:
                if position is not None and number in self._readers:
                    told = self._readers[number].acknowledge(position)
                    await self._watches[number].call(told, "take word of what is in a snapshot")
            old = [blob for blob, end in self._journals if end <= message.kept_from]
            self._journals = [entry for entry in self._journals if entry[1] > message.kept_from]
            if old:
                await self.store.delete(old)


class Commits:
    """The control's side: when a snapshot is taken, and when it is one.

    Args:
        plan: The job's.
        history: Records snapshots.
        control: Knows what is stored.
        settings: How often, and how long one may take.
        post: Sends to the workers.
        rears: Make durable what a snapshot relies on.
        taken: Told of every snapshot.
    """

    def __init__(
        self,
        plan: Plan,
        history: History,
        control: Control,
        settings: StateSettings,
        post: Post,
        rears: Sequence[RearHost],
        taken: Callable[[Manifest], None] = lambda manifest: None,
    ) -> None:
        self._plan, self._history, self._control = plan, history, control
        self._settings, self._post, self._rears, self._taken = settings, post, rears, taken
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
        time = self._control.stored
        if time <= self._settled:
            return
        now = asyncio.get_running_loop().time()
        if now - self._told_at < _SETTLED_S:
            return
        self._settled, self._told_at = time, now
        for worker in range(self._plan.workers):
            self._post.send(f"worker/{worker}", Settled(time))

    async def run(self) -> None:
        """A snapshot whenever it is due; until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            await self.commit()

    async def commit(self) -> None:
        """Take a snapshot now, if there is anything new.

        Raises:
            JobError: The workers do not get ready in time.
            StoreError, SinkError: What must be durable cannot be made so.
        """
        async with self._busy:
            if self._control.stored > self._time and not self._control.failing:
                await self._take(self._control.stored)

    async def finish(self) -> None:
        """Take the last snapshot of a job that is done: also where time stands still, for fronts have ended.

        Raises as `commit`.
        """
        async with self._busy:
            await self._take(max(self._control.stored, self._plan.start))

    async def _take(self, time: int) -> None:
        if self._torn:
            raise JobError("an earlier snapshot has failed, and with it what was cut for it: none is taken any more")
        self._torn = True
        await self._try(time)
        self._torn = False

    async def _try(self, time: int) -> None:
        """Take a snapshot. Once that has failed, or was broken off, what the workers have cut for it they do not cut
        again, and a later snapshot would lack it."""
        self._number += 1
        self._answers.clear()
        self._complete.clear()
        self._settled = max(self._settled, time)
        for worker in range(self._plan.workers):
            self._post.send(f"worker/{worker}", Prepare(self._number, time))
        limit = self._settings.commit_timeout_s
        syncing: RearHost | None = None
        try:
            async with asyncio.timeout(limit):
                await self._complete.wait()
                answers = [self._answers[worker] for worker in range(self._plan.workers)]
                if not self._history.changed_by(answers):
                    self._time = time
                    await self._history.tidy_once()
                    return
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
                why = syncing.watch.waited or f"sink {syncing.collector.name!r} has not made its output durable"
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
        oldest = self._history.kept[0]
        positions = tuple((front.number, front.position) for front in oldest.fronts)
        for worker in range(self._plan.workers):
            self._post.send(f"worker/{worker}", Committed(self._number, oldest.time, positions))
