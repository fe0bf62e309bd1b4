"""Snapshots while the job runs, on a worker's side.

On a message to prepare, a worker notes at once the changes below the snapshot's time (paper 000, "Fault tolerance"). It
then encodes and stores the changes in small steps between messages. When a snapshot is recorded
(`flamecore.runtime.engine.snapshots.coordinator`), it acknowledges positions upstream, and deletes journals that no
rollback needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from flamecore.abc.source import Reader
from flamecore.model.messages import CONTROL, Committed, Prepare, Prepared
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED
from flamecore.runtime.engine.snapshots.journal import EpochStore, JournalWriter
from flamecore.runtime.parts.worker import Cut, Worker
from flamecore.runtime.state.format import Part, Section, part_blob
from flamecore.runtime.state.writer import PartWriter, StateWriter
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.partition_task import PartitionTask
from flamecore.runtime.tasks.sender import Sender

_SHORT_SLICE_S: Final = 0.0002
_SLICE_S: Final = 0.001
"""Seconds for which a worker that stores its part blocks everything else. Short while there is little to do: an
arriving item then waits for nothing else. If there is much to do, a long slice is worth the turn that all others take
then.
"""

_IDLE_S: Final = 0.00005
_IDLE_TURNS: Final = 5
"""Number of consecutive turns of the event loop of at most `_IDLE_S` that show that there is nothing to do: an item
takes several turns through the job, and not all of them are as short."""

_OTHERS_S: Final = 0.001
"""Fewest seconds of the items' turn, if they need it: they then pass without a break."""

_PART_BYTES: Final = 4 * 2**20
"""Size at which a part is split: assembling one blocks everything else."""


Sections = Iterator[tuple[Section, bytes]]
"""Sections with their bytes, each encoded when it is taken."""


class SnapshotWriter:
    """A worker's side of snapshots: cuts, parts, journals, acknowledgements.

    Args:
        worker: The worker.
        writers: Writers of its state, one for operations with the same key groups.
        store: Store of the blobs.
        codec: Codec of the state.
        sender: Sender of the worker.
        readers: Readers of the fronts it hosts, by number.
        deadlines: The job's deadlines.
        flush: Function that sends the worker's messages.
        taken: Function called after a cut: records below it no longer count as uncommitted.
        partitions: Partitions of sinks that the worker writes.
    """

    def __init__(
        self,
        worker: Worker,
        writers: Sequence[StateWriter],
        store: EpochStore,
        codec: Codec,
        sender: Sender,
        readers: Mapping[int, Reader],
        deadlines: Deadlines,
        flush: Callable[[], None],
        taken: Callable[[], None],
        partitions: Mapping[str, PartitionTask] = MappingProxyType({}),
    ) -> None:
        self.worker, self._writers, self._store, self._codec = worker, writers, store, codec
        self._sender, self._readers, self._taken = sender, readers, taken
        self._journal = JournalWriter(worker, store, flush)
        self._watches = {
            number: deadlines.source(worker.plan.fronts[number - 1], apart=True) for number in readers
        }  # apart from reads under way
        # Room for one: the control asks for the next snapshot only when this one is recorded.
        self._cuts: asyncio.Queue[tuple[int, Cut, list[tuple[StateWriter, Sections]]]] = asyncio.Queue(1)
        self._committed: asyncio.Queue[Committed] = asyncio.Queue(1)  # the last one that is not acknowledged
        self._partitions = partitions

    def prepare(self, message: Prepare) -> None:
        """Cut the worker for a snapshot, and queue its changes for storage."""
        # At once, within the message: the next item may change a state that the snapshot is to have
        # as it is now.
        cut = self.worker.cut(message.time)
        changed = [(writer, writer.prepare(message.number, cut.changes)) for writer in self._writers]
        self._cuts.put_nowait((message.number, cut, changed))
        self._taken()

    def committed(self, message: Committed) -> None:
        """Note that a snapshot is recorded."""
        if self._committed.full():
            self._committed.get_nowait()
        self._committed.put_nowait(message)

    def wake(self) -> None:
        """Write a journal if the worker has given times."""
        self._journal.wake()

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            StoreError, CodecError: State cannot be stored.
            SourceError: A reader cannot be acknowledged.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store_cuts())
                group.create_task(self._journal.run())
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
                    blob = part_blob(self._store.number, number, self.worker.index, len(parts))
                    about = writer.groups, number, writer.since, self._store.binding, writer.covers
                    part_writer = PartWriter(blob, self._codec, *about)
                    more = await self._collect(sections, part_writer)
                    if (finished := part_writer.finish()) is not None:
                        part, data = finished
                        parts.append(part)
                        await self._store.create(part.blob, data)
            # Everything below the snapshot is in the partitions: the control has heard so from their rear.
            await asyncio.gather(*[partition.make_durable() for partition in self._partitions.values()])
            stored, needed = tuple([(*part,) for part in parts]), self._journal.needed_from(cut.time)
            marked = tuple([(front, self._codec.encode(states, STORED)) for front, states in cut.marked.items()])
            word = Prepared(number, self.worker.index, cut.fronts, stored, needed, marked, cut.time)
            self._sender.send(CONTROL, word)

    async def _collect(self, sections: Sections, part_writer: PartWriter) -> bool:
        """Fill a part, between the turns of items; return whether it is full.

        There may be more sections then.
        """
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
        """Give items a turn, until they are idle or had their time; return whether idle.

        Their time is as long as `spent`, or the least turn if that is longer.
        """
        now = clock()
        until = now + max(spent, _OTHERS_S)
        idle = 0
        while idle < _IDLE_TURNS and now < until:
            before = now
            await asyncio.sleep(0)
            now = clock()
            idle = idle + 1 if now - before < _IDLE_S else 0
        return idle == _IDLE_TURNS

    async def _acknowledge(self) -> None:
        """Acknowledge recorded positions upstream; delete journals no longer needed."""
        while True:
            message = await self._committed.get()
            # These are positions of the oldest snapshot that is kept, not of the newest: a run may go back to that, and
            # read from there.
            for number, position in message.positions:
                if position is not None and number in self._readers:
                    told = self._readers[number].acknowledge(position)
                    await self._watches[number].call(told, "take word of what is in a snapshot")
            await self._journal.delete_before(message.kept_from)
