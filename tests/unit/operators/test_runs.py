"""A run means a step for each of its items: whatever takes both must leave and emit the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.operator import Cells, Part, Run, Site, Turn, Watermarks, Way, Work, each
from flamecore.model.batch import AllBut, Beside, DerivedOrders, Orders, RecordOrders, Within, column_of, stamped
from flamecore.model.drift import Drift
from flamecore.model.messages import Items
from flamecore.model.meta import CHILD, MAX_TIME, GlobalTime, Meta, encode_time
from flamecore.model.ordered import Now, Ordered, Outcome, Timer
from flamecore.model.vertices import ByKey, Grouping, Map, MapShape
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators.barrier import Barrier
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.exchange import Outbox
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.runtime.operators.map import broadcast_run, broadcast_step, map_run, map_step
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.operators.rounds import Rounds
from flamecore.runtime.parts import schedule
from flamecore.runtime.parts.backlog import Backlog
from flamecore.runtime.tasks import front_task

Emitted = list[tuple[bytes, int, bool, Any]]


class Behind:
    """Takes what comes next, one by one or in runs, and notes it item by item."""

    def __init__(self) -> None:
        self.emitted: Emitted = []
        self.failed: list[tuple[bytes, int, bool, Any, str]] = []
        self.runs = 0

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.emitted.append((order, trace, alive, payload))

    def run(self, orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
        assert orders, "a run has at least one item"
        assert [*orders] == sorted(set(orders)), "a run is in order"
        self.runs += 1
        each(self.step)(orders, trace, payloads)

    def fail(self, order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        self.failed.append((order, trace, alive, payload, repr(error)))

    def site(self, run: Run) -> Site:
        return Site(0b101, self.fail, (Way(self.step, run),))


def orders_of(count: int, start: int = 0) -> list[bytes]:
    return [GlobalTime(time, 1).encode() for time in range(start, start + count)]


def fussy(n: int) -> int:
    if n == 3:
        raise ValueError("three")
    if n == 4:
        raise StopIteration("four")  # which would end an iterator without a word
    return n


class Undecided:
    """A value that is neither true nor false."""

    def __bool__(self) -> bool:
        raise TypeError("neither")


def odd(n: int) -> Any:
    return fussy(n) % 2


odd.many = lambda payloads: [fussy(n) % 2 for n in payloads]  # type: ignore[attr-defined]


def half(pair: tuple[int, int]) -> Any:
    return fussy(pair[0]) % 2


def negated(pair: tuple[int, int]) -> tuple[int, int]:
    return (-fussy(pair[0]), pair[1])


def firsts(pairs: Sequence[Any]) -> list[int]:
    return [pair[0] for pair in pairs]


def with_seconds(pairs: Sequence[Any], results: Sequence[int]) -> list[tuple[int, int]]:
    return [(result, pair[1]) for result, pair in zip(results, pairs, strict=True)]


half.within = Within(firsts, lambda n: fussy(n) % 2)  # type: ignore[attr-defined]
negated.within = Within(firsts, lambda n: -fussy(n), with_seconds)  # type: ignore[attr-defined]

SHAPES: list[tuple[MapShape, Callable[[int], Any]]] = [
    ("many", lambda n: [n] * fussy(n)),
    ("many", lambda n: range(300) if fussy(n) else ()),
    ("one", lambda n: fussy(n) + 1),
    ("filter", lambda n: fussy(n) % 2),
    ("filter", lambda n: fussy(n) % 3 or Undecided()),
    ("filter", odd),
    ("inspect", fussy),
    ("inspect_meta", lambda n, meta=None: fussy(n)),
    ("timed", lambda n, time=0: (fussy(n), time)),
]

numbers = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@pytest.mark.parametrize(("shape", "function"), SHAPES)
@given(numbers)
def test_a_map_gives_the_same_by_run_as_by_item(
    shape: MapShape, function: Callable[[int], Any], payloads: list[int]
) -> None:
    vertex = Map("map", function=function, shape=shape)
    one, many = Behind(), Behind()
    step = map_step(vertex, 0b101, one.step, one.fail)
    each(step)(orders_of(len(payloads)), 7, payloads)
    map_run(vertex, 0b101, many.run, many.fail)(orders_of(len(payloads)), 7, payloads)
    assert many.emitted == one.emitted
    assert many.failed == one.failed


@given(
    st.sampled_from((list, tuple, lambda payloads: Beside(payloads, (abs, payloads)))),
    st.sampled_from((0, 0.05, 0.4)),
    st.sampled_from((0, 0.02, 0.3, 0.5, 0.8, 0.98, 1)),
    st.integers(120, 250),
    st.integers(0, 2**32),
)
def test_a_filter_of_many_gives_the_same_by_run_as_by_item(
    make: Callable[[list[int]], Sequence[int]], failing: float, kept: float, size: int, seed: int
) -> None:
    random = Random(seed)
    passing = [1 if random.random() < kept else 0 for _ in range(size)]
    payloads = [random.choice((3, 4)) if random.random() < failing else n for n in passing]
    vertex = Map("map", function=fussy, shape="filter")
    one, many = Behind(), Behind()
    each(map_step(vertex, 0b101, one.step, one.fail))(orders_of(size), 7, payloads)
    run = map_run(vertex, 0b101, many.run, many.fail)
    run(stamped(0, size, orders_of(1)[0][8:]), 7, make(payloads))
    assert many.emitted == one.emitted
    assert many.failed == one.failed


@pytest.mark.parametrize("least", [5, 400])
def test_a_filter_leaves_the_orders_of_most_records_packed_and_keeps_columns(least: int) -> None:
    found: list[tuple[Orders, Sequence[Any]]] = []
    places = [n for n in range(500) if n >= least and n % 50]
    run = map_run(
        Map("map", function=lambda n: n >= least and n % 50, shape="filter"),
        0,
        lambda orders, trace, payloads: found.append((orders, payloads)),
        Behind().fail,
    )
    run(stamped(0, 500, orders_of(1)[0][8:]), 0, Beside(range(500), (str, [*map(str, range(500))])))
    ((orders, payloads),) = found
    assert type(orders) is DerivedOrders
    assert type(orders.bases) is RecordOrders
    assert orders.bases._materialised is None
    assert (type(orders.bases.places) is AllBut) is (least < 250)
    assert orders == [order + CHILD[0] for at, order in enumerate(orders_of(500)) if at in places]
    assert list(payloads) == places
    assert column_of(payloads, str) == [*map(str, places)]


@pytest.mark.parametrize(("shape", "function"), [("filter", half), ("one", negated)])
@given(numbers)
def test_a_function_within_another_gives_the_same_as_the_whole(
    shape: MapShape, function: Callable[[Any], Any], numbers: list[int]
) -> None:
    vertex, payloads = Map("map", function=function, shape=shape), [*enumerate(numbers[::-1])]
    one, many = Behind(), Behind()
    each(map_step(vertex, 0b101, one.step, one.fail))(orders_of(len(payloads)), 7, payloads)
    map_run(vertex, 0b101, many.run, many.fail)(orders_of(len(payloads)), 7, payloads)
    assert many.emitted == one.emitted
    assert many.failed == one.failed


@pytest.mark.parametrize("seen", [[], None])
def test_a_function_whose_parts_cannot_be_seen_is_called_as_a_whole(seen: Any) -> None:
    def whole(n: int) -> int:
        return n + 1

    whole.within = Within(lambda payloads: seen[:], lambda n: n - 1)  # type: ignore[attr-defined]
    behind = Behind()
    map_run(Map("map", function=whole, shape="one"), 0, behind.run, behind.fail)(orders_of(3), 0, range(3))
    assert [payload for _, _, _, payload in behind.emitted] == [1, 2, 3]


@pytest.mark.parametrize("shape", ["one", "filter", "inspect", "many"])
def test_a_run_calls_its_function_once_for_each_payload(shape: MapShape) -> None:
    called: list[int] = []

    def function(n: int) -> Any:
        called.append(n)
        if n % 3 == 0:
            raise ValueError(n)
        return [n]

    behind = Behind()
    map_run(Map("map", function=function, shape=shape), 0, behind.run, behind.fail)(orders_of(10), 0, range(10))
    assert called == [*range(10)]
    assert [payload for _, _, _, payload, _ in behind.failed] == [0, 3, 6, 9]
    assert len(behind.emitted) == 6


@pytest.mark.parametrize("kept", [[5], range(0, 500, 2), range(5, 500)])
def test_a_filter_of_many_calls_its_function_once_for_each(kept: Sequence[int]) -> None:
    called: list[int] = []

    def function(n: int) -> Any:
        called.append(n)
        if n % 100 == 0:
            raise ValueError(n)
        return n in kept

    behind = Behind()
    map_run(Map("map", function=function, shape="filter"), 0, behind.run, behind.fail)(orders_of(500), 0, range(500))
    assert called == [*range(500)]
    assert [payload for _, _, _, payload, _ in behind.failed] == [0, 100, 200, 300, 400]
    assert [payload for _, _, _, payload in behind.emitted] == [n for n in kept if n % 100]


@pytest.mark.parametrize("few", [0, 1])
def test_a_filter_asks_of_all_payloads_at_once_where_it_can(few: int) -> None:
    called: list[int] = []

    def function(n: int) -> int:
        called.append(n)
        return n % 3

    # One answer too few is none.
    function.many = lambda payloads: [n % 3 for n in payloads[few:]]  # type: ignore[attr-defined]
    behind = Behind()
    map_run(Map("map", function=function, shape="filter"), 0, behind.run, behind.fail)(orders_of(10), 0, range(10))
    assert called == ([*range(10)] if few else [])
    assert [payload for _, _, _, payload in behind.emitted] == [1, 2, 4, 5, 7, 8]


@pytest.mark.parametrize("shape", ["filter", "many"])
@pytest.mark.parametrize("least", [0, 50])
def test_orders_of_records_are_not_spelled_out_by_a_map(shape: MapShape, least: int) -> None:
    found: list[Orders] = []

    def run(orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        found.append(orders)

    function: Callable[[int], Any] = (lambda n: n >= least) if shape == "filter" else (lambda n: [n] * 3 * (n >= least))
    records = stamped(1, 100, orders_of(1)[0][8:])
    map_run(Map("map", function=function, shape=shape), 0, run, Behind().fail)(records, 0, range(100))
    (orders,) = found
    for part in (orders, orders.bases if type(orders) is DerivedOrders else None):
        assert isinstance(part, (DerivedOrders, RecordOrders))
        assert part._materialised is None
    wanted = [order + CHILD[n] for order in orders_of(100, 1)[least:] for n in range(1 if shape == "filter" else 3)]
    assert orders == wanted


def test_a_run_that_grows_long_goes_on_in_parts() -> None:
    behind = Behind()
    run = map_run(Map("map", function=lambda n: range(n)), 0, behind.run, behind.fail)
    run(orders_of(10), 0, [3000] * 10)
    assert len(behind.emitted) == 30_000
    assert behind.runs == 5


def count(state: int, n: int) -> int:
    if (state + n) % 7 == 3:
        raise ValueError(f"{state} and {n}")
    return state + n


def pair(state: int, n: int) -> tuple[int, Iterable[str]]:
    after = count(state, n)
    return after, (f"{n}/{after}" for _ in range(n))


def drifting(fold: bool) -> Drift:
    flow = fc.Flow("drift")
    keyed = flow.source("numbers", int).key_by(lambda n: n % 2 if fussy(n) >= 0 else None)
    (keyed.fold(0, count) if fold else keyed.stateful_map(0, pair)).sink("out")
    (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
    return vertex


@pytest.mark.parametrize("fold", [True, False])
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), numbers), max_size=8), st.randoms(use_true_random=False))
def test_a_drift_gives_the_same_by_run_as_by_item(fold: bool, runs: list[tuple[int, list[int]]], random: Any) -> None:
    """Runs that come early and late, overlap in time, and are taken back in part."""
    vertex = drifting(fold)
    one, many = Behind(), Behind()
    by_step = DriftOperator(vertex, one.site(each(one.step)))
    by_run = DriftOperator(vertex, many.site(many.run))
    for number, (start, payloads) in enumerate(runs):
        orders = [order + CHILD[number] for order in orders_of(len(payloads), start)]
        each(by_step.step)(orders, number, payloads)
        by_run.run(orders, number, payloads)
        for order, payload in zip(orders, payloads, strict=True):
            if payload != 3 and random.random() < 0.2:
                by_step.step(order, number, False, payload)
                by_run.step(order, number, False, payload)
        assert held(many) == held(one)
    assert by_run.states.top == by_step.states.top
    assert by_run.retracted <= by_step.retracted


def own(n: Any) -> Any:
    return n


def half(n: Any) -> Any:
    return n // 2


def of_many(n: Any) -> Any:
    return n % 3


of_many.many = lambda payloads: [n % 3 for n in payloads]  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", [own, half, of_many])
@given(st.lists(st.lists(st.one_of(st.integers(0, 5), st.just([])), min_size=1, max_size=8), max_size=5))
def test_a_count_gives_the_same_by_run_as_by_item(key: Callable[[Any], Any], runs: list[list[Any]]) -> None:
    """Also where the keys of a run are known at once, and where one of them is none."""
    flow = fc.Flow("counting")
    flow.source("numbers", object).key_by(key).count().sink("out")
    (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
    one, many = Behind(), Behind()
    by_item, by_run = (DriftOperator(vertex, behind.site(behind.run)) for behind in (one, many))
    time = 0
    for payloads in runs:
        each(by_item.step)(orders_of(len(payloads), time), 7, payloads)
        by_run.run(orders_of(len(payloads), time), 7, payloads)
        time += len(payloads)
    assert many.emitted == one.emitted
    assert many.failed == one.failed
    assert (by_run.calls, by_run.retracted) == (by_item.calls, by_item.retracted)


def held(behind: Behind) -> list[Any]:
    """Return what tombstones leave, in order: outputs, then failures."""
    outputs: dict[tuple[bytes, int], Any] = {}
    failures: dict[tuple[bytes, int], Any] = {}
    for order, trace, alive, payload in behind.emitted:
        if alive:
            assert (order, trace) not in outputs
            outputs[order, trace] = payload
        else:
            assert outputs.pop((order, trace)) == payload
    for order, trace, alive, payload, error in behind.failed:
        if alive:
            failures[order, trace] = (payload, error)
        else:
            del failures[order, trace]
    return [*sorted(outputs.items()), *sorted(failures.items())]


@pytest.mark.parametrize("window", [1, 3])
@given(st.lists(st.tuples(st.integers(0, 40), numbers), max_size=6), st.randoms(use_true_random=False))
def test_a_grouping_gives_the_same_by_run_as_by_item(
    window: int, runs: list[tuple[int, list[int]]], random: Any
) -> None:
    """Outputs are the same item by item, late items, failing keys and tombstones in between."""
    vertex = Grouping("group", route=ByKey(lambda n: fussy(n) % 2), window=window)
    one, many = Behind(), Behind()
    by_step = GroupingOperator(vertex, one.site(each(one.step)))
    by_run = GroupingOperator(vertex, many.site(many.run))
    for number, (start, payloads) in enumerate(runs):
        orders = [order + CHILD[number] for order in orders_of(len(payloads), start)]
        each(by_step.step)(orders, number, payloads)
        by_run.run(orders, number, payloads)
        for order, payload in zip(orders, payloads, strict=True):
            if payload != 3 and random.random() < 0.2:
                by_step.step(order, number, False, payload)
                by_run.step(order, number, False, payload)
    assert many.emitted == one.emitted
    assert many.failed == one.failed
    assert by_run.retracted == by_step.retracted
    for operation in (by_step, by_run):
        operation.on_time(GlobalTime(1000).encode())
    assert {name: left.entries for name, left in by_run.buckets.items()} == {
        name: left.entries for name, left in by_step.buckets.items()
    }


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(0, 3)), max_size=8))
def test_a_barrier_holds_the_same_by_run_as_by_item(runs: list[tuple[int, int, int]]) -> None:
    """Runs that overlap, a tombstone now and then, released in parts."""
    one, many = Barrier("one"), Barrier("many")
    limit = 0
    for number, (start, length, cancelled) in enumerate(runs):
        orders = [order + CHILD[number] for order in orders_of(length, limit + start)]
        payloads = [Meta.decode(order) for order in orders]
        each(one.step)(orders, number, payloads)
        many.run(orders, number, payloads)
        for order, payload in [*zip(orders, payloads, strict=True)][:cancelled]:
            one.step(order, number, False, payload)
            many.step(order, number, False, payload)
        assert len(many) == len(one)
        limit += 5
        assert many.release(limit) == one.release(limit)
    assert many.release(limit + 100) == one.release(limit + 100)
    assert not len(many)


def test_items_go_one_by_one_where_ways_meet_again() -> None:
    """Nothing is ever late on one worker, though a front admits its records many at a time."""
    flow = fc.Flow("diamond")
    left, right = flow.source("numbers", int).flat_map(lambda n: [n, n]).broadcast(2)
    both = left.map(lambda n: ("left", n)).merge(right.map(lambda n: ("right", n)))
    both.key_by(lambda pair: pair[1] % 3).group(2).sink("out")
    outputs = flow.run({"numbers": range(500)})
    assert outputs.stats.replays == 0
    assert outputs["out"][:3] == [(("left", 0),), (("left", 0), ("right", 0)), (("right", 0), ("left", 0))]


@dataclass(eq=False, slots=True, repr=False)
class Several(Ordered):
    """The items, each with the number of those that have come with it."""

    kind: ClassVar[str] = "several"

    def work(self) -> Work:
        return SeveralWork()


class SeveralCells(Cells):
    """Cells of works that keep no state."""

    def take(
        self,
        keys: Sequence[Any],
        payloads: Sequence[Any],
        watermarks: Watermarks,
        cells: Mapping[Turn, Mapping[Any, Any]],
    ) -> tuple[Sequence[Part], Sequence[Any]]:
        return (), [(len(keys), payload) for payload in payloads]

    def end(self, keys: Sequence[Any], cells: Mapping[Any, Any], timer: Timer, now: Now) -> Sequence[Any]:
        raise AssertionError("there is no turn")

    def hold(self, turn: Turn) -> int | None:
        raise AssertionError("there is no turn")

    def joined(self, cells: Sequence[tuple[Turn, Any]]) -> Any:
        raise AssertionError("there is no cell")

    def parted(self, state: Any, turns: Sequence[Turn]) -> Sequence[Any] | None:
        raise AssertionError("there is no state")


class SeveralWork(Work):
    cells = SeveralCells()

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        return Outcome(None, [(1, payload)])


@pytest.fixture
def full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read all records of a test in one batch. Otherwise the first batch is one record."""
    monkeypatch.setattr(front_task, "_LEAST", 16)
    monkeypatch.setattr(schedule, "_LEAST_ITEMS", 16)


