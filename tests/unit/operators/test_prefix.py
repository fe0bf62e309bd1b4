"""The prefix of a source run ahead: what enters behind it is what would have come out of it on the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.source import Batch, Rejected
from flamecore.model.meta import GlobalTime, Meta, encode_time
from flamecore.model.plan import Plan
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators.compiler import Compiled, compile_worker
from flamecore.runtime.operators.exchange import Outbox
from flamecore.runtime.operators.prefix import Ahead, PrefixRun, records_of, runs_of
from flamecore.runtime.parts.front import split

FRONT = (1).to_bytes(4, "big")


def failing(rare: int) -> Callable[[int], int]:
    def function(n: int) -> int:
        if n % rare == 3:
            raise ValueError(str(n))
        return n * 2 + 1

    return function


def several(most: int) -> Callable[[int], Iterable[int]]:
    return lambda n: (n * 10 + child for child in range(n % most))


def half_way(n: int) -> Iterable[int]:
    yield n
    if n % 31 == 5:
        raise LookupError(str(n))
    yield n + 1


def drawn(random: Random) -> fc.Flow:
    """Draw a flow with a prefix of a few operations."""
    flow = fc.Flow("drawn")
    stream: Any = flow.source("numbers", int)
    for _ in range(random.randint(1, 4)):
        kind = random.randrange(6)
        if kind == 0:
            stream = stream.map(failing(random.choice([7, 50, 400])))
        elif kind == 1:
            stream = stream.flat_map(several(random.choice([2, 5, 40])))
        elif kind == 2:
            stream = stream.flat_map(half_way)
        elif kind == 3:
            stream = stream.filter(lambda n: n % 3)
        elif kind == 4:
            stream = stream.filter(lambda n: 10 % (n % 11))
        else:
            stream = stream.map(str).map(int)
    stream.inspect(lambda payload: None, name="behind").sink("out")
    return flow


def compiled(flow: fc.Flow, entered: list[tuple[Meta, Any]], failed: set[int]) -> Compiled:
    """Compile the steps of a worker.

    Items that come to the vertex behind the prefix are in `entered`, times of records that fail in `failed`.
    """
    graph = flow.graph()

    def fail_at(_: Any) -> Any:
        return lambda order, trace, alive, payload, error: failed.add(GlobalTime.decode(order).time)

    (behind,) = [vertex for vertex in graph.vertices if vertex.name == "behind"]
    behind.shape = "inspect_meta"  # type: ignore[attr-defined]  # it is a map
    behind.function = lambda payload, meta: entered.append((meta, payload))  # type: ignore[attr-defined]
    return compile_worker(Plan(graph, ()), 0, Random(0), [Outbox()], fail_at)


@pytest.mark.parametrize("seed", range(40))
def test_what_enters_behind_it_is_what_comes_out_on_the_worker(seed: int) -> None:
    random = Random(seed)
    flow = drawn(random)
    count = random.choice([1, 3, 40, 1000])
    values = [random.randrange(1000) for _ in range(count)]
    orders = [encode_time(time + 100) + FRONT for time in range(count)]
    there: list[tuple[Meta, Any]] = []
    failed: set[int] = set()
    compiled(flow, there, failed).entrances["numbers"].run(orders, 0, values)

    left = set(random.sample(range(count), count // 10))  # what is no record where it is read
    places = [place for place in range(count) if place not in left]
    graph = flow.graph()
    block = PrefixRun(graph, graph.sources[0]).block([values[place] for place in places], places, count)
    codec = Codec.of(graph)
    found = records_of(codec.decode(codec.encode(block)))
    assert [place for place, ahead in enumerate(found) if ahead is None] == sorted(
        left | {time - 100 for time in failed}
    )
    here: list[tuple[Meta, Any]] = []
    behind = compiled(flow, here, set()).entrances["numbers"].behind
    assert behind is not None
    trace, run = behind
    for made, payloads in runs_of((orders[at], ahead) for at, ahead in enumerate(found) if ahead is not None):
        run(made, trace, payloads)
    absent = {place + 100 for place in left} | failed
    assert here == [(meta, payload) for meta, payload in there if meta.global_time.time not in absent]


def test_runs_are_no_longer_than_those_of_a_map() -> None:
    ahead = Ahead([b""], [1000], 0, b"", list(range(1000)))
    runs = list(runs_of((encode_time(time), ahead) for time in range(20)))
    assert [len(payloads) for _, payloads in runs] == [5000, 5000, 5000, 5000]
    assert [len(orders) for orders, _ in runs] == [5000, 5000, 5000, 5000]


def test_a_record_of_which_nothing_comes_is_no_run() -> None:
    nothing = Ahead((), None, 0, b"", ())
    one = Ahead([b"\x01"], None, 0, b"", ["a"])
    given = [(b"a", nothing), (b"b", one), (b"c", nothing), (b"d", one)]
    assert [(list(orders), payloads) for orders, payloads in runs_of(given)] == [([b"b\x01", b"d\x01"], ["a", "a"])]
    assert list(runs_of([(b"a", nothing)])) == []


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_function_that_ends_the_process_leaves_all_to_the_worker(ending: type[BaseException]) -> None:
    flow = fc.Flow("ends")

    def end(n: int) -> int:
        raise ending(n)

    flow.source("numbers", int).map(end).sink("out")
    graph = flow.graph()
    assert records_of(PrefixRun(graph, graph.sources[0]).block([1, 2], [0, 2], 3)) == [None, None, None]


def test_a_result_of_another_type_than_declared_is_left_to_the_worker() -> None:
    flow = fc.Flow("wrong")

    def wrong(n: int) -> int:
        return n or "none"  # type: ignore[return-value]  # it is wrong on purpose

    flow.source("numbers", int).map(wrong).sink("out")
    graph = flow.graph()
    found = records_of(PrefixRun(graph, graph.sources[0]).block([1, 0], [0, 1], 2))
    assert [ahead and list(ahead.payloads) for ahead in found] == [[1], None]


def test_a_batch_that_is_split_says_of_both_what_it_holds() -> None:
    batch = Batch(["a", "b"], [0, 2], [Rejected(1, "bad", "x")], ahead=True)
    assert [piece.ahead for piece in split(batch, 2)] == [True, True]
    assert list(chain.from_iterable(piece.values for piece in split(batch, 2))) == ["a", "b"]
