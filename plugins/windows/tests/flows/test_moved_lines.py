"""Operations that have outputs at one mark: they come in the order of the merge's inputs, wherever the lines stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import triggers as t

TICK = timedelta(microseconds=1)
Seeds = Callable[..., range]
Record = tuple[int, str]
Streams = dict[str, Any]


class Line(NamedTuple):
    """A line of a flow.

    Attributes:
        name: The name of its stream.
        uses: The names of the streams that it uses.
        make: Makes its stream.
    """

    name: str
    uses: tuple[str, ...]
    make: Callable[[Streams], Any]


def event_times(name: str) -> Line:
    def make(streams: Streams) -> Any:
        return w.event_time(streams["flow"].source(name, tuple), lambda record: record[0], unit="us", name=f"at {name}")

    return Line(name, (), make)


def windows(name: str, of: str, kind: str) -> Line:
    """Return a line with an operation that has outputs at marks, each with the name of the line."""

    def make(streams: Streams) -> Any:
        keyed = streams[of].key_by(lambda record: record[1])
        if kind == "inactive":
            return keyed.inactive(after=7 * TICK, name=name).map(lambda pair: (pair[1][0], name))
        if kind == "as of":
            other = streams[of].key_by(lambda record: record[1])
            return keyed.as_of(other, keep=5 * TICK, name=name).map(lambda pair: (pair[0][0], name))
        if kind == "twice":
            return (
                keyed.window(w.fixed(microseconds=5))
                .count(name=f"{name} before")
                .values()
                .key_by(lambda count: count % 2)
                .window(w.fixed(microseconds=10))
                .count(name=name)
                .map(lambda pane: (pane.value, name))
            )
        of_kind = {
            "fixed": w.fixed(microseconds=10),
            "sliding": w.sliding(microseconds=12, every=4 * TICK),
            "sessions": w.sessions(microseconds=4),
        }[kind]
        emit = t.at_watermark(early=t.count(2)) if kind == "fixed" else "final"
        panes = keyed.window(of_kind, emit=emit, panes="discarding").count(name=name)
        return panes.map(lambda pane: (pane.value, f"{name} {pane.key}"))

    return Line(name, (of,), make)


def merge(name: str, *inputs: str) -> Line:
    return Line(name, inputs, lambda streams: streams[inputs[0]].merge(*(streams[other] for other in inputs[1:])))


def sink(of: str) -> Line:
    return Line(f"sink {of}", (of,), lambda streams: streams[of].sink(of))


def moved(lines: list[Line], rng: random.Random) -> list[Line]:
    """Return the lines in another order, each behind those that it uses."""
    left, found, there = list(lines), list[Line](), set[str]()
    while left:
        line = rng.choice([line for line in left if there.issuperset(line.uses)])
        left.remove(line)
        found.append(line)
        there.add(line.name)
    return found


def outputs(lines: list[Line], records: dict[str, list[Record]], workers: int) -> dict[str, list[Any]]:
    flow = fc.Flow("moved")
    streams: Streams = {"flow": flow}
    for line in lines:
        streams[line.name] = line.make(streams)
    return dict(flow.run(records, workers=workers))


RECORDS = {"s": [(0, "x"), (1, "y"), (12, "x"), (25, "y")]}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("inputs", ["ab", "ba"])
def test_panes_due_at_one_mark_come_in_the_order_of_the_merge(inputs: str, workers: int) -> None:
    lines = [windows("a", "s", "fixed"), windows("b", "s", "fixed")]
    last = [merge("m", *inputs), sink("m")]
    for arranged in (lines, lines[::-1]):
        found = outputs([event_times("s"), *arranged, *last], RECORDS, workers)["m"]
        assert [name[0] for _, name in found[:4]] == [inputs[0], inputs[0], inputs[1], inputs[1]]


def test_panes_that_meet_in_pairs_come_in_the_order_of_each_pair() -> None:
    lines = [event_times("s"), *(windows(name, "s", "fixed") for name in "abc")]
    pairs = [merge("first", "b", "a"), merge("second", "a", "c"), sink("first"), sink("second")]
    found = outputs([*lines, *pairs], RECORDS, 1)
    assert [name[0] for _, name in found["first"][:4]] == ["b", "b", "a", "a"]
    assert [name[0] for _, name in found["second"][:4]] == ["a", "a", "c", "c"]


def test_panes_that_are_merged_twice_come_in_the_order_of_the_last_merge() -> None:
    lines = [event_times("s"), *(windows(name, "s", "fixed") for name in "abc")]
    merges = [merge("two", "a", "b"), merge("all", "c", "b", "two"), sink("all")]
    found = outputs([*lines, *merges], RECORDS, 1)["all"]
    first = [name[0] for _, name in found if name.endswith("y")]
    assert first[:4] == ["c", "b", "b", "a"]


@pytest.mark.parametrize("part", range(4))
def test_moving_independent_lines_changes_no_output(part: int, seeds: Seeds) -> None:
    for seed in seeds(30, part):
        rng = random.Random(f"moved {seed}")
        sources = ["s", "r"][: rng.choice((1, 1, 2))]
        lines, there = list(map(event_times, sources)), list(sources)
        kinds = ("fixed", "sliding", "sessions", "inactive", "as of", "twice")
        made = [f"w{number}" for number in range(rng.randint(2, 5))]
        if len(sources) == 2:
            lines.append(merge("both", *rng.sample(sources, 2)))
            there.append("both")
        used = [there[-1], *(rng.choice(there) for _ in made[1:])]
        lines += [windows(name, of, rng.choice(kinds)) for name, of in zip(made, used, strict=True)]
        for number in range(rng.randint(0, 2)):
            name = f"m{number}"
            lines.append(merge(name, *rng.sample(made, rng.randint(2, min(3, len(made))))))
            made.append(name)
        lines += [merge("all", *rng.sample(made, len(made))), sink("all")]
        lines += [sink(name) for name in made if rng.random() < 0.3]
        records = {
            name: [(place + rng.randrange(-3, 6), rng.choice("xyz")) for place in range(rng.randint(5, 30))]
            for name in sources
        }
        wanted = outputs(lines, records, 1)
        for workers in (1, 3):
            assert outputs(moved(lines, rng), records, workers) == wanted, f"seed {seed}"
