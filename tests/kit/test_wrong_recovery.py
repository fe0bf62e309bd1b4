"""Recovery with one protection taken away: `assert_exactly_once` must notice, within some hundred stories.

Every one of these protections was put there for a fault that somebody meets some day. If one of them can be removed and
nothing fails, either it is not needed or it is not tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.sink import Sink
from flamecore.model.hashing import KEY_GROUPS, owners
from flamecore.model.messages import Committed, Outgoing
from flamecore.model.meta import MIN_TIME
from flamecore.runtime.engine.snapshots.coordinator import SnapshotCoordinator
from flamecore.runtime.engine.snapshots.journal import EpochStore
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.runtime.parts.collector import Collector
from flamecore.runtime.parts.completion import Completion
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.hand_overs import HandOvers
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.state import format as snapshot
from flamecore.runtime.state import history, journal
from flamecore.runtime.state import restore as recovery
from flamecore.runtime.state.format import EpochRecord, encode_record, epoch_blob
from flamecore.runtime.state.history import History
from flamecore.runtime.state.scan import Journals, StoreContents, scan
from flamecore.runtime.tasks import epoch_transport as scope
from flamecore.runtime.tasks.front_task import FrontTask
from flamecore.testing.flows.exactly_once import assert_exactly_once
from flamecore.testing.simulation.edges import SimulatedSink
from flamecore.testing.simulation.trouble import Trouble

Patch = pytest.MonkeyPatch

_STORIES = 1500

_START = snapshot._START


def merged() -> fc.Flow:
    """Three sources of unequal length, whose records meet in one state and in windows."""
    flow = fc.Flow("merged")
    a, b, c = (flow.source(name, int).rebalance().map(lambda n: n) for name in "abc")
    sums = a.merge(b, c).key_by(lambda n: n % 3).fold(0, lambda total, n: total * 3 % 1009 + n)
    sums.key_by(lambda pair: pair[1] % 2).group(3).sink("windows")
    sums.sink("sums")
    return flow


INPUTS = {"a": list(range(18)), "b": list(range(100, 109)), "c": list(range(200, 204))}


# -- what is taken away ------------------------------------------------------------------------------------------------


def epochs_are_not_fenced(patch: Patch) -> None:
    """Begin an epoch even if another run owns it, or has overtaken this one."""

    async def begin(self: History, held: Mapping[str, int]) -> None:
        contents = await scan(self.store)
        self.journals = (await self._needed(contents)).blobs
        self.run = "anybody's"
        self._floor = max([self.start, *held.values()])
        blobs = tuple(manifest.blob for manifest in reversed(self.snapshots))
        place = (self.identity, self.epoch, 0.0, blobs, self.beginning, self.journals, self.fronts)
        record = EpochRecord(*place, self.run)
        await self.store.create(epoch_blob(self.epoch), encode_record(record))
        self._begun = self.epoch

    patch.setattr(History, "begin", begin)
    patch.setattr(History, "_check_rest", lambda self, found: None)


def messages_of_other_epochs_are_taken(patch: Patch) -> None:
    """Take messages of a worker that was declared dead."""
    original = scope.EpochTransport.__init__

    def plain(self: scope.EpochTransport, transport: Any, name: str) -> None:
        original(self, transport, name)
        self._suffix = ""

    patch.setattr(scope.EpochTransport, "__init__", plain)


def sinks_have_no_owner(patch: Patch) -> None:
    """Take writes of a run that was declared dead."""
    patch.setattr(SimulatedSink, "_check", lambda self: None)


def rears_do_not_filter_what_they_hold(patch: Patch) -> None:
    original = Collector.__init__

    def unfiltered(self: Collector, *args: Any, delivered_up_to: int = MIN_TIME, **options: Any) -> None:
        original(self, *args, **options)

    patch.setattr(Collector, "__init__", unfiltered)


def a_promise_is_made_before_it_is_written_down(patch: Patch) -> None:
    """Release outputs under times that are not written down yet."""
    admit = Worker.admit

    def hasty(self: Worker, *args: Any) -> None:
        admit(self, *args)
        promises = self.ingress.promises
        for number, time in promises._unstored.items():
            promises._reporter.heartbeat(number, time)
        promises._unstored.clear()

    patch.setattr(Worker, "admit", hasty)
    patch.setattr(Worker, "confirm_times", lambda self, given_times: None)
    patch.setattr(Worker, "end_front", _end_at_once)


def _end_at_once(self: Worker, number: int) -> int:
    self.fronts[number].ended = True
    self.ingress.promises._reporter.unregister(number)
    return self.fronts[number].next_time


def times_that_were_given_are_not_given_again(patch: Patch) -> None:
    async def nothing(store: Any, resume: Any, start: int) -> journal.Journal:
        return journal.Journal({}, {})

    patch.setattr("flamecore.runtime.engine.node.load_journal", nothing)


def what_is_written_down_after_the_look_does_not_count(patch: Patch) -> None:
    original = History._needed

    async def needed(self: History, contents: StoreContents) -> Journals:
        known = tuple(blob for blob in contents.journals if blob in self.journals)
        return await original(self, contents._replace(journals=known))

    patch.setattr(History, "_needed", needed)


def new_times_do_not_begin_where_the_outputs_end(patch: Patch) -> None:
    """Drop records after the clock was put back, as if they were held already."""
    original = History.resume
    patch.setattr(History, "resume", lambda self: original(self)._replace(floor=self.start))


def the_end_of_a_front_is_not_written_down(patch: Patch) -> None:
    """Give records of the next run times that others have left behind."""
    patch.setattr(Worker, "end_front", _end_if_written)


def _end_if_written(self: Worker, number: int) -> int:
    self.fronts[number].ended = True
    self.ingress.promises.end(number, None)
    return self.fronts[number].next_time


def a_front_that_is_stopped_counts_as_ended(patch: Patch) -> None:
    """Time passes it, although the next run reads it on."""
    original = FrontTask.run

    async def run(self: FrontTask) -> None:
        self._snapshots = False
        for reading in self._left:
            reading.again = False
        await original(self)

    patch.setattr(FrontTask, "run", run)


def one_snapshot_is_kept(patch: Patch) -> None:
    patch.setattr(history, "_RETAINED", 1)


def checksums_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(snapshot, "_checksum", lambda stored_format, *data: bytes(16))
    patch.setattr(snapshot, "digest_of", lambda blob: bytes(16))


def blobs_say_nothing_of_their_places(patch: Patch) -> None:
    """Take every whole blob: compare its seal with its own statement."""
    original = snapshot.unseal

    def unseal(blob: bytes | None, name: str, expected: snapshot.Binding) -> bytes:
        place = blob[_START + 1 : _START + 1 + blob[_START]].decode("ascii", "replace") if blob else name
        return original(blob, place, snapshot.Binding())

    for module in (snapshot, history, journal):
        patch.setattr(module, "unseal", unseal)


def sinks_may_be_ahead_of_the_journals(patch: Patch) -> None:
    """Go on with an older copy of the state."""

    async def look_away(self: History, held: Any, last: Any, journaled: int) -> None:
        return

    patch.setattr(History, "_check_sinks", look_away)


def there_is_no_beginning_to_go_back_to(patch: Patch) -> None:
    async def look_away(store: Any) -> StoreContents:
        contents = await scan(store)
        return contents._replace(beginning=contents.beginning and not contents.snapshots and not contents.damaged)

    patch.setattr(history, "scan", look_away)


def upstream_may_forget_what_the_newest_snapshot_covers(patch: Patch) -> None:
    """But the one before may have to be gone back to."""

    def tell(self: SnapshotCoordinator) -> None:
        newest = self._history.snapshots[-1]
        positions = tuple((front.number, front.position) for front in newest.fronts)
        self._send(Committed(self._ballot.number, newest.time, positions))

    patch.setattr(SnapshotCoordinator, "_tell", tell)


def a_snapshot_is_taken_above_what_rears_have_stored(patch: Patch) -> None:
    patch.setattr(Completion, "stored", property(lambda self: min(self._stored.values()) + 1))


def a_snapshot_is_of_what_one_rear_has_stored(patch: Patch) -> None:
    patch.setattr(Completion, "stored", property(lambda self: max(self._stored.values())))


def rears_tell_before_they_have_stored(patch: Patch) -> None:
    """Report a batch as stored when its write has only begun."""
    original = SimulatedSink.write

    async def write(self: SimulatedSink, time: int, payloads: Sequence[Any]) -> None:
        self._busy = False
        self._writing = asyncio.ensure_future(original(self, time, payloads))  # type: ignore[attr-defined]

    patch.setattr(SimulatedSink, "write", write)
    patch.setattr(SimulatedSink, "sync", Sink.sync)


def a_snapshot_holds_the_latest_state(patch: Patch) -> None:
    """Not that at its time: what came after is counted again."""
    original = DriftOperator.cut

    def cut(self: DriftOperator, before: bytes) -> Mapping[Any, Any]:
        return {key: self.states.get(key) for key in original(self, before)}

    patch.setattr(DriftOperator, "cut", cut)


def history_goes_with_the_minimum_time(patch: Patch) -> None:
    """Forget history at the minimum time, which may be ahead of the next snapshot."""
    for kind in (DriftOperator, GroupingOperator):
        patch.setattr(kind, "on_time", kind._forget)


def positions_are_the_latest(patch: Patch) -> None:
    """Not those at the snapshot's time."""
    original = Front.cut

    def cut(self: Front, time: int) -> tuple[Any, int]:
        _, next_time = original(self, time)
        return self._uncut.last, next_time

    patch.setattr(Front, "cut", cut)


