"""Drifting state: the fused operation gives, item for item, what the drawn cycle gives (paper 004, section 2.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.errors import DuplicateItemError, NoInvalideeError
from flamecore.graph import Drift, Graph, Sink, Vertex
from flamecore.meta import FrontId, GlobalTime, Meta, encode_time
from flamecore.operations import Fail, Step
from flamecore.operations.compiler import Compiler
from flamecore.operations.drift import DriftStep
from flamecore.plan import Plan

Build = Callable[[fc.KeyedStream[int, int]], fc.Stream[Any]]


class Contents:
    """What a barrier holds: everything emitted that no tombstone has cancelled."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, int], Any] = {}
        self.log: list[tuple[bool, tuple[int, ...], Any]] = []

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.log.append((alive, Meta.decode(order).child_ids, payload))
        if alive:
            assert (order, trace) not in self.held, f"two live outputs of one identity: {payload!r}"
            self.held[order, trace] = payload
        else:
            assert self.held.pop((order, trace)) == payload, "a tombstone carries what its victim did"

    @property
    def sequence(self) -> list[tuple[bytes, Any]]:
        return sorted(((order, payload) for (order, _), payload in self.held.items()), key=lambda item: item[0])


class Bench(Compiler):
    """One form of a flow on one worker, with plain contents in place of barriers."""

    def __init__(self, graph: Graph) -> None:
        self.out, self.failed = Contents(), Contents()
        super().__init__(Plan(graph, 1, (FrontId("numbers", 0),)), 0, Random(1), [[]], self.fail)
        self.entry = self.successor(graph.sources[0])
        self.heads_at_rest()

    def sink(self, vertex: Sink) -> Step:
        return self.out.step

    def fail(self, vertex: Vertex) -> Fail:
        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            # The drawn form fails on the way out of the cycle, two children behind the entry.
            entry = order[:-2] if vertex.name.endswith("/outputs") else order
            self.failed.step(entry, trace, alive, repr(error))

        return fail

    def heads_at_rest(self) -> None:
        assert not any(head.busy or head.waiting for head in self.heads.values())

    def take(self, item: Meta, payload: int) -> None:
        self.entry(item.order, item.trace, not item.tombstone, payload)
        self.heads_at_rest()

    def forget(self, time: int) -> None:
        for forget in self.compiled.forgetters:
            forget(encode_time(time))


def both(build: Build, keys: int = 2) -> tuple[Bench, Bench]:
    flow = fc.Flow("drift")
    build(flow.source("numbers", int).key_by(lambda n: n % keys)).sink("out")
    graph = flow.graph()
    return Bench(graph), Bench(graph.expanded())


def mix(state: int, n: int) -> int:
    return (state * 31 + n + 1) % 1009


def several(state: int, n: int) -> tuple[int, list[Any]]:
    state = mix(state, n)
    return state, [(state, n, place) for place in range(state % 4)]


def fussy(state: int, n: int) -> int:
    if state % 3 == 1:
        raise ValueError(f"{n} at {state}")
    return state + n


def fussy_reduce(one: int, other: int) -> int:
    if other % 5 == 2:
        raise LookupError(f"{other} after {one}")
    return mix(one, other)


def half_way(state: int, n: int) -> tuple[int, Iterable[Any]]:
    def outputs() -> Iterable[Any]:
        yield state
        if state % 2:
            raise ValueError(f"{n} at {state}")
        yield n

    return mix(state, n), outputs()