@pytest.mark.usefixtures("full_batches")
def test_a_run_goes_on_where_ways_meet_again_in_an_ordered_operation() -> None:
    """It has its items sorted, and takes those of both ways as one run."""
    seen: list[tuple[str, int]] = []

    def left_of(n: int) -> tuple[str, int]:
        seen.append(("left", n))
        return ("left", n)

    def right_of(n: int) -> tuple[str, int]:
        seen.append(("right", n))
        return ("right", n)

    flow = fc.Flow("joining")
    left, right = flow.source("numbers", int).map(lambda n: n).broadcast(2)
    both = left.map(left_of).merge(right.filter(lambda n: n % 3 == 0).map(right_of))
    both.key_by(lambda pair: 0).apply(Several, name="several").sink("out")
    outputs = flow.run({"numbers": range(9)})
    assert outputs["out"] == [(12, pair) for n in range(9) for pair in [("left", n), ("right", n)][: 1 + (n % 3 == 0)]]
    assert seen == [*[("left", n) for n in range(9)], *[("right", n) for n in range(0, 9, 3)]]


@pytest.mark.usefixtures("full_batches")
def test_a_run_goes_on_where_ways_part() -> None:
    """Each way sees its items in order; nothing says which way is first."""
    seen: list[tuple[str, int]] = []
    flow = fc.Flow("parting")
    numbers = flow.source("numbers", int).map(lambda n: n)
    for name in ("left", "right"):
        numbers.inspect(lambda n, name=name: seen.append((name, n))).sink(name)  # type: ignore[misc]
    outputs = flow.run({"numbers": range(5)})
    assert outputs == {"left": [0, 1, 2, 3, 4], "right": [0, 1, 2, 3, 4]}
    assert seen == [(name, n) for name in ("left", "right") for n in range(5)]


