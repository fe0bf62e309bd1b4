"""The earlier ordering model (papers 001 and 004): it repairs by replacing; what it cannot do is shown, too."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

import flamecore as fc
from flamecore.errors import GraphError
from flamecore.graph import Graph
from flamecore.meta import GlobalTime
from flamecore.operations.local_times import element, invalidates
from flamecore.testing.flows import acker_named
from flamecore.testing.reference import interpret
from flamecore.testing.simulation import Simulation


def trace(time: int, *elements: tuple[int, int]) -> bytes:
    return GlobalTime(time, 1).encode() + b"".join(element(*part) for part in elements)


def test_case_20_the_invalidation_relation() -> None:
    assert invalidates(trace(1, (2, 0)), trace(1, (1, 0)))
    assert not invalidates(trace(1, (1, 0)), trace(1, (2, 0)))
    assert not invalidates(trace(1, (1, 1)), trace(1, (1, 0))), "siblings are unrelated"
    assert not invalidates(trace(1, (1, 0), (1, 0)), trace(1, (1, 0))), "derived from the other: unrelated"
    assert not invalidates(trace(2, (2, 0)), trace(1, (1, 0))), "another global time: unrelated"


def windows() -> Graph:
    flow = fc.Flow("windows", ordering="local_times")
    numbers = flow.source("numbers", int).rebalance().map(lambda n: n)
    numbers.key_by(lambda n: n % 3).group(3).key_by(len).map(sum).sink("out")
    return flow.graph()


def fold_drawn() -> Graph:
    flow = fc.Flow("fold")
    flow.source("numbers", int).rebalance().map(lambda n: n).key_by(lambda n: n % 3).fold(0, int.__add__).sink("out")
    graph = flow.graph().expanded()
    graph.ordering = "local_times"
    graph.check()
    return graph


def differing(graph: Graph, runs: int = 60) -> int:
    """How many of the seeded runs do not give what the reference interpreter does."""
    count = 0
    for seed in range(runs):
        random = Random(seed)
        inputs = {"numbers": [random.randrange(30) for _ in range(25)]}
        wanted = [output.payload for output in interpret(graph, inputs)["out"]]
        run = Simulation(graph, inputs, acker=acker_named("centralized"), workers=1 + seed % 4, seed=seed).run()
        count += run.outputs["out"] != wanted
    return count


@pytest.mark.parametrize("graph", [windows, fold_drawn])
def test_recomputations_replace_what_they_invalidate(graph: Callable[[], Graph]) -> None:
    assert differing(graph()) == 0


def test_the_limit_what_a_recomputation_no_longer_gives_is_never_taken_back() -> None:
    """A filter behind a grouping: a wrong guess passes, its correction does not, so nothing replaces the guess.

    The default model retracts it.
    """

    def rising(ordering: str) -> Graph:
        flow = fc.Flow("rising", ordering=ordering)  # type: ignore[arg-type]
        numbers = flow.source("numbers", int).rebalance().map(lambda n: n)
        numbers.key_by(lambda _: 0).group(2).filter(lambda pair: pair[0] < pair[-1]).sink("out")
        return flow.graph()

    assert differing(rising("tombstones")) == 0
    assert differing(rising("local_times")) > 0


def test_a_fused_state_is_refused() -> None:
    flow = fc.Flow("fused", ordering="local_times")
    flow.source("numbers", int).key_by(lambda n: n).count().sink("out")
    with pytest.raises(GraphError) as caught:
        flow.graph()
    assert caught.value.vertex == "count"  # type: ignore[attr-defined]
