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
from flamecore.codec import Codec
from flamecore.facts import state_facts
from flamecore.graph import ByHash, ByKey, Graph, Grouping, Map, Sink, Source, Vertex
from flamecore.hashing import KEY_GROUPS
from flamecore.keeper import Keeper, PartWriter, Restored
from flamecore.meta import FrontId, GlobalTime, Meta, encode_time
from flamecore.operations import Fail, Step
from flamecore.operations.compiler import Compiler
from flamecore.operations.routing import Outbox, place_finder
from flamecore.plan import Plan
from flamecore.snapshot import FrontState, Manifest, Part, decode_part

Build = Callable[[fc.Stream[int]], fc.Stream[Any]]
Change = tuple[int, Meta, int]
"""(minimum time, item or tombstone, payload)."""


class Contents:
    """What a barrier holds: everything emitted that no tombstone has cancelled."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, int], Any] = {}

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        if alive:
            assert (order, trace) not in self.held, f"two live outputs of one identity: {payload!r}"
            self.held[order, trace] = payload
        else:
            assert self.held.pop((order, trace)) == payload, "a tombstone carries what its victim did"

    def since(self, time: int) -> list[tuple[bytes, Any]]:
        limit = encode_time(time)
        return sorted(((order, payload) for (order, _), payload in self.held.items() if order >= limit), key=_order)


def _order(item: tuple[bytes, Any]) -> bytes:
    return item[0]


class Bench(Compiler):
    """A flow on one worker, with plain contents in place of barriers."""

    def __init__(self, graph: Graph, *, kept: bool, seed: int = 1) -> None:
        self.out, self.failed = Contents(), Contents()
        plan = Plan(graph, 1, (FrontId("numbers", 0),), kept=kept)
        super().__init__(plan, 0, Random(seed), [Outbox()], self.fail)
        self.entry = self.successor(graph.sources[0])

    def sink(self, vertex: Sink) -> Step:
        return self.out.step

    def fail(self, vertex: Vertex) -> Fail:
        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            self.failed.step(order, trace, alive, repr(error))

        return fail

    def take(self, item: Meta, payload: int) -> None:
        self.entry(item.order, item.trace, not item.tombstone, payload)

    def forget(self, time: int) -> None:
        for forget in self.compiled.forgetters:
            forget(encode_time(time))

    def settle(self, time: int) -> None:
        for operation in self.compiled.stateful.values():
            operation.settle(encode_time(time))

    def since(self, time: int) -> tuple[Any, Any]:
        return self.out.since(time), self.failed.since(time)


class Snapshots:
    """The snapshots of a bench, as bytes of parts."""

    def __init__(self, bench: Bench) -> None:
        self.codec = Codec()
        self.facts = state_facts(bench.plan.graph)
        self.bench = bench
        self.operations = {name: bench.compiled.stateful[name] for name in self.facts}
        self.keeper = Keeper(self.operations, self.codec, (0, KEY_GROUPS - 1))
        self.parts: list[Part] = []
        self.blobs: dict[str, bytes] = {}
        self.manifests: list[Manifest] = []

    def take(self, time: int) -> None:
        changes = {name: each.cut(encode_time(time)) for name, each in self.bench.compiled.stateful.items()}
        number = len(self.manifests) + 1
        blob = f"part/1/{number}/0"
        sections = self.keeper.take(number, changes)
        writer = PartWriter(blob, self.codec, self.keeper.groups, number, self.keeper.since)
        for section, encoded in sections:
            writer.add(section, encoded)
        finished = writer.finish()
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
        restored = Restored(range(KEY_GROUPS), {name: each.groups_of for name, each in self.operations.items()})
        for part in manifest.parts:
            restored.apply(part, decode_part(self.codec, self.blobs[part.blob], part.blob, self.operations))
        return restored.held


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
    """What has come with a time from `time` on and has not been cancelled."""
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
def test_restored_from_any_cut_it_gives_what_would_have_come(
    name: str, stream: list[Change], at: set[int], settled: bool, random: Random
) -> None:
    graph = GRAPHS[name]()
    undisturbed, cutting = Bench(graph, kept=False), Bench(graph, kept=True)
    snapshots = Snapshots(cutting)
    places: list[int] = []  # how much of the stream had come at each snapshot
    for place, (limit, item, payload) in enumerate(stream):
        undisturbed.forget(limit)
        if settled and random.random() < 0.3:
            cutting.settle(limit)
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
def test_a_restored_worker_takes_snapshots_that_are_as_good(
    name: str, stream: list[Change], first: int, second: int
) -> None:
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


def test_history_stays_until_the_cut_however_far_the_minimum_time_is() -> None:
    """A snapshot at T needs what is below T, also when the minimum time has long passed it."""
    for name in ("group_4", "count"):
        bench = Bench(graph_of(name), kept=True)
        assert bench.compiled.forgetters == []
        undisturbed = Bench(graph_of(name), kept=False)
        for time in range(1, 11):
            bench.take(Meta(GlobalTime(time, 1)), 2 * time)
            undisturbed.take(Meta(GlobalTime(time, 1)), 2 * time)
        snapshots = Snapshots(bench)
        snapshots.take(3)
        fresh = snapshots.restored(snapshots.manifests[0], seed=2)
        for time in range(3, 11):
            fresh.take(Meta(GlobalTime(time, 1)), 2 * time)
        assert fresh.since(-1) == undisturbed.since(3)


def test_what_has_not_changed_is_not_cut_again() -> None:
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


def test_facts_leave_out_what_keeps_nothing_between_records() -> None:
    flow = fc.Flow("facts")
    numbers = flow.source("numbers", int)
    for name, each in (("a", keyed(numbers).group(1, name="one")), ("b", keyed(numbers).group(3, name="three"))):
        each.sink(name)
    keyed(numbers).group(3, undo_partial=True, name="partial").sink("c")
    keyed(numbers).count(name="counted").sink("d")
    assert state_facts(flow.graph()) == {
        "three": {"kind": "grouping", "window": 3, "by": "key"},
        "counted": {"kind": "drift", "state": "int"},
    }


def test_the_key_group_of_a_name_is_that_of_its_route() -> None:
    """State moves with the key groups that items are routed by."""
    owners = tuple(range(KEY_GROUPS))
    for graph in (graph_of("group_2"), by_hash(None), by_hash(lambda a, b: a == b), graph_of("count")):
        vertex = next(each for each in graph.vertices if each.name in state_facts(graph))
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
