"""A state function is called once for each item that it has to see.

It is never called to guess: on one worker in any graph, and in cycles on any number of workers.

Cycles with state are where guesses multiply: before items waited for their turn, the smallest of these flows made
eighty times the calls that it needs, and most did not end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

import flamecore as fc
from flamecore.runtime.operators import reorder
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.flows.reference import interpret
from flamecore.testing.simulation.simulation import Simulation
from flamestream_demo.inverted_index import flow as index
from flamestream_demo.pages import Page

Flow = Callable[[list[int]], fc.Flow]
"""Draws a flow from a source `in` to a sink `out`, whose state functions count their calls in the first element."""


def grid(width: int) -> dict[Any, list[Any]]:
    """Return the neighbours of each cell."""
    cells = [(x, y) for x in range(width) for y in range(width)]
    near = ((0, 1), (1, 0), (0, -1), (-1, 0))
    return {(x, y): [(x + a, y + b) for a, b in near if (x + a, y + b) in cells] for x, y in cells}


def links(count: int, each: int) -> dict[Any, list[Any]]:
    random = Random(count)
    return {page: [random.randrange(count) for _ in range(each)] for page in range(count)}


def splitting(keys: int) -> Flow:
    """Return a function that draws a flow in which every item becomes two, round by round.

    A state of `keys` keys, which knows the sequence, turns each.
    """

    def draw(calls: list[int]) -> fc.Flow:
        def turn(state: int, item: tuple[int, int]) -> tuple[int, list[Any]]:
            calls[0] += 1
            return state + 1, [(item[0], (item[1] * 31 + state) % 1_000_003)]

        def body(stream: fc.Stream[Any]) -> Any:
            halves = stream.flat_map(lambda item: [(item[0] - 1, item[1] * 2 + half) for half in range(2)])
            turned = halves.key_by(lambda item: item[1] % keys).stateful_map(0, turn)
            return turned.branch(lambda item: item[0] > 0)

        flow = fc.Flow("splitting")
        flow.source("in").map(lambda rounds: (rounds, 0)).loop(body).sink("out")
        return flow

    return draw


def visiting(graph: dict[Any, list[Any]]) -> Flow:
    """Breadth-first search: each vertex is visited once."""

    def draw(calls: list[int]) -> fc.Flow:
        def visit(seen: bool, item: tuple[Any, int, bool]) -> tuple[bool, list[Any]]:
            calls[0] += 1
            at, distance, _ = item
            return True, [] if seen else [(at, distance, False), *((to, distance + 1, True) for to in graph[at])]

        def body(stream: fc.Stream[Any]) -> Any:
            return stream.key_by(lambda item: item[0]).stateful_map(False, visit).branch(lambda item: item[2])

        flow = fc.Flow("visiting")
        flow.source("in").map(lambda at: (at, 0, True)).loop(body).sink("out")
        return flow

    return draw


def joining(graph: dict[Any, list[Any]]) -> Flow:
    """Return a function that draws connected components by least numbers."""

    def draw(calls: list[int]) -> fc.Flow:
        def lower(least: int, item: tuple[int, int, bool]) -> tuple[int, list[Any]]:
            calls[0] += 1
            at, number, _ = item
            if least <= number:
                return least, []
            return number, [(at, number, False), *((to, number, True) for to in graph[at])]

        def body(stream: fc.Stream[Any]) -> Any:
            return stream.key_by(lambda item: item[0]).stateful_map(10**9, lower).branch(lambda item: item[2])

        flow = fc.Flow("joining")
        flow.source("in").map(lambda at: (at, at, True)).loop(body).sink("out")
        return flow

    return draw


def nested(calls: list[int]) -> fc.Flow:
    """Draw a cycle in a cycle, with a state in each."""

    def turn(state: int, item: tuple[int, int, int]) -> tuple[int, list[Any]]:
        calls[0] += 1
        return state + 1, [(item[0], item[1], (item[2] * 31 + state) % 1009)]

    def inner(stream: fc.Stream[Any]) -> Any:
        once = stream.map(lambda item: (item[0], item[1] + 1, item[2]))
        return once.key_by(lambda item: item[2] % 3).stateful_map(0, turn).branch(lambda item: item[1] < 2)

    def outer(stream: fc.Stream[Any]) -> Any:
        halves = stream.flat_map(lambda item: [(item[0] - 1, 0, item[2] * 2 + half) for half in range(2)])
        return halves.loop(inner).key_by(lambda item: item[2] % 2).stateful_map(0, turn).branch(lambda item: item[0])

    flow = fc.Flow("nested")
    flow.source("in").map(lambda rounds: (rounds, 0, 0)).loop(outer).sink("out")
    return flow


def refining(calls: list[int]) -> fc.Flow:
    """Draw a loop by key, with rounds of one key each that split now and then."""

    def turn(state: int, item: tuple[int, int, int]) -> tuple[int, list[Any]]:
        calls[0] += 1
        key, left, number = item
        return state + 1, [(key, left - 1, (number * 31 + state + half) % 1009) for half in range(1 + number % 2)]

    def body(items: fc.KeyedStream[int, Any]) -> Any:
        return items.stateful_map(0, turn, name="turn").branch(lambda item: item[1] > 0)

    flow = fc.Flow("refining")
    flow.source("in").map(lambda n: (n % 23, 4, n)).key_by(lambda item: item[0]).loop(body).sink("out")
    return flow


def refining_within(calls: list[int]) -> fc.Flow:
    """Draw a loop by key in a cycle with keys of its own.

    In it is a loop of each kind, and behind it a state.
    """

    def key(item: tuple[int, int, int]) -> int:
        return item[0]

    def turn(state: int, item: tuple[int, int, int]) -> tuple[int, list[Any]]:
        calls[0] += 1
        return state + 1, [(item[0], item[1], (item[2] * 31 + state) % 1009)]

    def odd(items: Any) -> Any:
        keyed = items if isinstance(items, fc.KeyedStream) else items.map(lambda item: item).key_by(key)
        return keyed.stateful_map(0, turn).branch(lambda item: item[2] % 4 == 3)

    def refine(items: fc.KeyedStream[int, Any]) -> Any:
        first = items.loop(odd).map(lambda item: item).loop(odd)
        return first.key_by(key).stateful_map(0, turn).branch(lambda item: item[2] % 5 == 2)

    def body(items: fc.Stream[Any]) -> Any:
        refined = items.key_by(key).loop(refine)
        other = refined.flat_map(lambda item: [(item[half] % 6, item[1] - 1, item[2] + half) for half in (0, 2)])
        return other.key_by(lambda item: item[2] % 3).stateful_map(0, turn).branch(lambda item: item[1] > 0)

    flow = fc.Flow("refining-within")
    left = flow.source("in").map(lambda n: (n % 6, 2, n)).loop(body)
    left.key_by(lambda item: item[2] % 4).stateful_map(0, turn).sink("out")
    return flow


def behind(calls: list[int]) -> fc.Flow:
    """Draw a state behind a cycle, which items reach through the cycle or past it."""

    def note(state: int, item: tuple[int, int]) -> tuple[int, list[Any]]:
        calls[0] += 1
        return state * 7 % 1009 + item[1], [(item, state)]

    def body(stream: fc.Stream[Any]) -> Any:
        halves = stream.flat_map(lambda item: [(item[0] - 1, item[1] * 3 + half) for half in range(2)])
        return halves.branch(lambda item: item[0] > 0)

    flow = fc.Flow("behind")
    first, second = flow.source("in").map(lambda rounds: (rounds, 1)).broadcast(2)
    first.loop(body).merge(second).key_by(lambda item: item[1] % 2).stateful_map(0, note).sink("out")
    return flow


def in_a_row(states: int) -> Flow:
    """States one after the other, each by another key."""

    def draw(calls: list[int]) -> fc.Flow:
        def turn(state: int, item: tuple[int, int]) -> tuple[int, list[Any]]:
            calls[0] += 1
            return (state + item[1]) % 1009, [(item[0], (item[1] + state) % 1009)]

        flow = fc.Flow("in-a-row")
        stream = flow.source("in").map(lambda number: (number, number))
        for number in range(states):
            stream = stream.key_by(lambda item, by=number: item[0] * (2 * by + 7) // 3 % 50).stateful_map(0, turn)
        stream.sink("out")
        return flow

    return draw


FLOWS: dict[str, tuple[Flow, Sequence[Any], int]] = {
    "splitting": (splitting(1), [10], 2046),
    "splitting by key": (splitting(3), [4] * 20, 600),
    "a search": (visiting(grid(20)), [(0, 0)], 1521),
    "components": (joining(links(40, 2)), range(40), 0),
    "nested cycles": (nested, [3] * 12, 504),
    "a loop by key": (refining, range(40), 0),
    "loops by key in cycles": (refining_within, range(12), 0),
    "behind a cycle": (behind, [4, 1, 3, 2] * 3, 0),
    "seven states": (in_a_row(7), range(60), 420),
}
"""With their inputs, and the calls that they need as far as they are known by themselves."""


def needed(draw: Flow, records: Sequence[Any]) -> tuple[int, list[Any]]:
    """Return the calls of a run that sees everything in order, and its outputs."""
    calls = [0]
    outputs = interpret(draw(calls).graph(), {"in": records})["out"]
    return calls[0], [output.payload for output in outputs]


@cache
def needed_in_turn(name: str, fronts: int) -> tuple[list[list[Any]], int, list[Any]]:
    """Return the records of fronts that take turns, and what `needed` returns of them."""
    draw, records, _ = FLOWS[name]
    records = [*records] * fronts
    parts = [records[part::fronts] for part in range(fronts)]
    return parts, *needed(draw, [record for row in zip(*parts, strict=True) for record in row])


def in_vain(flow: fc.Flow, needed: int, workers: int, advance: int = 32) -> int:
    """Return the most calls in vain of a run where items may go in early."""
    states = sum(vertex.stateful for vertex in flow.graph().vertices)
    return needed // 10 + advance * states * workers if workers > 1 else 0


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_the_calls_are_those_that_are_needed(name: str, clock: str) -> None:
    draw, records, known = FLOWS[name]
    least, wanted = needed(draw, records)
    assert least == (known or least) > len(records)
    for workers in range(1, 5):
        calls = [0]
        outputs = draw(calls).run({"in": records}, workers=workers, settings={"job.clock": clock})
        assert list(outputs["out"]) == wanted
        assert 0 <= calls[0] - least <= in_vain(draw(calls), least, workers), workers


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("fronts", [1, 2, 4])
@pytest.mark.parametrize("acker", ["centralized", "local", "sharded"])
def test_the_calls_are_those_that_are_needed_in_any_interleaving(name: str, fronts: int, acker: str) -> None:
    """With a small advance, which is spent on few records: of 32 calls nobody would see what is one too many."""
    draw = FLOWS[name][0]
    parts, least, wanted = needed_in_turn(name, fronts)
    for seed in seeds(3):
        for workers in range(1, 5):
            for advance in (0, 4):
                calls = [0]
                graph, make = draw(calls).graph(), acker_named(acker)
                with patch.object(reorder, "_ADVANCE", advance):
                    simulation = Simulation(
                        graph,
                        {},
                        partitioned={"in": parts},
                        acker=make,
                        workers=workers,
                        seed=seed,
                        advance=advance > 0,
                    )
                    run = simulation.run()
                where = (seed, workers, advance)
                assert run.outputs["out"] == wanted, where
                counted = sum(sum(worker.counts().calls_in_vain.values()) for worker in simulation.workers.values())
                most = in_vain(draw(calls), least, workers, advance) if advance else 0
                assert 0 <= calls[0] - least <= counted <= most, where
                assert run.replays == 0 or counted, where


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("files", [1, 2, 8, 60])
def test_files_are_read_together_without_a_repair(tmp_path: Path, files: int, clock: str) -> None:
    """A word count in which one of two files was ahead by a batch made hundreds of calls for each that it needed."""
    words = Random(files).choices("abcde", k=4800)
    for file in range(files):
        share = words[file::files]
        lines = [" ".join(share[start : start + 4]) for start in range(0, len(share), 4)]
        (tmp_path / f"{file:02}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    calls = 0

    def add(count: int, _: str) -> int:
        nonlocal calls
        calls += 1
        return count + 1

    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).fold(0, add).sink("counts")
    settings = {"source.lines.use": "lines", "source.lines.path": str(tmp_path / "*.txt"), "job.clock": clock}
    counts = list(flow.run(settings=settings)["counts"])
    assert len(counts) == calls == len(words)
    assert {word: max(count for each, count in counts if each == word) for word in "abcde"} == {
        word: words.count(word) for word in "abcde"
    }


@pytest.mark.parametrize("fronts", [1, 2, 4])
def test_the_index_is_the_same_of_any_number_of_fronts_and_workers(fronts: int) -> None:
    """With pages that come in several versions; on one worker without a repair."""
    random = Random(7)
    pages = [
        Page(number % 50, "page", " ".join(random.choices(("stream", "order", "exact", "once", "cycle"), k=12)))
        for number in range(60)
    ]
    parts = [pages[part::fronts] for part in range(fronts)]
    source = index.graph().sources[0].name
    outputs = []
    for workers in (1, 2, 3):
        for seed in seeds(3):
            run = Simulation(
                index.graph(), {}, partitioned={source: parts}, acker=acker_named("local"), workers=workers, seed=seed
            ).run()
            assert all(run.outputs.values())
            assert workers > 1 or run.replays == 0, seed
            outputs.append(run.outputs)
    assert all(each == outputs[0] for each in outputs)