Stage = Callable[[Behind, Any, Any], tuple[Any, Any]]
"""(where failures go, step and run of what comes next) → its own step and run."""


def mapping(shape: MapShape, function: Callable[[int], Any]) -> Stage:
    def stage(behind: Behind, step: Any, run: Any) -> tuple[Any, Any]:
        vertex = Map("map", function=function, shape=shape)
        return map_step(vertex, 0b11, step, behind.fail), map_run(vertex, 0b11, run, behind.fail)

    return stage


def keeping(fold: bool) -> Stage:
    def stage(behind: Behind, step: Any, run: Any) -> tuple[Any, Any]:
        drift = DriftOperator(drifting(fold), Site(0b101, behind.fail, (Way(step, run),)))
        return drift.step, drift.run

    return stage


def forking(behind: Behind, step: Any, run: Any) -> tuple[Any, Any]:
    """Keep one of two copies as it is."""
    return broadcast_step([behind.step, step]), broadcast_run([behind.run, run])


def crossing(behind: Behind, step: Any, run: Any) -> tuple[Any, Any]:
    """Send items to another process, and take them in there."""
    buffer, outbox, codec = ReorderBuffer("it", SimpleNamespace(step=step, run=run), 1), Outbox(), Codec()  # type: ignore[arg-type]

    def cross(orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
        middle = len(orders) // 2
        if middle:
            outbox.put_run(1, trace, orders[:middle], payloads[:middle])
        outbox.put_run(1, trace, orders[middle:], payloads[middle:])
        items = codec.decode(codec.encode(Items(outbox.take(), ())))
        backlog = Backlog({}, {1: buffer.run}, [0, 0], Rounds(), lambda *_: None)
        backlog.receive("worker/0", items)
        backlog.run(len(payloads))
        buffer.drain(encode_time(MAX_TIME))

    return step, cross


def number_of(payload: Any) -> int:
    """Return a number for a payload of any stage; a pair is a plain tuple."""
    if type(payload) is str:
        return len(payload)
    if type(payload) is int:
        return payload
    assert type(payload) is tuple
    key, state = payload
    return int(key) + int(state)


def numbered(stage: Stage) -> Stage:
    """Return the stage, given numbers."""

    def both(behind: Behind, step: Any, run: Any) -> tuple[Any, Any]:
        return mapping("one", lambda payload: number_of(payload) % 6)(behind, *stage(behind, step, run))

    return both


STAGES: list[Stage] = [
    *[numbered(mapping(shape, function)) for shape, function in SHAPES if function(1) != range(300)],
    mapping("many", lambda payload: [payload] * (number_of(payload) % 40)),
    mapping("filter", number_of),
    mapping("inspect", lambda payload: fussy(number_of(payload))),
    numbered(keeping(fold=True)),
    numbered(keeping(fold=False)),
    forking,
    crossing,
    crossing,
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(STAGES), max_size=6), st.lists(st.integers(0, 5), min_size=1, max_size=120))
def test_operations_in_a_row_give_the_same_by_run_as_by_item(stages: list[Stage], payloads: list[int]) -> None:
    """The outputs of a run leave an operation as a run, in whatever form: through all operations behind it."""
    one, many = Behind(), Behind()
    step, (step_behind, run) = one.step, (many.step, many.run)
    for stage in stages:
        step, _ = stage(one, step, each(step))
        step_behind, run = stage(many, step_behind, run)
    orders = orders_of(len(payloads))
    each(step)(orders, 7, payloads)
    run(orders, 7, payloads)
    assert sorted(many.emitted, key=repr) == sorted(one.emitted, key=repr)
    assert sorted(many.failed, key=repr) == sorted(one.failed, key=repr)
    assert {type(payload) for *_, payload in many.emitted} == {type(payload) for *_, payload in one.emitted}
