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

from flamecore.abc.source import Source
from flamecore.abc.store import Store
from flamecore.errors import CorruptError, FencedError, StateBehindError
from flamecore.model.clock import ClockName
from flamecore.model.graph import Graph
from flamecore.model.messages import Prepared, Resume
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.accepted_loss import (
    AcceptedLoss,
    SinksAhead,
    accepted,
    accepted_blobs,
    ahead_blob,
    note_ahead,
)
from flamecore.runtime.state.fit import check_values
from flamecore.runtime.state.format import (
    RESTORE,
    Binding,
    EpochRecord,
    FrontState,
    Manifest,
    Part,
    SinkState,
    digest_of,
    encode_record,
    epoch_blob,
    sync_blob,
    unseal,
)
from flamecore.runtime.state.fronts import Phases, fronts_of, merge_fronts
from flamecore.runtime.state.journal import encode_sync
from flamecore.runtime.state.scan import Journals, StoreContents, garbage, only_of, read_journals, scan
from flamecore.runtime.state.schema import check_schema, state_schema

_RETAINED: Final = 2
"""How many snapshots are kept."""


class History:
    """The state's story as its owner tells it.

    Args:
        store: Where it is, open.
        graph: The job's.
        workers: How many.
        phases: Of its sources and sinks.
        clock: Of its fronts.
    """

    def __init__(
        self,
        store: Store,
        graph: Graph,
        workers: int,
        phases: Phases | None = None,
        clock: ClockName = "sequence",
    ) -> None:
        self.store = store
        self.phases = phases or Phases()
        self.clock: ClockName = clock
        self.graph = graph
        self.workers = workers
        self.epoch = 0
        self.identity = ""
        self.run = ""
        """Token of the epoch that was begun here last."""
        self.journals: tuple[str, ...] = ()
        self.unbound: tuple[str, ...] = ()
        """Blobs that count and do not say where they belong (`StoreContents.unbound`)."""
        self.snapshots: list[Manifest] = []  # what could be gone back to, oldest first
        self.beginning = True  # the beginning could be gone back to as well
        self.fronts: tuple[FrontState, ...] = ()
        self._begun = 0  # the last epoch that was begun here
        self._new: set[int] = set()
        self._behind_end = False
        self._floor = 0
        self._unusable: set[str] = set()
        self._tidied = 0
        self._sinks: tuple[SinkState, ...] = ()
        self._reduced: Manifest | None = None  # of the newest snapshot, where some of it may be lost
        self._loss = AcceptedLoss({})
        self._digests: dict[str, bytes] = {}  # of records and journals, by blob

    @property
    def snapshot(self) -> Manifest | None:
        """The newest snapshot; None: there is none."""
        return self.snapshots[-1] if self.snapshots else None

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

    async def scan(self) -> None:
        """Find what to go on from: sets `identity`, `epoch` (the next one), `snapshots`, `fronts` and `journals`.

        Owns nothing yet. Looking again finds what was done here since, or nothing new: if another run has begun
        meanwhile, the sinks may be its own by now.

        Raises:
            FencedError: Another run has begun since the last look.
            StoreError: The store fails.
            CorruptError: There are snapshots, and none of them can be used.
            JobError: The newest snapshot is of another graph.
        """
        contents = await scan(self.store)
        last = contents.epochs[-1].epoch if contents.epochs else 0
        if self.epoch and last not in (self.epoch - 1, self._begun):
            raise self._fenced(last)
        usable = [manifest for manifest in contents.snapshots if manifest.blob not in self._unusable]
        if not usable and not contents.beginning:
            raise CorruptError(
                "no snapshot of the state can be used: " + "; ".join(error.what for error in contents.damaged),
                hint=RESTORE,
                store=self.store.name,
                blob="",
            )
        self.identity = contents.last.identity if contents.last else secrets.token_hex(16)
        loss = self._loss = await accepted(self.store, self.identity, self.graph)
        self._digests = dict(contents.digests)
        self.unbound = contents.unbound
        self._reduced = None
        if usable:
            reduced = loss.taken_from(usable[0])
            check_schema(reduced.flow, self.graph)
            await check_values(self.store, Codec.of(self.graph), self.identity, reduced, self.graph)
            self._reduced = reduced if reduced != usable[0] else None
        self.epoch = last + 1
        self.journals = contents.journals
        self.snapshots = usable[:_RETAINED][::-1]
        self.beginning = contents.beginning
        self.fronts = tuple(
            front._replace(ended=front.ended or (front.source, front.partition_name) in loss.fronts)
            for front in fronts_of(contents, self.snapshot)
        )
        self._new, self._behind_end = set(), False

    def find_fronts(self, graph: Graph, sources: Mapping[str, Source]) -> tuple[FrontState, ...]:
        """Every front of a job that goes on, by number: those of the state, then those of partitions that are new.

        Raises:
            SourceError: A source cannot be found.
            JobError: A partition that was not read to its end is no longer there, or another phase of a source is to be
                read.
        """
        fronts, behind_end = merge_fronts(self.fronts, graph, sources, self.phases)
        if behind_end:
            self._goes_on()
        self._new = {front.number for front in fronts[len(self.fronts) :]}
        self.fronts = fronts
        return self.fronts

    def _goes_on(self) -> None:
        """The job was done, and goes on behind its end: nothing before that counts any more."""
        self.snapshots, self.beginning, self._behind_end = self.snapshots[-1:], not self.snapshots, True

    async def verify(self) -> None:
        """Make sure that every part of the snapshot can be read; if not, goes back to the one before. After `scan`.

        Raises:
            FencedError: Another run is at work, and takes snapshots.
            StoreError: The store fails.
            CorruptError: None can be used.
        """
        while self.snapshot is not None:
            try:
                for part in self.snapshot.parts:
                    expected = Binding(self.identity, digest=part.digest)
                    unseal(await self.store.read(part.blob), part.blob, expected)
            except CorruptError as error:
                self._check_rest(await scan(self.store))
                if not self.refuse(error.blob):
                    raise
                await self.scan()
            else:
                return

    async def begin(self, delivered_up_to: Mapping[str, int]) -> None:
        """Begin the epoch: own the state from now on.

        The sinks are open, and so theirs is nobody else's any more: what an earlier epoch writes down from now on it
        cannot deliver. What it has written down since `scan` counts.

        Args:
            delivered_up_to: For each sink the time up to which it holds its outputs. New times, and new fronts, begin
                there.

        Raises:
            FencedError: Another run was faster, or is still at work.
            CorruptError: A journal is damaged or missing: nobody knows which times were given.
            StateBehindError: A sink holds outputs that no journal accounts for.
            StoreError: The store fails.
        """
        contents = await scan(self.store)
        self._check_rest(contents)
        journals = await self._needed(contents)
        await self._check_sinks(delivered_up_to, contents.last, journals.end)
        self.journals = journals.blobs
        self._digests = {**contents.digests, **dict(journals.digests)}
        self._floor = max([self.start, *delivered_up_to.values()])
        self.fronts = tuple(
            front._replace(next_time=self._floor) if front.number in self._new else front for front in self.fronts
        )
        self.run = secrets.token_hex(8)
        commits = tuple(manifest.blob for manifest in reversed(self.snapshots))
        referred = (epoch_blob(self.epoch - 1), *commits, *self.journals)
        record = EpochRecord(
            self.identity,
            self.epoch,
            time.time(),
            commits,
            self.beginning,
            self.journals,
            self.fronts,
            self.run,
            tuple([(blob, self._digests[blob]) for blob in referred if blob in self._digests]),
            self.clock,
            self._floor,
        )
        if not await self.store.create(epoch_blob(self.epoch), encode_record(record)):
            raise self._fenced(self.epoch)
        await self._check_left_alone(contents)
        self._begun = self.epoch
        self._sinks = tuple(self.phases.of_sink(name) for name in sorted(delivered_up_to))
        if self._reduced is not None:
            await self._record_loss(self._reduced)
        # Once only: what is made from here on must not be taken for what was given up.
        await self.store.delete([*accepted_blobs(self.identity, self.graph), ahead_blob(self.identity)])
        self._loss = AcceptedLoss({})

    async def _check_sinks(self, delivered_up_to: Mapping[str, int], last: EpochRecord | None, journaled: int) -> None:
        """Make sure that no sink holds an output under a time which nobody knows of any more.

        With the wall clock no output leaves before its time is in a journal. So a sink that is ahead of all that is
        stored proves that some of it is lost, and what the sink holds would come again under other times. With the
        sequence clock times follow from positions: what comes again has the times that the sink holds, and is dropped.

        Args:
            delivered_up_to: For each sink the time up to which it holds its outputs.
            last: Record of the last epoch.
            journaled: Where the journals end.

        Raises:
            StateBehindError: A sink is ahead, and nobody has accepted that.
            StoreError: It cannot be written down which.
        """
        # In format 2 the time that a sink was given could be above that of all outputs.
        if last is None or not last.run or "wall" not in (last.clock, self.clock):
            return
        accounted = max(self.start, last.floor, journaled)
        ahead = {name: until for name, until in sorted(delivered_up_to.items()) if until > accounted}
        if all(self._loss.covers(name, until) for name, until in ahead.items()):
            return
        self._check_rest(await scan(self.store))  # one that is at work may have deleted journals since
        await note_ahead(self.store, self.identity, SinksAhead(tuple(ahead.items()), accounted))
        sinks = ", ".join(f"sink {name!r} holds its output up to time {until}" for name, until in ahead.items())
        raise StateBehindError(
            f"the state is older than the output: {sinks}, and the journals of the state go up to time {accounted}. "
            "Journals that were written since are lost, and what they tell of would come again under other times",
            hint="Bring back the newest state; or the outputs that belong to this one; or accept that some outputs "
            "come twice: flamestream plan --accept.",
            store=self.store.name,
            blob="",
            sinks=ahead,
            accounted=accounted,
        )

    async def _record_loss(self, reduced: Manifest) -> None:
        """Go on from what is left of the newest snapshot: it becomes one of its own."""
        manifest = reduced._replace(
            epoch=self.epoch,
            number=reduced.number + 1,
            created=time.time(),
            flow=state_schema(self.graph),
            fronts=self.fronts,
            run=self.run,
            journals=(),
        )
        encoded = encode_record(manifest)
        if not await self.store.create(manifest.blob, encoded):
            raise self._fenced(self.epoch)
        self._digests[manifest.blob] = digest_of(encoded)
        self.snapshots, self.beginning, self._reduced = [*self.snapshots, manifest][-_RETAINED:], False, None

    async def take_back(self) -> None:
        """The graph that was begun with is given up before anything was done: what it would lose is not lost."""
        await self.store.delete(accepted_blobs(self.identity, self.graph))
        if self.snapshot is not None and self.snapshot.epoch == self._begun == self.epoch:
            self._unusable.add(self.snapshot.blob)

    def _check_rest(self, contents: StoreContents) -> None:
        """Make sure that nobody else has done anything since the last look.

        Raises:
            FencedError: Somebody has.
        """
        last = contents.epochs[-1].epoch if contents.epochs else 0
        newest = next((each.blob for each in contents.snapshots if each.blob not in self._unusable), None)
        changed = newest != (self.snapshot.blob if self.snapshot is not None else None)
        # A snapshot of our own that was being recorded when we gave it up may have come to be.
        if last != self.epoch - 1 or (changed and last != self._begun):
            raise self._fenced(last)

    async def _check_left_alone(self, contents: StoreContents) -> None:
        """Make sure that who was at work until the epoch was begun has not gone on since: with a snapshot that is not
        known here, what is needed here may be deleted. From now on it can take none.

        Raises:
            FencedError: It has. The epoch has never been.
        """
        last = contents.epochs[-1].epoch if contents.epochs else 0
        if last in (0, self._begun):
            return
        names = await self.store.names(f"commit/{last:08d}/")
        if names and names[-1] > max((each.blob for each in contents.snapshots if each.epoch == last), default=""):
            damaged = {error.blob for error in contents.damaged}
            if names[-1] not in damaged:
                await self.store.delete([epoch_blob(self.epoch)])
                raise self._fenced(last)

    async def _needed(self, contents: StoreContents) -> Journals:
        """Read the journals that going on from any snapshot could need.

        Raises:
            FencedError: Another run is at work, and deletes what it needs no more.
            CorruptError: One is damaged or missing.
        """
        if self._behind_end:
            return Journals()
        try:
            return await read_journals(self.store, contents, None if self.beginning else self.snapshots[0])
        except CorruptError:
            self._check_rest(await scan(self.store))
            raise

    def refuse(self, blob: str) -> bool:
        """A part of the newest snapshot cannot be used: the next epoch goes on from the one before.

        Returns:
            Whether there is one before, or the beginning can be gone back to.
        """
        if self.snapshot is None or blob not in {self.snapshot.blob, *(part.blob for part in self.snapshot.parts)}:
            return False
        self._unusable.add(self.snapshot.blob)
        return len(self.snapshots) > 1 or self.beginning

    def resume(self) -> Resume:
        """What the workers go on from."""
        commit = self.snapshot.blob if self.snapshot is not None else ""
        fronts = tuple((front.position, front.next_time, front.ended) for front in self.fronts)
        blobs = (commit, *self.journals)
        digests = tuple([(blob, self._digests[blob]) for blob in blobs if blob in self._digests])
        return Resume(self.identity, self.epoch, commit, self.journals, fronts, self._floor, self.run, digests)

    def changed_by(self, answers: Sequence[Prepared]) -> bool:
        """Whether a snapshot would say anything that the newest does not: time alone does not count."""
        if self.snapshot is None or any(answer.parts for answer in answers):
            return True
        now = {front.number: (front.position, front.ended) for front in self.fronts}
        return any(
            now.get(front) != (position, ended) for answer in answers for front, position, _, ended in answer.fronts
        )

    async def announce(self, number: int, at: int) -> None:
        """Write down the time of a snapshot that sinks are about to be told: it may be above that of all outputs.

        Without it a sink would be ahead of the journals where the snapshot does not come to be, or is damaged later.

        Args:
            number, at: Its number and time.

        Raises:
            StoreError: It cannot be written.
        """
        if self.clock != "wall":
            return
        blob = sync_blob(self.epoch, number)
        await self.store.create(blob, encode_sync(at, blob, Binding(self.identity, self.run)))

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
            state_schema(self.graph),
            self.workers,
            tuple(now[front] for front in sorted(now)),
            tuple(parts),
            self._sinks,
            self.run,
            tuple([answer.journal for answer in answers]),
        )
        manifest = manifest._replace(parts=manifest.live_parts())
        encoded = encode_record(manifest)
        await self._check_fence()
        if not await self.store.create(manifest.blob, encoded):
            raise self._fenced(self.epoch)
        self._digests[manifest.blob] = digest_of(encoded)
        self.fronts = manifest.fronts
        self.snapshots.append(manifest)
        self.beginning = self.beginning and len(self.snapshots) < _RETAINED
        await self._check_fence()  # whoever has taken over meanwhile may need what is no longer needed here
        if len(self.snapshots) > _RETAINED:
            await self.store.delete(only_of(self.snapshots.pop(0), self.snapshots))
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
        left = garbage(await self.store.names(), self.epoch, self.journals, self.snapshots)
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