def counted(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.count()


def folded(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.fold(7, mix)


def reduced(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.reduce(mix)


def with_several_outputs(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.stateful_map(0, several)


def failing_fold(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.fold(0, fussy)


def failing_reduce(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.reduce(fussy_reduce)


def failing_half_way(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.stateful_map(0, half_way)


def two_in_a_row(keyed: fc.KeyedStream[int, int]) -> fc.Stream[Any]:
    return keyed.fold(1, fussy).key_by(lambda pair: pair[1] % 3).stateful_map(0, lambda s, p: (s + p[1], [s, p]))


ALL = [
    counted,
    folded,
    reduced,
    with_several_outputs,
    failing_fold,
    failing_reduce,
    failing_half_way,
    two_in_a_row,
]


# -- both forms, held against each other ------------------------------------------------------


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[int, Meta, int]]:
    """(minimum time, item or tombstone, payload), in any order that the minimum time allows."""
    stream: list[tuple[int, Meta, int]] = []
    alive: dict[Meta, int] = {}
    limit = 0
    for _ in range(draw(st.integers(0, 25))):
        limit += draw(st.sampled_from((0, 0, 0, 1, 2)))
        alive = {item: payload for item, payload in alive.items() if item.global_time.time >= limit}
        if alive and draw(st.integers(0, 2)) == 0:
            item = draw(st.sampled_from(sorted(alive)))
            stream.append((limit, item._replace(tombstone=True), alive.pop(item)))
            continue
        moment = GlobalTime(limit + draw(st.integers(0, 4)), 1)
        children = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=1)))
        if draw(st.booleans()):  # what came out of the state before, and came round to it again
            children += (draw(st.integers(1, 2)), 0, 0, draw(st.integers(0, 1)))
        item = Meta(moment, children, draw(st.integers(0, 3)))
        if not any(item.order == other.order for other in alive):
            alive[item] = draw(st.integers(0, 9))
            stream.append((limit, item, alive[item]))
    return stream


@pytest.mark.parametrize("build", ALL)
@settings(max_examples=100, deadline=None)
@given(changes())
def test_both_forms_hold_the_same_after_every_item(build: Build, stream: list[tuple[int, Meta, int]]) -> None:
    fused, drawn = both(build)
    for limit, item, payload in stream:
        for bench in (fused, drawn):
            bench.forget(limit)
            bench.take(item, payload)
        assert fused.out.sequence == drawn.out.sequence
        assert fused.failed.sequence == drawn.failed.sequence


@pytest.mark.parametrize("build", ALL)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=12), st.randoms())
def test_both_forms_agree_on_recomputations_that_overlap(
    build: Build, records: list[tuple[int, int]], random: Random
) -> None:
    """A new version of an item, by another worker, may come before the tombstone of the old one or after it."""
    fused, drawn = both(build)
    versions: dict[int, list[tuple[Meta, int]]] = {}
    stream: list[list[tuple[Meta, int]]] = []
    for number, (time, payload) in enumerate(records):
        known = versions.setdefault(time, [])
        item = Meta(GlobalTime(time, 1), (), number)
        change = [(item, payload)]
        if known:
            old, old_payload = known.pop()
            change.insert(random.randrange(2), (old._replace(tombstone=True), old_payload))
        known.append((item, payload))
        stream.append(change)
    for change in stream:
        for bench in (fused, drawn):
            for item, payload in change:
                bench.take(item, payload)
        assert fused.out.sequence == drawn.out.sequence
        assert fused.failed.sequence == drawn.failed.sequence


@pytest.mark.parametrize("build", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_any_arrival_gives_what_arrival_in_order_gives(build: Build, seed: int) -> None:
    items = [(Meta(GlobalTime(time, 1), (child,)), (time * 7 + child) % 10) for time in range(8) for child in range(3)]
    wanted = both(build)
    shuffled = both(build)
    mixed = items.copy()
    Random(seed).shuffle(mixed)
    for bench, other in zip(wanted, shuffled, strict=True):
        for item, payload in items:
            bench.take(item, payload)
        for item, payload in mixed:
            other.take(item, payload)
        assert bench.out.sequence == other.out.sequence
        assert bench.failed.sequence == other.failed.sequence
    assert all(alive for alive, _, _ in wanted[0].out.log), "in order nothing is taken back"
    assert all(alive for alive, _, _ in wanted[1].out.log), "nor is it in the drawn form"


def test_more_outputs_than_fit_one_byte_of_child_id() -> None:
    forms = both(lambda keyed: keyed.stateful_map(0, lambda s, n: (s + 1, range(300))), keys=1)
    for bench in forms:
        for time in (2, 1, 3):
            bench.take(Meta(GlobalTime(time, 1)), time)
    fused, drawn = forms
    assert fused.out.sequence == drawn.out.sequence
    assert [payload for _, payload in fused.out.sequence] == [*range(300)] * 3


def test_semantics_25_word_count_times_two_then_one() -> None:
    """The worked repair through a drifting-state loop: one word, times 2 then 1; the barrier ends with 1@1, 2@2."""
    for bench in both(lambda keyed: keyed.count(), keys=1):
        bench.take(Meta(GlobalTime(2, 1)), 0)
        assert bench.out.log == [(True, (1, 0, 0), (0, 1))]
        bench.take(Meta(GlobalTime(1, 1)), 0)
        assert [payload for _, payload in bench.out.sequence] == [(0, 1), (0, 2)]
        assert sorted(bench.out.log[1:]) == [
            (False, (1, 0, 0), (0, 1)),
            (True, (1, 0, 0), (0, 1)),
            (True, (1, 0, 0), (0, 2)),
        ]


# -- the fused form alone ---------------------------------------------------------------------


def fused_step(function: Callable[[int, int], tuple[int, Iterable[Any]]]) -> tuple[DriftStep, Contents, Contents]:
    flow = fc.Flow("fused")
    flow.source("numbers", int).key_by(lambda n: n % 2).stateful_map(0, function, name="state").sink("out")
    (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
    out, failed = Contents(), Contents()

    def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        failed.step(order, trace, alive, payload)

    return DriftStep(vertex, 0b100, out.step, fail), out, failed


def feed(operation: DriftStep, *times: int, alive: bool = True) -> None:
    for time in times:
        operation.step(GlobalTime(time, 1).encode(), 0, alive, time)


def running(state: int, n: int) -> tuple[int, list[str]]:
    return state + n, [f"{n}/{state + n}"]


def test_a_repair_takes_back_what_comes_after_then_gives_it_anew_in_order() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, 2, 6, 8)
    out.log.clear()
    feed(operation, 4)
    assert [(alive, payload) for alive, _, payload in out.log] == [
        (False, "6/8"),
        (False, "8/16"),
        (True, "4/6"),
        (True, "6/12"),
        (True, "8/20"),
    ]
    assert operation.retracted == 2
    out.log.clear()
    feed(operation, 6, alive=False)
    assert [(alive, payload) for alive, _, payload in out.log] == [(False, "6/12"), (False, "8/20"), (True, "8/14")]


def test_several_are_taken_back_at_once() -> None:
    """What follows them is run again once, and not for each of them."""
    operation, out, _ = fused_step(running)
    alone, wanted, _ = fused_step(running)
    numbers, gone = range(2, 20, 2), (2, 6, 16)
    for bench in (operation, alone):
        feed(bench, *numbers)
    out.log.clear()
    operation.undo([GlobalTime(time, 1).encode() for time in gone], 0, gone)
    feed(alone, *gone, alive=False)
    assert out.held == wanted.held
    assert [(alive, payload) for alive, _, payload in out.log] == [
        *[(False, f"{n}/{sum(range(2, n + 1, 2))}") for n in numbers],
        *[(True, f"{n}/{sum(m for m in range(2, n + 1, 2) if m not in gone)}") for n in numbers if n not in gone],
    ]
    with pytest.raises(NoInvalideeError):
        operation.undo([GlobalTime(6, 1).encode()], 0, [6])


def test_keys_do_not_meet() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, 1, 2, 4, 3)
    assert [payload for _, payload in out.sequence] == ["1/1", "2/2", "3/4", "4/6"]
    assert operation.retracted == 0


def test_in_order_nothing_is_replayed() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, *range(100))
    assert operation.retracted == 0
    assert all(alive for alive, _, _ in out.log)


