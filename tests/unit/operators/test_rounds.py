"""Rounds: loops that end, what is left of them, and in which sequence that goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from flamecore.runtime.operators.rounds import Rounds, VertexRound


class Numbers(Sequence[int]):
    """A sequence whose iterator cannot be moved."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        return range(5)[index]

    def __iter__(self) -> Iterator[int]:
        yield from range(5)


@pytest.mark.parametrize("values", [list(range(5)), tuple(range(5)), range(5), Numbers()])
def test_a_loop_ends_behind_the_item_at_work(values: Sequence[int]) -> None:
    rounds, seen = Rounds(), []
    for value in rounds.iterate(values):
        seen.append(value)
        if value == 2:
            rounds.end()
    rounds.finish()
    assert seen == [0, 1, 2]
    assert list(values) == [0, 1, 2, 3, 4]


def test_nothing_begins_in_a_round_that_is_over_and_all_does_in_the_next() -> None:
    rounds = Rounds()
    rounds.end()
    assert [*rounds.iterate([1, 2])] == []
    rounds.finish()
    rounds.begin()
    assert [*rounds.iterate([1, 2])] == [1, 2]
    rounds.finish()


def test_loops_within_loops_end_together() -> None:
    rounds, seen = Rounds(), []
    for outer in rounds.iterate([1, 2]):
        for inner in rounds.iterate([10, 20, 30]):
            seen.append(outer + inner)
            if inner == 20:
                rounds.end()
        rounds.finish()
    rounds.finish()
    assert seen == [11, 21]


def test_a_loop_that_ended_with_an_error_does_not_hold_the_next_round() -> None:
    rounds = Rounds()
    assert next(rounds.iterate([0])) == 0
    rounds.begin()
    outer = rounds.iterate([1, 2, 3])
    assert next(outer) == 1
    rounds.finish()
    rounds.end()  # no loop is at work any more
    assert [*outer] == [2, 3]


def test_what_is_left_keeps_its_sequence_and_its_segment() -> None:
    rounds = Rounds()
    first, second = VertexRound(rounds, 1), VertexRound(rounds, 2)
    rounds.end()
    assert first.is_over
    assert second.is_over

    def run(*_: Any) -> None: ...

    second.leave(run, [b"b"], 0, ["b"])
    first.leave(run, [b"a"], 7, ["a"])
    taken = rounds.take()
    assert [(rest.segment, rest.orders, rest.trace, rest.payloads, rest.cut) for rest in taken] == [
        (2, [b"b"], 0, ["b"], True),
        (1, [b"a"], 7, ["a"], True),
    ]
    assert rounds.take() == []
