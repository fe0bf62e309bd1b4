"""A scan has the outputs of a plain count, item for item, on any number of workers and after any fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import ConfigError, GraphError, OperationError
from flamecore.model.clock import BLOCK
from flamecore.testing import assert_deterministic
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.flows.exactly_once import Reference
from flamecore.testing.simulation.crashes import Crashes
from flamecore.testing.simulation.simulation import Simulation

pytestmark = pytest.mark.usefixtures("installed")

ACKERS = {name: acker_named(name) for name in ("centralized", "local", "sharded")}
BLOCKS = {"job.clock": "blocks"}


def lines(random: Random, count: int) -> list[str]:
    return [" ".join(random.choices("abcdefg", k=random.randint(0, 4))) for _ in range(count)]


def inputs(seed: int = 0) -> dict[str, list[str]]:
    random = Random(seed)
    return {"a": lines(random, 40), "b": lines(random, 25), "c": lines(random, 3)}


def words(flow: fc.Flow) -> fc.Stream[str]:
    return flow.source("a", str).merge(flow.source("b", str), flow.source("c", str)).flat_map(str.split)


def alone(*, scan: bool) -> fc.Flow:
    flow = fc.Flow("alone")
    words(flow).key_by(lambda word: word).count(scan=scan).sink("counts")
    return flow


def before_a_state(*, scan: bool) -> fc.Flow:
    flow = fc.Flow("before a state")
    counts = words(flow).key_by(lambda word: word).count(scan=scan)
    counts.sink("counts")
    counts.key_by(lambda pair: pair[1] % 3).fold((), lambda last, pair: (*last, pair)[-4:]).sink("last")
    return flow


def twice(*, scan: bool) -> fc.Flow:
    flow = fc.Flow("twice")
    found = words(flow)
    found.key_by(lambda word: word).count(scan=scan).sink("counts")
    found.key_by(lambda word: word < "d").count(scan=scan).sink("halves")
    return flow


def of_copies(*, scan: bool) -> fc.Flow:
    """Return a flow in which copies of one line meet: own items are not in order as they come."""
    flow = fc.Flow("copies")
    found = words(flow)
    found.map(str.upper).merge(found).key_by(lambda word: word.lower()).count(scan=scan).sink("counts")
    return flow


def dealt(*, scan: bool) -> fc.Flow:
    """Return a flow whose lines are dealt out by blocks, of one source."""
    flow = fc.Flow("dealt")
    lines = flow.source("a", str).rebalance()
    lines.flat_map(str.split).key_by(lambda word: word).count(scan=scan).sink("counts")
    return flow


def dealt_in_part(*, scan: bool) -> fc.Flow:
    flow = fc.Flow("dealt in part")
    lines = flow.source("a", str).rebalance().map(str.upper).merge(flow.source("b", str), flow.source("c", str))
    lines.flat_map(str.split).key_by(lambda word: word.lower()).count(scan=scan).sink("counts")
    return flow


def reduced(*, scan: bool) -> fc.Flow:
    """Return a flow with a function whose result shows the order of the items."""
    flow = fc.Flow("reduced")
    words(flow).map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).reduce(joined, scan=scan).sink("joined")
    return flow


def joined(some: tuple[str, int], more: tuple[str, int]) -> tuple[str, int]:
    return some[0] + more[0], some[1] + more[1]


def reduced_and_dealt(*, scan: bool) -> fc.Flow:
    flow = fc.Flow("reduced and dealt")
    lengths = flow.source("a", str).rebalance().flat_map(str.split).map(lambda word: (word, len(word)))
    lengths.map(str).merge(flow.source("b", str)).key_by(len).reduce(lambda a, b: a + b, scan=scan).sink("texts")
    return flow


def labelled(*, scan: bool) -> fc.Flow:
    """Return a flow that counts the words of each line."""
    flow = fc.Flow("labelled")
    found = flow.source("a", str).merge(flow.source("b", str), flow.source("c", str)).label("line").flat_map(str.split)
    by_word = found.key_by(lambda word: word, label="line")
    by_word.count(scan=scan).sink("counts")
    by_word.reduce(lambda a, b: a + b, scan=scan).sink("words")
    return flow


FLOWS = [alone, before_a_state, twice, of_copies, dealt, dealt_in_part, reduced, reduced_and_dealt, labelled]


@pytest.fixture(autouse=True)
def kept_block() -> Iterator[None]:
    token = BLOCK.set(BLOCK.get())
    yield
    BLOCK.reset(token)


@pytest.mark.parametrize("made", FLOWS)
@pytest.mark.parametrize("block", [1, 3, 16, 4096])
def test_a_scan_is_a_plain_count(made: Callable[..., fc.Flow], block: int) -> None:
    BLOCK.set(block)
    flow, plain = made(scan=True), made(scan=False)
    given = {source.name: inputs(block)[source.name] for source in flow.graph().sources}
    found = assert_deterministic(flow, given, seeds=range(4), settings=BLOCKS)
    assert found == assert_deterministic(plain, given, seeds=[0], workers=[1], settings=BLOCKS)


@pytest.mark.parametrize("made", FLOWS[:4])
def test_no_item_goes_to_another_worker(made: Callable[..., fc.Flow]) -> None:
    BLOCK.set(8)
    simulation = Simulation(
        made(scan=True).graph(), inputs(), acker=ACKERS["centralized"], workers=3, clock="blocks", trace=True
    )
    arrivals = simulation.run().trace
    assert {arrival.vertex for arrival in arrivals} <= {"fold"}


def test_without_blocks_items_go_to_the_owners_of_their_keys() -> None:
    simulation = Simulation(alone(scan=True).graph(), inputs(), acker=ACKERS["centralized"], workers=3, trace=True)
    assert {arrival.vertex for arrival in simulation.run().trace} == {"count"}


@pytest.mark.parametrize("made", FLOWS)
def test_a_scan_goes_on_after_any_fault_on_any_number_of_workers(made: Callable[..., fc.Flow]) -> None:
    graph, whole = made(scan=True).graph(), inputs(7)
    reference, played = Reference(graph, whole), Counter[str]()
    for seed in range(60):
        story = Crashes(graph, whole, seed=seed, ackers=ACKERS)
        if story.clock != "blocks":
            continue
        end = story.play()
        reference.check(end)
        played["stories"] += 1
        played["again"] += end.runs > 1
    assert played["stories"] >= 10
    assert played["again"] >= 5, "in most stories a run goes on from what another has left"


def test_keys_that_fail_are_left_out_by_all() -> None:
    flow = fc.Flow("fails")
    words(flow).key_by(lambda word: "abcdef".index(word)).count(scan=True).sink("counts")
    BLOCK.set(4)
    skips = {**BLOCKS, "job.on_error": "skip"}
    found = assert_deterministic(flow, inputs(), seeds=range(4), settings=skips)["counts"]
    whole = Counter(" ".join([line for some in inputs().values() for line in some]).split())
    assert dict(found) == {"abcdef".index(word): count for word, count in whole.items() if word != "g"}
    with pytest.raises(OperationError, match="substring not found"):
        flow.run(inputs(), workers=2, settings=BLOCKS)


def test_values_that_are_no_keys_are_left_out_by_all() -> None:
    flow = fc.Flow("fails")
    words(flow).key_by(lambda word: range(3) if word == "g" else [word] if word == "f" else word).count(scan=True).sink(
        "counts"
    )
    BLOCK.set(4)
    whole = Counter(" ".join([line for some in inputs().values() for line in some]).split())
    settings = {**BLOCKS, "job.on_error": "skip", "job.max_failed": 1000}
    for workers in (1, 2, 3):
        found = flow.run(inputs(), workers=workers, settings=settings)["counts"]
        assert dict(found) == {word: count for word, count in whole.items() if word not in "fg"}


def reducing(function: Callable[[Any, Any], Any], made: Callable[[str], Any] = float) -> fc.Flow:
    flow = fc.Flow("reducing")
    numbers = flow.source("a", str).merge(flow.source("b", str)).map(made)
    numbers.key_by(lambda number: 0).reduce(function, scan=True).sink("out")
    return flow


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda a, b: a - b, "the total of some items makes"),
        (lambda a, b: a + b, "the total of some items makes"),  # of floats
        (lambda a, b: a + b if b < 1 else 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_function_that_is_not_associative_ends_the_job(
    function: Callable[[Any, Any], Any], says: str, on_error: str
) -> None:
    """Otherwise outputs would depend on the number of workers, and on how many records are read at once."""
    BLOCK.set(5)
    given = {"a": ["0.1", "0.2", "0.3", "0.7"] * 10, "b": ["0.3"] * 25}
    flow = reducing(function)
    for workers in (2, 3):
        with pytest.raises(OperationError, match=says) as caught:
            flow.run(given, workers=workers, settings={**BLOCKS, "job.on_error": on_error})
        assert "has to be associative, and not to fail" in str(caught.value)
    flow.run(given, workers=1, settings=BLOCKS)


def test_a_function_that_fails_on_a_record_ends_the_job_there() -> None:
    def largest(a: int, b: int) -> int:
        if b == 7:
            raise ValueError("seven")
        return max(a, b)

    BLOCK.set(5)
    given = {"a": ["1"] * 12, "b": ["2"] * 4 + ["7"] + ["3"] * 9}
    found = assert_deterministic(reducing(largest, int), given, seeds=range(8), settings=BLOCKS)["out"]
    assert found == [(0, 1)] * 5 + [(0, 2)] * 4, "what comes before that record"
    for workers in (1, 2, 3):
        with pytest.raises(OperationError, match="seven") as caught:
            reducing(largest, int).run(given, workers=workers, settings=BLOCKS)
        assert "associative" not in str(caught.value)


def test_largest_of_floats_is_associative() -> None:
    BLOCK.set(5)
    given = {"a": ["0.1", "0.2", "0.3", "0.7"] * 10, "b": ["0.3", "0.9"] * 12}
    assert_deterministic(reducing(max), given, seeds=range(4), settings=BLOCKS)


@pytest.mark.parametrize("how", ["count", "reduce"])
def test_every_worker_has_all_totals_and_stores_its_own(tmp_path: Path, how: str) -> None:
    flow = fc.Flow("stored")
    found = flow.source("lines", str).flat_map(str.split)
    if how == "count":
        found.key_by(lambda word: word).count(scan=True).sink("counts")
    else:
        ones = found.map(lambda word: (word, 1)).key_by(lambda pair: pair[0])
        ones.reduce(lambda a, b: (a[0], a[1] + b[1]), scan=True).map(lambda pair: pair[1]).sink("counts")
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("a b c d e f g h\n" * 5, "utf-8")
    settings = {
        **BLOCKS,
        "source.lines.use": "lines",
        "source.lines.path": str(tmp_path / "*.txt"),
        "state.use": "directory",
        "state.path": str(tmp_path / "state"),
    }
    out: list[Any] = []
    for turn, workers in enumerate((3, 2, 1, 4), 1):
        made = flow.run({}, workers=workers, settings=settings)
        out += made["counts"]
        assert dict(out) == dict.fromkeys("abcdefgh", 15 * turn)
        for number in range(3):
            with (tmp_path / f"{number}.txt").open("a", encoding="utf-8") as file:
                file.write("a b c d e f g h\n" * 5)


def refused(draw: Callable[[fc.Flow, fc.Stream[str]], fc.Stream[Any]], text: str) -> None:
    flow = fc.Flow("refused")
    draw(flow, flow.source("lines", str)).sink("out")
    with pytest.raises(GraphError, match=text) as caught:
        flow.graph()
    assert "<drift 'count'> scans the items of its worker" in str(caught.value)
    assert "scan=True" in str(caught.value)


def test_scans_are_refused_where_items_may_move_or_come_again() -> None:
    refused(
        lambda _, stream: stream.key_by(str.lower).fold("", max).key_by(lambda pair: pair[0]).count(scan=True),
        "behind <drift 'fold:max'>",
    )
    refused(
        lambda _, stream: stream.key_by(str.lower).map(str.lower).key_by(str).count(scan=True),
        "behind <map .*>, to which",
    )
    refused(lambda _, stream: stream.key_by(str.lower, place=len).count(scan=True), "names a place")

    def round_it(stream: fc.Stream[str]) -> tuple[fc.Stream[str], fc.Stream[str]]:
        return stream.filter(lambda text: len(text) > 1).map(lambda text: text[1:]), stream

    refused(lambda _, stream: stream.loop(round_it).key_by(str.lower).count(scan=True), "is behind the cycle of")

    def counted(stream: fc.Stream[str]) -> tuple[fc.Stream[str], fc.Stream[Any]]:
        counts = stream.key_by(str.lower).count(scan=True)
        return counts.filter(lambda pair: pair[1] < 2).map(lambda pair: pair[0]), counts

    refused(lambda _, stream: stream.loop(counted), "lies in the cycle of")


def test_scans_are_refused_where_what_comes_of_a_record_is_on_several_workers() -> None:
    def branches(stream: fc.Stream[str]) -> tuple[fc.Stream[str], fc.Stream[str]]:
        return stream.branch(lambda text: text == "a")

    def one_of_two(_: fc.Flow, stream: fc.Stream[str]) -> fc.Stream[Any]:
        some, rest = branches(stream)
        return some.rebalance().merge(rest).key_by(len).count(scan=True)

    def again(_: fc.Flow, stream: fc.Stream[str]) -> fc.Stream[Any]:
        some, rest = branches(stream)
        return some.merge(rest.rebalance()).rebalance().key_by(len).count(scan=True)

    for draw in (one_of_two, again):
        refused(draw, "what comes of a record of <source 'lines'> is dealt to several workers")


def test_a_scan_takes_what_is_dealt_alike() -> None:
    def both(flow: fc.Flow) -> fc.Stream[str]:
        some, rest = flow.source("lines", str).branch(lambda text: text == "a")
        return some.rebalance().merge(rest.rebalance())

    def one_source(flow: fc.Flow) -> fc.Stream[str]:
        return flow.source("lines", str).rebalance().merge(flow.source("more", str))

    records = {"lines": ["a", "bb", "b", "a"] * 2_500, "more": ["c", "dd"] * 3_000}
    for draw in (both, one_source):
        flow = fc.Flow("alike")
        draw(flow).key_by(len).count(scan=True).sink("out")
        given = {source.name: records[source.name] for source in flow.graph().sources}
        found = [flow.run(given, workers=workers, settings=BLOCKS) for workers in (1, 2, 3)]
        assert found[0] == found[1] == found[2]


def test_a_scan_of_several_workers_needs_blocks() -> None:
    with pytest.raises(ConfigError, match="<drift 'count'> scans") as caught:
        alone(scan=True).run(inputs(), workers=2)
    assert 'job.clock = "blocks"' in str(caught.value)
    found = alone(scan=True).run(inputs(), workers=1)
    assert found == alone(scan=False).run(inputs(), workers=3)
