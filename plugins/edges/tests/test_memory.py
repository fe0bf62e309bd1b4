"""Source and sink `memory`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import date
from decimal import Decimal
from http import HTTPStatus
from typing import Any

import pytest

from flamecore.abc.source import EdgeContext, Reader
from flamecore.errors import SinkError, SourceError
from flamestream_edges.memory import MemorySink, MemorySource


def source(given: Any) -> MemorySource:
    return MemorySource(None, EdgeContext("numbers", given=given))


async def drain(reader: Reader, limit: int = 100) -> list[Any]:
    found: list[Any] = []
    while (batch := await reader.read(limit)) is not None:
        found += batch.values
    return found


@pytest.mark.parametrize(
    ("given", "replayable"), [([1], True), ((1,), True), (range(2), True), ({1}, False), (iter([1]), False)]
)
def test_only_a_sequence_can_be_read_again(given: Any, replayable: bool) -> None:
    assert source(given).capabilities.replayable is replayable


PANDAS, POLARS = (
    type("DataFrame", (), {"columns": ["a"], rows: None, "__iter__": lambda self: iter(self.columns)})()
    for rows in ("itertuples", "iter_rows")
)


@pytest.mark.parametrize(
    ("given", "what", "hint"),
    [
        ("some text", "a str is given", "['some text']"),
        (None, "no values are given", "--source numbers=DRIVER"),
        (7, "a int is given, which is not iterable", "flow.run"),
        ({"a": 1}, "a dict is given, of which only the keys would be read", "list(given.items())"),
        (PANDAS, "a DataFrame is given, of which only the names of columns", 'given.to_dict("records")'),
        (POLARS, "a DataFrame is given, of which only the names of columns", "given.to_dicts()"),
    ],
)
def test_inputs_that_are_no_values_are_refused(given: Any, what: str, hint: str) -> None:
    with pytest.raises(SourceError) as caught:
        asyncio.run(source(given).open(""))
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_positions_are_ordinals() -> None:
    async def run() -> None:
        reader = await source(["a", "b", "c"]).open("", 0)
        batch = await reader.read(5)
        assert batch is not None
        assert (batch.values, list(batch.positions)) == (["b", "c"], [1, 2])
        assert reader.describe(1) == "value 2 of numbers"
        for position in (3, -1, "x"):
            with pytest.raises(SourceError, match="there is no value"):
                await source([1, 2, 3]).open("", position)

    asyncio.run(run())


def test_an_iterator_is_read_once() -> None:
    async def run() -> None:
        numbers = source(iter([1, 2]))
        assert await drain(await numbers.open("")) == [1, 2]
        with pytest.raises(SourceError, match="can be read once only"):
            await numbers.open("")

    asyncio.run(run())


def failing() -> Iterator[int]:
    yield 1
    yield 2
    raise KeyError("user's own")


async def failing_later() -> AsyncIterator[int]:
    for value in failing():
        yield value


@pytest.mark.parametrize("given", [failing, failing_later])
def test_an_iterable_that_raises_is_named_after_the_values_before_it(given: Any) -> None:
    async def run() -> None:
        reader = await source(given()).open("")
        batch = await reader.read(10)
        assert batch is not None
        assert batch.values == [1, 2]
        for _ in range(2):
            with pytest.raises(
                SourceError, match=r"the iterable raised KeyError: \"user's own\", after 2 values"
            ) as caught:
                await reader.read(10)
            assert isinstance(caught.value.__cause__, KeyError)
        await reader.aclose()

    asyncio.run(run())


def test_a_slow_iterator_is_delivered_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("flamestream_edges.memory.perf_counter", lambda: float(next(clock)))

    async def run() -> None:
        reader = await source(iter([1, 2, 3])).open("")
        batch = await reader.read(10)
        assert batch is not None
        assert batch.values == [1], "a value took longer than values are gathered for"

    asyncio.run(run())


def test_an_async_iterable_is_not_taken_far_ahead() -> None:
    taken = 0

    async def endless() -> AsyncIterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    async def run() -> None:
        reader = await source(endless()).open("")
        batch = await reader.read(10)
        assert batch is not None
        for _ in range(50):
            await asyncio.sleep(0)
        assert taken < 2500
        await reader.aclose()
        await reader.aclose()

    asyncio.run(run())


def test_closing_ends_an_async_iterable_that_waits() -> None:
    ended = False

    async def waiting() -> AsyncIterator[int]:
        nonlocal ended
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            ended = True

    async def run() -> None:
        reader = await source(waiting()).open("")
        reading = asyncio.ensure_future(reader.read(1))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await reader.aclose()

    asyncio.run(run())
    assert ended


def test_an_async_iterable_that_will_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamestream_edges.memory._CLOSE_S", 0.05)
    release = asyncio.Event()

    async def stubborn() -> AsyncIterator[int]:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        yield 1

    async def run() -> None:
        reader = await source(stubborn()).open("")
        reading = asyncio.ensure_future(reader.read(1))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        with pytest.raises(SourceError, match="does not end"):
            await reader.aclose()
        release.set()
        await reader.aclose()

    asyncio.run(run())


def test_the_sink_fills_the_list_it_is_given() -> None:
    given: list[int] = [0]
    sink = MemorySink(None, EdgeContext("out", given=given))
    asyncio.run(sink.write(1, [1, 2]))
    assert given == [0, 1, 2]
    own = MemorySink(None, EdgeContext("out"))
    asyncio.run(own.write(1, [3]))
    assert own.values == [3]
    with pytest.raises(SinkError, match="a tuple is given to take the outputs"):
        MemorySink(None, EdgeContext("out", given=()))


@pytest.mark.parametrize(
    ("given", "fitting"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, "a", 2], [1, "a", 2]),
        ([1.5, 2.5], []),
        ([1, "a", 2.5, None], [1, "a"]),
        ([True, 1], [True, 1]),
    ],
)
def test_values_of_other_classes_than_declared_are_malformed(given: list[Any], fitting: list[Any]) -> None:
    context = EdgeContext("numbers", given=given, type=int | str)

    async def run() -> None:
        reader = await MemorySource(None, context).open("")
        batch = await reader.read(10)
        assert batch is not None
        assert list(batch.values) == fitting
        assert [rejected.raw for rejected in batch.rejected] == [value for value in given if value not in fitting]

    asyncio.run(run())


class Text(str):
    __slots__ = ()


class Number(int):
    pass


@pytest.mark.parametrize(
    ("kind", "given", "fitting"),
    [
        (int, [1, Number(2), True, 2**70, HTTPStatus.OK], 5),
        (int, [1, 2.0], 1),
        (int, [1, "2"], 1),
        (int, [1, None], 1),
        (int, range(3), 3),
        (str, ["a", Text("b"), "\ud800"], 3),
        (str, ["a", b"b"], 1),
        (str, ["a", HTTPStatus.OK, date(2026, 1, 1), Decimal(1)], 1),
    ],
)
def test_values_of_a_declared_class_are_handed_on_as_they_are(kind: type, given: Sequence[Any], fitting: int) -> None:
    context = EdgeContext("values", given=given, type=kind)

    async def run() -> None:
        reader = await MemorySource(None, context).open("")
        batch = await reader.read(10)
        assert batch is not None
        assert list(map(type, batch.values)) == list(map(type, given))[:fitting]
        assert list(batch.values) == list(given)[:fitting]
        assert [rejected.raw for rejected in batch.rejected] == list(given)[fitting:]

    asyncio.run(run())
