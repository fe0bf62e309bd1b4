"""Drifting state: the fused operation gives, item for item, what the drawn cycle gives (paper 004, section 2.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.operator import Fail, Operator, Site
from flamecore.model.expansion import expand
from flamecore.model.graph import Graph
from flamecore.model.meta import FrontId, GlobalTime, Meta, encode_time
from flamecore.model.plan import Plan
from flamecore.model.vertices import Sink, Vertex
from flamecore.runtime.operators.compiler import Compiler
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.exchange import Outbox
from flamecore.runtime.operators.table import OPERATORS
from flamecore.testing.bench.contents import Contents
from flamecore.testing.draws import seeds

Build = Callable[[fc.KeyedStream[int, int]], fc.Stream[Any]]


class Bench(Compiler):
    """One form of a flow on one worker, with plain contents in place of barriers."""

    def __init__(self, graph: Graph) -> None:
        self.out, self.failed = Contents(), Contents()
        plan = Plan(graph, (FrontId("numbers", 0),))
        super().__init__(plan, 0, Random(1), [Outbox()], self.fail, {**OPERATORS, Sink: self.end})
        self.entry = self.successor(graph.sources[0]).step
        self.heads_at_rest()

    def end(self, vertex: Sink, site: Site) -> Operator:
        operator = Operator(vertex, site)
        operator.step = self.out.step
        return operator

    def fail(self, vertex: Vertex) -> Fail:
        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            # The drawn form fails on the way out of the cycle, two children behind the entry.
            entry = order[:-2] if vertex.name.endswith("/outputs") else order
            self.failed.step(entry, trace, alive, repr(error))

        return fail

    def heads_at_rest(self) -> None:
        assert not len(self.cycles._agendas.common)

    def take(self, item: Meta, payload: int) -> None:
        self.entry(item.order, item.trace, not item.tombstone, payload)
        self.heads_at_rest()

    def forget(self, time: int) -> None:
        for operators in self.compiled.timed.values():
            for operator in operators:
                operator.on_time(encode_time(time))


def both(build: Build, keys: int = 2) -> tuple[Bench, Bench]:
    flow = fc.Flow("drift")
    build(flow.source("numbers", int).key_by(lambda n: n % keys)).sink("out")
    graph = flow.graph()
    return Bench(graph), Bench(expand(graph))


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


def children(contents: Contents) -> list[tuple[bool, tuple[int, ...], Any]]:
    """Return the contents by child ids in place of orders."""
    return [(alive, Meta.decode(order).child_ids, payload) for alive, order, payload in contents.log]


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
@settings(max_examples=len(seeds(100, least=40)), deadline=None)
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
def test_any_arrival_gives_the_outputs_of_arrival_in_order(build: Build, seed: int) -> None:
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


def test_one_item_may_have_more_outputs_than_one_byte_of_child_id_counts() -> None:
    forms = both(lambda keyed: keyed.stateful_map(0, lambda s, n: (s + 1, range(300))), keys=1)
    for bench in forms:
        for time in (2, 1, 3):
            bench.take(Meta(GlobalTime(time, 1)), time)
    fused, drawn = forms
    assert fused.out.sequence == drawn.out.sequence
    assert [payload for _, payload in fused.out.sequence] == [*range(300)] * 3


def test_semantics_25_a_late_word_repairs_the_count() -> None:
    """The worked repair through a drifting-state loop: one word, times 2 then 1; the barrier ends with 1@1, 2@2."""
    for bench in both(lambda keyed: keyed.count(), keys=1):
        bench.take(Meta(GlobalTime(2, 1)), 0)
        assert children(bench.out) == [(True, (1, 0, 0), (0, 1))]
        bench.take(Meta(GlobalTime(1, 1)), 0)
        assert [payload for _, payload in bench.out.sequence] == [(0, 1), (0, 2)]
        assert sorted(children(bench.out)[1:]) == [
            (False, (1, 0, 0), (0, 1)),
            (True, (1, 0, 0), (0, 1)),
            (True, (1, 0, 0), (0, 2)),
        ]


@settings(max_examples=len(seeds(100, least=40)), deadline=None)
@given(changes())
def test_history_is_bounded_by_the_items_above_the_minimum_time(stream: list[tuple[int, Meta, int]]) -> None:
    fused, _ = both(with_several_outputs)
    (operation,) = fused.compiled.stateful.values()
    assert isinstance(operation, DriftOperator)
    for limit, item, payload in stream:
        fused.forget(limit)
        for history in operation.histories.values():
            assert sum(entry[0] < encode_time(limit) for entry in history) <= 1
        fused.take(item, payload)
