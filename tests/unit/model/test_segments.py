"""Segments: where items wait for what leads there, and for nothing else."""

from __future__ import annotations

from typing import Any

import flamecore as fc
from flamecore.model.graph import Graph
from flamecore.model.segments import Segments


def count(stream: fc.Stream[Any], name: str) -> fc.Stream[Any]:
    return stream.key_by(lambda item: item).count(name=name)


def upstream(segments: Segments, segment: int) -> set[int]:
    """Return the segment, and all that feed it."""
    return {segment}.union(*(upstream(segments, feeding) for feeding in segments.inbound[segment]))


def check(graph: Graph) -> dict[str, int]:
    """Hold the laws; return the segment of each vertex, by name."""
    graph.check()
    segments = Segments.number(graph)
    for number, feeding in enumerate(segments.inbound):
        assert all(other < number for other in feeding), "what feeds one has a lower number"
    for vertex in graph.vertices:
        own, entered = segments.of[vertex.index], segments.entered[vertex.index]
        assert entered in upstream(segments, own)
        for start in graph.predecessors(vertex):
            assert segments.of[start.index] in upstream(segments, own), "acks never go back"
            if segments.of[start.index] != own:
                assert segments.of[start.index] in upstream(segments, entered)
        cycles = [cycle for cycle in graph.keyed_cycles() if vertex in cycle]
        if vertex.stateful or cycles:
            assert segments.inbound[own] == {entered}, "what waits there waits for those that are handed over to it"
        leads = {segments.of[other.index] for other in graph.upstream_of(vertex)}
        waits = {segment for segment in upstream(segments, own) if segment in segments.of}
        assert waits <= leads | {own}, "and for nothing else that is at work"
    assert upstream(segments, segments.last) >= set(segments.of)
    return {vertex.name: segments.of[vertex.index] for vertex in graph.vertices}


def test_a_chain_of_states_has_one_segment_each_and_one_before() -> None:
    flow = fc.Flow("chain")
    stream: fc.Stream[Any] = flow.source("numbers", int)
    for name in "abc":
        stream = count(stream, name)
    stream.map(str, name="text").sink("out")
    of = check(flow.graph())
    assert [of[name] for name in ("numbers", "a", "b", "c", "text", "out")] == [0, 1, 2, 3, 3, 3]


def test_branches_do_not_wait_for_each_other_and_what_merges_them_waits_for_both() -> None:
    flow = fc.Flow("branches")
    numbers = flow.source("numbers", int)
    one, other = count(numbers, "one"), count(count(numbers, "before"), "other")
    one.sink("a")
    other.sink("b")
    numbers.sink("c")
    count(one.merge(other, name="both"), "all").sink("d")
    one.merge(numbers, name="nearly").sink("e")
    of = check(flow.graph())
    assert of["c"] == of["numbers"] == 0
    assert len({of[name] for name in ("a", "b", "c", "d", "one", "other", "before", "both", "all")}) == 6
    assert of["e"] == of["one"], "it waits for the source already"


def test_a_flow_without_state_has_one_segment() -> None:
    flow = fc.Flow("plain")
    numbers, more = flow.source("numbers", int), flow.source("more", int)
    numbers.merge(more).map(abs).sink("a")
    more.sink("b")
    assert set(check(flow.graph()).values()) == {0}


def test_a_cycle_with_state_is_one_segment_with_all_that_is_on_it() -> None:
    flow = fc.Flow("cycle")
    numbers = flow.source("numbers", int)
    before = count(numbers, "before").map(lambda item: item, name="again")

    def body(stream: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
        inside = count(stream, "inside").map(lambda item: item, name="on")
        inside = count(inside, "second").flat_map(lambda item: [item], name="next")
        return inside.filter(lambda item: False, name="back"), inside

    numbers.merge(before, name="entry").loop(body, name="loop").sink("out")
    numbers.sink("beside")
    of = check(flow.graph())
    assert of["inside"] == of["on"] == of["second"] == of["next"] == of["back"]
    assert of["before"] < of["inside"]
    assert of["beside"] == 0


def test_a_cycle_without_state_begins_nothing() -> None:
    flow = fc.Flow("stateless")

    def body(stream: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
        halves = stream.map(lambda n: n // 2, name="halves")
        return halves.filter(bool, name="back"), halves

    flow.source("numbers", int).loop(body, name="loop").sink("out")
    assert set(check(flow.graph()).values()) == {0}