def a_snapshot_does_not_wait_for_every_worker(patch: Patch) -> None:
    original = SnapshotCoordinator.receive

    def receive(self: SnapshotCoordinator, message: Any) -> None:
        original(self, message)
        if message.number == self._ballot.number:
            for index in range(self._plan.workers):
                if index in self._ballot.late:
                    original(self, message._replace(worker=index, parts=(), fronts=()))

    patch.setattr(SnapshotCoordinator, "receive", receive)


def parts_are_announced_before_they_are_stored(patch: Patch) -> None:
    original, late = EpochStore.create, set()

    async def create(self: EpochStore, blob: str, data: bytes) -> None:
        if not blob.startswith("part/"):
            return await original(self, blob, data)
        late.add(asyncio.ensure_future(self.store.create(blob, data)))
        return None

    patch.setattr(EpochStore, "create", create)


def what_is_received_is_acked_before_what_came_of_it_is_sent(patch: Patch) -> None:
    original = HandOvers.flush

    def flush(self: HandOvers, out: Outgoing, now: float, **how: bool) -> None:
        for ack in self.owed:
            self._reporter.ack(*ack)
        self.owed.clear()
        out += [(f"acker/{tracker}", report) for tracker, report in self._reporter.flush(now)]
        original(self, out, now, **how)

    patch.setattr(HandOvers, "flush", flush)


