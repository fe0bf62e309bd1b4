"""The history of a job's state: epochs, snapshots, ownership and rollback.

Every start of a job, and every restart after a fault, is an *epoch* (paper 000). It begins by creating the epoch's
blob, which lists the blobs from which it continues; if several runs try, only one succeeds. Later writes of an earlier
epoch are not in that list, so they do not count. Two snapshots are kept: if the newest is damaged, the one before is
used; before the first one there is the beginning.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from flamecore.abc.source import Source
from flamecore.abc.store import Store
from flamecore.errors import CorruptError, FencedError, StateBehindError
from flamecore.model.clock import ClockName, global_time
from flamecore.model.graph import Graph
from flamecore.model.messages import Prepared, Resume
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.accepted_loss import (
    AcceptedLoss,
    SinksAhead,
    accepted,
    accepted_blob,
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
from flamecore.runtime.state.fronts import Phases, fronts_of, merge_fronts, newly_gone
from flamecore.runtime.state.journal import encode_sync
from flamecore.runtime.state.scan import Journals, StoreContents, garbage, only_of, read_journals, scan
from flamecore.runtime.state.schema import check_schema, state_schema

# Not one: only reading shows that a snapshot is whole, so the newest may turn out damaged when it is needed. Not three:
# sources keep their records, and workers their journals, from the oldest snapshot on.
_RETAINED: Final = 2
"""Number of snapshots kept."""


class Limited(Protocol):
    """A function that awaits a call of a source for as long as the call may take."""

    def __call__(self, source: str, work: Coroutine[Any, Any, Any]) -> Awaitable[Any]: ...


async def _unlimited(source: str, work: Coroutine[Any, Any, Any]) -> Any:
    return await work


class History:
    """The history of a state, kept by its owner.

    Args:
        store: The open store.
        graph: The job's graph.
        workers: Number of workers.
        phases: Phases of its sources and sinks.
        clock: Clock of its fronts.
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
        """Token of the last epoch begun here."""
        self.journals: tuple[str, ...] = ()
        self.snapshots: list[Manifest] = []  # for rollback, oldest first
        self.beginning = True  # rollback to the beginning is possible
        self.fronts: tuple[FrontState, ...] = ()
        self._begun = 0  # the last epoch begun here
        self._new: set[int] = set()
        self.gone: dict[str, list[str]] = {}  # partitions that were read whole and have gone since the last start
        self._behind_end = False
        self._floor = 0
        self._unusable: set[str] = set()
        self._tidied = 0
        self._sinks: tuple[SinkState, ...] = ()
        self._reduced: Manifest | None = None  # the newest snapshot without an accepted loss
        self._loss = AcceptedLoss({})
        self._digests: dict[str, bytes] = {}  # digests of records and journals, by blob

    @property
    def snapshot(self) -> Manifest | None:
        """Return the newest snapshot, or None."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def start(self) -> int:
        """Return the time that the job continues from."""
        return self.snapshot.time if self.snapshot is not None else 0

    @property
    def continued(self) -> bool:
        """Return whether there was an epoch before this one."""
        return self.epoch > 1

    @property
    def owned(self) -> bool:
        """Return whether an epoch was begun here."""
        return self._begun > 0

    async def scan(self) -> None:
        """Find the state to continue from.

        Sets `identity`, `epoch` (the next one), `snapshots`, `fronts` and `journals`; owns nothing yet. A later scan
        may only find changes made here: if another run has begun meanwhile, it may own the sinks by now.

        Raises:
            FencedError: Another run has begun since the last scan.
            StoreError: The store fails.
            CorruptError: There are snapshots, but none is usable.
            JobError: The newest snapshot does not fit the graph.
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
        # Drawn, not derived from the job's name: sinks keep it, and refuse a state that was made anew under that name.
        self.identity = contents.last.identity if contents.last else secrets.token_hex(16)
        loss = self._loss = await accepted(self.store, self.identity, self.graph)
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
        self.gone = {}

    def find_fronts(self, graph: Graph, sources: Mapping[str, Source]) -> tuple[FrontState, ...]:
        """Find and return all fronts of the job, by number; see `merge_fronts`.

        Raises:
            SourceError: A source cannot be found.
            JobError: A partition that was not read to its end is no longer there, or another phase of a source is to be
                read.
        """
        fronts, behind_end = merge_fronts(self.fronts, graph, sources, self.phases)
        if behind_end:
            self._goes_on()
            if self.clock != "wall":
                fronts = self._behind_the_end(fronts)
        self._new = {front.number for front in fronts[len(self.fronts) :]}
        self.gone = newly_gone(self.fronts, fronts)
        self.fronts = fronts
        return self.fronts

    async def find_ends(self, sources: Mapping[str, Source], limited: Limited = _unlimited) -> None:
        """Find where the run ends in the partitions for which that is not decided; `begin` stores it.

        Call it after `find_fronts`.

        Args:
            sources: Sources by name.
            limited: Awaits the call of a source, whose name it is given, for as long as that may take.

        Raises:
            SourceError: An end cannot be found, or not in time.
        """
        self.fronts = tuple(
            [
                front
                if front.ended or front.end is not None or self._is_past(front)
                else front._replace(
                    end=await limited(front.source, sources[front.source].find_end(front.partition_name))
                )
                for front in self.fronts
            ]
        )

    @property
    def past(self) -> frozenset[int]:
        """Return the numbers of the fronts of earlier phases; see `Plan`."""
        return frozenset(front.number for front in self.fronts if self._is_past(front))

    @property
    def done(self) -> frozenset[int]:
        """Return the numbers of the other fronts that had ended, with nothing new in them; see `Plan`."""
        return frozenset(
            front.number for front in self.fronts if front.ended and front.unread and not self._is_past(front)
        )

    def _is_past(self, front: FrontState) -> bool:
        return front.phase < self.phases.of_source(front.source)

    @property
    def unread(self) -> frozenset[int]:
        """Return the numbers of the fronts of which nothing new was read; see `Plan`."""
        return frozenset(front.number for front in self.fronts if front.unread)

    def _behind_the_end(self, fronts: Sequence[FrontState]) -> tuple[FrontState, ...]:
        """Return fronts that go on behind the end of a job, once one of them has a record there."""
        begun = max([self.start, *[front.next_time for front in fronts]]) + 1
        return tuple(front if front.ended else front._replace(begun=begun) for front in fronts)

    def _goes_on(self) -> None:
        """Continue a finished job behind its end: only its last snapshot still counts."""
        self.snapshots, self.beginning, self._behind_end = self.snapshots[-1:], not self.snapshots, True

    async def verify(self) -> None:
        """Make sure that every part of the snapshot can be read; else roll back.

        Call it after `scan`.

        Raises:
            FencedError: Another run is active, and takes snapshots.
            StoreError: The store fails.
            CorruptError: No snapshot can be used.
        """
        # All parts, not the manifest alone: only reading them shows that none is missing or damaged.
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

        The sinks are open, so no earlier epoch owns them any more: it cannot deliver for journals that it writes from
        now on, including those that it has written since `scan`.

        Args:
            delivered_up_to: For each sink the time up to which it holds its outputs. New times, and new fronts, begin
                there.

        Raises:
            FencedError: Another run was faster, or is still active.
            CorruptError: A journal is damaged or missing, so the given times are not known.
            StateBehindError: A sink holds outputs that no journal accounts for.
            StoreError: The store fails.
        """
        contents = await scan(self.store)
        # Read again, after the sinks were opened: the former run may have stored journals, and delivered for them,
        # until then.
        self._check_rest(contents)
        journals = await self._needed(contents)
        await self._check_sinks(delivered_up_to, contents.last, journals.end)
        self.journals = journals.blobs
        self._digests = {**contents.digests, **dict(journals.digests)}
        # Not below the times that any sink holds: a new time that a sink already has would make an output
        # look delivered.
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
        # Not a lock with a timeout: its holder may only be slow, and would write on after another has taken it. Only
        # one run can create this blob, and no clock decides which; blobs that an earlier epoch stores from now on are
        # not in its list.
        if not await self.store.create(epoch_blob(self.epoch), encode_record(record)):
            raise self._fenced(self.epoch)
        await self._check_left_alone(contents)
        self._begun = self.epoch
        self._sinks = tuple(self.phases.of_sink(name) for name in sorted(delivered_up_to))
        if self._reduced is not None:
            await self._record_loss(self._reduced)
        # An acceptance holds once: it must not cover state that is made from here on.
        # Only after the new epoch is there: a crash in between finds the acceptance again.
        await self.store.delete([accepted_blob(self.identity, self.graph), ahead_blob(self.identity)])
        self._loss = AcceptedLoss({})

    async def _check_sinks(self, delivered_up_to: Mapping[str, int], last: EpochRecord | None, journaled: int) -> None:
        """Make sure that no sink holds outputs under times that are no longer known.

        With the wall clock no output leaves before its time is in a journal. So a sink ahead of all stored times proves
        that journals are lost, and its outputs would come again under other times. With a clock that counts times
        follow from positions: repeated outputs have the times that the sink holds, and are dropped, unless another
        clock gave them.

        Args:
            delivered_up_to: For each sink the time up to which it holds its outputs.
            last: Record of the last epoch.
            journaled: End of the journals.

        Raises:
            StateBehindError: A sink is ahead, and the loss was not accepted.
            StoreError: The sinks cannot be recorded.
        """
        if last is None:
            return
        same = last.clock == self.clock
        if same and self.clock != "wall":
            return
        accounted = max(self.start, last.floor, journaled)
        ahead = {name: until for name, until in sorted(delivered_up_to.items()) if until > accounted}
        if all(self._loss.covers(name, until) for name, until in ahead.items()):
            return
        self._check_rest(await scan(self.store))  # an active run may have deleted journals since
        await note_ahead(self.store, self.identity, SinksAhead(tuple(ahead.items()), accounted))
        sinks = ", ".join(
            f"sink {name!r} holds its output up to time {global_time(until)}" for name, until in ahead.items()
        )
        upto = global_time(accounted)
        what = f"the state is older than the output: {sinks}, and the journals of the state go up to time {upto}. "
        if same:
            what += (
                "Journals that were written since are lost, and what they tell of would come again under other times"
            )
            hint = "Bring back the newest state; or the outputs that belong to this one; or accept"
        else:
            before = last.clock
            what += f'The job ran with clock = "{before}": by "{self.clock}" outputs would come again at other times'
            hint = f'Run it once to its end with job.clock = "{before}", before you change the clock; or accept'
        raise StateBehindError(
            what,
            hint=f"{hint} that some outputs come twice: flamestream plan --accept.",
            store=self.store.name,
            blob="",
            sinks=ahead,
            accounted=accounted,
        )

    async def _record_loss(self, reduced: Manifest) -> None:
        """Record the newest snapshot without the accepted loss as a new snapshot."""
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
        """Undo an acceptance and its snapshot: the begun graph is given up unused."""
        await self.store.delete([accepted_blob(self.identity, self.graph)])
        if self.snapshot is not None and self.snapshot.epoch == self._begun == self.epoch:
            self._unusable.add(self.snapshot.blob)

    def _check_rest(self, contents: StoreContents) -> None:
        """Make sure that no other run has changed anything since the last scan.

        Raises:
            FencedError: Another run has.
        """
        last = contents.epochs[-1].epoch if contents.epochs else 0
        newest = next((each.blob for each in contents.snapshots if each.blob not in self._unusable), None)
        changed = newest != (self.snapshot.blob if self.snapshot is not None else None)
        # A snapshot of our own, given up while it was being recorded, may still have been stored.
        if last != self.epoch - 1 or (changed and last != self._begun):
            raise self._fenced(last)

    async def _check_left_alone(self, contents: StoreContents) -> None:
        """Make sure that the previous owner took no snapshot before this epoch began.

        With a snapshot that is not known here, it may have deleted blobs that are needed here. From now on it can take
        none.

        Raises:
            FencedError: It has. The record of the new epoch is deleted.
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
        """Read the journals that continuing from any snapshot could need.

        Raises:
            FencedError: Another run is active, and deletes journals that it no longer needs.
            CorruptError: A journal is damaged or missing.
        """
        if self._behind_end and not self.graph.has_timers:
            return Journals()
        try:
            found = await read_journals(self.store, contents, None if self.beginning else self.snapshots[0])
            # Behind the end no record is read again, and the journals only say how far time has passed for timers.
            return Journals(end=found.end) if self._behind_end else found
        except CorruptError:
            self._check_rest(await scan(self.store))
            raise

    def refuse(self, blob: str) -> bool:
        """Mark the newest snapshot unusable, if `blob` belongs to it.

        The next epoch continues from the one before.

        Returns:
            Whether `blob` belongs to it, and an earlier snapshot or the beginning can be used instead.
        """
        # By its parts, too: a worker finds a damaged part when it loads it, long after the manifest
        # was read.
        if self.snapshot is None or blob not in {self.snapshot.blob, *(part.blob for part in self.snapshot.parts)}:
            return False
        self._unusable.add(self.snapshot.blob)
        return len(self.snapshots) > 1 or self.beginning

    def resume(self) -> Resume:
        """Return the message that tells the workers from where to continue."""
        commit = self.snapshot.blob if self.snapshot is not None else ""
        fronts = tuple((front.position, front.next_time, front.ended, front.begun) for front in self.fronts)
        blobs = (commit, *self.journals)
        digests = tuple([(blob, self._digests[blob]) for blob in blobs if blob in self._digests])
        return Resume(self.identity, self.epoch, commit, self.journals, fronts, self._floor, self.run, digests)

    def changed_by(self, answers: Sequence[Prepared]) -> bool:
        """Return whether a snapshot would differ from the newest in more than time."""
        if self.snapshot is None or any(answer.parts for answer in answers):
            return True
        # Not the time alone: an idle job takes no snapshots, and its store stays as it is.
        now = {front.number: (front.position, front.ended) for front in self.fronts}
        return any(
            now.get(front) != (position, ended) for answer in answers for front, position, _, ended in answer.fronts
        )

    async def announce(self, number: int, at: int) -> None:
        """Record the time of a snapshot before sinks learn it.

        The time may be above that of all outputs. Without the record a sink would be ahead of the journals if the
        snapshot is not stored, or is damaged later. Does nothing unless the clock is the wall clock.

        Args:
            number: Number of the snapshot.
            at: Time of the snapshot.

        Raises:
            StoreError: It cannot be written.
        """
        if self.clock != "wall":
            return
        blob = sync_blob(self.epoch, number)
        await self.store.create(blob, encode_sync(at, blob, Binding(self.identity, self.run)))

    async def commit(self, number: int, at: int, answers: Sequence[Prepared]) -> Manifest:
        """Record a snapshot whose parts are all stored, and delete expired ones.

        Args:
            number: Number of the snapshot.
            at: Time of the snapshot.
            answers: Answers of all workers, in their order.

        Raises:
            FencedError: Another run has taken over.
            StoreError: It cannot be recorded.
        """
        now = {front.number: front for front in self.fronts}
        for answer in answers:
            for front, position, next_time, ended in answer.fronts:
                unread = now[front].unread and position == now[front].position
                now[front] = now[front]._replace(position=position, next_time=next_time, ended=ended, unread=unread)
            for front, marked in answer.marked:
                now[front] = now[front]._replace(marked=marked)
        before = self.snapshot
        # The parts of the snapshot before, and the new ones; what a sweep has made superfluous
        # falls out below.
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
        # Before the write: a run that was overtaken must not record a snapshot that its successor
        # does not know of.
        await self._check_fence()
        if not await self.store.create(manifest.blob, encoded):
            raise self._fenced(self.epoch)
        self._digests[manifest.blob] = digest_of(encoded)
        self.fronts = manifest.fronts
        self.snapshots.append(manifest)
        self.beginning = self.beginning and len(self.snapshots) < _RETAINED
        await self._check_fence()  # a run that has taken over may still need blobs that are not needed here
        if len(self.snapshots) > _RETAINED:
            # The oldest goes only when the newest is stored, so there are always two to go back to.
            await self.store.delete(only_of(self.snapshots.pop(0), self.snapshots))
        await self.tidy_once()
        return manifest

    async def _check_fence(self) -> None:
        own, names = epoch_blob(self.epoch), await self.store.names("epoch/")
        last = names[-1] if names else ""
        if last > own:
            raise self._fenced(self.epoch + 1)
        if last < own:
            raise CorruptError(
                f"the blob {own} of this run is gone: something else has deleted blobs of the state while the job ran",
                hint=f"Nothing but the job may change its state. {RESTORE}",
                store=self.store.name,
                blob=own,
            )

    async def tidy_once(self) -> None:
        """Tidy up once per epoch."""
        # Only faults leave garbage, so once in an epoch is enough.
        if self._tidied != self.epoch and not self.beginning:
            self._tidied = self.epoch
            await self.tidy()

    async def tidy(self) -> int:
        """Delete garbage: blobs of earlier epochs that no rollback needs.

        Returns:
            The number of blobs deleted.
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
