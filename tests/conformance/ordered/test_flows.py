"""Ordered operations in flows: the same outputs as one item at a time, whatever the interleaving and the faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.operator import Work
from flamecore.abc.source import Batch, Reader, Source, SourceCapabilities
from flamecore.abc.store import Store, StoreContext
from flamecore.cli.render import dot, mermaid
from flamecore.errors import JobError
from flamecore.model.ordered import Marking, Now, Ordered, Outcome, Timer
from flamecore.runtime.config.defaults import ACKERS
from flamecore.runtime.state.migration import StatePlan, plan_migration
from flamecore.testing import assert_deterministic, assert_exactly_once, override
from flamecore.testing.bench.stores import using
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.simulation.simulation import Simulation
from flamecore.testing.simulation.trouble import Trouble
from flamestream_stores.sqlite import Sqlite

Inputs = Mapping[str, list[Any]]


@dataclass(eq=False, slots=True, repr=False)
class Piles(Ordered):
    """Piles of so many items of a key, each with the time that ended it; a pile that is full is forgotten."""

    kind: ClassVar[str] = "piles"
    functions: ClassVar[tuple[str, ...]] = ("size_of",)

    height: int = field(default=3, kw_only=True)
    size_of: Callable[[Any], int] | None = None
    told: list[str] = field(default_factory=list, kw_only=True)

    def work(self) -> Work:
        return PileWork(self.height, self.size_of or (lambda _: 1), self.told)

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        return {"height": self.height}


class PileWork(Work):
    def __init__(self, height: int, size_of: Callable[[Any], int], told: list[str]) -> None:
        self.height, self.size_of, self.told = height, size_of, told

    def open(self) -> None:
        self.told.append("open")

    def begin(self) -> None:
        self.told.append("begin")

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        pile = (*(state or ()), *(payload,) * self.size_of(payload))
        if len(pile) < self.height:
            return Outcome(pile, [(key, now.time, len(pile))] if len(pile) % 2 else [])
        return Outcome(None, [(key, now.time, item) for item in pile])

    def end(self) -> None:
        self.told.append("end")

    def close(self) -> None:
        self.told.append("close")


def numbers(count: int = 60, seed: int = 1) -> Inputs:
    random = Random(seed)
    return {"numbers": [random.randrange(100) for _ in range(count)]}


def spread() -> fc.Flow:
    """Items come by several ways, and what comes of them goes on to another one."""
    flow = fc.Flow("spread")
    stream = flow.source("numbers", int).rebalance().map(lambda n: n)
    piles = stream.key_by(lambda n: n % 7).apply(Piles, name="first")
    piles.key_by(lambda pile: pile[0] % 3).apply(Piles, name="second", height=5).sink("out")
    return flow


def behind_repairs() -> fc.Flow:
    """Items come from states that repair, and go on to another; so do those taken back in any case."""
    flow = fc.Flow("behind-repairs")
    stream = flow.source("numbers", int).rebalance().flat_map(lambda n: [n, n // 2] if n % 3 else [n])
    counted = stream.key_by(lambda n: n % 5).count()
    parts = stream.key_by(lambda n: n % 2).group(3, undo_partial=True).map(len)
    merged = counted.map(lambda pair: pair[1]).merge(parts)
    piles = merged.key_by(lambda n: n % 4).apply(Piles, name="piles")
    piles.key_by(lambda pile: pile[2]).count(name="last").sink("out")
    stream.key_by(lambda n: n % 3).apply(Piles, name="beside").sink("beside")
    return flow


def add(total: int, n: int) -> tuple[int, list[tuple[int, int]]]:
    return total + n, [(n, total + n)]


def around_loops() -> fc.Flow:
    """One before a loop, one behind it."""
    flow = fc.Flow("around-loops")
    stream = flow.source("numbers", int).rebalance().map(lambda n: n)
    before = stream.key_by(lambda n: n % 4).apply(Piles, name="before").map(lambda pile: pile[2] % 12)

    def body(inside: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        seen = inside.key_by(lambda n: n % 3).stateful_map(0, add)
        back = seen.filter(lambda pair: pair[0] > 1).map(lambda pair: pair[0] // 2)
        return back, seen.map(lambda pair: pair[1])

    before.loop(body).key_by(lambda n: n % 2).apply(Piles, name="behind", height=4).sink("out")
    return flow


def several_sources() -> fc.Flow:
    flow = fc.Flow("several-sources")
    left, right = flow.source("numbers", int), flow.source("others", int)
    merged = left.map(lambda n: n).merge(right.rebalance().map(lambda n: n + 1))
    merged.key_by(lambda n: n % 5).apply(Piles, name="piles").sink("out")
    return flow


@dataclass(eq=False, slots=True, repr=False)
class Silence(Ordered):
    """Each item of a key, and how many came before nothing more did for some time; every fifth is asked twice."""

    kind: ClassVar[str] = "silence"
    timers: ClassVar[bool] = True

    after: int = field(default=5, kw_only=True)

    def work(self) -> Work:
        return SilenceWork(self.after)


class SilenceWork(Work):
    def __init__(self, after: int) -> None:
        self.after = after

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        count = (state or 0) + 1
        timers = [Timer(now.time + self.after)]
        if count % 5 == 0:
            timers += [Timer(now.time - 1, 1), Timer(now.time + 1, -1)]
        return Outcome(count, [(key, "came", count)], timers)

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        if timer.tag:
            return Outcome(state, [(key, "asked", timer.tag, state)], [Timer(now.time + self.after)])
        return Outcome(None, [(key, "silent", state)])


def silences() -> fc.Flow:
    """Timers of two in a row, behind repairs: a timer of the first makes an item of the second."""
    flow = fc.Flow("silences")
    counted = flow.source("numbers", int).rebalance().map(lambda n: n).key_by(lambda n: n % 7).count()
    first = counted.key_by(lambda pair: pair[0] % 5).apply(Silence, name="first")
    first.sink("first")
    second = first.key_by(lambda item: item[0] % 3).apply(Silence, name="second", after=3)
    second.key_by(lambda item: item[1]).count(name="last").sink("out")
    return flow


@dataclass(eq=False, slots=True, repr=False)
class Minutes(Ordered):
    """Counts of a key by so much of event time, when the watermark says that no more is to come; and what is late."""

    kind: ClassVar[str] = "minutes"

    size: int = field(default=10, kw_only=True)

    def work(self) -> Work:
        return MinutesWork(self.size)

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        return {"size": self.size}


class MinutesWork(Work):
    """Keeps (count, hold) by start; what has begun holds back the marks to its start, if they are not beyond."""

    def __init__(self, size: int) -> None:
        self.size = size

    def outcome(self, open: dict[int, tuple[int, int]], outputs: list[Any]) -> Outcome:
        timers = [Timer(start + self.size, start, mark=True) for start in sorted(open)]
        hold = min([hold for _, hold in open.values()], default=None)
        return Outcome(tuple(sorted(open.items())) or None, outputs, timers, hold)

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        at = payload[0]
        start, open = at // self.size * self.size, dict(state or ())
        if start + self.size <= now.watermark:
            return self.outcome(open, [(at, "late", key, now.watermark)])
        count, hold = open.get(start, (0, max(start, now.watermark)))
        return self.outcome({**open, start: (count + 1, hold)}, [])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        open = dict(state)
        count, _ = open.pop(timer.tag)
        return self.outcome(open, [(timer.time - 1, "all", key, timer.tag, count, now.watermark)])


Event = tuple[int, int]


def events(seed: int = 1, count: int = 70) -> list[Event]:
    """Pairs of event time and value, out of order; some come late."""
    random = Random(seed)
    return [(max(0, place + random.randrange(-9, 9)), random.randrange(100)) for place in range(count)]


def timed(flow: fc.Flow, name: str, *, closes: bool) -> fc.Stream[Event]:
    stream = flow.source(name, tuple).filter(lambda event: event[1] % 10)
    return stream.apply(Marking, name=f"{name}-at", function=lambda event: event[0] - 5, step=3, closes=closes)


def in_minutes(*, closes: bool) -> fc.Flow:
    """Two in a row, with a state that repairs between source and first, and a loop between first and second."""
    flow = fc.Flow("minutes")
    stream = timed(flow, "events", closes=closes).rebalance().map(lambda event: event)
    counted = stream.key_by(lambda event: event[1] % 3).stateful_map(0, number_on)
    first = counted.key_by(lambda event: event[1] % 5).apply(Minutes, name="first")
    first.sink("first")
    rounds = first.map(lambda item: (item[0], item[2])).loop(
        lambda inside: (inside.filter(lambda item: item[1] > 2).map(lambda item: (item[0], item[1] - 2)), inside)
    )
    rounds.key_by(lambda item: item[1] % 2).apply(Minutes, name="second", size=15).sink("out")
    return flow


def number_on(count: int, event: Event) -> tuple[int, list[Event]]:
    return count + 1, [(event[0], event[1] + count % 2)]


def two_origins(*, closes: bool) -> fc.Flow:
    """Return a flow in which the least of two sources counts, and of what the first operation says."""
    flow = fc.Flow("two-origins")
    left, right = timed(flow, "left", closes=closes), timed(flow, "right", closes=closes)
    first = left.key_by(lambda event: event[1] % 3).apply(Minutes, name="first")
    both = first.map(lambda item: (item[0], item[2])).merge(right)
    both.key_by(lambda event: event[1] % 4).apply(Minutes, name="both", size=12).sink("out")
    return flow


def by_place(*, closes: bool) -> fc.Flow:
    """Return a flow in which records are dealt by place, and marks, timers and states are where they are."""
    flow = fc.Flow("by-place")
    placed = timed(flow, "events", closes=closes).place_by(lambda event: event[1] % 5)
    parts = placed.flat_map(lambda event: [event, (event[0], event[1] + 5)])
    first = parts.key_by(lambda event: (event[1] % 5, event[1] % 3), place=itemgetter(0)).apply(Minutes, name="first")
    first.sink("first")
    again = first.map(lambda item: (item[0], item[2]))
    again.key_by(itemgetter(1), place=itemgetter(1)).apply(Minutes, name="again", size=15).sink("out")
    return flow


def events_of(flow: fc.Flow) -> Inputs:
    return {source.name: events(seed) for seed, source in enumerate(flow.graph().sources)}


@pytest.mark.parametrize("build", [in_minutes, two_origins, by_place])
@pytest.mark.parametrize("closes", [True, False])
def test_no_interleaving_changes_what_comes_of_marks(build: Callable[..., fc.Flow], closes: bool) -> None:
    flow = build(closes=closes)
    outputs = assert_deterministic(flow, events_of(flow), workers=(1, 2, 3, 5), seeds=seeds(10))
    kinds = {item[1] for items in outputs.values() for item in items}
    assert kinds == {"all", "late"}


def test_what_closes_leaves_nothing_open() -> None:
    flow = in_minutes(closes=True)
    outputs = flow.run(events_of(flow), workers=2)
    late = [item for item in outputs["first"] if item[1] == "late"]
    counted = sum(item[4] for item in outputs["first"] if item[1] == "all")
    assert counted + len(late) == sum(1 for event in events(0) if event[1] % 10)


@pytest.mark.parametrize("build", [in_minutes, two_origins, by_place])
def test_marks_are_in_snapshots_and_a_rescale_does_not_show(build: Callable[..., fc.Flow]) -> None:
    flow = build(closes=False)
    assert_exactly_once(flow, events_of(flow), seeds=seeds(25), kinds=["turn"])


def test_the_end_of_a_front_is_at_the_same_time_after_a_fault() -> None:
    flow = in_minutes(closes=True)
    assert_exactly_once(flow, events_of(flow), seeds=seeds(25), trouble=Trouble(grows=False))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_fronts_of_one_source_are_origins_each(workers: int) -> None:
    flow = in_minutes(closes=True)
    parts = {"events": [events(1, 40), events(2, 40), events(3, 20)]}
    wanted = None
    for seed in seeds(6):
        acker = acker_named(ACKERS[seed % len(ACKERS)])
        outputs = [
            Simulation(flow.graph(), {}, partitioned=parts, acker=acker, workers=count, seed=seed).run().outputs
            for count in (1, workers)
        ]
        wanted = wanted or outputs[0]
        assert outputs == [wanted, wanted]


@pytest.mark.parametrize("build", [in_minutes, by_place])
def test_a_run_goes_on_with_its_watermark(build: Callable[..., fc.Flow], tmp_path: Path) -> None:
    flow, whole, state = build(closes=False), events(0), tmp_path / "state"
    wanted = flow.run({"events": whole})
    found: dict[str, list[Any]] = {"first": [], "out": []}
    for end, workers in ((20, 2), (21, 1), (50, 4), (70, 3)):
        outputs = flow.run({"events": whole[:end]}, workers=workers, state=state)
        for name, each in found.items():
            each += outputs[name]
    assert found == dict(wanted)


FLOWS = [silences, spread, behind_repairs, around_loops, several_sources]


def inputs_of(flow: fc.Flow, count: int = 60) -> Inputs:
    return {source.name: numbers(count, seed)["numbers"] for seed, source in enumerate(flow.graph().sources)}


@pytest.mark.parametrize("build", FLOWS)
def test_no_interleaving_changes_the_outputs(build: Callable[[], fc.Flow]) -> None:
    flow = build()
    outputs = assert_deterministic(flow, inputs_of(flow), workers=(1, 2, 3, 4), seeds=seeds(12))
    assert all(len(each) > 10 for each in outputs.values())


@pytest.mark.parametrize("build", FLOWS)
def test_nothing_is_lost_and_nothing_comes_twice(build: Callable[[], fc.Flow]) -> None:
    flow = build()
    assert_exactly_once(flow, inputs_of(flow), seeds=seeds(25), kinds=["kill"])


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("acker", ACKERS)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_item_is_worked_on_once_and_nothing_is_taken_back(workers: int, acker: str, clock: Any) -> None:
    for seed in seeds(5):
        simulation = Simulation(
            spread().graph(), numbers(), acker=acker_named(acker), workers=workers, seed=seed, clock=clock
        )
        run = simulation.run()
        counts = [worker.counts() for worker in simulation.workers.values()]
        assert run.replays == 0
        assert sum(count.calls.get("first", 0) for count in counts) == 60
        assert [count.calls_in_vain for count in counts] == [{}] * workers


@pytest.mark.parametrize("workers", [1, 3])
def test_a_job_gives_the_same_and_opens_and_closes_what_it_works_with(workers: int) -> None:
    told: list[str] = []
    flow = fc.Flow("told")
    flow.source("numbers", int).key_by(lambda n: n % 7).apply(Piles, name="piles", told=told).sink("out")
    wanted = assert_deterministic(flow, numbers(), workers=(1,), seeds=range(1))
    told.clear()
    assert flow.run(numbers(), workers=workers) == wanted
    assert told[:workers] == ["open"] * workers
    assert told[-workers:] == ["close"] * workers
    steps = told[workers:-workers]
    assert steps == ["begin", "end"] * (len(steps) // 2)
    assert steps


@pytest.mark.parametrize("method", ["open", "begin", "end", "close"])
def test_a_work_that_fails_beside_its_items_ends_the_job(method: str) -> None:
    def fail(self: Work) -> None:
        raise OSError("the database is gone")

    work = type("Fragile", (PileWork,), {method: fail})

    @dataclass(eq=False, slots=True, repr=False)
    class Fails(Piles):
        def work(self) -> Work:
            return work(3, lambda _: 1, [])

    flow = fc.Flow("fragile")
    flow.source("numbers", int).key_by(lambda n: n).apply(Fails, name="piles").sink("out")
    with pytest.raises(
        JobError, match=f"<piles 'piles'>: {method} of its Fragile failed: OSError: the database is gone"
    ):
        flow.run({"numbers": [1, 2, 3]}, workers=2, settings={"job.on_error": "skip"})


def test_a_run_goes_on_from_its_state_with_another_number_of_workers(tmp_path: Path) -> None:
    whole, state = numbers()["numbers"], tmp_path / "state"
    flow = spread()
    wanted = flow.run({"numbers": whole})["out"]
    found: list[Any] = []
    for end, workers in ((20, 1), (45, 3), (60, 2)):
        found += flow.run({"numbers": whole[:end]}, workers=workers, state=state)["out"]
    assert found == wanted


def test_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    def piles(height: int) -> fc.Flow:
        flow = fc.Flow("piles")
        keyed = flow.source("numbers", int).key_by(lambda n: n % 7)
        keyed.apply(Piles, name="piles", height=height).sink("out")
        return flow

    piles(3).run(numbers(), state=tmp_path / "state")
    with pytest.raises(JobError, match="piles with height 3, and the operation is a piles with height 4"):
        piles(4).run(numbers(), state=tmp_path / "state")


def failing() -> fc.Flow:
    def size_of(payload: Any) -> int:
        return 12 // (payload % 10)

    flow = fc.Flow("failing")
    stream = flow.source("numbers", int).rebalance().map(lambda n: n)
    stream.key_by(lambda n: n % 7).apply(Piles, name="piles", size_of=size_of).sink("out")
    return flow


def test_a_failing_call_leaves_the_state_as_it_was() -> None:
    assert_deterministic(failing(), numbers(), seeds=seeds(8))
    assert_exactly_once(failing(), numbers(), seeds=seeds(12), on_error="skip")


def test_a_failing_call_is_told_with_record_key_and_line() -> None:
    with pytest.raises(fc.OperationError) as failed:
        failing().run({"numbers": [3, 10, 4]}, workers=2)
    assert failed.value.vertex == "piles"
    assert "12 // (payload % 10)" in str(failed.value)


def test_pictures_show_its_kind() -> None:
    graph = spread().graph()
    assert '{{"first"}}' in mermaid(graph)
    assert 'label="first", shape=hexagon' in dot(graph)


def test_timers_behind_the_end_stay_in_the_state_and_are_due_when_it_goes_on(tmp_path: Path) -> None:
    whole = [1, 2, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    flow = fc.Flow("silence")
    flow.source("numbers", int).key_by(lambda n: n).apply(Silence, name="silence", after=4).sink("out")
    wanted = flow.run({"numbers": whole}, workers=2)["out"]
    assert [item for item in wanted if item[1] == "silent"] == [(key, "silent", 1) for key in (1, 2, 3, 4)]
    state = tmp_path / "state"
    first = flow.run({"numbers": whole[:4]}, workers=3, state=state)["out"]
    assert first == wanted[:4], "they are due after its end"
    assert first + flow.run({"numbers": whole}, workers=2, state=state)["out"] == wanted


def test_a_failing_timer_is_told_with_its_key_and_time() -> None:
    class Broken(SilenceWork):
        def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
            raise ValueError("no more")

    @dataclass(eq=False, slots=True, repr=False)
    class Breaks(Silence):
        def work(self) -> Work:
            return Broken(2)

    flow = fc.Flow("broken")
    flow.source("numbers", int).key_by(lambda n: n % 2).apply(Breaks, name="breaks").sink("out")
    assert_deterministic(flow, numbers(20), seeds=seeds(8), workers=(1, 2, 3))
    with pytest.raises(fc.OperationError, match=r"'breaks' failed: ValueError: no more\n  record    timer 0 of 1 at 2"):
        flow.run({"numbers": [1, 2, 4, 6]}, workers=2)
    skipped = flow.run({"numbers": [1, 2, 4, 6]}, workers=3, settings={"job.on_error": "skip"})
    assert skipped["out"] == [(1, "came", 1), (0, "came", 1), (0, "came", 2), (0, "came", 3)]


RANG: list[int] = []


class RingsWork(SilenceWork):
    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        RANG.append(timer.time)
        return super().on_time(key, state, timer, now)


class Rings(Silence):
    def work(self) -> Work:
        return RingsWork(20_000)


class Waits(Source):
    """A record; and another one only once a timer has been due meanwhile."""

    name: ClassVar[str] = "waits"
    Options: ClassVar[Any] = None

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    def fingerprint(self) -> str:
        return "waits"

    async def open(self, partition: str, position: Any = None) -> Reader:
        return WaitsReader()


class WaitsReader(Reader):
    def __init__(self) -> None:
        self.read_so_far = 0

    async def read(self, limit: int) -> Batch | None:
        self.read_so_far += 1
        if self.read_so_far == 2:
            while not RANG:
                await asyncio.sleep(0.005)
        return Batch([self.read_so_far], [self.read_so_far]) if self.read_so_far < 3 else None


@pytest.mark.parametrize("snapshots", [False, True])
def test_timers_are_due_though_the_only_source_is_idle(tmp_path: Path, snapshots: bool) -> None:
    RANG.clear()
    flow = fc.Flow("rings")
    flow.source("numbers", int).key_by(lambda n: 0).apply(Rings, name="rings").sink("out")
    settings = {"source.numbers.use": "waits", "job.clock": "wall"}
    with override("source", "waits", Waits):
        outputs = flow.run(settings=settings, state=tmp_path / "state" if snapshots else None)
    assert outputs["out"][:3] == [(0, "came", 1), (0, "silent", 1), (0, "came", 1)]


def test_status_knows_watermarks_and_what_holds_them_back() -> None:
    flow = two_origins(closes=False)
    stats = flow.run(events_of(flow), workers=2).stats
    assert stats.held_by.keys() == stats.watermarks.keys() == stats.marks.keys() == {"first", "both"}
    assert stats.held_by["first"] == "left/0"
    assert stats.watermarks["both"] <= stats.watermarks["first"]
    assert all(stats.marks[name] <= watermark for name, watermark in stats.watermarks.items())


@pytest.mark.parametrize("workers", [1, 3])
def test_the_last_counts_tell_which_input_holds_back_keys_that_wait_for_marks(workers: int) -> None:
    flow = two_origins(closes=False)
    stats = flow.run(events_of(flow), workers=workers).stats
    # A key counts once, however many timers it has.
    assert 0 < stats.held["first"] <= 3
    assert stats.held["both"] == 4 < stats.pending["both"]
    assert stats.held_for.keys() == stats.held.keys()
    assert stats.held_for["first"] == "left/0"
    assert not stats.released_by  # no option of the flow is known
    closed = two_origins(closes=True)
    assert not closed.run(events_of(closed), workers=workers).stats.held


def plan_of(folder: Path, flow: fc.Flow) -> dict[str, tuple[str, int | None, str]]:
    """Return what `flamestream plan` says of each operation: its fate, its keys, and why."""

    async def act(store: Store) -> StatePlan:
        return await plan_migration(store, flow.graph(), {})

    plan = using(Sqlite(Sqlite.Options(path=str(folder)), StoreContext(flow.name, create=False)), act)
    return {each.name: (each.fate, each.keys, each.why) for each in plan.operations}


def test_plan_knows_which_changes_keep_its_state_and_counts_keys_alone(tmp_path: Path) -> None:
    def minutes(size: int, step: int, kind: type[Ordered] = Minutes) -> fc.Flow:
        flow = fc.Flow("planned")
        stream = flow.source("events", tuple).apply(
            Marking, name="at", function=lambda event: event[0], step=step, closes=False
        )
        keyed = stream.key_by(lambda event: event[1] % 5)
        keyed.apply(kind, name="minutes", **({"size": size} if kind is Minutes else {})).sink("out")
        return flow

    minutes(1000, 1).run({"events": [(n, n) for n in range(30)]}, state=tmp_path)
    assert plan_of(tmp_path, minutes(1000, 7))["minutes"] == ("kept", 5, "")
    fate, keys, why = plan_of(tmp_path, minutes(100, 1))["minutes"]
    assert (fate, keys) == ("unreadable", 5)
    assert "it was that of a minutes with size 1000" in why
    fate, _, why = plan_of(tmp_path, minutes(1000, 1, Silence))["minutes"]
    assert fate == "unreadable"
    assert "the operation is a silence now" in why
