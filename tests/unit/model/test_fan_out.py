"""The order of copies is that of the flow, however its lines are arranged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

import flamecore as fc

pytestmark = pytest.mark.usefixtures("installed")

Line = Callable[[dict[str, Any]], None]
"""A line of a flow: takes the streams that are there, by name, and adds one."""


def outputs(lines: Sequence[Line], workers: int) -> dict[str, list[Any]]:
    """Run a flow of lines that draw from `s`."""
    flow = fc.Flow("fan")
    streams: dict[str, Any] = {"s": flow.source("numbers", int)}
    for line in lines:
        line(streams)
    return dict(flow.run({"numbers": [1, 2, 3]}, workers=workers))


def sets(name: str, make: Callable[[dict[str, Any]], Any]) -> Line:
    def line(streams: dict[str, Any]) -> None:
        streams[name] = make(streams)

    return line


def does(act: Callable[[dict[str, Any]], Any]) -> Line:
    def line(streams: dict[str, Any]) -> None:
        act(streams)

    return line


def tagged(name: str, of: str) -> Line:
    """Return a line that takes a stream on, with a tag.

    It is independent of its like.
    """
    return sets(name, lambda streams: streams[of].map(lambda n: (name, n)))


def in_turn(*names: str) -> list[tuple[str, int]]:
    return [(name, n) for n in (1, 2, 3) for name in names]


def fork(streams: dict[str, Any]) -> None:
    streams["c0"], streams["c1"], streams["c2"] = streams["s"].broadcast(3)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_copies_sort_by_their_place_in_the_tuple(order: tuple[int, ...], workers: int) -> None:
    lines = [tagged("a", "c0"), tagged("b", "c1"), tagged("c", "c2")]
    merged = does(lambda streams: streams["c"].merge(streams["a"], streams["b"]).sink("out"))
    found = outputs([fork, *(lines[at] for at in order), merged], workers)
    assert found["out"] == in_turn("a", "b", "c")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("inputs", ["abc", "cba", "bac"])
def test_uses_of_a_stream_sort_by_the_inputs_of_the_merge(inputs: str, order: tuple[int, ...], workers: int) -> None:
    lines = [tagged(name, "s") for name in "abc"]
    merged = does(lambda streams: streams[inputs[0]].merge(*(streams[name] for name in inputs[1:])).sink("out"))
    assert outputs([*(lines[at] for at in order), merged], workers)["out"] == in_turn(*inputs)


def everything() -> list[Line]:
    """Lines that may stand in any order: nested copies, merges of merges, states behind them, a rebalance, sinks."""
    return [
        tagged("a", "s"),
        tagged("b", "s"),
        tagged("x", "c1"),
        tagged("y", "c1"),
        tagged("z", "c0"),
        sets("r", lambda streams: streams["c1"].rebalance().map(lambda n: ("r", n))),
        does(lambda streams: streams["s"].sink("all")),
    ]


def joined() -> list[Line]:
    return [
        sets("ab", lambda streams: streams["b"].merge(streams["a"])),
        sets("all", lambda streams: streams["y"].merge(streams["x"], streams["z"], streams["ab"], streams["r"])),
        does(lambda streams: streams["all"].sink("out")),
        does(lambda streams: streams["all"].key_by(lambda pair: pair[1]).group(3, name="group").sink("windows")),
    ]


def test_moving_independent_lines_changes_no_output() -> None:
    wanted = outputs([fork, *everything(), *joined()], 1)
    assert [name for name, n in wanted["out"] if n == 1] == ["z", "y", "x", "r", "b", "a"]
    lines = everything()
    for shift in range(1, len(lines)):
        moved = [*lines[shift:], *lines[:shift]]
        for arranged in (moved, moved[::-1]):
            for workers in (1, 2, 3):
                assert outputs([fork, *arranged, *joined()], workers) == wanted


def test_another_sink_changes_nothing_where_copies_meet() -> None:
    lines = [tagged("a", "s"), tagged("b", "s")]
    merged = does(lambda streams: streams["b"].merge(streams["a"]).sink("out"))
    beside = does(lambda streams: streams["a"].sink("first by name"))
    assert outputs([*lines, merged], 1)["out"] == outputs([*lines, beside, merged], 1)["out"] == in_turn("b", "a")


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_copies_that_meet_in_pairs_sort_by_the_inputs_of_each_pair(order: tuple[int, ...]) -> None:
    lines = [tagged(name, "s") for name in "abc"]
    pairs = [
        does(lambda streams: streams["b"].merge(streams["a"]).sink("first")),
        does(lambda streams: streams["a"].merge(streams["c"]).sink("second")),
        does(lambda streams: streams["c"].merge(streams["b"]).sink("against")),
    ]
    found = outputs([*(lines[at] for at in order), *pairs[:2]], 1)
    assert found == {"first": in_turn("b", "a"), "second": in_turn("a", "c")}
    # Three pairs go in a circle: what the last sinks by name say counts.
    found = outputs([*(lines[at] for at in order), *pairs], 1)
    assert found == {"first": in_turn("b", "a"), "second": in_turn("a", "c"), "against": in_turn("b", "c")}


@pytest.mark.parametrize("count", [2, 300])
def test_many_copies_sort_by_the_inputs_of_the_merge(count: int) -> None:
    names = [str(number) for number in range(count)]
    merged = does(lambda streams: streams[names[-1]].merge(*(streams[name] for name in names[-2::-1])).sink("out"))
    assert outputs([*(tagged(name, "s") for name in names), merged], 1)["out"] == in_turn(*reversed(names))


def test_a_copy_merged_with_itself_comes_twice() -> None:
    merged = does(lambda streams: streams["s"].merge(streams["s"], streams["a"]).sink("out"))
    assert outputs([tagged("a", "s"), merged], 2)["out"] == [1, 1, ("a", 1), 2, 2, ("a", 2), 3, 3, ("a", 3)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("leaves_first", [True, False])
def test_what_goes_round_comes_before_what_leaves(leaves_first: bool, workers: int) -> None:
    def descend(stream: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        fewer = stream.map(lambda n: n - 1)
        left = fewer.map(str) if leaves_first else None
        again = fewer.filter(lambda n: n > 0)
        return again, left or fewer.map(str)  # type: ignore[return-value]

    flow = fc.Flow("down")
    flow.source("numbers", int).loop(descend).sink("out")
    assert flow.run({"numbers": [3, 1]}, workers=workers)["out"] == ["0", "1", "2", "0"]


def test_a_copy_that_is_not_used_is_not_made() -> None:
    flow = fc.Flow("one of three")
    flow.source("numbers", int).broadcast(3)[1].sink("out")
    assert flow.run({"numbers": [1, 2]})["out"] == [1, 2]
