"""Graphs: what cannot work is found when it is built, and the error names the vertex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flamecore.errors import GraphError
from flamecore.model.drift import Drift
from flamecore.model.expansion import expand
from flamecore.model.graph import Graph
from flamecore.model.hashing import stable_hash
from flamecore.model.vertices import (
    Broadcast,
    ByHash,
    ByKey,
    ByTime,
    Grouping,
    Map,
    Merge,
    Route,
    Sink,
    Source,
    ToAll,
    Vertex,
    is_local,
    user_functions,
)

KEY = ByKey(lambda payload: payload)


def one(name: str = "map", route: Route = None) -> Map:
    return Map(name, function=abs, shape="one", route=route)


def drift(**settings: Any) -> Drift:
    advance = settings.pop("advance", lambda state, item: (state + item, [state]))
    return Drift("drift", **{"route": KEY, "initial": 0, "advance": advance, **settings})


def line(*inner: Vertex) -> Graph:
    """Draw source → inner … → sink."""
    graph = Graph("line")
    graph.chain(*(graph.add(vertex) for vertex in (Source("source"), *inner, Sink("sink"))))
    return graph


def no_source() -> Graph:
    graph = Graph("headless")
    graph.chain(graph.add(one()), graph.add(Sink("sink")))
    return graph


def no_sink() -> Graph:
    graph = Graph("endless")
    graph.chain(graph.add(Source("source")), graph.add(one()))
    return graph


def empty() -> Graph:
    return Graph("empty")


def leads_nowhere() -> Graph:
    graph = line(Broadcast("fork"))
    graph.link(graph.vertices[1], graph.add(one("lost")))
    return graph


def unlinked_source() -> Graph:
    graph = line()
    graph.add(Source("lost"))
    return graph


def nothing_flows_in() -> Graph:
    graph = line(Merge("merge"))
    graph.link(graph.add(one("orphan")), graph.vertices[1])
    return graph


def two_successors_without_broadcast() -> Graph:
    graph = line(one("greedy"))
    graph.link(graph.vertices[1], graph.add(Sink("other")))
    return graph


def two_inputs_without_merge() -> Graph:
    graph = line(one("crowded"))
    graph.link(graph.add(Source("other")), graph.vertices[1])
    return graph


def two_inputs_of_a_sink() -> Graph:
    graph = line()
    graph.link(graph.add(Source("other")), graph.vertices[1])
    return graph


def fed_only_by_itself() -> Graph:
    """Draw a cycle that no source leads to."""
    graph = line(Merge("join"))
    ring, turn, fork = graph.add(Merge("ring")), graph.add(one("turn")), graph.add(Broadcast("fork"))
    graph.chain(ring, turn, fork, ring)
    graph.link(fork, graph.vertices[1])
    return graph


def without_exit() -> Graph:
    graph = line(Broadcast("fork"))
    ring, turn = graph.add(Merge("ring")), graph.add(one("turn"))
    graph.chain(graph.vertices[1], ring, turn, ring)
    return graph


def cycle(*inside: Vertex) -> Graph:
    """Draw source → head → inside … → fork → sink, and fork → head."""
    graph = line(Merge("head"), *inside, Broadcast("fork"))
    graph.link(next(v for v in graph.vertices if v.name == "fork"), graph.vertices[1])
    return graph


def cycle_without_a_map() -> Graph:
    return cycle(Grouping("group", route=KEY, window=2))


def one_way_round_without_a_map() -> Graph:
    """Draw a cycle with two ways round; one has a map, the other none."""
    graph = Graph("two ways")
    source, head, fork, turn, back, sink = (
        graph.add(vertex)
        for vertex in (Source("source"), Merge("head"), Broadcast("fork"), one("turn"), Merge("back"), Sink("sink"))
    )
    graph.chain(source, head, fork, turn, back, head)
    graph.link(fork, back)
    graph.link(fork, sink)
    return graph


def window_of_nothing() -> Graph:
    return line(Grouping("group", route=KEY, window=0))


def grouping_without_key() -> Graph:
    return line(Grouping("group", window=2))


def grouping_by_time() -> Graph:
    return line(Grouping("group", route=ByTime(), window=2))


def grouping_of_all() -> Graph:
    return line(Grouping("group", route=ToAll(), window=2))


def drift_without_key() -> Graph:
    return line(drift(route=None))


def listed(payload: int) -> list[int]:
    return [payload]


def key_is_a_list() -> Graph:
    return line(Grouping("group", route=ByKey(listed), window=2))


def key_is_made_a_dict() -> Graph:
    return line(drift(route=ByKey(dict)))


def initial_list() -> Graph:
    return line(drift(initial=[]))


def initial_dict() -> Graph:
    return line(drift(initial={}))


def initial_set() -> Graph:
    return line(drift(initial=set()))


def routed_source() -> Graph:
    graph = line()
    graph.vertices[0].route = KEY
    return graph


def routed_sink() -> Graph:
    return line(Merge("merge", route=KEY))


@pytest.mark.parametrize(
    ("build", "vertex", "words"),
    [
        (no_source, None, "no source"),
        (no_sink, None, "no sink"),
        (empty, None, "no source"),
        (leads_nowhere, "lost", "leads nowhere"),
        (unlinked_source, "lost", "leads nowhere"),
        (nothing_flows_in, "orphan", "nothing flows into"),
        (two_successors_without_broadcast, "greedy", "2 successors"),
        (two_inputs_without_merge, "crowded", "2 inputs"),
        (two_inputs_of_a_sink, "sink", "2 inputs"),
        (fed_only_by_itself, "ring", "no source feeds"),
        (without_exit, "ring", "reaches a sink"),
        (cycle_without_a_map, "head", "no map"),
        (one_way_round_without_a_map, "head", "no map"),
        (window_of_nothing, "group", "window"),
        (grouping_without_key, "group", "no key"),
        (grouping_by_time, "group", "no key"),
        (grouping_of_all, "group", "no key"),
        (drift_without_key, "drift", "no key"),
        (key_is_a_list, "group", "list is mutable"),
        (key_is_made_a_dict, "drift", "dict is mutable"),
        (initial_list, "drift", "initial state"),
        (initial_dict, "drift", "initial state"),
        (initial_set, "drift", "initial state"),
        (routed_source, "source", "cannot have a route"),
        (routed_sink, "merge", "cannot have a route"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_graphs_that_cannot_work_are_refused(build: Callable[[], Graph], vertex: str | None, words: str) -> None:
    with pytest.raises(GraphError) as caught:
        build().check()
    error = caught.value
    assert error.vertex == vertex
    assert words in error.what
    assert error.hint, "says what to do"
    if vertex is not None:
        assert repr(vertex) in str(error)


@pytest.mark.parametrize("inner", [Grouping("group", route=KEY, window=1), drift()], ids=repr)
def test_operations_that_repair_need_the_barrier(inner: Vertex) -> None:
    """Semantics 2.9."""
    graph = line(inner)
    graph.check()
    with pytest.raises(GraphError, match="barrier") as caught:
        graph.check(barrier=False)
    assert caught.value.vertex == inner.name


def test_stateless_work_does_without_the_barrier() -> None:
    line(one(), Broadcast("fork"), one("other", route=ToAll())).check(barrier=False)


@pytest.mark.parametrize("inside", [one(), drift(), one("routed", route=KEY)], ids=repr)
def test_a_cycle_with_a_map_is_right(inside: Vertex) -> None:
    cycle(inside).check()
    cycle(Grouping("group", route=KEY, window=2), inside).check()


# -- drawing --------------------------------------------------------------------------------------------


def test_names_are_unique() -> None:
    graph = line(one())
    taken = {vertex.kind: vertex.name for vertex in graph.vertices}
    for twice in (one(taken["map"]), one(taken["source"]), Sink(taken["source"])):
        with pytest.raises(GraphError, match="two vertices") as caught:
            graph.add(twice)
        assert caught.value.vertex == twice.name


def test_a_second_source_or_sink_of_one_name_is_told_how_to_use_the_first() -> None:
    graph = line(one())
    source, _, sink = graph.vertices
    with pytest.raises(GraphError, match="two sources") as caught:
        graph.add(Source(source.name))
    assert "stream of the first" in caught.value.hint
    with pytest.raises(GraphError, match="two sinks") as caught:
        graph.add(Sink(sink.name))
    assert f".merge(other).sink({sink.name!r})" in caught.value.hint


def test_an_operation_and_a_sink_may_have_one_name() -> None:
    graph = Graph()
    graph.chain(graph.add(Source("lines")), graph.add(one("counts")), graph.add(Sink("counts")))
    graph.check()
    graph = Graph()
    sink = graph.add(Sink("counts"))
    graph.chain(graph.add(Source("lines")), graph.add(one("counts")), sink)
    graph.check()


def test_impossible_edges_are_refused() -> None:
    graph = line(one())
    source, middle, sink = graph.vertices
    stranger = one("stranger")
    for start, end in ((sink, middle), (middle, source), (stranger, middle), (middle, stranger), (middle, sink)):
        with pytest.raises(GraphError):
            graph.link(start, end)


def test_order_of_links_is_kept() -> None:
    """It is the order of child ids."""
    graph = Graph()
    fork = graph.add(Broadcast("fork"))
    ends = [graph.add(one(f"m{number}")) for number in (3, 1, 2)]
    for end in ends:
        graph.link(fork, end)
    assert graph.successors(fork) == tuple(ends)
    assert [end.name for _, end in graph.edges] == ["m3", "m1", "m2"]
    assert graph.predecessors(ends[0]) == (fork,)


def test_sources_are_numbered_by_name() -> None:
    graph = Graph()
    for name in ("b", "c", "a"):
        graph.add(Source(name))
    assert [source.name for source in graph.sources] == ["a", "b", "c"]


def test_feedback_closes_cycles() -> None:
    assert {(start.name, end.name) for start, end in cycle(one()).feedback()} == {("fork", "head")}
    assert line(one()).feedback() == frozenset()
    graph = cycle(one())
    assert {v.name for v in graph.cycle_of(graph.vertices[1])} == {"head", "map", "fork"}


def test_expanded_draws_the_cycle_and_leaves_the_rest() -> None:
    graph = line(one("before"), drift(), one("after"))
    drawn = expand(graph)
    drawn.check()
    assert not any(isinstance(vertex, Drift) for vertex in drawn.vertices)
    assert {v.name for v in graph.vertices} - {v.name for v in drawn.vertices} == {"drift"}
    assert [v.index for v in drawn.vertices] == list(range(len(drawn.vertices)))
    assert [v.index for v in graph.vertices] == list(range(5)), "the original is left alone"
    (grouping,) = (v for v in drawn.vertices if isinstance(v, Grouping))
    assert grouping.window == 2
    assert {head.name for _, head in drawn.feedback()} == {"drift/entry"}


# -- routes and functions -------------------------------------------------------------------------------


def test_routes_hash_payloads() -> None:
    assert ByKey(lambda word: word[0]).hash("abc") == stable_hash("a")
    assert ByHash(len).hash("abc") == 3


def test_functions_know_if_another_process_can_import_them() -> None:
    def local(one: Any, other: Any) -> bool:
        return bool(one == other)

    group = Grouping("group", route=ByHash(len), window=2, equal=local, order=listed)
    assert set(user_functions(group)) == {len, local, listed}
    assert set(user_functions(line(one()).vertices[1])) == {abs}
    assert not list(user_functions(Sink("sink")))
    assert is_local(local)
    assert is_local(lambda: None)
    assert not is_local(listed)
    assert not is_local(len)


# -- rounds ----------------------------------------------------------------------------------------------


def ring(*inside: Vertex, behind: Vertex | None = None) -> Graph:
    """Draw a cycle through some vertices, and one behind it."""
    graph = Graph("ring")
    source, head, fork, back, exit_ = Source("source"), Merge("head"), Broadcast("fork"), one("back"), one("exit")
    last = behind or one("behind")
    for vertex in (source, head, *inside, fork, back, exit_, last, Sink("sink")):
        graph.add(vertex)
    graph.chain(source, head, *inside, fork, back, head)
    graph.chain(fork, exit_, last, graph.vertices[-1])
    return graph


@pytest.mark.parametrize(
    ("graph", "counted"),
    [
        (ring(one("once")), True),
        (ring(drift()), True),
        (ring(drift(), one("dealt", route=ByTime())), True),
        (ring(Grouping("windows", route=KEY, window=2)), True),
        (ring(one("once"), behind=Grouping("windows", route=KEY, window=2)), True),
        (ring(one("dealt", route=ByTime())), False),
        (ring(one("keyed", route=KEY)), False),
        (ring(one("copied", route=ToAll())), False),
        (ring(Grouping("windows", route=KEY, window=2, order=abs)), False),
        (ring(drift(), behind=Grouping("windows", route=KEY, window=2, order=abs)), False),
        (ring(drift(), behind=Grouping("windows", route=KEY, window=2, undo_partial=True)), False),
    ],
)
def test_rounds_are_counted_where_nothing_is_taken_back_and_a_count_is_known(graph: Graph, counted: bool) -> None:
    graph.check()
    assert graph.counts_rounds() is counted


def test_rounds_are_not_counted_where_one_with_a_state_holds_one_without() -> None:
    inner, turn, fork = Merge("inner"), one("turn"), Broadcast("inner/fork")
    graph = Graph("nested")
    source, head, state, out, sink = Source("source"), Merge("head"), drift(), Broadcast("out"), Sink("sink")
    ways = [one(name) for name in ("again", "on", "back", "exit")]
    for vertex in (source, head, inner, turn, fork, state, out, *ways, sink):
        graph.add(vertex)
    again, on, back, exit_ = ways
    graph.chain(source, head, inner, turn, fork, again, inner)
    graph.chain(fork, on, state, out, back, head)
    graph.chain(out, exit_, sink)
    graph.check()
    assert not graph.counts_rounds()
