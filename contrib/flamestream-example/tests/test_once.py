"""The operation in flows: the same by any interleaving and through any fault."""

from __future__ import annotations

from random import Random

import pytest
from flamestream_example.once import Once, once

import flamecore as fc
from flamecore.errors import GraphError
from flamecore.testing import assert_deterministic, assert_exactly_once

RANDOM = Random(1)
NUMBERS = {"numbers": [RANDOM.randrange(12) for _ in range(60)]}


def flow(silence: int = 6) -> fc.Flow:
    made = fc.Flow("once")
    stream = made.source("numbers", int).rebalance().map(lambda n: n)
    stream.through(once, lambda n: n % 7, silence=silence, name="once").sink("new")
    return made


def test_each_key_comes_once_until_it_has_been_silent() -> None:
    outputs = flow(silence=3).run({"numbers": [1, 1, 2, 1, 3, 3, 3, 1, 2]}, workers=2)
    assert outputs["new"] == [1, 2, 3, 1, 2]


def test_the_order_of_arrival_does_not_matter() -> None:
    assert_deterministic(flow(), NUMBERS, workers=(1, 2, 3))


def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    assert_exactly_once(flow(), NUMBERS, seeds=range(20))


def test_a_silence_of_nothing_is_refused() -> None:
    with pytest.raises(GraphError, match="the silence of <once 'once'> is 0"):
        flow(silence=0).graph()
    assert Once.timers