def key_groups_stay_where_they_were(patch: Patch) -> None:
    """With another number of workers."""
    original = recovery.load_state

    async def load(store: Any, codec: Any, manifest: Any, groups: Any, vertices: Any) -> Any:
        before = owners(manifest.workers)
        index = min(groups) * manifest.workers // KEY_GROUPS
        return await original(store, codec, manifest, [g for g, owner in enumerate(before) if owner == index], vertices)

    patch.setattr("flamecore.runtime.engine.node.load_state", load)


DAMAGES = Trouble(faults=6, between=(20, 60, 150), kinds={"kill": 1, "damage": 1}, tears=False)
OVERLAPS = Trouble(faults=6, between=(20, 60, 150), kinds={"abandon": 1})

WRONG: Mapping[Callable[[Patch], None], Trouble] = {
    epochs_are_not_fenced: OVERLAPS,
    messages_of_other_epochs_are_taken: Trouble(faults=6, between=(20, 60, 150), kinds={"partition": 1}),
    sinks_have_no_owner: Trouble(),
    rears_do_not_filter_what_they_hold: Trouble(),
    a_promise_is_made_before_it_is_written_down: Trouble(),
    times_that_were_given_are_not_given_again: Trouble(),
    what_is_written_down_after_the_look_does_not_count: Trouble(faults=10, between=(60, 150), kinds={"abandon": 1}),
    new_times_do_not_begin_where_the_outputs_end: Trouble(faults=6, between=(60, 150), kinds={"kill": 1, "clock": 1}),
    the_end_of_a_front_is_not_written_down: Trouble(),
    a_front_that_is_stopped_counts_as_ended: Trouble(faults=6, between=(20, 60, 150), kinds={"drain": 1, "kill": 2}),
    one_snapshot_is_kept: DAMAGES,
    checksums_are_not_looked_at: DAMAGES,
    blobs_say_nothing_of_their_places: DAMAGES,
    sinks_may_be_ahead_of_the_journals: DAMAGES,
    there_is_no_beginning_to_go_back_to: DAMAGES,
    upstream_may_forget_what_the_newest_snapshot_covers: DAMAGES,
    a_snapshot_is_taken_above_what_rears_have_stored: Trouble(),
    a_snapshot_is_of_what_one_rear_has_stored: Trouble(),
    rears_tell_before_they_have_stored: Trouble(),
    a_snapshot_holds_the_latest_state: Trouble(),
    history_goes_with_the_minimum_time: Trouble(),
    positions_are_the_latest: Trouble(),
    a_snapshot_does_not_wait_for_every_worker: Trouble(),
    parts_are_announced_before_they_are_stored: Trouble(faults=6, between=(20, 60, 150), kinds={"kill": 1}),
    what_is_received_is_acked_before_what_came_of_it_is_sent: Trouble(),
    key_groups_stay_where_they_were: Trouble(),
}
"""Each guard that is taken away, and the trouble in which it is missed soonest."""

