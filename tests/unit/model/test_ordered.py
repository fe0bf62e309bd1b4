"""Ordered operations as vertices: where they may be, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.operator import Work
from flamecore.errors import GraphError
from flamecore.model.graph import Graph, payload_types
from flamecore.model.ordered import Now, Ordered, Outcome
from flamecore.model.segments import Segments
from flamecore.model.vertices import ByHash, Sink, Source
from flamecore.runtime.state.schema import state_schema


class Mark:
    """A type that only a vertex's state has."""


@dataclass(eq=False, slots=True, repr=False)
class Latest(Ordered):
    kind: ClassVar[str] = "latest"

    least: int = field(default=0, kw_only=True)

    def work(self) -> Work:
        return LatestWork()

    @property
    def value(self) -> Any:
        return int

    @property
    def types(self) -> tuple[Any, ...]:
        return (Mark,)

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        return {"least": self.least}


class LatestWork(Work):
    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        return Outcome(payload, [payload])


def latest(stream: fc.Stream[int], name: str = "latest") -> fc.Stream[int]:
    return stream.key_by(lambda n: n % 3).apply(Latest, name=name)


def test_one_in_a_cycle_is_refused_by_name() -> None:
    flow = fc.Flow("round")
    flow.source("numbers", int).loop(lambda inside: (latest(inside.map(lambda n: n)), inside), name="turns").sink("out")
    with pytest.raises(GraphError, match=r"<latest 'latest'> lies in the cycle of <merge 'turns'>") as refused:
        flow.graph()
    assert refused.value.vertex == "latest"
    assert "before the loop or behind it" in str(refused.value)


def test_one_before_and_one_behind_a_cycle_are_fine() -> None:
    flow = fc.Flow("both")
    before = latest(flow.source("numbers", int), "before")
    inside = before.loop(lambda items: (items.filter(lambda n: n > 9).map(lambda n: n // 2), items))
    latest(inside, "behind").sink("out")
    graph = flow.graph()
    segments = Segments.number(graph)
    found = {vertex.name: segments.of[vertex.index] for vertex in graph.vertices}
    assert found["numbers"] < found["before"] < found["behind"] == found["out"]


def test_one_without_a_key_is_refused() -> None:
    flow = fc.Flow("keyless")
    flow.source("numbers", int).apply(Latest, name="latest").sink("out")
    with pytest.raises(GraphError, match="<latest 'latest'> has no key"):
        flow.graph()


def test_one_by_a_hash_is_refused() -> None:
    graph = Graph("hashed")
    hashed = Latest("latest", route=ByHash(lambda n: n))
    graph.chain(graph.add(Source("numbers")), graph.add(hashed), graph.add(Sink("out")))
    with pytest.raises(GraphError, match="<latest 'latest'> goes by a hash"):
        graph.check()


def test_one_without_the_barrier_is_refused() -> None:
    flow = fc.Flow("open")
    latest(flow.source("numbers", int)).sink("out")
    with pytest.raises(GraphError, match="<latest 'latest'> waits for the minimum time, and the barrier"):
        flow.graph().check(barrier=False)


def test_its_settings_and_types_are_facts_of_its_state() -> None:
    flow = fc.Flow("facts")
    flow.source("numbers", int).key_by(lambda n: n).apply(Latest, name="latest", least=4).sink("out")
    facts = state_schema(flow.graph())["latest"]
    assert facts["kind"] == "latest"
    assert facts["least"] == 4
    assert facts["state"].startswith("tuple[int, ")
    assert Mark in set(payload_types(flow.graph()))


def test_through_hands_on_the_stream_and_the_arguments() -> None:
    def pairs(stream: fc.Stream[int], factor: int, *, plus: int) -> fc.Stream[int]:
        return stream.map(lambda n: n * factor + plus)

    def sums(stream: fc.KeyedStream[int, int]) -> fc.Stream[tuple[int, int]]:
        return stream.reduce(lambda one, other: one + other)

    flow = fc.Flow("chained")
    flow.source("numbers", int).through(pairs, 10, plus=1).key_by(lambda n: n % 2).through(sums).sink("out")
    assert flow.run({"numbers": [1, 2]})["out"] == [(1, 11), (1, 32)]
