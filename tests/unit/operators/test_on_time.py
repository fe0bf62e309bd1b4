"""Operators are told of time: when the minimum time inbound to their segment has risen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flamecore.abc.operator import Operator, Site
from flamecore.model.graph import Graph
from flamecore.model.meta import decode_time
from flamecore.model.vertices import ByKey, ByTime, Grouping, Map, Sink, Source, Vertex
from flamecore.testing import override
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.simulation.simulation import Simulation


@dataclass(eq=False, slots=True, repr=False)
class Watch(Vertex):
    """Passes items on."""

    kind: ClassVar[str] = "watch"


class Watcher(Operator):
    """Notes the times that it is told, and the items that are older than the last of them."""

    name: ClassVar[str] = "watch"
    vertex: ClassVar[type[Vertex]] = Watch
    told: ClassVar[dict[str, list[list[int]]]] = defaultdict(list)
    too_late: ClassVar[list[bytes]] = []

    def __init__(self, vertex: Watch, site: Site) -> None:
        self.minimum, self.times, self.emit = b"", list[int](), site.emit
        self.told[vertex.name].append(self.times)

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        if order < self.minimum:
            self.too_late.append(order)
        self.emit(order, trace, alive, payload)

    def on_time(self, minimum: bytes) -> None:
        self.minimum = minimum
        self.times.append(decode_time(minimum))


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    Watcher.told.clear()
    Watcher.too_late.clear()
    with override("operator", "watch", Watcher):
        yield


def graph() -> Graph:
    """Items that come late and are taken back reach a vertex in the segment of a state, and one in the next."""
    graph = Graph("watched")
    graph.chain(
        graph.add(Source("numbers", type=int)),
        graph.add(Map("spread", route=ByTime(), function=lambda n: n, shape="one")),
        graph.add(Grouping("pairs", route=ByKey(lambda n: n % 3), window=2)),
        graph.add(Watch("near", route=ByKey(sum))),
        graph.add(Map("again", route=ByKey(sum), function=lambda pair: pair, shape="one")),
        graph.add(Grouping("same", route=ByKey(sum), window=1)),
        graph.add(Watch("far", route=ByKey(len))),
        graph.add(Sink("out")),
    )
    graph.check()
    return graph


@pytest.mark.parametrize("acker", ["centralized", "local"])
@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_older_comes_than_the_time_that_was_told(acker: str, workers: int) -> None:
    replays = 0
    for seed in range(15):
        inputs = {"numbers": [n * 7 % 31 for n in range(25)]}
        run = Simulation(graph(), inputs, acker=acker_named(acker), workers=workers, seed=seed).run()
        assert len(run.outputs["out"]) == 25
        replays += run.replays
    assert Watcher.too_late == []
    assert replays > 0 or workers == 1, "tombstones come by, too"
    for times in (*Watcher.told["near"], *Watcher.told["far"]):
        assert times == sorted(set(times)), "time rises"
        assert times[-1] >= 25, "at the end everything has come"


def test_an_operator_that_does_not_listen_is_not_told() -> None:
    run = Simulation(graph(), {"numbers": [1]}, acker=acker_named("centralized"), workers=1)
    (worker,) = run.workers.values()
    told = {segment: [type(each).__name__ for each in listed] for segment, listed in worker.compiled.timed.items()}
    assert told == {1: ["Watcher", "GroupingOperator"], 2: ["Watcher", "GroupingOperator"]}