MISSED_AT: Mapping[Callable[[Patch], None], int] = {
    epochs_are_not_fenced: 11,
    sinks_have_no_owner: 54,
    what_is_written_down_after_the_look_does_not_count: 11,
    new_times_do_not_begin_where_the_outputs_end: 144,
    a_front_that_is_stopped_counts_as_ended: 49,
    sinks_may_be_ahead_of_the_journals: 13,
    there_is_no_beginning_to_go_back_to: 11,
    parts_are_announced_before_they_are_stored: 154,
}
"""Seed of the first story in which a guard is missed; 0 where none is given. If other stories are played one day, the
search only takes longer.
"""


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_without_a_protection_the_outputs_are_wrong(wrong: Callable[[Patch], None], monkeypatch: Patch) -> None:
    trouble = WRONG[wrong]
    wrong(monkeypatch)
    first = MISSED_AT.get(wrong, 0)
    with pytest.raises(AssertionError, match="seed="):
        assert_exactly_once(merged(), INPUTS, seeds=range(first, first + _STORIES), trouble=trouble)


@pytest.mark.parametrize(
    "trouble",
    {repr(trouble): trouble for trouble in WRONG.values()}.values(),
    ids=lambda trouble: "-".join(trouble.kinds),
)
def test_with_all_protections_the_outputs_are_right(trouble: Trouble) -> None:
    assert_exactly_once(merged(), INPUTS, seeds=range(3), trouble=trouble)
