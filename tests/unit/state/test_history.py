"""The story of a job's state: who owns it, what is gone back to, what is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.source import EdgeContext, Reader, Source, SourceCapabilities
from flamecore.abc.store import StoreContext
from flamecore.errors import CorruptError, FencedError, JobError, StateBehindError, StoreError
from flamecore.model.clock import ClockName
from flamecore.model.graph import Graph
from flamecore.model.hashing import KEY_GROUPS
from flamecore.model.messages import Prepared
from flamecore.model.meta import MIN_TIME
from flamecore.runtime.state.accepted_loss import AcceptedLoss, accept
from flamecore.runtime.state.format import (
    Binding,
    FrontState,
    commit_blob,
    digest_of,
    encode_record,
    epoch_blob,
    journal_blob,
    part_blob,
    seal,
)
from flamecore.runtime.state.fronts import Phases
from flamecore.runtime.state.history import History
from flamecore.runtime.state.journal import GivenTimes, encode_journal, end_of
from flamecore.runtime.state.migration import plan_migration
from flamecore.runtime.state.scan import scan
from flamestream_stores.memory import Memory


class Partitions(Source):
    """A source of which only the partitions matter."""

    name: ClassVar[str] = "partitions"

    def __init__(self, *names: str) -> None:
        super().__init__(None, EdgeContext("lines"))
        self.names = names

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    def partitions(self) -> Sequence[str]:
        return self.names

    async def open(self, partition: str, position: Any = None) -> Reader:
        raise NotImplementedError


def counting() -> Graph:
    flow = fc.Flow("counting")
    flow.source("lines", str).key_by(lambda line: line).count(name="count").sink("out")
    return flow.graph()


GRAPH = counting()


def store(blobs: dict[str, bytes]) -> Memory:
    return Memory(None, StoreContext("job"), blobs)


class Ending(Partitions):
    """A source whose runs end where `ends` says when they begin."""

    ends: ClassVar[dict[str, Any]] = {}

    async def find_end(self, partition: str) -> Any:
        return self.ends.get(partition)


class Run:
    """A run of a job, as far as its state is concerned. Its one worker hosts all its fronts."""

    def __init__(
        self,
        blobs: dict[str, bytes],
        *names: str,
        graph: Graph = GRAPH,
        clock: ClockName = "sequence",
        phases: Phases | None = None,
    ) -> None:
        self.blobs = blobs
        self.history = History(store(blobs), graph, 1, phases, clock)
        self.graph = graph
        self.sources = {"lines": Partitions(*(names or ("a",)))}
        self.number = 0
        self.ends: list[int] = []  # of its journals

    @property
    def binding(self) -> Binding:
        return Binding(self.history.identity, self.history.run)

    def do(self, awaitable: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await awaitable

        return asyncio.run(wait())

    def scan(self) -> Run:
        self.do(self.history.scan())
        self.do(self.history.verify())
        self.history.find_fronts(self.graph, self.sources)
        self.number = self.history.snapshot.number if self.history.snapshot else 0
        return self

    def begin(self, held: int = MIN_TIME) -> Run:
        self.do(self.history.begin({"out": held}))
        return self

    def write(self, text: str, since: int | None = None) -> tuple[Any, ...]:
        """Store a part of the next snapshot; by default it holds all state."""
        blob = part_blob(self.history.epoch, self.number + 1, 0)
        self.blobs[blob] = seal(text.encode(), blob, self.binding)
        number, digest = self.number + 1, digest_of(self.blobs[blob])
        return (blob, len(text), ("count",), (0, KEY_GROUPS - 1), number, number if since is None else since, digest)

    def commit(
        self,
        time: int,
        *fronts: tuple[int, Any, int, bool],
        part: bool = True,
        since: int | None = None,
        marked: tuple[tuple[int, bytes], ...] = (),
    ) -> Run:
        written = (self.write(f"part at {time}", since),) if part else ()
        self.number += 1
        needed = next((number for number, end in enumerate(self.ends, 1) if end > time), len(self.ends) + 1)
        answer = Prepared(self.number, 0, fronts, written, needed, marked)
        self.do(self.history.commit(self.number, time, [answer]))
        return self

    def give(self, *given: tuple[int, int, int]) -> str:
        """Write a journal of times for a worker."""
        self.ends.append(end_of([GivenTimes(*each) for each in given]))
        blob = journal_blob(self.history.epoch, 0, len(self.ends))
        self.blobs[blob] = encode_journal([GivenTimes(*each) for each in given], blob, self.binding)
        return blob


def start(blobs: dict[str, bytes], *names: str, held: int = MIN_TIME) -> Run:
    return Run(blobs, *names).scan().begin(held)


# -- a job begins, and goes on -----------------------------------------------------------------------------------------


def test_a_job_begins_with_nothing() -> None:
    blobs: dict[str, bytes] = {}
    run = Run(blobs).scan()
    history = run.history
    assert (history.epoch, history.start, history.snapshot, history.continued) == (1, 0, None, False)
    assert history.fronts == (FrontState("lines", 0, "a", 1, None, 0, False, unread=True),)
    assert blobs == {}, "whoever looks changes nothing"
    run.begin()
    assert list(blobs) == [epoch_blob(1)]
    assert history.resume().commit == ""
    assert history.resume().fronts == ((None, 0, False, 0),)


def test_a_job_resumes_from_its_last_snapshot() -> None:
    blobs: dict[str, bytes] = {}
    first = start(blobs).commit(5, (1, "five", 5, False)).commit(9, (1, "nine", 9, False))
    second = Run(blobs).scan().history
    assert (second.identity, second.epoch, second.continued) == (first.history.identity, 2, True)
    assert second.start == 9
    assert second.fronts == (FrontState("lines", 0, "a", 1, "nine", 9, False),)
    assert [each.time for each in second.snapshots] == [5, 9]
    assert second.resume().commit == commit_blob(1, 2)


def test_a_job_resumes_from_a_snapshot_of_an_earlier_epoch() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5, (1, "five", 5, False))
    start(blobs)
    start(blobs)
    third = start(blobs).commit(8, (1, "eight", 8, False)).history
    assert third.epoch == 4
    assert Run(blobs).scan().history.start == 8


def test_a_worker_that_hosts_no_front_leaves_the_others_where_they_were() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs, "a", "b").commit(5, (1, "five", 5, False), (2, "b", 6, True)).commit(7, (1, "seven", 7, False))
    assert [front.position for front in run.history.fronts] == ["seven", "b"]


# -- two snapshots are kept --------------------------------------------------------------------------------------------


def test_two_snapshots_are_kept_with_all_their_parts() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    for number in range(1, 6):
        run.commit(10 * number, since=number - 1)
    assert sorted(blobs) == [
        commit_blob(1, 4),
        commit_blob(1, 5),
        epoch_blob(1),
        part_blob(1, 3, 0),  # of the snapshot before the last
        part_blob(1, 4, 0),
        part_blob(1, 5, 0),
    ]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
@pytest.mark.parametrize("what", ["manifest", "part"])
def test_the_snapshot_before_a_damaged_one_is_used(what: str, damage: str) -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5, (1, "five", 5, False)).commit(9, (1, "nine", 9, False))
    blob = commit_blob(1, 2) if what == "manifest" else part_blob(1, 2, 0)
    if damage == "missing":
        del blobs[blob]
    else:
        blobs[blob] = blobs[blob][:-3] + (b"" if damage == "cut" else b"xyz")
    run = Run(blobs).scan()
    assert run.history.start == 5
    assert run.history.fronts[0].position == "five"
    run.begin(9).commit(7, (1, "seven", 7, False))
    assert Run(blobs).scan().history.start == 7, "and it goes on from there"
    assert commit_blob(1, 2) not in blobs, "what cannot be used goes"


def test_the_history_hears_of_a_damaged_part() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs).commit(5).commit(9)
    assert not run.history.refuse("part/of/another")
    assert run.history.refuse(part_blob(1, 2, 0))
    run.scan()
    assert run.history.start == 5
    assert run.history.epoch == 2
    assert not run.history.refuse(commit_blob(1, 1)), "there is none before"


def test_two_damaged_snapshots_are_an_error() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5).commit(9).commit(12)
    for number in (2, 3):
        blobs[commit_blob(1, number)] = b"?"
    with pytest.raises(CorruptError, match="no snapshot of the state can be used") as caught:
        Run(blobs).scan()
    assert commit_blob(1, 2) in str(caught.value)
    assert commit_blob(1, 3) in str(caught.value)


def test_two_snapshots_with_damaged_parts_are_an_error() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5).commit(9).commit(12)
    for number in (2, 3):
        blobs[part_blob(1, number, 0)] = b"?"
    with pytest.raises(CorruptError) as caught:
        Run(blobs).scan()
    assert caught.value.blob == part_blob(1, 2, 0)


def test_a_job_without_snapshot_resumes_from_the_beginning() -> None:
    blobs: dict[str, bytes] = {}
    first = start(blobs)
    first.give((1, 0, 4))
    first.commit(5, (1, "five", 5, False))
    assert first.history.beginning
    blobs[commit_blob(1, 1)] = b"?"
    second = Run(blobs).scan().begin(5)
    assert second.history.start == 0
    assert second.history.fronts == (FrontState("lines", 0, "a", 1, None, 0, False, unread=True),)
    assert second.history.journals == (journal_blob(1, 0, 1),), "the times given since then are all there"
    second.commit(6, (1, "six", 6, False)).commit(7, (1, "seven", 7, False))
    assert not second.history.beginning
    assert Run(blobs).scan().history.start == 7


def test_two_snapshots_replace_the_beginning() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5).commit(6)
    for number in (1, 2):
        blobs[commit_blob(1, number)] = b"?"
    with pytest.raises(CorruptError):
        Run(blobs).scan()


def test_the_marks_of_fronts_come_back() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs, "a", "b").commit(5, marked=((2, b"marks"),)).commit(6)
    assert [front.marked for front in run.history.fronts] == [b"", b"marks"]
    assert [front.marked for front in Run(blobs, "a", "b").scan().history.fronts] == [b"", b"marks"]


def test_later_epochs_may_resume_from_the_beginning() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "a").commit(5, (1, "five", 5, False))
    start(blobs, "a", "b", held=20)  # a new partition, and no snapshot
    blobs[commit_blob(1, 1)] = b"?"
    run = Run(blobs, "a", "b").scan().history
    assert run.start == 0
    assert [(front.position, front.next_time) for front in run.fronts] == [(None, 0), (None, 20)]


# -- who owns it -------------------------------------------------------------------------------------------------------


def test_the_state_is_owned_from_the_beginning_of_an_epoch_on() -> None:
    blobs: dict[str, bytes] = {}
    run = Run(blobs).scan()
    assert run.history.find_fronts(run.graph, run.sources) == run.history.fronts
    assert not run.history.owned
    assert run.begin().history.owned
    assert run.scan().history.owned


def test_a_snapshot_that_another_run_has_stored_is_not_replaced() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    blobs[commit_blob(1, 1)] = b"of another"
    with pytest.raises(FencedError):
        run.commit(5)
    assert blobs[commit_blob(1, 1)] == b"of another"


def test_one_of_two_runs_begins() -> None:
    blobs: dict[str, bytes] = {}
    one, other = Run(blobs).scan(), Run(blobs).scan()
    one.begin()
    with pytest.raises(FencedError, match="another run"):
        other.begin()


def test_partitions_that_were_read_whole_and_are_gone_are_told_of_once() -> None:
    blobs: dict[str, bytes] = {}
    passing = "dead letters dead.jsonl[0:9] 1"

    def told(*names: str) -> dict[str, list[str]]:
        run = start(blobs, *names)
        gone = run.history.gone
        fronts = [(front.number, 1, front.next_time + 1, True) for front in run.history.fronts]
        run.commit(run.history.start + 10, *fronts)
        return gone

    assert told("a", "b", passing) == {}
    assert told("b", "c") == {"lines": ["a"]}, "dead letters are read once by design"
    assert told("b", "c") == {}
    assert told("c") == {"lines": ["b"]}
    assert told("a", "b", "c") == {}
    assert told("a") == {"lines": ["b", "c"]}
    start(blobs, "a", "empty").commit(1000, (1, 1, 1001, True), (5, None, 1001, True))
    assert told("a") == {}, "there was nothing in it"


def test_one_of_two_concurrent_runs_begins() -> None:
    blobs: dict[str, bytes] = {}

    class Slow(Memory):
        async def create(self, name: str, data: bytes) -> bool:
            await asyncio.sleep(0)
            return await super().create(name, data)

    one, other = (History(Slow(None, StoreContext("job"), blobs), GRAPH, 1) for _ in range(2))

    async def both() -> list[Any]:
        for history in (one, other):
            await history.scan()
            history.find_fronts(GRAPH, {"lines": Partitions("a")})
        return [*await asyncio.gather(one.begin({}), other.begin({}), return_exceptions=True)]

    results = asyncio.run(both())
    assert [type(result) for result in results if result is not None] == [FencedError]


def test_an_overtaken_run_commits_no_more() -> None:
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5)
    new = start(blobs, held=8)
    before = dict(blobs)
    with pytest.raises(FencedError, match=r"epoch 2") as caught:
        old.commit(9, part=False)
    assert caught.value.epoch == 2
    assert blobs == before
    assert new.commit(7).history.start == 7


def test_an_overtaken_run_commits_no_more_after_many_epochs() -> None:
    """The blob of the epoch that overtook it is gone by then."""
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5).commit(6)
    for number in range(3):
        start(blobs).commit(10 + number).commit(20 + number)
    assert epoch_blob(2) not in blobs
    before = dict(blobs)
    with pytest.raises(FencedError):
        old.commit(9, part=False)
    assert blobs == before


@pytest.mark.parametrize("gone", [{epoch_blob(2)}, {epoch_blob(1), epoch_blob(2)}])
def test_a_run_whose_epoch_is_deleted_by_somebody_says_so_and_commits_no_more(gone: set[str]) -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    run = start(blobs).commit(8)
    for name in gone & blobs.keys():
        del blobs[name]
    before = dict(blobs)
    with pytest.raises(CorruptError, match=r"epoch/00000002 of this run is gone") as caught:
        run.commit(9, part=False)
    assert caught.value.blob == epoch_blob(2)
    assert blobs == before


def test_a_run_overtaken_while_it_commits_deletes_nothing() -> None:
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5).commit(6)

    class Overtaken(Memory):
        async def create(self, name: str, data: bytes) -> bool:
            if name.startswith("commit/"):
                await overtake()
            return await super().create(name, data)

    async def overtake() -> None:
        history = History(store(blobs), GRAPH, 1)
        await history.scan()
        history.find_fronts(GRAPH, {"lines": Partitions("a")})
        await history.begin({})
        assert history.start == 6

    old.history.store = Overtaken(None, StoreContext("job"), blobs)
    with pytest.raises(FencedError):
        old.commit(7, part=False)
    assert commit_blob(1, 1) in blobs, "the one who has taken over may have to go back to it"
    assert Run(blobs).scan().history.start == 6, "what came too late does not count"


def test_a_run_at_work_may_delete_journals_while_another_begins() -> None:
    """One that was just listed, and that nobody needs any more; the run that begins does not take that for damage."""
    blobs: dict[str, bytes] = {}
    old = start(blobs)
    gone = old.give((1, 3, 1))
    old.commit(5).commit(6)
    needed = old.give((1, 9, 1))

    class Deleted(Memory):
        async def read(self, name: str) -> bytes | None:
            blobs.pop(gone, None)
            return await super().read(name)

    run = Run(blobs).scan()
    names = run.history.store.names

    async def listed(prefix: str = "") -> list[str]:
        found = await names(prefix)
        return sorted({*found, gone}) if prefix.startswith("journal/") else found

    run.history.store = Deleted(None, StoreContext("job"), blobs)
    run.history.store.names = listed  # type: ignore[method-assign]
    assert run.begin(6).history.journals == (needed,)


def test_a_run_at_work_that_goes_on_while_another_begins_is_left_alone() -> None:
    """With its snapshot it may delete what the other would need."""
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5).commit(6)

    class Late(Memory):
        async def create(self, name: str, data: bytes) -> bool:
            if name == epoch_blob(2):
                await old.history.commit(3, 7, [Prepared(3, 0, (), ())])
            return await super().create(name, data)

    run = Run(blobs).scan()
    run.history.store = Late(None, StoreContext("job"), blobs)
    with pytest.raises(FencedError, match="another run"):
        run.begin()
    assert start(blobs).history.start == 7, "the next one goes on from there"


def test_late_writes_of_an_overtaken_run_do_not_count() -> None:
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5).commit(6)
    new = start(blobs)
    blobs[commit_blob(1, 9)] = encode_record(old.history.snapshots[-1]._replace(time=99, number=9))
    late = journal_blob(1, 0, 9)
    blobs[late] = encode_journal([GivenTimes(1, 50, 3)], late, old.binding)
    assert Run(blobs).scan().history.start == 6
    new.commit(7)
    assert commit_blob(1, 9) not in blobs, "and it goes with the first snapshot"
    assert late not in blobs
    assert Run(blobs).scan().history.journals == ()


def test_a_run_that_scanned_while_another_worked_does_not_begin() -> None:
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5).commit(6)
    new = Run(blobs).scan()
    old.commit(7).commit(8)
    with pytest.raises(FencedError):
        new.begin()
    assert new.scan().begin().history.start == 8


def test_a_second_scan_that_finds_another_run_ends_this_one() -> None:
    """The other has opened the sinks since, and delivers: what this one was told of them holds no more."""
    blobs: dict[str, bytes] = {}
    one = Run(blobs).scan()
    start(blobs).commit(5).commit(6)
    with pytest.raises(FencedError, match="another run"):
        one.do(one.history.scan())
    two = start(blobs).commit(7)
    two.do(two.history.scan())
    assert two.begin().history.epoch == 3, "its own is another matter"


def test_a_run_that_is_still_at_work_is_no_damage() -> None:
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5).commit(6)
    new = Run(blobs)
    new.do(new.history.scan())
    old.commit(7).commit(8)
    with pytest.raises(FencedError):
        new.do(new.history.verify())


def test_an_epoch_that_could_never_begin_is_passed_over() -> None:
    """Its owner was suspended between its last look and its first word, while another still worked."""
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5).commit(6)
    journal = old.give((1, 8, 2))
    late: dict[str, bytes] = {}
    Run({**blobs}).scan()
    new = Run(late := {**blobs}).scan().begin()
    old.commit(7, (1, "seven", 7, False)).commit(8, (1, "eight", 8, False))
    blobs[epoch_blob(2)] = late[epoch_blob(2)]
    assert new.history.start == 6
    run = Run(blobs).scan().begin().history
    assert (run.epoch, run.start, run.fronts[0].position) == (3, 8, "eight")
    assert run.journals == (journal,)


def test_a_damaged_record_of_the_last_epoch_is_an_error() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    start(blobs)
    blobs[epoch_blob(2)] = b"?"
    with pytest.raises(CorruptError, match="epoch/00000002"):
        Run(blobs).scan()
    blobs[epoch_blob(2)] = blobs[epoch_blob(1)]


def test_a_damaged_record_of_an_earlier_epoch_does_not_matter() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    start(blobs)
    blobs[epoch_blob(1)] = b"?"
    assert Run(blobs).scan().history.start == 5
    assert [error.blob for error in asyncio.run(scan(store(blobs))).damaged] == [epoch_blob(1)]


def test_the_record_of_the_epoch_before_is_held_against_its_digest() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs)
    copy = dict(blobs)
    start(copy)
    start(blobs)
    start(blobs)
    blobs[epoch_blob(2)] = copy[epoch_blob(2)]
    assert [error.blob for error in asyncio.run(scan(store(blobs))).damaged] == [epoch_blob(2)]


# -- what is forgotten -------------------------------------------------------------------------------------------------


def test_the_first_snapshot_of_an_epoch_tidies_up_after_those_before() -> None:
    blobs: dict[str, bytes] = {}
    for number in range(4):
        run = start(blobs)
        run.give((1, 10 * number, 5))
        never = part_blob(run.history.epoch, 77, 0)
        blobs[never] = seal(b"of a snapshot that never was", never, run.binding)
        run.commit(10 * number + 6)
    run.commit(50)
    assert sorted(blobs) == [
        commit_blob(4, 4),
        commit_blob(4, 5),
        epoch_blob(3),
        epoch_blob(4),
        journal_blob(3, 0, 1),  # counted when it began
        journal_blob(4, 0, 1),
        part_blob(4, 4, 0),
        part_blob(4, 5, 0),
        part_blob(4, 77, 0),  # its own; the next epoch sees to that
    ]


def test_a_run_tidies_up_once_and_not_while_it_may_go_back_to_the_beginning() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs)
    run = start(blobs)
    for place, left in enumerate([True, False, True]):
        blobs[part_blob(1, 7, 0)] = b"left by a fault"
        run.commit(5 + place)
        run.do(run.history.tidy_once())
        assert (part_blob(1, 7, 0) in blobs) is left


def test_tidying_leaves_alone_what_a_later_epoch_has_written() -> None:
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5)
    start(blobs).commit(6)
    before = dict(blobs)
    asyncio.run(old.history.tidy())
    assert blobs == before


def test_the_state_of_the_newest_run_survives_any_tidying_by_ghosts() -> None:
    blobs: dict[str, bytes] = {}
    ghosts = []
    for number in range(6):
        ghosts.append(start(blobs).commit(10 * number + 5, since=0).commit(10 * number + 6, since=0))
        for ghost in ghosts[:-1]:
            asyncio.run(ghost.history.tidy())
            with pytest.raises(FencedError):
                ghost.commit(999, part=False)
        assert Run(blobs).scan().history.start == 10 * number + 6


def test_journals_count_until_both_snapshots_have_passed_them() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    given = [run.give((1, 10 * number, 10)) for number in range(4)]  # 0 to 39
    assert Run(blobs).scan().begin().history.journals == tuple(given), "there is no snapshot yet"
    run = start(blobs).commit(20).commit(35)
    assert Run(blobs).scan().begin().history.journals == tuple(given[2:])


def test_an_end_counts_until_both_snapshots_are_behind_it() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    ends = [run.give((1, 20, 0)), run.give((2, 19, 0))]
    run = start(blobs).commit(20).commit(35)
    assert Run(blobs).scan().begin().history.journals == tuple(ends[:1])


def test_times_written_between_scan_and_beginning_count() -> None:
    """The sinks are taken over between the two; until then the earlier run delivers."""
    blobs: dict[str, bytes] = {}
    old = start(blobs)
    before = old.give((1, 5, 2))
    new = Run(blobs).scan()
    late = old.give((1, 7, 2))
    assert new.begin(9).history.resume().journals == (before, late)


def test_a_damaged_journal_ends_the_start() -> None:
    """Nobody knows which times were given."""
    blobs: dict[str, bytes] = {}
    run = start(blobs).commit(5).commit(6)
    blobs[run.give((1, 7, 2))] += b"!"
    with pytest.raises(CorruptError, match="journal"):
        start(blobs)


# -- fronts ------------------------------------------------------------------------------------------------------------


def test_a_new_partition_begins_where_the_outputs_end() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "a").commit(5, (1, "five", 5, False))
    run = start(blobs, "a", "b", held=40).history
    assert run.fronts == (
        FrontState("lines", 0, "a", 1, "five", 5, False),
        FrontState("lines", 1, "b", 2, None, 40, False, unread=True),
    )
    again = start(blobs, "a", "b", held=60).history
    assert again.fronts[1].next_time == 40, "once and for all"


def test_a_new_partition_keeps_its_beginning_over_epochs_of_one_process() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "a").commit(5)
    run = Run(blobs, "a", "b").scan().begin(40)
    asyncio.run(run.history.scan())
    run.begin(60)
    assert run.history.fronts[1].next_time == 40


def ends_of(blobs: dict[str, bytes], ends: dict[str, Any], commit: tuple[Any, ...] = (), *names: str) -> list[Any]:
    """Run an epoch, with a snapshot if `commit` has fronts; return the ends by which it reads."""
    Ending.ends = ends
    run = Run(blobs, *(names or ("a", "b")))
    run.sources = {"lines": Ending(*(names or ("a", "b")))}
    run.scan().do(run.history.find_ends(run.sources))
    run.begin()
    if commit:
        run.commit(*commit)
    return [front.end for front in run.history.fronts]


def test_an_end_is_that_of_a_run_until_it_has_finished() -> None:
    blobs: dict[str, bytes] = {}
    assert ends_of(blobs, {"a": 3, "b": 4}) == [3, 4]
    assert ends_of(blobs, {"a": 5, "b": 6}) == [3, 4], "it had not read anything"
    done = (5, (1, "end", 5, True), (2, "five", 5, False))
    assert ends_of(blobs, {"a": 7, "b": 8}, done) == [3, 4]
    assert ends_of(blobs, {"a": 7, "b": 8, "c": 9}, (), "a", "b", "c") == [3, 4, 9], "it begins another partition"
    done = (9, (1, "end", 5, True), (2, "end", 9, True), (3, None, 9, True))
    assert ends_of(blobs, {"a": 7, "b": 8}, done, "a", "b", "c") == [3, 4, 9]
    assert ends_of(blobs, {"a": 10, "b": 11, "c": 12}, (), "a", "b", "c") == [10, 11, 12], "that run has finished"
    assert ends_of(blobs, {"a": 13, "b": 14, "c": 15}, (), "a", "b", "c") == [10, 11, 12], "and the next one has not"


def test_no_end_is_looked_for_where_all_was_read() -> None:
    blobs: dict[str, bytes] = {}
    ends_of(blobs, {}, (5, (1, "end", 5, True), (2, "five", 5, False)))
    assert ends_of(blobs, {"a": 3, "b": 4}) == [None, 4]


def test_an_end_that_was_found_by_no_epoch_is_found_again() -> None:
    blobs: dict[str, bytes] = {}
    assert ends_of(blobs, {}) == [None, None]
    assert ends_of(blobs, {"a": 3}) == [3, None], "its options have changed"
    Ending.ends = {"a": 4, "b": 5}
    run = Run(blobs, "a", "b")
    run.sources = {"lines": Ending("a", "b")}
    run.scan().do(run.history.find_ends(run.sources))  # and it ends before it has begun
    assert ends_of(blobs, {"a": 6, "b": 7}) == [3, 7]


def test_partitions_keep_their_numbers_whatever_their_order() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "b", "c").commit(5, (1, "of b", 5, False), (2, "of c", 5, False))
    run = Run(blobs, "a", "b", "c").scan().history
    assert [(front.partition_name, front.partition, front.number) for front in run.fronts] == [
        ("b", 0, 1),
        ("c", 1, 2),
        ("a", 2, 3),
    ]


def test_a_partition_may_go_once_it_is_read_to_its_end() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "a", "b").commit(5, (1, "end", 5, True), (2, "five", 5, False))
    assert start(blobs, "b").history.fronts[0].ended
    with pytest.raises(JobError, match="no longer has 'b'"):
        Run(blobs, "a").scan()


def test_a_finished_job_goes_on_with_new_records() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "a", "b").commit(30, (1, "end", 30, True), (2, "other", 30, True))
    run = start(blobs, "b", "c", held=30).history
    assert [(front.partition_name, front.ended, front.next_time) for front in run.fronts] == [
        ("a", True, 30),
        ("b", False, 30),
        ("c", False, 30),
    ]
    # It ends before its first snapshot, and starts again: "b" still has to be read on, although its state says ended.
    again = start(blobs, "b", "c", held=50).history
    assert [front.ended for front in again.fronts] == [True, False, False]
    assert [front.next_time for front in again.fronts] == [30, 30, 30]
    assert [front.begun for front in run.fronts] == [front.begun for front in again.fronts] == [0, 31, 31]
    assert run.resume().behind_end == {2, 3}
    assert again.resume().behind_end == {2, 3}, "no record was read there, as far as is known"


def test_a_front_that_had_ended_with_nothing_new_is_done_and_not_past() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "a", "b").commit(30, (1, "end", 30, True), (2, "other", 30, True))
    run = start(blobs, "a", "b", held=30).commit(33, (1, "end", 33, True), (2, "more", 33, False))
    assert (run.history.past, run.history.done) == (frozenset(), frozenset({1}))
    again = start(blobs, "a", "b", held=33).history
    assert (again.past, again.done, again.unread) == (frozenset(), frozenset({1}), frozenset({1}))
    behind = start(blobs, "a", "b", held=33).commit(40, (1, "end", 40, True), (2, "end", 40, True))
    assert behind.history.done == frozenset({1}), "the second had something new"
    assert start(blobs, "a", "b", held=40).history.done == frozenset(), "any may have something new"


def test_a_front_that_was_read_stays_so_while_nothing_more_comes() -> None:
    run = start({}, "a", "b").commit(5, (1, "five", 5, False), (2, None, 5, False))
    run.commit(9, (1, "five", 9, False), (2, None, 9, False))
    assert run.history.unread == {2}


def test_a_front_of_the_wall_clock_that_goes_on_behind_the_end_begins_with_its_records() -> None:
    blobs: dict[str, bytes] = {}
    run = Run(blobs, clock="wall").scan().begin()
    run.commit(30, (1, "end", 30, True))
    assert [front.begun for front in Run(blobs, clock="wall").scan().history.fronts] == [0]


def test_fronts_of_an_earlier_phase_are_past() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(30, (1, "end", 30, True))
    later = Run(blobs, "b", phases=Phases({"lines": 2})).scan().begin(30).history
    assert [(front.partition_name, front.phase) for front in later.fronts] == [("a", 1), ("b", 2)]
    assert later.past == {1}
    assert later.done == frozenset()


def test_a_front_of_an_earlier_phase_that_is_gone_back_to_has_no_end_in_the_new_one() -> None:
    """The new source does not know its partition."""
    flow = fc.Flow("counting")
    lines, more = flow.source("lines", str), flow.source("more", str)
    lines.merge(more).key_by(lambda line: line).count(name="count").sink("out")
    blobs: dict[str, bytes] = {}

    def run(lines: Source, **options: Any) -> Run:
        made = Run(blobs, graph=flow.graph(), **options)
        made.sources = {"lines": lines, "more": Partitions("c")}
        return made.scan().begin()

    first = run(Partitions("a"))
    first.commit(5, (1, "five", 5, False)).commit(9, (1, "end", 9, True))
    second = run(Ending("b"), phases=Phases({"lines": 2}))
    assert second.history.refuse(commit_blob(1, 2))
    second.do(second.history.scan())
    Ending.ends = {"a": "wrong", "b": "right"}
    second.do(second.history.find_ends(second.sources))
    assert [(front.partition_name, front.end) for front in second.history.fronts] == [
        ("a", None),
        ("c", None),
        ("b", "right"),
    ]


def test_a_job_that_goes_on_behind_its_end_does_not_go_back_before_it() -> None:
    """The ends of its fronts, which have been passed, were those of another run."""
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    run.give((1, 30, 0))
    run.commit(20, (1, "some", 20, False)).commit(30, (1, "end", 30, True))
    again = start(blobs, held=30).history
    assert [each.time for each in again.snapshots] == [30]
    assert again.beginning is False
    assert again.journals == ()
    contents = asyncio.run(scan(store(blobs)))
    assert contents.last is not None
    assert contents.last.commits == (commit_blob(1, 2),)


def test_a_finished_job_resumes_again_from_its_end() -> None:
    """The snapshot taken since is damaged: the fronts were on their way already, with the times that were given."""
    blobs: dict[str, bytes] = {}
    start(blobs).commit(30, (1, "end", 30, True))
    second = start(blobs, held=30)
    journal = second.give((1, 40, 5))
    second.commit(42, (1, "some", 42, False))
    for _ in range(2):
        start(blobs, held=50).do(Run(blobs).scan().history.tidy())
    blobs[commit_blob(2, 2)] = b"?"
    run = Run(blobs).scan().begin(50).history
    assert (run.start, run.fronts[0].position, run.fronts[0].ended) == (30, "end", False)
    assert run.journals == (journal,)


def test_the_fronts_are_those_of_the_snapshot_in_use() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5, (1, "five", 5, False)).commit(9, (1, "nine", 9, False))
    start(blobs, held=9)
    blobs[commit_blob(1, 2)] = b"?"
    assert Run(blobs).scan().history.fronts[0].position == "five"


def test_new_times_begin_where_the_outputs_end() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    assert start(blobs).history.resume().floor == 5
    assert start(blobs, held=9).history.resume().floor == 9


# -- another graph -----------------------------------------------------------------------------------------------------


def test_the_state_of_another_flow_is_refused() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    flow = fc.Flow("other")
    flow.source("lines", str).key_by(lambda line: line).group(2, name="count").sink("out")
    with pytest.raises(JobError, match="'count': it was that of a drift, and the operation is a grouping of window 2"):
        Run(blobs, graph=flow.graph()).scan()
    more = fc.Flow("more")
    stream = more.source("lines", str).key_by(lambda line: line).count(name="count")
    stream.key_by(lambda pair: pair[1]).count(name="again").sink("out")
    assert Run(blobs, graph=more.graph()).scan().history.start == 5, "a new operation begins with nothing"


def grouped() -> Graph:
    """Draw `counting` with a grouping in the place of the count."""
    flow = fc.Flow("other")
    flow.source("lines", str).key_by(lambda line: line).group(2, name="count").sink("out")
    return flow.graph()


def accept_loss(run: Run, *fronts: tuple[str, str]) -> None:
    contents = asyncio.run(scan(run.history.store))
    flow = {name: contents.snapshots[0].flow[name] for name in ("count",)}
    assert contents.last is not None
    run.do(accept(run.history.store, contents.last.identity, run.graph, AcceptedLoss(flow, fronts)))


def test_a_loss_that_was_accepted_is_written_down_before_anything_else() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5, (1, "five", 5, False)).commit(9, (1, "nine", 9, False))
    run = Run(blobs, graph=grouped())
    accept_loss(run)
    history = run.scan().begin(9).history
    assert history.snapshot is not None
    assert (history.start, history.snapshot.blob, history.snapshot.parts) == (9, commit_blob(2, 3), ())
    assert history.snapshot.fronts[0].position == "nine", "what was read stays read"
    assert history.resume().commit == commit_blob(2, 3)
    assert not [name for name in blobs if name.startswith("accepted/")], "it was accepted once"
    again = Run(blobs, graph=grouped()).scan().begin(9).commit(12)
    assert [each.number for each in again.history.snapshots] == [3, 4]
    with pytest.raises(JobError, match="'count'"):
        Run(blobs).scan()  # back to the first flow: what it kept has been given up


def test_a_loss_is_written_down_by_the_run_that_owns_the_state_only() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    run = Run(blobs, graph=grouped())
    accept_loss(run)
    run.scan()

    class Taken(Memory):
        async def create(self, name: str, data: bytes) -> bool:
            return not name.startswith("commit/") and await super().create(name, data)

    run.history.store = Taken(None, StoreContext("job"), blobs)
    with pytest.raises(FencedError):
        run.begin()


def test_a_loss_that_was_accepted_for_a_flow_that_is_given_up_is_none() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    run = Run(blobs, graph=grouped())
    accept_loss(run)
    run.scan().begin()
    run.do(run.history.take_back())
    run.history.graph = run.graph = GRAPH
    assert run.scan().history.snapshot is not None
    assert [part.blob for part in run.history.snapshot.parts] == [part_blob(1, 1, 0)]


def test_a_flow_that_is_given_up_before_it_has_begun_leaves_the_state_as_it_was() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    run.do(run.history.take_back())
    run.commit(5).commit(6)
    run.graph = run.history.graph = grouped()
    accept_loss(run)
    run.scan().do(run.history.take_back())
    assert not [name for name in blobs if name.startswith("accepted/")]
    run.graph = run.history.graph = GRAPH
    assert run.scan().history.start == 6


def test_a_loss_is_accepted_for_one_flow_and_not_for_the_one_that_still_runs() -> None:
    blobs: dict[str, bytes] = {}
    old = start(blobs).commit(5)
    accept_loss(Run(blobs, graph=grouped()))
    old.commit(6)
    again = start(blobs).commit(7).history  # it goes on after a fault, and tidies up
    assert again.snapshot is not None
    assert again.snapshot.parts
    window = fc.Flow("third")
    window.source("lines", str).key_by(lambda line: line).group(3, name="count").sink("out")
    with pytest.raises(JobError, match="'count'"):
        Run(blobs, graph=window.graph()).scan()
    assert Run(blobs, graph=grouped()).scan().begin().history.start == 7


def test_a_run_that_dies_before_it_has_written_the_loss_down_does_so_again() -> None:
    for call in range(1, 30):
        blobs: dict[str, bytes] = {}
        start(blobs).commit(5).commit(6)
        run = Run(blobs, graph=grouped())
        accept_loss(run)
        run.history.store = Failing(blobs, call, after=False)
        try:
            run.scan().begin()
        except StoreError:
            history = Run(blobs, graph=grouped()).scan().begin().history
            assert history.snapshot is not None
            assert (history.start, history.snapshot.parts) == (6, ())
            assert history.snapshot.flow == {"count": {"kind": "grouping", "window": 2, "by": "key"}}
        else:
            break
    else:
        pytest.fail("the run never begins")


def test_a_partition_may_go_if_that_is_accepted() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs, "a", "b").commit(5, (1, "five", 5, False), (2, "five", 5, False))
    run = Run(blobs, "b", graph=grouped())
    accept_loss(run, ("lines", "a"))
    assert [front.ended for front in run.scan().begin().history.fronts] == [True, False]
    again = Run(blobs, "b", graph=grouped()).scan().history
    assert [front.ended for front in again.fronts] == [True, False]


def test_snapshots_say_which_sinks_hold_what_is_below_them() -> None:
    blobs: dict[str, bytes] = {}
    manifest = start(blobs).commit(5).history.snapshot
    assert manifest is not None
    assert manifest.sinks == (("out", 1),)


# -- a sink that is ahead ----------------------------------------------------------------------------------------------


def wall(blobs: dict[str, bytes]) -> Run:
    return Run(blobs, clock="wall").scan()


def test_a_sink_may_hold_what_the_journals_account_for() -> None:
    blobs: dict[str, bytes] = {}
    run = wall(blobs).begin()
    run.give((1, 100, 5))
    assert wall(blobs).begin(105).history.resume().floor == 105
    assert wall(blobs).begin(105).history.epoch == 3, "the record of the epoch before says so, too"


def test_a_sink_that_holds_more_is_refused() -> None:
    blobs: dict[str, bytes] = {}
    run = wall(blobs).begin()
    run.give((1, 100, 5))
    run.commit(102).give((1, 105, 2))
    for _ in range(2):
        with pytest.raises(StateBehindError, match="sink 'out' holds its output up to time 108") as caught:
            wall(blobs).begin(108)
        assert caught.value.sinks == {"out": 108}
        assert caught.value.accounted == 107
    assert epoch_blob(2) not in blobs, "it has not begun"
    start(blobs, held=107)
    assert not [name for name in blobs if name.startswith("ahead/")], "once it begins it is ahead no more"


def test_a_time_that_was_announced_is_accounted_for() -> None:
    """An idle front has moved the time on; the snapshot of that time is damaged later."""
    blobs: dict[str, bytes] = {}
    run = wall(blobs).begin()
    run.give((1, 100, 5))
    run.commit(90)
    run.do(run.history.announce(2, 500))
    run.commit(500)
    blobs[commit_blob(1, 2)] = b"?"
    assert wall(blobs).begin(500).history.start == 90


def test_with_the_sequence_clock_a_sink_may_be_ahead() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs)
    assert start(blobs, held=10**6).history.epoch == 2


def test_a_job_that_had_the_other_clock_is_held_to_both() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs)
    with pytest.raises(StateBehindError):
        wall(blobs).begin(10)
    other: dict[str, bytes] = {}
    wall(other).begin()
    with pytest.raises(StateBehindError):
        start(other, held=10)


@pytest.mark.parametrize(("before", "after"), [("sequence", "wall"), ("wall", "sequence")])
def test_a_sink_that_is_ahead_has_not_the_times_of_another_clock(before: ClockName, after: ClockName) -> None:
    blobs: dict[str, bytes] = {}
    Run(blobs, clock=before).scan().begin()
    with pytest.raises(StateBehindError, match=f'The job ran with clock = "{before}"') as caught:
        Run(blobs, clock=after).scan().begin(10)
    assert f'Run it once to its end with job.clock = "{before}"' in str(caught.value)
    assert Run(blobs, clock=after).scan().begin(0).history.epoch == 2
    if after == "sequence":
        assert Run(blobs, clock=after).scan().begin(10**6).history.epoch == 3, "its own times"


def test_a_sink_that_is_ahead_may_be_accepted_once() -> None:
    blobs: dict[str, bytes] = {}
    wall(blobs).begin()
    with pytest.raises(StateBehindError):
        wall(blobs).begin(10)
    run = Run(blobs, clock="wall")
    plan = run.do(plan_migration(run.history.store, GRAPH, {}))
    assert (plan.snapshot, plan.loss.sinks) == (None, (("out", 10),))
    run.do(accept(run.history.store, plan.identity, GRAPH, plan.loss))
    with pytest.raises(StateBehindError, match="up to time 11"):
        wall(blobs).begin(11)
    assert wall(blobs).begin(10).history.epoch == 2
    assert not [name for name in blobs if name.startswith(("ahead/", "accepted/"))]
    with pytest.raises(StateBehindError):
        wall(blobs).begin(11)


# -- what is missing, and what belongs elsewhere -----------------------------------------------------------------------


def test_a_journal_that_is_missing_among_others_ends_the_start() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    journals = [run.give((1, 10 * number, 10)) for number in range(4)]
    run.commit(15)
    del blobs[journals[1]]
    with pytest.raises(CorruptError, match=f"{journals[1]} of the state cannot be used: it is missing"):
        start(blobs)


def test_journals_that_no_snapshot_needs_may_be_missing() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    journals = [run.give((1, 10 * number, 10)) for number in range(4)]
    run.commit(20).commit(25)
    del blobs[journals[0]]
    del blobs[journals[1]]
    assert start(blobs).history.journals == tuple(journals[2:])


def test_a_journal_of_another_epoch_is_refused() -> None:
    blobs: dict[str, bytes] = {}
    copy: dict[str, bytes] = {}
    run = start(blobs)
    copy.update(blobs)
    other, run = start(copy), start(blobs)
    blob = run.give((1, 10, 5))
    other.give((1, 20, 5))
    blobs[blob] = copy[blob]
    with pytest.raises(CorruptError, match="another epoch of that number: copies of the state are mixed"):
        start(blobs)


def test_an_earlier_journal_is_held_against_its_digest() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs)
    blob = run.give((1, 10, 5))
    start(blobs)
    blobs[blob] = encode_journal([GivenTimes(1, 20, 5)], blob, run.binding)
    with pytest.raises(CorruptError, match="another one than was written here"):
        start(blobs)


def test_a_part_is_held_against_its_digest() -> None:
    blobs: dict[str, bytes] = {}
    run = start(blobs).commit(5).commit(9)
    blob = part_blob(1, 2, 0)
    blobs[blob] = seal(b"another text", blob, run.binding)
    assert Run(blobs).scan().history.start == 5


def test_a_manifest_of_another_epoch_of_that_number_is_not_gone_on_from() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(3)
    copy = dict(blobs)
    start(blobs).commit(5).commit(9)
    start(copy).commit(6).commit(8)
    blobs[commit_blob(2, 3)] = copy[commit_blob(2, 3)]
    run = Run(blobs).scan()
    assert run.history.start == 5
    assert "copies of the state are mixed" in asyncio.run(scan(store(blobs))).damaged[0].what


def test_a_record_of_an_epoch_that_is_missing_is_noticed() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    start(blobs).commit(6)
    for number in (2, 1):
        blobs.pop(epoch_blob(number))
        with pytest.raises(CorruptError, match="epoch/00000002 of the state cannot be used: it is missing"):
            Run(blobs).scan()


def test_snapshots_that_are_missing_are_not_taken_for_none() -> None:
    """A part of the third is there, so the second was recorded."""
    blobs: dict[str, bytes] = {}
    run = start(blobs).commit(5, since=0).commit(6, since=0)
    run.write("of the third")
    for number in (1, 2):
        del blobs[commit_blob(1, number)]
    with pytest.raises(CorruptError, match=f"{commit_blob(1, 2)} of the state cannot be used: it is missing"):
        Run(blobs).scan()


# -- the store fails ---------------------------------------------------------------------------------------------------


class Failing(Memory):
    """Fails the n-th call, before or after it has done it."""

    def __init__(self, blobs: dict[str, bytes], call: int, *, after: bool) -> None:
        super().__init__(None, StoreContext("job"), blobs)
        self.left, self.after = call, after

    async def call(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise StoreError("no answer", store="failing", blob="")
        result = await function(*arguments)
        if self.left == 0:
            raise StoreError("the answer was lost", store="failing", blob="")
        return result

    async def create(self, name: str, data: bytes) -> bool:
        return bool(await self.call(super().create, name, data))

    async def delete(self, names: Any) -> None:
        await self.call(super().delete, names)

    async def read(self, name: str) -> bytes | None:
        return await self.call(super().read, name)  # type: ignore[no-any-return]

    async def names(self, prefix: str = "") -> list[str]:
        return await self.call(super().names, prefix)  # type: ignore[no-any-return]


@pytest.mark.parametrize("after", [False, True])
def test_the_next_run_resumes_after_any_failed_call_of_the_store(after: bool) -> None:
    """Acceptance case 63, and all its neighbours: what was recorded counts, what was not is as if it had not been."""
    for call in range(1, 60):
        blobs: dict[str, bytes] = {}
        start(blobs).commit(5).commit(6)
        run = Run(blobs)
        run.history.store = Failing(blobs, call, after=after)
        reached = 6
        try:
            run.scan().begin()
            for time in (7, 8, 9):
                run.commit(time)
                reached = time
        except StoreError:
            pass
        else:
            assert call > 20
            break
        found = Run(blobs).scan().history
        assert found.start in (reached, reached + 1)
        assert len(found.snapshots) == 2
        for manifest in found.snapshots:
            assert all(part.blob in blobs for part in manifest.parts)
        start(blobs).commit(20).commit(21)
        assert Run(blobs).scan().history.start == 21
    else:
        pytest.fail("the run never ends")


class Overtaken(Memory):
    """Lets another run take its first two snapshots between the listing of its epoch's snapshots and the next read."""

    def __init__(self, running: Run) -> None:
        super().__init__(None, StoreContext("job"), running.blobs)
        self.running, self.listed = running, False

    async def names(self, prefix: str = "") -> list[str]:
        found = await super().names(prefix)
        self.listed = self.listed or prefix == f"commit/{self.running.history.epoch:08d}/"
        return found

    async def read(self, name: str) -> bytes | None:
        if self.listed and name.startswith("commit/") and self.running.number < 3:
            for time in (6, 7):
                part = self.running.write(f"part at {time}")
                self.running.number += 1
                answer = Prepared(self.running.number, 0, (), (part,), 1)
                await self.running.history.commit(self.running.number, time, [answer])
        return await super().read(name)


def test_first_snapshots_that_replace_the_earlier_ones_during_a_scan_are_no_damage() -> None:
    blobs: dict[str, bytes] = {}
    start(blobs).commit(5)
    running = start(blobs)
    other = Run(blobs)
    other.history.store = Overtaken(running)
    other.scan()
    assert commit_blob(1, 1) not in blobs
    assert (other.history.start, [each.time for each in other.history.snapshots]) == (7, [6, 7])


def test_all_parts_are_stored_but_the_snapshot_is_not_recorded() -> None:
    """Acceptance case 63: the one before is used, and is still there."""
    blobs: dict[str, bytes] = {}
    run = start(blobs).commit(5, (1, "five", 5, False))
    run.write("part of the next")
    again = Run(blobs).scan().history
    assert again.start == 5
    assert again.snapshot is not None
    assert all(part.blob in blobs for part in again.snapshot.parts)
