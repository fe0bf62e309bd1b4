"""Flows that are not deterministic, each in a way of its own: `assert_deterministic` must catch them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.testing.flows.deterministic import assert_deterministic

NUMBERS = [n * 7 % 23 for n in range(30)]


def hidden_counter(stream: fc.Stream[int]) -> fc.Stream[Any]:
    """Count calls in a function, which a repair calls again."""
    calls = count()
    return stream.map(lambda n: (n, next(calls)))


def hidden_dictionary(stream: fc.Stream[int]) -> fc.Stream[Any]:
    """State beside the stream: it meets items in the order of their arrival."""
    seen: dict[int, int] = {}

    def total(n: int) -> tuple[int, int]:
        seen[n % 3] = seen.get(n % 3, 0) + n
        return n, seen[n % 3]

    return stream.map(total)


def drawn_by_lot(stream: fc.Stream[int]) -> fc.Stream[Any]:
    random = Random(5)
    return stream.filter(lambda n: random.random() < 0.5)


def keyed_by_address(stream: fc.Stream[int]) -> fc.Stream[Any]:
    """Take the address of a payload for its key; every payload has its own."""
    return stream.map(lambda n: [n]).key_by(lambda box: id(box) % 3).group(2)


def keyed_by_a_guess(stream: fc.Stream[int]) -> fc.Stream[Any]:
    """Draw the key anew each time, so that a tombstone misses its victim."""
    calls = count()
    pairs = stream.key_by(lambda n: n % 2).group(2)
    return pairs.key_by(lambda pair: next(calls) % 5).count()


def changes_its_payload(stream: fc.Stream[int]) -> fc.Stream[Any]:
    """Change items that a repair makes a window of again."""

    def grown(window: tuple[list[int], ...]) -> tuple[int, ...]:
        window[-1].append(len(window[-1]))
        return tuple(window[-1])

    return stream.map(lambda n: [n]).key_by(lambda box: 0).group(2).map(grown)


def changes_its_state(stream: fc.Stream[int]) -> fc.Stream[Any]:
    """Keep a state that changes in place, which a repair hands out again."""

    def gather(state: Any, n: int) -> tuple[Any, list[tuple[int, ...]]]:
        box = [] if state is None else state
        box.append(n)
        return box, [tuple(box)]

    return stream.key_by(lambda n: 0).stateful_map(None, gather)


WRONG = [
    hidden_counter,
    hidden_dictionary,
    drawn_by_lot,
    keyed_by_address,
    keyed_by_a_guess,
    changes_its_payload,
    changes_its_state,
]


def spread(build: Callable[[fc.Stream[int]], fc.Stream[Any]]) -> fc.Flow:
    flow = fc.Flow("wrong")
    build(flow.source("numbers", int).rebalance().map(lambda n: n).key_by(lambda n: n % 4).map(lambda n: n)).sink("out")
    return flow


@pytest.mark.parametrize("build", WRONG, ids=lambda build: build.__name__)
def test_a_flow_that_is_not_deterministic_is_caught(build: Callable[[fc.Stream[int]], fc.Stream[Any]]) -> None:
    with pytest.raises(AssertionError, match="seed="):
        assert_deterministic(spread(build), {"numbers": NUMBERS})


def test_the_error_names_the_seed_and_the_first_difference() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_deterministic(spread(hidden_dictionary), {"numbers": NUMBERS})
    text = str(caught.value)
    for words in ("seed=", "workers=", "acker=", "sink 'out'", "got", "wanted"):
        assert words in text


def test_a_deterministic_flow_passes_and_its_outputs_are_returned() -> None:
    flow = spread(lambda stream: stream.key_by(lambda n: n % 3).reduce(max))
    outputs = assert_deterministic(flow, {"numbers": NUMBERS})
    best: dict[int, int] = {}
    wanted = []
    for n in NUMBERS:
        best[n % 3] = max(n, best.get(n % 3, n))
        wanted.append((n % 3, best[n % 3]))
    assert outputs == {"out": wanted}