def test_a_key_is_forgotten_with_its_last_item() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, 2)
    feed(operation, 2, alive=False)
    assert operation.histories == {}
    assert operation.states.young == {}
    assert out.held == {}
    operation.forget(encode_time(5))
    feed(operation, 6)
    assert [payload for _, payload in out.sequence] == ["6/6"]


def test_broken_identities_are_refused() -> None:
    operation, _, _ = fused_step(running)
    feed(operation, 2, 4)
    for time in (2, 4):
        with pytest.raises(DuplicateItemError) as caught:
            feed(operation, time)
        assert caught.value.vertex == "state"
    for time in (6, 3):
        with pytest.raises(NoInvalideeError) as missing:
            feed(operation, time, alive=False)
        assert missing.value.record == time


def test_a_failure_leaves_the_state_as_it_was_and_can_be_taken_back() -> None:
    def fussy_running(state: int, n: int) -> tuple[int, list[str]]:
        if state >= 2 and n == 6:
            raise ValueError("six after two")
        return running(state, n)

    operation, out, failed = fused_step(fussy_running)
    feed(operation, 2, 6, 8)
    assert [payload for _, payload in out.sequence] == ["2/2", "8/10"]
    assert [payload for _, payload in failed.sequence] == [6]
    feed(operation, 2, alive=False)
    assert [payload for _, payload in out.sequence] == ["6/6", "8/14"]
    assert failed.held == {}


def test_what_the_minimum_time_has_passed_is_dropped() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, *range(100), 101, 100)
    for limit, left in ((0, 51), (50, 26), (51, 25), (100, 1)):
        operation.forget(encode_time(limit))
        assert len(operation.histories[0]) == left
    operation.forget(encode_time(1000))
    assert operation.histories == {}
    feed(operation, 1002, 1000)
    assert [payload for _, payload in out.sequence][-2:] == ["1000/3550", "1002/4552"]


@settings(max_examples=100, deadline=None)
@given(changes())
def test_history_is_bounded_by_what_is_open(stream: list[tuple[int, Meta, int]]) -> None:
    operation, _, _ = fused_step(running)
    for limit, item, payload in stream:
        operation.forget(encode_time(limit))
        for history in operation.histories.values():
            assert sum(entry[0] < encode_time(limit) for entry in history) <= 1
        operation.step(item.order, item.trace, not item.tombstone, payload)
