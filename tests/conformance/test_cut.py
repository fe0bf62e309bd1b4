"""Snapshots of operations: what is cut at T and restored gives, with what comes from T on, what would have come anyway.

Paper 000, "Fault tolerance"; the cut of a bucket is its last window - 1 items below T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.operator import Fail, Operator, Site
from flamecore.model.graph import Graph
from flamecore.model.hashing import KEY_GROUPS
from flamecore.model.meta import FrontId, GlobalTime, Meta, encode_time
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings, StateTable
from flamecore.model.vertices import ByHash, ByKey, Grouping, Map, Sink, Source, Vertex
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators.compiler import Compiler
from flamecore.runtime.operators.exchange import Outbox, place_finder
from flamecore.runtime.operators.table import OPERATORS
from flamecore.runtime.state.format import Binding, FrontState, Manifest, Part, decode_part
from flamecore.runtime.state.restore import StateReader
from flamecore.runtime.state.schema import state_schema
from flamecore.runtime.state.writer import PartWriter, StateWriter
from flamecore.testing.bench.contents import Contents

Build = Callable[[fc.Stream[int]], fc.Stream[Any]]
Change = tuple[int, Meta, int]
"""(minimum time, item or tombstone, payload)."""


class Bench(Compiler):
    """A flow on one worker, with plain contents in place of barriers."""

    def __init__(self, graph: Graph, *, kept: bool, seed: int = 1) -> None:
        self.out, self.failed = Contents(), Contents()
        plan = Plan(graph, (FrontId("numbers", 0),), JobSettings(state=StateTable() if kept else None))
        super().__init__(plan, 0, Random(seed), [Outbox()], self.fail, {**OPERATORS, Sink: self.end})
        self.entry = self.successor(graph.sources[0]).step

    def end(self, vertex: Sink, site: Site) -> Operator:
        operator = Operator(vertex, site)
        operator.step = self.out.step
        return operator

    def fail(self, vertex: Vertex) -> Fail:
        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            self.failed.step(order, trace, alive, repr(error))

        return fail

    def take(self, item: Meta, payload: int) -> None:
        self.entry(item.order, item.trace, not item.tombstone, payload)

    def forget(self, time: int) -> None:
        for operators in self.compiled.timed.values():
            for operator in operators:
                operator.on_time(encode_time(time))

    def trim(self, time: int) -> None:
        for operation in self.compiled.stateful.values():
            operation.trim(encode_time(time))

    def since(self, time: int) -> tuple[Any, Any]:
        return self.out.since(time), self.failed.since(time)


class Snapshots:
    """The snapshots of a bench, as bytes of parts."""

    def __init__(self, bench: Bench) -> None:
        self.codec = Codec()
        self.facts = state_schema(bench.plan.graph)
        self.bench = bench
        self.operations = {name: bench.compiled.stateful[name] for name in self.facts}
        self.writer = StateWriter(self.operations, self.codec, (0, KEY_GROUPS - 1))
        self.parts: list[Part] = []
        self.blobs: dict[str, bytes] = {}
        self.manifests: list[Manifest] = []

    def take(self, time: int) -> None:
        changes = {name: each.cut(encode_time(time)) for name, each in self.bench.compiled.stateful.items()}
        number = len(self.manifests) + 1
        blob = f"part/1/{number}/0"
        sections = self.writer.prepare(number, changes)
        part_writer = PartWriter(
            blob, self.codec, self.writer.groups, number, self.writer.since, Binding("mine", "run")
        )
        for section, encoded in sections:
            part_writer.add(section, encoded)
        finished = part_writer.finish()
        parts = self.manifests[-1].parts if self.manifests else ()
        if finished is not None:
            self.blobs[blob] = finished[1]
            parts = (*parts, finished[0])
        manifest = Manifest("", 1, number, time, 0.0, self.facts, 1, (), parts)
        self.manifests.append(manifest._replace(parts=manifest.live_parts()))

    def restored(self, manifest: Manifest, seed: int) -> Bench:
        bench = Bench(self.bench.plan.graph, kept=True, seed=seed)
        for name, values in self.load(manifest).items():
            bench.compiled.stateful[name].restore(values)
        return bench

    def load(self, manifest: Manifest) -> dict[str, dict[Any, Any]]:
        groups_of = {name: each.groups_of for name, each in self.operations.items()}
        reader = StateReader(range(KEY_GROUPS), groups_of, manifest.swept(groups_of))
        for part in manifest.parts:
            reader.apply(
                part,
                decode_part(self.codec, self.blobs[part.blob], part.blob, Binding(digest=part.digest), self.operations),
            )
        return reader.states


# -- flows -------------------------------------------------------------------------------------------------------------


def mix(state: int, n: int) -> int:
    return (state * 31 + n + 1) % 1009


def several(state: int, n: int) -> tuple[int, list[Any]]:
    state = mix(state, n)
    return state, [(state, n, place) for place in range(state % 3)]


def fussy(state: int, n: int) -> int:
    if state % 3 == 1:
        raise ValueError(f"{n} at {state}")
    return state + n


def keyed(stream: fc.Stream[int]) -> fc.KeyedStream[int, int]:
    return stream.key_by(lambda n: n % 2)


MIXED = (1, 1.0, True, "1", b"1", None, 0, -0.0, (1,), (1.0,))
"""Some are equal to others."""

FLOWS: dict[str, Build] = {
    "count": lambda s: keyed(s).count(),
    "fold": lambda s: keyed(s).fold(7, mix),
    "reduce": lambda s: keyed(s).reduce(mix),
    "stateful_map": lambda s: keyed(s).stateful_map(0, several),
    "failing_fold": lambda s: keyed(s).fold(0, fussy),
    "back_to_the_start": lambda s: keyed(s).fold(0, lambda total, n: (total + n) % 3),
    "equal_to_the_start": lambda s: keyed(s).fold(1000, lambda total, n: 1000 + (total + n) % 3),  # and another object
    "none_as_state": lambda s: keyed(s).fold(None, lambda last, n: None if last or n > 6 else n),
    "none_after_something": lambda s: keyed(s).fold(0, lambda last, n: None if last else n),
    "mixed_keys": lambda s: s.key_by(MIXED.__getitem__).count(),
    "mixed_keys_of_windows": lambda s: s.key_by(MIXED.__getitem__).group(2),
    "group_1": lambda s: keyed(s).group(1),
    "group_2": lambda s: keyed(s).group(2),
    "group_4": lambda s: keyed(s).group(4),
    "custom_order": lambda s: keyed(s).group(3, order=lambda n: -n),
    "undo_partial": lambda s: keyed(s).group(3, undo_partial=True),
    "state_behind_windows": lambda s: (
        keyed(s).group(2).key_by(lambda w: sum(w) % 3).fold((), lambda t, w: (*t, w)[-2:])
    ),
    "windows_behind_state": lambda s: keyed(s).count().key_by(lambda pair: pair[1] % 2).group(3),
}


def graph_of(name: str) -> Graph:
    flow = fc.Flow(name)
    FLOWS[name](flow.source("numbers", int)).sink("out")
    return flow.graph()


def by_hash(equal: Callable[[Any, Any], bool] | None) -> Graph:
    """Buckets told apart by a hash that many share, and an equality."""
    graph = Graph("by-hash")
    graph.chain(
        graph.add(Source("numbers", type=int)),
        graph.add(Grouping("group", route=ByHash(lambda n: n % 2), equal=equal, window=3)),
        graph.add(Map("map", function=lambda window: window, shape="one")),
        graph.add(Sink("out")),
    )
    return graph


GRAPHS: dict[str, Callable[[], Graph]] = {
    **{name: lambda name=name: graph_of(name) for name in FLOWS},  # type: ignore[misc]
    "hash_alone": lambda: by_hash(None),
    "hash_and_equality": lambda: by_hash(lambda a, b: a // 4 == b // 4),
}

# -- what comes --------------------------------------------------------------------------------------------------------


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """Items and tombstones in any order that the minimum time allows, in time or late."""
    stream: list[Change] = []
    alive: dict[Meta, int] = {}
    limit = 0
    for _ in range(draw(st.integers(0, 30))):
        limit += draw(st.sampled_from((0, 0, 0, 1, 2)))
        alive = {item: payload for item, payload in alive.items() if item.global_time.time >= limit}
        if alive and draw(st.integers(0, 3)) == 0:
            item = draw(st.sampled_from(sorted(alive)))
            stream.append((limit, item._replace(tombstone=True), alive.pop(item)))
            continue
        item = Meta(GlobalTime(limit + draw(st.integers(0, 4)), 1), (draw(st.integers(0, 1)),), draw(st.integers(0, 3)))
        if not any(item.order == other.order for other in alive):
            alive[item] = draw(st.integers(0, 9))
            stream.append((limit, item, alive[item]))
    return stream


def standing(stream: Iterable[Change], time: int) -> dict[Meta, int]:
    """Return the items of times from `time` on that have not been cancelled."""
    items: dict[Meta, int] = {}
    for _, item, payload in stream:
        if item.tombstone:
            items.pop(item._replace(tombstone=False), None)
        elif item.global_time.time >= time:
            items[item] = payload
    return items


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=60, deadline=None)
@given(changes(), st.sets(st.integers(0, 40)), st.booleans(), st.randoms(use_true_random=False))
def test_a_worker_restored_from_any_cut_gives_the_same_outputs(
    name: str, stream: list[Change], at: set[int], settled: bool, random: Random
) -> None:
    graph = GRAPHS[name]()
    undisturbed, cutting = Bench(graph, kept=False), Bench(graph, kept=True)
    snapshots = Snapshots(cutting)
    places: list[int] = []  # how much of the stream had come at each snapshot
    for place, (limit, item, payload) in enumerate(stream):
        undisturbed.forget(limit)
        if settled and random.random() < 0.3:
            cutting.trim(limit)
        if place in at:
            snapshots.take(limit)
            places.append(place)
        undisturbed.take(item, payload)
        cutting.take(item, payload)
        assert undisturbed.since(-1) == cutting.since(-1), "a cut changes nothing"
    for seed, (place, manifest) in enumerate(zip(places, snapshots.manifests, strict=True)):
        fresh = snapshots.restored(manifest, seed=seed + 2)
        replayed = list(standing(stream[:place], manifest.time).items())
        random.shuffle(replayed)
        for item, payload in replayed:
            fresh.take(item, payload)
        for _, item, payload in stream[place:]:
            fresh.take(item, payload)
        assert fresh.since(-1) == undisturbed.since(manifest.time), "nothing below T, and all from T on"


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=25, deadline=None)
@given(changes(), st.integers(0, 40), st.integers(0, 40))
def test_snapshots_of_a_restored_worker_are_as_good(name: str, stream: list[Change], first: int, second: int) -> None:
    """Restored, run on, cut again, and restored from that."""
    graph = GRAPHS[name]()
    place, later = sorted(min(each, len(stream)) for each in (first, second))
    undisturbed, cutting = Bench(graph, kept=False), Bench(graph, kept=True)
    snapshots = Snapshots(cutting)
    limits = [limit for limit, _, _ in stream] + [stream[-1][0] if stream else 0]
    for _, item, payload in stream[:place]:
        cutting.take(item, payload)
    snapshots.take(limits[place])
    second_life = snapshots.restored(snapshots.manifests[-1], seed=2)
    for item, payload in standing(stream[:place], limits[place]).items():
        second_life.take(item, payload)
    again = Snapshots(second_life)
    again.manifests, again.blobs = snapshots.manifests, snapshots.blobs
    for _, item, payload in stream[place:later]:
        second_life.take(item, payload)
    again.take(limits[later])
    third_life = again.restored(again.manifests[-1], seed=3)
    for item, payload in standing(stream[:later], limits[later]).items():
        third_life.take(item, payload)
    for _, item, payload in stream:
        undisturbed.take(item, payload)
    for _, item, payload in stream[later:]:
        third_life.take(item, payload)
    assert third_life.since(-1) == undisturbed.since(limits[later])


# -- acceptance case 62 ------------------------------------------------------------------------------------------------


def test_a_window_of_two_keeps_the_last_item_below_the_cut() -> None:
    graph = graph_of("group_2")
    bench = Bench(graph, kept=True)
    for time in range(1, 11):
        bench.take(Meta(GlobalTime(time, 1)), 2 * time)
    (name,) = bench.compiled.stateful
    grouping: Any = bench.compiled.stateful[name]
    (cut,) = grouping.cut(encode_time(8))
    order, _, payload = cut[0][0]
    assert len(cut[0]) == 1, "the snapshot at 8 is item 7 alone"
    assert (GlobalTime.decode(order).time, payload) == (7, 14)
    kept = [GlobalTime.decode(entry[0]).time for entry in grouping.buckets[0].entries]
    assert kept == [7, 8, 9, 10], "what is older than the cut is dropped, and no more"
    fresh = Bench(graph, kept=True, seed=2)
    fresh.compiled.stateful[name].restore(cut)
    for time in range(8, 11):
        fresh.take(Meta(GlobalTime(time, 1)), 2 * time)
    assert fresh.since(-1) == bench.since(8)


def test_history_stays_until_the_cut_for_any_minimum_time() -> None:
    """A snapshot at T needs what is below T, also when the minimum time has long passed it."""
    for name in ("group_4", "count"):
        bench = Bench(graph_of(name), kept=True)
        undisturbed = Bench(graph_of(name), kept=False)
        for time in range(1, 11):
            bench.take(Meta(GlobalTime(time, 1)), 2 * time)
            undisturbed.take(Meta(GlobalTime(time, 1)), 2 * time)
        bench.forget(11)
        snapshots = Snapshots(bench)
        snapshots.take(3)
        fresh = snapshots.restored(snapshots.manifests[0], seed=2)
        for time in range(3, 11):
            fresh.take(Meta(GlobalTime(time, 1)), 2 * time)
        assert fresh.since(-1) == undisturbed.since(3)


def test_unchanged_state_is_not_cut_again() -> None:
    for name in ("count", "group_4"):
        bench = Bench(graph_of(name), kept=True)
        for time in range(1, 11):
            bench.take(Meta(GlobalTime(time, 1)), time)
        (stateful,) = bench.compiled.stateful.values()
        assert set().union(*stateful.cut(encode_time(8))) == {0, 1}
        bench.take(Meta(GlobalTime(11, 1)), 20)
        bench.take(Meta(GlobalTime(12, 1)), 20)
        stateful.cut(encode_time(12))
        assert set().union(*stateful.cut(encode_time(13))) == {0}, "only the key that got an item since"
        assert not stateful.cut(encode_time(14))


def test_the_schema_leaves_out_operations_without_state() -> None:
    flow = fc.Flow("facts")
    numbers = flow.source("numbers", int)
    for name, each in (("a", keyed(numbers).group(1, name="one")), ("b", keyed(numbers).group(3, name="three"))):
        each.sink(name)
    keyed(numbers).group(3, undo_partial=True, name="partial").sink("c")
    keyed(numbers).count(name="counted").sink("d")
    assert state_schema(flow.graph()) == {
        "three": {"kind": "grouping", "window": 3, "by": "key"},
        "counted": {"kind": "drift", "state": "int", "form": "count from int"},
    }


def test_the_key_group_of_a_name_is_that_of_its_route() -> None:
    """State moves with the key groups that items are routed by."""
    owners = tuple(range(KEY_GROUPS))
    for graph in (graph_of("group_2"), by_hash(None), by_hash(lambda a, b: a == b), graph_of("count")):
        vertex = next(each for each in graph.vertices if each.name in state_schema(graph))
        assert isinstance(vertex.route, (ByKey, ByHash))
        place = place_finder(vertex.route, owners, KEY_GROUPS)
        bench = Bench(graph, kept=True)
        for time in range(8):
            bench.take(Meta(GlobalTime(time, 1)), time)
        stateful: Any = bench.compiled.stateful[vertex.name]
        (changes,) = stateful.cut(encode_time(8))
        names = list(changes)
        for name, group in zip(names, stateful.groups_of(names), strict=True):
            payload = name if isinstance(name, int) else name[0]
            assert group == place(GlobalTime(0, 1).encode(), payload)


def test_front_states_are_plain() -> None:
    state = FrontState("numbers", 0, "", 1, ("file", 3), 7, False)
    assert Codec((FrontState,)).decode(Codec((FrontState,)).encode(state)) == state
