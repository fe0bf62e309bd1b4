"""Markings in graphs: where they may be, and which ordered operations their marks come to."""

from __future__ import annotations

from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.operator import Work
from flamecore.errors import GraphError
from flamecore.model.graph import Graph
from flamecore.model.ordered import Marking, Ordered


class Plain(Ordered):
    def work(self) -> Work:
        return Work()


def marked(stream: fc.Stream[int], name: str = "said") -> fc.Stream[int]:
    return stream.apply(Marking, name=name, function=lambda n: n)


def plain(stream: fc.Stream[Any], name: str) -> fc.Stream[Any]:
    return stream.key_by(lambda n: n).apply(Plain, name=name)


def names(graph: Graph, ordered: str) -> list[str]:
    (vertex,) = [vertex for vertex in graph.vertices if vertex.name == ordered]
    return [origin.name for origin in graph.marks_before(vertex)]


def test_marks_go_to_the_next_ordered_operations_on_all_ways() -> None:
    flow = fc.Flow("ways")
    left, right, bare = (flow.source(name, int) for name in ("left", "right", "bare"))
    said = marked(left.map(lambda n: n), "said")
    one, other = said.broadcast(2)
    first = plain(one.key_by(lambda n: n).count().map(lambda pair: pair[1]), "first")
    second = plain(first.merge(other, marked(right, "too"), bare), "second")
    second.sink("out")
    plain(bare, "without").sink("beside")
    graph = flow.graph()
    assert names(graph, "first") == ["said"]
    assert names(graph, "second") == ["said", "first", "too"]
    assert names(graph, "without") == []
    (said_vertex,) = [vertex for vertex in graph.vertices if vertex.name == "said"]
    assert graph.marked_source(said_vertex).name == "left"


@pytest.mark.parametrize(
    ("build", "where"),
    [
        (lambda s: s.rebalance().map(lambda n: n), "map"),
        (lambda s: s.key_by(lambda n: n).count(), "count"),
        (lambda s: s.merge(s.map(lambda n: n)), "merge"),
    ],
)
def test_one_that_does_not_see_the_records_of_a_source_in_order_is_refused(build: Any, where: str) -> None:
    flow = fc.Flow("late")
    marked(build(flow.source("numbers", int))).sink("out")
    with pytest.raises(GraphError, match=f"<marking 'said'> is behind .*{where}") as refused:
        flow.graph()
    assert refused.value.vertex == "said"


def test_one_with_a_route_or_a_step_of_nothing_is_refused() -> None:
    for build, match in (
        (lambda s: marked(s.rebalance()), "has a route"),
        (lambda s: s.apply(Marking, name="said", function=lambda n: n, step=0), "the step of <marking 'said'> is 0"),
    ):
        flow = fc.Flow("wrong")
        build(flow.source("numbers", int)).sink("out")
        with pytest.raises(GraphError, match=match):
            flow.graph()
