"""The acceptance cases of the whole system: real jobs over the in-process transport, on several workers.

Each worker has a front (four sources that are merged), and the outputs are a sequence, not only a multiset.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from random import Random
from typing import Any, NamedTuple

import pytest

import flamecore as fc
from flamecore.abc.source import EdgeContext
from flamecore.model.graph import Graph
from flamecore.model.settings import JobSettings
from flamecore.model.vertices import Broadcast, ByHash, ByKey, Grouping, Map, Merge, Sink, Source, ToAll
from flamecore.runtime.engine.job import Job
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.flows.reference import interpret
from flamestream_edges.memory import MemorySink, MemorySource
from flamestream_inproc import InprocTransport
from flamestream_inproc import Options as Inproc

ACKERS = ("centralized", "local", "sharded")
FRONTS = ("a", "b", "c", "d")


def run(
    graph: Graph,
    inputs: Mapping[str, Iterable[Any]],
    *,
    acker: str = "centralized",
    serialise: bool = False,
    **settings: Any,
) -> dict[str, list[Any]]:
    """Run a graph as a job, 4 workers unless said; gives what its sinks hold."""
    sinks = {sink.name: MemorySink(None, EdgeContext(sink.name)) for sink in graph.sinks}
    job = Job(
        graph,
        sources={
            source.name: MemorySource(None, EdgeContext(source.name, source.type, list(inputs.get(source.name, ()))))
            for source in graph.sources
        },
        sinks=sinks,
        acker=acker_named(acker),
        transport=lambda context: InprocTransport(Inproc(serialise=serialise), context),
        settings=JobSettings(**{"workers": 4, **settings}),
    )
    asyncio.run(job.run())
    return {name: sink.values for name, sink in sinks.items()}


def fronts(flow: fc.Flow, type_: Any = int) -> fc.Stream[Any]:
    first, *others = (flow.source(name, type_) for name in FRONTS)
    return first.merge(*others)


def interleaved(inputs: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the records of all fronts in the order of their times.

    Times are by count, then by front.
    """
    placed = [(time, name, record) for name, records in inputs.items() for time, record in enumerate(records)]
    return [record for _, _, record in sorted(placed, key=lambda each: each[:2])]


