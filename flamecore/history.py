"""The story of a job's state: its epochs and snapshots, who may write, and what is gone back to (paper 000).

Every start of a job, and every new start after a fault, is an *epoch*. It begins by creating the epoch's blob, which
says what it goes on from; of several that try only one succeeds, and whatever an earlier epoch still writes is not in
that list, so it does not count. Two snapshots are kept: if the newest turns out damaged, the one before is used; before
the first one there is the beginning.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Final

from flamecore.acceptance import Loss, accepted, accepted_blob
from flamecore.errors import CorruptError, FencedError
from flamecore.facts import check_facts, state_facts
from flamecore.found import Found, look
from flamecore.front import Source
from flamecore.graph import Graph
from flamecore.messages import Prepared, Resume
from flamecore.needs import left_behind, needed_journals, only_of
from flamecore.phases import Phases
from flamecore.resumption import every_front, fronts_of
from flamecore.snapshot import (
    RESTORE,
    EpochRecord,
    FrontState,
    Manifest,
    Part,
    SinkState,
    encode_record,
    epoch_blob,
    unseal,
)
from flamecore.store import Store

_KEPT: Final = 2
"""How many snapshots are kept."""


class History:
    """The state's story as its owner tells it.

    Args:
        store: Where it is, open.
        graph: The job's.
        workers: How many.
        phases: Of its sources and sinks.
    """

    def __init__(self, store: Store, graph: Graph, workers: int, phases: Phases | None = None) -> None:
        self.store = store
        self.phases = phases or Phases()
        self.graph = graph
        self.workers = workers
        self.epoch = 0
        self.identity = ""
        self.journals: tuple[str, ...] = ()
        self.kept: list[Manifest] = []  # what could be gone back to, oldest first
        self.beginning = True  # the beginning could be gone back to as well
        self.fronts: tuple[FrontState, ...] = ()
        self._begun = 0  # the last epoch that was begun here
        self._new: set[int] = set()
        self._behind_end = False
        self._floor = 0
        self._unusable: set[str] = set()
        self._tidied = 0
        self._sinks: tuple[SinkState, ...] = ()
        self._left: Manifest | None = None  # of the newest snapshot, where some of it may be lost

    @property
    def snapshot(self) -> Manifest | None:
        """The newest snapshot; None: there is none."""
        return self.kept[-1] if self.kept else None

    @property
    def start(self) -> int:
        """The time that the job goes on from."""
        return self.snapshot.time if self.snapshot is not None else 0

    @property
    def continued(self) -> bool:
        """Whether there was an epoch before this one."""
        return self.epoch > 1

    @property
    def owned(self) -> bool:
        """Whether an epoch was begun here."""
        return self._begun > 0

    async def look(self) -> None:
        """Find what to go on from: sets `identity`, `epoch` (the next one), `kept`, `fronts` and `journals`.

        Owns nothing yet. Looking again finds what was done here since, or nothing new: if another run has begun
        meanwhile, the sinks may be its own by now.

        Raises:
            FencedError: Another run has begun since the last look.
            StoreError: The store fails.
            CorruptError: There are snapshots, and none of them can be used.
            JobError: The newest snapshot is of another graph.
        """
        found = await look(self.store)
        last = found.epochs[-1].epoch if found.epochs else 0
        if self.epoch and last not in (self.epoch - 1, self._begun):
            raise self._fenced(last)
        usable = [manifest for manifest in found.snapshots if manifest.blob not in self._unusable]
        if not usable and not found.beginning:
            raise CorruptError(
                "no snapshot of the state can be used: " + "; ".join(error.what for error in found.damaged),
                hint=RESTORE,
                store=self.store.name,
                blob="",
            )
        self.identity = found.last.identity if found.last else secrets.token_hex(16)
        loss = await accepted(self.store, self.identity, self.graph) if usable else Loss({})
        self._left = None
        if usable:
            left = loss.taken_from(usable[0])
            check_facts(left.flow, self.graph)
            self._left = left if left != usable[0] else None
        self.epoch = last + 1
        self.journals = found.journals
        self.kept = usable[:_KEPT][::-1]
        self.beginning = found.beginning
        self.fronts = tuple(
            front._replace(ended=front.ended or (front.source, front.partition_name) in loss.fronts)
            for front in fronts_of(found, self.snapshot)
        )
        self._new, self._behind_end = set(), False

    def find_fronts(self, graph: Graph, sources: Mapping[str, Source]) -> tuple[FrontState, ...]:
        """Every front of a job that goes on, by number: those of the state, then those of partitions that are new.

        Raises:
            SourceError: A source cannot be found.
            JobError: A partition that was not read to its end is no longer there, or another phase of a source is to be
                read.
        """
        fronts, behind_end = every_front(self.fronts, graph, sources, self.phases)
        if behind_end:
            self._goes_on()
        self._new = {front.number for front in fronts[len(self.fronts) :]}
        self.fronts = fronts
        return self.fronts

    def _goes_on(self) -> None:
        """The job was done, and goes on behind its end: nothing before that counts any more."""
        self.kept, self.beginning, self._behind_end = self.kept[-1:], not self.kept, True

    async def verify(self) -> None:
        """Make sure that every part of the snapshot can be read; if not, goes back to the one before. After `look`.

        Raises:
            FencedError: Another run is at work, and takes snapshots.
            StoreError: The store fails.
            CorruptError: None can be used.
        """
        while self.snapshot is not None:
            try:
                for part in self.snapshot.parts:
                    unseal(await self.store.read(part.blob), part.blob)
            except CorruptError as error:
                self._check_rest(await look(self.store))
                if not self.refuse(error.blob):
                    raise
                await self.look()
            else:
                return

    async def begin(self, held: Mapping[str, int]) -> None:
        """Begin the epoch: own the state from now on.

        The sinks are open, and so theirs is nobody else's any more: what an earlier epoch writes down from now on it
        cannot deliver. What it has written down since `look` counts.

        Args:
            held: For each sink the time up to which it holds its outputs. New times, and new fronts, begin there.

        Raises:
            FencedError: Another run was faster, or is still at work.
            CorruptError: A journal is damaged: nobody knows which times were given.
            StoreError: The store fails.
        """
        found = await look(self.store)
        self._check_rest(found)
        self.journals = await self._needed(found)
        self._floor = max([self.start, *held.values()])
        self.fronts = tuple(
            front._replace(next_time=self._floor) if front.number in self._new else front for front in self.fronts
        )
        commits = tuple(manifest.blob for manifest in reversed(self.kept))
        record = EpochRecord(
            self.identity, self.epoch, time.time(), commits, self.beginning, self.journals, self.fronts
        )
        if not await self.store.create(epoch_blob(self.epoch), encode_record(record)):
            raise self._fenced(self.epoch)
        await self._check_left_alone(found)
        self._begun = self.epoch
        self._sinks = tuple(self.phases.of_sink(name) for name in sorted(held))
        if self._left is not None:
            await self._record_loss(self._left)

    async def _record_loss(self, left: Manifest) -> None:
        """Go on from what is left of the newest snapshot: it becomes one of its own."""
        manifest = left._replace(
            epoch=self.epoch,
            number=left.number + 1,
            created=time.time(),
            flow=state_facts(self.graph),
            fronts=self.fronts,
        )
        if not await self.store.create(manifest.blob, encode_record(manifest)):
            raise self._fenced(self.epoch)
        self.kept, self.beginning, self._left = [*self.kept, manifest][-_KEPT:], False, None
        # Once only: what is made from here on must not be taken for what was given up.
        await self.store.delete([accepted_blob(self.identity, self.graph)])

    async def take_back(self) -> None:
        """The graph that was begun with is given up before anything was done: what it would lose is not lost."""
        await self.store.delete([accepted_blob(self.identity, self.graph)])
        if self.snapshot is not None and self.snapshot.epoch == self._begun == self.epoch:
            self._unusable.add(self.snapshot.blob)

    def _check_rest(self, found: Found) -> None:
        """Make sure that nobody else has done anything since the last look.

        Raises:
            FencedError: Somebody has.
        """
        last = found.epochs[-1].epoch if found.epochs else 0
        newest = next((each.blob for each in found.snapshots if each.blob not in self._unusable), None)
        changed = newest != (self.snapshot.blob if self.snapshot is not None else None)
        # A snapshot of our own that was being recorded when we gave it up may have come to be.
        if last != self.epoch - 1 or (changed and last != self._begun):
            raise self._fenced(last)

    async def _check_left_alone(self, found: Found) -> None:
        """Make sure that who was at work until the epoch was begun has not gone on since: with a snapshot that is not
        known here, what is needed here may be deleted. From now on it can take none.

        Raises:
            FencedError: It has. The epoch has never been.
        """
        last = found.epochs[-1].epoch if found.epochs else 0
        if last in (0, self._begun):
            return
        names = await self.store.names(f"commit/{last:08d}/")
        if names and names[-1] > max((each.blob for each in found.snapshots if each.epoch == last), default=""):
            damaged = {error.blob for error in found.damaged}
            if names[-1] not in damaged:
                await self.store.delete([epoch_blob(self.epoch)])
                raise self._fenced(last)

    async def _needed(self, found: Found) -> tuple[str, ...]:
        """Of the journals those that going on from any snapshot could need."""
        if self._behind_end:
            return ()
        if self.beginning:
            return found.journals
        return await needed_journals(self.store, found, self.kept[0].time)

    def refuse(self, blob: str) -> bool:
        """A part of the newest snapshot cannot be used: the next epoch goes on from the one before.

        Returns:
            Whether there is one before, or the beginning can be gone back to.
        """
        if self.snapshot is None or blob not in {self.snapshot.blob, *(part.blob for part in self.snapshot.parts)}:
            return False
        self._unusable.add(self.snapshot.blob)
        return len(self.kept) > 1 or self.beginning

    def resume(self) -> Resume:
        """What the workers go on from."""
        commit = self.snapshot.blob if self.snapshot is not None else ""
        fronts = tuple((front.position, front.next_time, front.ended) for front in self.fronts)
        return Resume(self.identity, self.epoch, commit, self.journals, fronts, self._floor)

    def changed_by(self, answers: Sequence[Prepared]) -> bool:
        """Whether a snapshot would say anything that the newest does not: time alone does not count."""
        if self.snapshot is None or any(answer.parts for answer in answers):
            return True
        now = {front.number: (front.position, front.ended) for front in self.fronts}
        return any(
            now.get(front) != (position, ended) for answer in answers for front, position, _, ended in answer.fronts
        )

    async def commit(self, number: int, at: int, answers: Sequence[Prepared]) -> Manifest:
        """Record a snapshot whose parts are all stored; forgets those that are kept no longer.

        Args:
            number, at: Its number and time.
            answers: Of every worker, in their order.

        Raises:
            FencedError: Another run has taken over.
            StoreError: It cannot be recorded.
        """
        now = {front.number: front for front in self.fronts}
        for answer in answers:
            for front, position, next_time, ended in answer.fronts:
                now[front] = now[front]._replace(position=position, next_time=next_time, ended=ended)
        before = self.snapshot
        parts = [*(before.parts if before else ()), *(Part(*part) for answer in answers for part in answer.parts)]
        manifest = Manifest(
            self.identity,
            self.epoch,
            number,
            at,
            time.time(),
            state_facts(self.graph),
            self.workers,
            tuple(now[front] for front in sorted(now)),
            tuple(parts),
            self._sinks,
        )
        manifest = manifest._replace(parts=manifest.live_parts())
        await self._check_fence()
        if not await self.store.create(manifest.blob, encode_record(manifest)):
            raise self._fenced(self.epoch)
        self.fronts = manifest.fronts
        self.kept.append(manifest)
        self.beginning = self.beginning and len(self.kept) < _KEPT
        await self._check_fence()  # whoever has taken over meanwhile may need what is no longer needed here
        if len(self.kept) > _KEPT:
            await self.store.delete(only_of(self.kept.pop(0), self.kept))
        await self.tidy_once()
        return manifest

    async def _check_fence(self) -> None:
        last = (await self.store.names("epoch/"))[-1]
        if last > epoch_blob(self.epoch):
            raise self._fenced(self.epoch + 1)

    async def tidy_once(self) -> None:
        """Tidy up, if that was not done in this epoch."""
        if self._tidied != self.epoch and not self.beginning:
            self._tidied = self.epoch
            await self.tidy()

    async def tidy(self) -> int:
        """Delete what faults have left behind: all of earlier epochs that nobody will go back to.

        Returns:
            How many blobs that were.
        """
        left = left_behind(await self.store.names(), self.epoch, self.journals, self.kept)
        await self.store.delete(left)
        return len(left)

    def _fenced(self, epoch: int) -> FencedError:
        return FencedError(
            f"another run of the job has taken over its state (epoch {epoch})",
            hint="One state belongs to one run: end the other, or give this one a state of its own.",
            store=self.store.name,
            blob=epoch_blob(epoch),
            epoch=epoch,
        )
