"""The flows of the conformance suite: those that every deployment runs, and more. `CASES` holds all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import flamecore as fc
from flamecore.model.expansion import expand
from flamecore.model.graph import Graph
from flamecore.model.vertices import Broadcast as Fork
from flamecore.model.vertices import ByHash, ByKey, Grouping, Map, Merge, Sink, Source
from flamecore.testing.flows.standard import FLOWS, StandardFlow


class Case(NamedTuple):
    """A flow and how to make inputs for it: `inputs(seed, size)`."""

    name: str
    graph: Callable[[], Graph]
    inputs: Callable[[int, int], Mapping[str, Sequence[Any]]]


def _lines(seed: int, size: int) -> dict[str, list[str]]:
    random = Random(seed)
    return {"lines": [" ".join(random.choices("abcdef", k=random.randrange(5))) for _ in range(size)]}


def _numbers(seed: int, size: int) -> dict[str, list[int]]:
    random = Random(seed)
    return {"numbers": [random.randrange(30) for _ in range(size)]}


def word_count_drawn() -> Graph:
    return expand(FLOWS["word_count"].alone("word-count").graph())


class Sum(NamedTuple):
    """The drifting state of a sum."""

    value: int


def sum_over_cycle() -> Graph:
    """Draw the paper's cycle for a sum by hand, as in acceptance case 43."""
    graph = Graph("sum")

    def pair(window: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return [(Sum(0), *window)] if len(window) == 1 else [window]

    def ready(window: tuple[Any, ...]) -> bool:
        return isinstance(window[0], Sum) and not isinstance(window[1], Sum)

    source = graph.add(Source("numbers", type=int))
    head = graph.add(Merge("head"))
    group = graph.add(Grouping("group", route=ByHash(lambda _: 0), window=2))
    pairs = graph.add(Map("pair", function=pair))
    ordered = graph.add(Map("ordered", function=ready, shape="filter"))
    add = graph.add(Map("add", function=lambda pair: Sum(pair[0].value + pair[1]), shape="one"))
    fork = graph.add(Fork("fork"))
    spread = graph.add(Map("spread", function=lambda number: [number], route=ByKey(lambda number: number)))
    graph.chain(source, spread, head, group, pairs, ordered, add, fork)
    graph.link(fork, graph.add(Sink("sums", type=Sum)))
    graph.link(fork, head)
    return graph


def collatz() -> Graph:
    """Draw a cycle whose items change workers on every round, with a count behind."""

    def body(stream: fc.Stream[tuple[int, int]]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
        def turn(pair: tuple[int, int]) -> tuple[int, int]:
            start, n = pair
            return (start, n // 2 if n % 2 == 0 else 3 * n + 1)

        done, more = stream.key_by(lambda pair: pair[1] % 7).map(turn).branch(lambda pair: pair[1] <= 1)
        return more, done

    flow = fc.Flow("collatz")
    exit_ = flow.source("numbers", int).rebalance().map(lambda n: (n, n)).loop(body)
    exit_.key_by(lambda pair: pair[0] % 3).count().sink("out")
    return flow.graph()


def repaired_cycle() -> Graph:
    """Draw a grouping before a cycle: guesses are taken back while they go round."""

    def body(stream: fc.Stream[tuple[int, ...]]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
        shorter = stream.key_by(lambda window: sum(window) % 5).map(lambda window: window[1:])
        more, done = shorter.branch(len)
        return more, done

    flow = fc.Flow("repaired-cycle")
    windows = flow.source("numbers", int).rebalance().map(lambda n: n).key_by(lambda n: n % 2).group(4)
    windows.loop(lambda s: _tagged(s, body)).key_by(len).count().sink("out")
    return flow.graph()


def _tagged(stream: fc.Stream[Any], body: Any) -> Any:
    return body(stream)


def cycles_beside_a_count() -> Graph:
    """Two cycles, each with a home of its own, beside states that all workers share: one before, one behind."""

    def turn(state: int, item: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
        return (state + item[0]) % 7, [(item[0] - 1, (item[1] * 5 + state) % 11)]

    def body(stream: fc.Stream[Any]) -> tuple[fc.Stream[Any], ...]:
        return stream.key_by(lambda item: item[1] % 3).stateful_map(0, turn).branch(lambda item: item[0] > 0)

    flow = fc.Flow("cycles-beside-a-count")
    counted = flow.source("numbers", int).key_by(lambda n: n % 13).count()
    counted.sink("counts")
    around = counted.map(lambda pair: (pair[1] % 3, pair[0])).loop(body, name="first")  # type: ignore[arg-type]
    again = around.map(lambda item: (2, item[1])).loop(body, name="second")  # type: ignore[arg-type]
    again.key_by(lambda item: item[1]).fold(0, lambda total, item: total + 1).sink("out")
    return flow.graph()


def loop_by_key() -> Graph:
    """Loops in which each key goes round by itself: two states and a loop inside of one, and a state behind it."""

    def key(item: tuple[int, int, int]) -> int:
        return item[0]

    def turn(state: int, item: tuple[int, int, int]) -> tuple[int, list[tuple[int, int, int]]]:
        key, left, n = item
        return (state * 7 + n) % 101, [(key, left - 1, (n + state) % 97)]

    def note(state: int, item: tuple[int, int, int]) -> tuple[int, list[tuple[int, int, int]]]:
        return state + 1, [(item[0], item[1], (item[2] * 5 + state) % 89)]

    def inner(stream: fc.KeyedStream[int, Any]) -> tuple[fc.Stream[Any], ...]:
        return stream.stateful_map(0, note, name="inner").branch(lambda item: item[2] % 3 == 0)

    def body(stream: fc.KeyedStream[int, Any]) -> tuple[fc.Stream[Any], ...]:
        turned = stream.stateful_map(0, turn, name="outer")
        inside = turned.key_by(key).loop(inner, name="again")  # type: ignore[arg-type]
        return inside.key_by(key).stateful_map(0, note, name="last").branch(lambda item: item[1] > 0)

    flow = fc.Flow("loop-by-key")
    items = flow.source("numbers", int).rebalance().map(lambda n: (n % 11, n % 3, n))
    left = items.key_by(key).loop(body)  # type: ignore[arg-type]
    left.key_by(lambda item: item[2] % 5).stateful_map(0, note, name="behind").sink("out")
    return flow.graph()


def loop_by_key_without_state() -> Graph:
    """Draw a loop that only takes each item to the worker of its key.

    Before it are windows that are taken back.
    """

    def body(stream: fc.KeyedStream[int, Any]) -> tuple[fc.Stream[Any], ...]:
        return (
            stream.flat_map(lambda item: [(item[0], n) for n in item[1:] if n > 1])
            .map(lambda item: (item[0], item[1] // 2))
            .branch(lambda item: item[1] > 2)
        )

    flow = fc.Flow("loop-by-key-without-state")
    windows = flow.source("numbers", int).rebalance().flat_map(range_of).key_by(lambda n: n % 3).group(2)
    loop = windows.map(lambda window: (sum(window) % 5, *window)).key_by(lambda item: item[0])
    loop.loop(body).sink("out")  # type: ignore[arg-type]
    return flow.graph()


def range_of(n: int) -> range:
    return range(n, n + 2)


def custom_order() -> Graph:
    """Words of a line reach their bucket by length before their place in the line."""
    flow = fc.Flow("custom-order")
    flow.source("lines", str).rebalance().flat_map(str.split).map(lambda word: (word, word < "c")).key_by(
        lambda pair: pair[1]
    ).group(3, order=lambda pair: pair[0]).sink("out")
    return flow.graph()


def undo_partial() -> Graph:
    flow = fc.Flow("undo-partial")
    parts = flow.source("numbers", int).flat_map(lambda n: [(n, part) for part in range(n % 6)])
    (
        parts.key_by(lambda pair: pair[1])
        .map(lambda pair: pair)
        .key_by(lambda pair: pair[0])
        .group(4, undo_partial=True)
        .sink("out")
    )
    return flow.graph()


def failing() -> Graph:
    """Draw a function that fails on a valid item, behind another that makes guesses."""

    def check(pair: tuple[int, int]) -> tuple[int, int]:
        if pair[1] in (17, 18):
            raise ValueError(f"too many of {pair[0]}")
        return pair

    flow = fc.Flow("failing")
    counted = (
        flow.source("numbers", int).rebalance().map(lambda n: n % 3).key_by(lambda n: n).fold(0, lambda s, n: s + n + 1)
    )
    counted.map(check).key_by(lambda pair: pair[1] % 2).group(2).sink("out")
    counted.sink("sums")
    return flow.graph()


def failing_state() -> Graph:
    """Draw a reduce whose function fails on some items, also on guesses."""

    def add(total: int, n: int) -> int:
        if total % 7 == 3 and n == 5:
            raise ValueError("five after three")
        return total + n

    flow = fc.Flow("failing-state")
    flow.source("numbers", int).rebalance().map(lambda n: n % 6).key_by(lambda n: n % 2).fold(0, add).sink("out")
    return flow.graph()


def failing_branches() -> Graph:
    """Branches of unequal length: a short one without state, one that fails, and a longer one that fails elsewhere."""

    def check(bad: int) -> Callable[[tuple[int, int]], tuple[int, int]]:
        def checked(pair: tuple[int, int]) -> tuple[int, int]:
            if pair[1] == bad:
                raise ValueError(f"{bad} of {pair[0]}")
            return pair

        return checked

    flow = fc.Flow("failing-branches")
    numbers = flow.source("numbers", int).rebalance().map(lambda n: n % 5)
    numbers.sink("plain")
    counted = numbers.key_by(lambda n: n).count(name="short")
    counted.map(check(7), name="check").sink("counts")
    summed = numbers.key_by(lambda n: n % 2).fold(0, lambda s, n: s + n, name="sum")
    longer = summed.key_by(lambda pair: pair[1] % 3).fold(0, lambda s, pair: s + pair[1] % 4, name="more")
    longer.map(check(9)).sink("sums")
    return flow.graph()


def _standard(name: str, each: StandardFlow) -> Case:
    return Case(name, lambda: each.alone(name).graph(), lambda seed, size: each.inputs(Random(seed), size))


CASES = [
    *(_standard(name, each) for name, each in FLOWS.items()),
    Case("word_count_drawn", word_count_drawn, lambda seed, size: FLOWS["word_count"].inputs(Random(seed), size)),
    Case("sum_over_cycle", sum_over_cycle, _numbers),
    Case("collatz", collatz, _numbers),
    Case("repaired_cycle", repaired_cycle, _numbers),
    Case("cycles_beside_a_count", cycles_beside_a_count, _numbers),
    Case("loop_by_key", loop_by_key, _numbers),
    Case("loop_by_key_without_state", loop_by_key_without_state, _numbers),
    Case("custom_order", custom_order, _lines),
    Case("undo_partial", undo_partial, _numbers),
    Case("failing", failing, _numbers),
    Case("failing_state", failing_state, _numbers),
    Case("failing_branches", failing_branches, _numbers),
]
