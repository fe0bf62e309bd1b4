"""Snapshots while the job runs (paper 000, "Fault tolerance"): a worker's side.

Told to prepare, a worker notes at once what has changed below the snapshot's time; what is noted it encodes and stores
little by little, between the messages it goes on to process. When a snapshot is recorded
(`flamecore.runtime.engine.snapshots.coordinator`), it tells upstream what may be forgotten, and forgets what nobody
will go back to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from flamecore.abc.source import Reader
from flamecore.abc.store import Store
from flamecore.errors import StoreError
from flamecore.model.messages import CONTROL, Committed, Prepare, Prepared
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.parts.worker import Cut, Worker
from flamecore.runtime.state.format import Binding, Part, Section, journal_blob, part_blob
from flamecore.runtime.state.journal import encode_journal, end_of
from flamecore.runtime.state.writer import PartWriter, StateWriter
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.sender import Sender

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


Sections = Iterator[tuple[Section, bytes]]
"""Sections with their bytes, each made when it is asked for."""


class SnapshotWriter:
    """A worker's side: cuts, stores, journals, acknowledges.

    Args:
        worker: Whose state it is.
        writers: Say what of it is committed: for operations of the same key groups, one.
        store: Takes the blobs.
        codec: Encodes them.
        epoch: This start's number.
        binding: This start's place in the state: seals what it writes.
        sender: Sends to the control.
        readers: Of the fronts it hosts, by number.
        deadlines: Of the job.
        flush: Sends what the worker has to send.
        taken: Called when a cut has been taken: what is below it counts no longer as uncommitted.
    """

    def __init__(
        self,
        worker: Worker,
        writers: Sequence[StateWriter],
        store: Store,
        codec: Codec,
        epoch: int,
        binding: Binding,
        sender: Sender,
        readers: Mapping[int, Reader],
        deadlines: Deadlines,
        flush: Callable[[], None],
        taken: Callable[[], None],
    ) -> None:
        self.worker, self.writers, self.store, self.codec, self.epoch = worker, writers, store, codec, epoch
        self.binding = binding
        self._sender, self._readers, self._flush, self._taken = sender, readers, flush, taken
        self._watches = {
            number: deadlines.source(worker.plan.fronts[number - 1], apart=True) for number in readers
        }  # a read may be under way
        self._cuts: asyncio.Queue[tuple[int, Cut, list[tuple[StateWriter, Sections]]]] = asyncio.Queue(1)
        self._given = asyncio.Event()
        self._journals: list[tuple[int, int]] = []  # number, where it ends
        self._journal_number = 0  # of the last that is stored
        self._committed: Committed | None = None
        self._told = asyncio.Event()

    def prepare(self, message: Prepare) -> None:
        """Take part in a snapshot."""
        cut = self.worker.cut(message.time)
        changed = [(writer, writer.prepare(message.number, cut.changes)) for writer in self.writers]
        self._cuts.put_nowait((message.number, cut, changed))
        self._taken()

    def committed(self, message: Committed) -> None:
        """A snapshot is recorded."""
        self._committed = message
        self._told.set()

    def wake(self) -> None:
        """The worker may have given times."""
        if self.worker.given_times:
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
            number, cut, changed = await self._cuts.get()
            parts = list[Part]()
            for writer, sections in changed:
                more = True
                while more:
                    blob = part_blob(self.epoch, number, self.worker.index, len(parts))
                    about = writer.groups, number, writer.since, self.binding, writer.covers
                    part_writer = PartWriter(blob, self.codec, *about)
                    more = await self._collect(sections, part_writer)
                    if (finished := part_writer.finish()) is not None:
                        parts.append(finished[0])
                        await self._create(*finished)
            needed = next((journal for journal, end in self._journals if end > cut.time), self._journal_number + 1)
            self._sender.send(
                CONTROL, Prepared(number, self.worker.index, cut.fronts, tuple([(*part,) for part in parts]), needed)
            )

    async def _collect(self, sections: Sections, part_writer: PartWriter) -> bool:
        """Fill a part, while everything else goes on. Returns whether it is full, and there may be more."""
        clock = asyncio.get_running_loop().time
        limit = _SHORT_SLICE_S if await self._others(clock, 0.0) else _SLICE_S
        begun = clock()
        for section, encoded in sections:
            part_writer.add(section, encoded)
            if part_writer.size >= _PART_BYTES:
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
            given, worker.given_times = worker.given_times, []
            if not given:
                continue
            number = self._journal_number + 1
            blob = journal_blob(self.epoch, worker.index, number)
            if not await self.store.create(blob, encode_journal(given, blob, self.binding)):
                raise StoreError(f"there is a blob {blob} already", store=self.store.name, blob=blob)
            self._journal_number = number
            self._journals.append((number, end_of(given)))
            worker.confirm_times(given)
            self._flush()

    async def _acknowledge(self) -> None:
        """Tell upstream what it may forget; forget journals that nobody will need."""
        while True:
            await self._told.wait()
            self._told.clear()
            if (message := self._committed) is None:
                continue
            for number, position in message.positions:
                if position is not None and number in self._readers:
                    told = self._readers[number].acknowledge(position)
                    await self._watches[number].call(told, "take word of what is in a snapshot")
            # The oldest first, and none behind one that is needed: a gap among those that are there is a loss.
            old = list(takewhile(lambda journal: journal[1] <= message.kept_from, self._journals))
            del self._journals[: len(old)]
            if old:
                await self.store.delete([journal_blob(self.epoch, self.worker.index, number) for number, _ in old])