def wrapped(number: int) -> int:
    """Return the number as a signed 32-bit one."""
    return (number + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("acker", ACKERS)
def test_case_40_four_maps_in_line_give_every_item_once(acker: str) -> None:
    random = Random(40)
    inputs = {name: [random.randrange(-(2**31), 2**31) for _ in range(2_500)] for name in FRONTS}
    flow = fc.Flow("maps")
    stream = fronts(flow).rebalance()
    for factor in (-1, -2, -3, -4):
        stream = stream.map(lambda n, factor=factor: wrapped(n * factor))  # type: ignore[misc]
    stream.sink("out")
    assert run(flow.graph(), inputs, acker=acker)["out"] == [wrapped(24 * n) for n in interleaved(inputs)]


class Reading(NamedTuple):
    """A value with where it comes from."""

    value: int
    front: str
    number: int


@pytest.mark.parametrize("acker", ACKERS)
def test_case_41_windows_of_equal_values_are_right_over_four_fronts(acker: str) -> None:
    random = Random(41)
    inputs = {
        name: [Reading(random.randrange(10), name, number) for number in range(2_500 + random.randrange(-99, 100))]
        for name in FRONTS
    }
    flow = fc.Flow("pairs")
    fronts(flow, Reading).key_by(lambda reading: reading.value).group(2).sink("out")
    outputs = run(flow.graph(), inputs, acker=acker)["out"]
    last: dict[int, tuple[Reading, ...]] = {}
    wanted = []
    for reading in interleaved(inputs):
        last[reading.value] = (*last.get(reading.value, ()), reading)[-2:]
        wanted.append(last[reading.value])
    assert outputs == wanted
    values = {tuple(reading.value for reading in window) for window in outputs}
    assert values == {(v,) for v in range(10)} | {(v, v) for v in range(10)}


def test_case_42_every_worker_gets_a_copy_of_everything_twice() -> None:
    graph = Graph("to all")
    source = graph.add(Source("texts", type=str))
    first = graph.add(Map("first", function=lambda text: text, shape="one", route=ToAll()))
    group = graph.add(Grouping("group", window=1, route=ByKey(lambda text: text)))
    only = graph.add(Map("only", function=lambda window: window[0], shape="one"))
    second = graph.add(Map("second", function=lambda text: text, shape="one", route=ToAll()))
    graph.chain(source, first, group, only, second, graph.add(Sink("out")))
    graph.check()
    texts = [f"text {number}" for number in range(1_000)]
    outputs = run(graph, {"texts": texts})["out"]
    assert len(outputs) == 16_000
    assert outputs == [text for text in texts for _ in range(16)], "parallelism squared, each text in its place"


class Sum(NamedTuple):
    """The drifting state of case 43."""

    value: int


def summing(names: Sequence[str]) -> Graph:
    """Draw the sum of the paper: grouping of window 2, filter, addition, and back."""
    graph = Graph("sum")
    head = graph.add(Merge("head"))
    for name in names:
        graph.link(graph.add(Source(name, type=int)), head)
    group = graph.add(Grouping("group", window=2, route=ByHash(lambda _: 0), equal=lambda one, other: True))
    paired = graph.add(Map("paired", function=lambda w: (Sum(0), *w) if len(w) == 1 else w, shape="one"))
    ready = graph.add(
        Map("ready", function=lambda w: isinstance(w[0], Sum) and not isinstance(w[1], Sum), shape="filter")
    )
    add = graph.add(Map("add", function=lambda w: Sum(w[0].value + w[1]), shape="one"))
    fork = graph.add(Broadcast("fork"))
    graph.chain(head, group, paired, ready, add, fork, graph.add(Sink("sums", type=Sum)))
    graph.link(fork, head)
    graph.check()
    return graph


@pytest.mark.parametrize("acker", ACKERS)
def test_case_43_a_sum_is_right_over_four_fronts(acker: str) -> None:
    random = Random(43)
    inputs = {name: [random.randrange(100) for _ in range(1_250)] for name in FRONTS}
    outputs = run(summing(FRONTS), inputs, acker=acker, max_in_flight=64)["sums"]
    assert [total.value for total in outputs] == list(accumulate(interleaved(inputs)))
    assert len(outputs) == 5_000


def test_case_44_a_sum_is_right_over_one_front() -> None:
    random = Random(44)
    numbers = [random.randrange(100) for _ in range(1_000)]
    outputs = run(summing(["numbers"]), {"numbers": numbers}, serialise=True)["sums"]
    assert [total.value for total in outputs] == list(accumulate(numbers))


@pytest.mark.parametrize("acker", ACKERS)
def test_case_48_word_count_is_right_with_hardly_anything_in_flight(acker: str) -> None:
    random = Random(48)
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    inputs = {name: [" ".join(random.choices(words, k=50)) for _ in range(100)] for name in FRONTS}
    flow = fc.Flow("word count")
    fronts(flow, str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    outputs = run(flow.graph(), inputs, acker=acker, max_in_flight=2)["counts"]
    count: Counter[str] = Counter()
    wanted = []
    for line in interleaved(inputs):
        for word in line.split():
            count[word] += 1
            wanted.append((word, count[word]))
    assert outputs == wanted
    assert len(outputs) == 20_000


@pytest.mark.parametrize("mode", ["barrier off", *ACKERS])
def test_case_51_outputs_come_in_the_order_of_the_inputs(mode: str) -> None:
    flow = fc.Flow("prefix")
    flow.source("texts", str).map(lambda text: f"prefix_{text}").sink("out")
    texts = [f"text {number}" for number in range(100)]
    barrier = mode != "barrier off"
    outputs = run(flow.graph(), {"texts": texts}, acker=mode if barrier else "centralized", barrier=barrier)
    assert outputs["out"] == [f"prefix_{text}" for text in texts]


def many_operations() -> Graph:
    """Draw groupings behind groupings, states, copies and a cycle."""

    def smaller(stream: fc.Stream[tuple[str, int]]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
        fewer = stream.key_by(lambda pair: pair[1] % 3).map(lambda pair: (pair[0], pair[1] - 3))
        done, more = fewer.branch(lambda pair: pair[1] <= 0)
        return more, done

    flow = fc.Flow("something of everything")
    numbers = fronts(flow).rebalance().map(lambda n: n)
    pairs = numbers.key_by(lambda n: n % 7).group(3).key_by(lambda w: w[-1] % 5).fold(0, lambda s, w: s + sum(w))
    low, high = pairs.branch(lambda pair: pair[1] % 2)
    looped = low.map(lambda pair: ("looped", pair[1] % 8)).loop(smaller)
    high.map(lambda pair: ("high", pair[0])).merge(looped).key_by(lambda pair: pair).count().sink("out")
    pairs.sink("pairs")
    return flow.graph()


@pytest.mark.parametrize("acker", ACKERS)
def test_case_60_the_sequence_does_not_depend_on_how_the_job_runs(acker: str) -> None:
    random = Random(60)
    inputs = {name: [random.randrange(50) for _ in range(random.randrange(60, 120))] for name in FRONTS}
    graph = many_operations()
    wanted = {name: [each.payload for each in outputs] for name, outputs in interpret(graph, inputs).items()}
    assert len(wanted["out"]) > 200
    for workers, in_flight in ((1, 4096), (2, 4096), (3, 40), (4, 8), (5, 200)):
        assert run(graph, inputs, acker=acker, workers=workers, max_in_flight=in_flight) == wanted
    assert run(graph, inputs, acker=acker, serialise=True) == wanted


def test_a_sink_gets_growing_times_and_no_empty_batches() -> None:
    """Semantics 3.2."""
    batches: list[tuple[int, Sequence[Any]]] = []

    class Watching(MemorySink):
        async def write(self, time: int, payloads: Sequence[Any]) -> None:
            batches.append((time, list(payloads)))

    flow = fc.Flow("batches")
    flow.source("numbers", int).filter(lambda n: n % 3 == 0).key_by(lambda n: n % 5).count().sink("out")
    graph = flow.graph()
    job = Job(
        graph,
        sources={"numbers": MemorySource(None, EdgeContext("numbers", int, list(range(3_000))))},
        sinks={"out": Watching(None, EdgeContext("out"))},
        acker=acker_named("centralized"),
        transport=lambda context: InprocTransport(None, context),
        settings=JobSettings(workers=3, max_in_flight=50),
    )
    asyncio.run(job.run())
    times = [time for time, _ in batches]
    assert all(before < after for before, after in pairwise(times))
    assert all(payloads for _, payloads in batches)
    assert sum(len(payloads) for _, payloads in batches) == 1_000
    assert len(batches) > 10


def test_a_short_front_that_ends_early_delays_no_other() -> None:
    """Fixes F1 and F2 of the history: what a front has sent comes out though it sends no more."""
    flow = fc.Flow("unequal")
    fronts(flow).key_by(lambda n: 0).count().sink("out")
    outputs = run(flow.graph(), {"a": range(1_000), "b": [1], "c": [], "d": range(10)})["out"]
    assert outputs == [(0, number) for number in range(1, 1_012)]


@pytest.mark.parametrize("acker", ACKERS)
@pytest.mark.parametrize("inputs", [{}, {"a": [1]}])
def test_a_job_without_records_ends(acker: str, inputs: dict[str, list[int]]) -> None:
    flow = fc.Flow("nothing")
    fronts(flow).key_by(lambda n: n).count().sink("out")
    assert run(flow.graph(), inputs, acker=acker)["out"] == [(n, 1) for n in inputs.get("a", [])]


def test_one_worker_with_one_front_replays_nothing() -> None:
    flow = fc.Flow("in order")
    pairs = flow.source("numbers", int).flat_map(lambda n: [n, n + 1]).key_by(lambda n: n % 7).group(3)
    left, right = pairs.branch(lambda window: len(window) < 3)
    right.merge(left).key_by(len).fold(0, lambda state, window: state + sum(window)).sink("out")
    outputs = flow.run({"numbers": range(5_000)})
    assert outputs.stats.replays == 0
    assert len(outputs["out"]) == 10_000


@pytest.mark.parametrize("workers", [2, 3])
def test_many_states_in_a_row_do_not_multiply_repairs(workers: int) -> None:
    """An item that one state takes back and gives anew is late at the next.

    If versions that are taken back while they wait went on, five states would take back some 400 to 1,200 outputs for
    each record; without them it is 20 to 35.
    """

    def counted(state: int, pair: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
        return state + 1, [(pair[0], state)]

    def shuffled(place: int, pair: tuple[int, int]) -> int:
        return (pair[0] * (place + 3) + pair[1]) % 5

    flow = fc.Flow("states")
    pairs = flow.source("numbers", int).rebalance().map(lambda number: (number, 0))
    for place in range(5):
        pairs = pairs.key_by(partial(shuffled, place)).stateful_map(0, counted)
    pairs.sink("out")
    numbers = list(range(600))
    outputs = flow.run({"numbers": numbers}, workers=workers)
    assert outputs["out"] == flow.run({"numbers": numbers})["out"]
    assert outputs.stats.replays < 100 * len(numbers)
