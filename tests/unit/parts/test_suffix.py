"""The suffix of a sink run on its own: what comes out is what would have come out of it on the worker."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.model.graph import Graph
from flamecore.model.meta import FrontId, encode_time
from flamecore.model.settings import JobSettings
from flamecore.runtime.parts.suffix import SuffixRun
from flamecore.testing.flows.reference import interpret

FRONTS = (FrontId("numbers", 0),)


def several(pair: tuple[int, int]) -> Iterable[tuple[int, int]]:
    return (pair for _ in range(pair[1] % 4))


def odd(pair: tuple[int, int]) -> bool:
    if pair[1] == 9:
        raise ValueError(f"{pair}")
    return bool(pair[0] % 2)


def text(pair: tuple[int, int]) -> str:
    if pair == (3, 6):
        raise LookupError("3 has six")
    return f"{pair[0]}:{pair[1]}"


def drawn(random: Random) -> fc.Flow:
    """Draw a flow with a suffix of a few operations."""
    flow = fc.Flow("drawn")
    stream: Any = flow.source("numbers", int).map(abs).key_by(lambda n: n % 7).count()
    for _ in range(random.randint(1, 3)):
        stream = stream.flat_map(several) if random.randrange(2) else stream.filter(odd)
    stream.map(text).sink("out")
    return flow


def suffix_names(graph: Graph) -> list[list[str]]:
    return [[vertex.name for vertex in graph.suffix_of(sink)] for sink in graph.sinks]


@pytest.mark.parametrize("seed", range(10))
def test_outputs_and_their_orders_are_those_of_the_reference(seed: int) -> None:
    random = Random(seed)
    flow = drawn(random)
    graph = flow.graph()
    (sink,) = graph.sinks
    plain = fc.Flow("plain")
    plain.source("numbers", int).map(abs).key_by(lambda n: n % 7).count().sink("out")
    inputs = {"numbers": [random.randrange(100) for _ in range(200)]}
    settings = {"job.on_error": "skip", "job.check_types": False, "job.check_mutation": False}
    expected = flow.run(inputs, settings=settings)["out"]
    items = interpret(plain.graph(), inputs)["out"]
    run = SuffixRun(graph, sink, FRONTS, JobSettings(on_error="skip"))
    outputs: list[object] = []
    orders: list[bytes] = []
    failed: list[bytes] = []
    while items:
        count = random.randrange(1, 70)
        some, items = items[:count], items[count:]
        made = run.run([item.order for item in some], [item.payload for item in some])
        outputs += made.payloads
        orders += made.orders
        failed += [order for order, _ in made.failures]
    assert outputs == expected
    assert orders == sorted(orders)
    assert failed == sorted(failed)
    assert len(orders) == len(outputs)


def test_failures_say_what_those_of_a_worker_say() -> None:
    flow = fc.Flow("texts")
    flow.source("numbers", int).key_by(lambda n: n % 7).count().map(text).sink("out")
    graph = flow.graph()
    inputs = {"numbers": [3] * 7}
    with pytest.raises(fc.OperationError) as caught:
        flow.run(inputs)
    for policy, fatal in (("fail", True), ("dead_letter", False)):
        run = SuffixRun(graph, graph.sinks[0], FRONTS, JobSettings(on_error=policy))
        order = encode_time(5) + (1).to_bytes(4, "big")
        ((at, failure),) = run.run([order], [(3, 6)]).failures
        assert (at, failure.fatal, failure.worker, failure.at.time) == (order, fatal, None, 5)
        assert bool(failure.cause.trace) is not fatal
    said = [line for line in str(caught.value).splitlines() if "  at  " not in line]
    found = failure._replace(position="item 6").raised()
    assert [line for line in str(found).splitlines() if "  at  " not in line] == said
    assert "item 6, behind the workers" in str(found)


def test_a_suffix_ends_at_what_needs_more_than_its_item() -> None:
    flow = fc.Flow("names")
    numbers = flow.source("numbers", int)
    numbers.map(abs).filter(bool).sink("prefix")
    counts = numbers.key_by(abs).count()
    counts.map(text).filter(bool).sink("counts")
    counts.map(text).inspect(print).sink("seen")
    counts.inspect(print).map(text).sink("shown")
    counts.rebalance().map(text).map(len).sink("moved")
    counts.sink("plain")
    found = dict(zip([sink.name for sink in flow.graph().sinks], suffix_names(flow.graph()), strict=True))
    assert found == {
        "prefix": ["map:abs", "filter:bool"],
        "counts": ["map:text", "filter:bool-2"],
        "seen": [],
        "shown": ["map:text-3"],
        "moved": ["map:len"],
        "plain": [],
    }
    alone = fc.Flow("alone")
    alone.source("numbers", int).map(abs).filter(bool).sink("out")
    assert suffix_names(alone.graph()) == [[]], "it is a prefix"
