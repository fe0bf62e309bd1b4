"""Flows with very many operations in a row: neither the calls nor the walk over the graph end at some depth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import flamecore as fc
from flamecore import errors
from flamecore.model.stream import Stream

Link = Callable[[Stream[int], int], Stream[int]]

LINKS: dict[str, Link] = {
    "map": lambda stream, at: stream.map(lambda number: number + 1, name=f"add-{at}"),
    "filter": lambda stream, at: stream.filter(lambda number: number != 7, name=f"keep-{at}"),
    "flat_map": lambda stream, at: stream.flat_map(lambda number: [number + 1], name=f"add-{at}"),
    "inspect": lambda stream, at: stream.inspect(lambda number: None, name=f"see-{at}"),
    "rebalance": lambda stream, at: stream.rebalance().map(lambda number: number + 1, name=f"add-{at}"),
    "count": lambda stream, at: (
        stream.key_by(lambda number: number % 3)
        .count(name=f"count-{at}")
        .map(lambda pair: pair[0] + 3 * pair[1], name=f"number-{at}")
    ),
    "group": lambda stream, at: (
        stream.key_by(lambda number: number % 3)
        .group(2, name=f"pairs-{at}")
        .map(lambda pair: pair[-1] + 3, name=f"last-{at}")
    ),
}


def chain(link: Link, length: int) -> fc.Flow:
    flow = fc.Flow("chain")
    stream: Stream[int] = flow.source("numbers", int)
    for at in range(length):
        stream = link(stream, at)
    stream.sink("out")
    return flow


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", LINKS)
def test_two_hundred_operations_in_a_row_give_what_one_after_the_other_gives(name: str, workers: int) -> None:
    numbers = list(range(20))
    expected = numbers
    for _ in range(4):  # fifty at a time, each a flow that is not deep
        expected = chain(LINKS[name], 50).run({"numbers": expected})["out"]
    assert chain(LINKS[name], 200).run({"numbers": numbers}, workers=workers)["out"] == expected


@pytest.mark.parametrize("name", ["map", "filter", "flat_map"])
def test_two_thousand_maps_in_a_row_run(name: str) -> None:
    numbers = [1, 2, 3]
    more = 0 if name == "filter" else 2000
    assert chain(LINKS[name], 2000).run({"numbers": numbers})["out"] == [number + more for number in numbers]


def test_a_longer_row_is_refused() -> None:
    with pytest.raises(errors.GraphError, match="too many operations in a row in 'chain'"):
        chain(LINKS["count"], 1000).run({"numbers": [1]})


def test_what_is_nested_too_deep_is_malformed_beside_a_long_row_too(tmp_path: Path) -> None:
    """A line of opening brackets once ended the process: calls were allowed to be deeper than its stack is."""
    (tmp_path / "in.jsonl").write_bytes(b"1\n" + b"[" * 100_000 + b"\n2\n")
    flow = chain(LINKS["map"], 2000)
    settings = {"source.numbers.use": "jsonl", "source.numbers.path": str(tmp_path / "in.jsonl")}
    outputs = flow.run(settings={**settings, "source.numbers.on_error": "skip"})["out"]
    assert outputs == [2001, 2002]
