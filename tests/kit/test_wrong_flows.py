"""Flows that are not deterministic: `assert_deterministic` must not let them pass."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

import flamecore as fc
from flamecore.testing import assert_deterministic

LINES = {"lines": ["a b c", "b c", "c a", "a", "b b"] * 3}


def words() -> tuple[fc.Flow, fc.Stream[str]]:
    flow = fc.Flow("words")
    return flow, flow.source("lines", str).rebalance().flat_map(str.split)


def right() -> fc.Flow:
    flow, stream = words()
    stream.key_by(lambda word: word).count().sink("out")
    return flow


def with_hidden_state() -> fc.Flow:
    """A function that counts how often it is called: a repair calls it again."""
    calls = count()
    flow, stream = words()
    stream.key_by(lambda word: word).group(2).map(lambda window: (window, next(calls))).sink("out")
    return flow


def with_a_key_that_changes() -> fc.Flow:
    """A key that is another one each time: a tombstone does not find its victim, or a count starts anew."""
    turns = count()
    flow, stream = words()
    stream.key_by(lambda word: (word, next(turns) % 2)).count().sink("out")
    return flow


def test_a_deterministic_flow_passes() -> None:
    assert_deterministic(right(), LINES, seeds=range(6))


@pytest.mark.parametrize("wrong", [with_hidden_state, with_a_key_that_changes])
def test_a_flow_that_is_not_is_caught(wrong: Callable[[], fc.Flow]) -> None:
    with pytest.raises(AssertionError, match="seed="):
        assert_deterministic(wrong(), LINES, seeds=range(6))
