"""Tables in partitions: cut at one time, the last row of each key, taken over, refused."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from flamecore.abc.sink import PartitionedSink, Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamecore.model.meta import MIN_TIME, GlobalTime
from flamecore.testing.checks.partitions import PartitionedSinkTests
from flamestream_edges.sqlite import POSITIONS, Sqlite, SqliteOptions

MADE: list[Sink] = []
"""Sinks of the test, which are closed at its end."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the sinks of a test, the newest first: earlier ones were those of processes that were killed."""
    yield
    while MADE:
        asyncio.run(MADE.pop().aclose())


class Row(NamedTuple):
    """A payload."""

    name: str
    number: int


def table(folder: Path, type_: type = Row, *, fingerprint: str = "test", **options: Any) -> PartitionedSink:
    """Return a sink of a table in partitions, which resumes."""
    chosen = SqliteOptions(path=str(folder / "out.db"), **{"mode": "resume", **options})
    sink = Sqlite(chosen, EdgeContext("out", type_, fingerprint=fingerprint)).partitioned()
    assert sink is not None
    MADE.append(sink)
    return sink


def lines(rows: Sequence[Row]) -> bytes:
    """Return rows as they are merged."""
    return msgspec.json.Encoder().encode_lines([row._asdict() for row in rows])


class TestRows(PartitionedSinkTests):
    payloads = tuple(Row(f"row {number % 3}", number) for number in range(12))

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> PartitionedSink:
        return table(folder, mode="resume" if resume else "replace", fingerprint=fingerprint)

    def sequence(self, payloads: Sequence[Any]) -> bytes:
        return lines(payloads)


class TestKeys(PartitionedSinkTests):
    """One row a key, the last one; rows of one key come from several workers."""

    payloads = tuple(Row(f"row {number % 5}", number) for number in range(12))

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> PartitionedSink:
        return table(folder, mode="resume" if resume else "replace", fingerprint=fingerprint, key=("name",))

    def sequence(self, payloads: Sequence[Any]) -> bytes:
        return lines(last(payloads))


def last(rows: Sequence[Row]) -> list[Row]:
    """Return the last row of each name, in order."""
    found: dict[str, Row] = {}
    for row in rows:
        found.pop(row.name, None)
        found[row.name] = row
    return list(found.values())


def orders(*times: int) -> list[bytes]:
    return [GlobalTime(time, 1).encode() for time in times]


def read(folder: Path, query: str = "SELECT name, number FROM out ORDER BY seq") -> list[tuple[Any, ...]]:
    """Return rows as another program reads them."""
    database = sqlite3.connect(folder / "out.db")
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


@pytest.mark.parametrize("seed", range(20))
def test_the_last_row_of_a_key_is_there_whatever_came_first(tmp_path: Path, seed: int) -> None:
    """Workers come as far as chance has it; the job is killed, and its outputs are made again from the division."""
    chance = Random(seed)
    rows = [Row(f"{chance.randrange(7)}", number) for number in range(120)]
    owners = [chance.randrange(3) for _ in rows]

    async def body() -> None:
        reached = done = 1
        while reached <= len(rows):
            sink = table(tmp_path, key=("name",))
            await sink.open()
            held, grant = await sink.divide(3)
            assert max(held, 1) >= done
            start = max(held, 1)
            assert b"".join(sink.merged()) == lines(last(rows[: start - 1]))
            assert read(tmp_path) == last(rows[: start - 1])
            parts = [sink.partition(worker, grant) for worker in range(3)]
            MADE.extend(parts)
            aims = [min(start + chance.randrange(40), len(rows) + 1) for _ in parts]
            at = [start] * 3
            for part in parts:
                await part.open()
            while any(map(int.__lt__, at, aims)):
                worker = chance.choice([worker for worker in range(3) if at[worker] < aims[worker]])
                until = min(at[worker] + chance.randint(1, 9), aims[worker])
                own = [time for time in range(at[worker], until) if owners[time - 1] == worker]
                if own:
                    payloads = [rows[time - 1] for time in own]
                    await parts[worker].write_ordered(own[-1] + 1, orders(*own), payloads)
                at[worker] = until
                if min(at) > start and chance.random() < 0.5:
                    done = min(at)
                    if chance.random() < 0.5:
                        await sink.sync(done)
                    else:
                        await sink.write(done, [1])
                    assert b"".join(sink.merged()) == lines(last(rows[: done - 1]))
            owners[:] = [chance.randrange(3) for _ in rows]  # others make the outputs from here on
            reached = max(reached, min(at)) if chance.random() < 0.7 else reached
        await sink.write(len(rows) + 1, [1])
        await sink.sync(len(rows) + 1)
        await sink.aclose()

    asyncio.run(body())
    assert read(tmp_path) == last(rows)
    assert read(tmp_path, "SELECT count(*) FROM flamestream_versions_out") == [(0,)], "all is final"


def test_workers_wait_for_each_other(tmp_path: Path) -> None:
    """They write at once, from several threads, and none is refused."""

    async def body() -> None:
        sink = table(tmp_path)
        await sink.open()
        _, grant = await sink.divide(4)
        parts = [sink.partition(worker, grant) for worker in range(4)]
        MADE.extend(parts)

        async def work(worker: int, part: Sink) -> None:
            await part.open()
            for time in range(worker + 1, 201, 4):
                await part.write_ordered(time + 1, orders(time), [Row("x", time)])

        await asyncio.gather(*[work(worker, part) for worker, part in enumerate(parts)])
        await sink.write(201, [200])

    asyncio.run(body())
    assert [number for _, number in read(tmp_path)] == list(range(1, 201))


def test_an_ordered_table_with_a_key_has_its_last_rows(tmp_path: Path) -> None:
    options = SqliteOptions(path=str(tmp_path / "out.db"), key=("name",))
    rows = [Row(f"{number % 4}", number) for number in range(30)]

    async def body() -> None:
        sink = Sqlite(options, EdgeContext("out", Row))
        MADE.append(sink)
        await sink.open()
        await sink.write(9, rows[:8])
        await sink.write(31, rows[8:])

    asyncio.run(body())
    assert read(tmp_path) == last(rows)


def refused(sink: Sink) -> str:
    """Return the text with which a sink refuses to open."""
    with pytest.raises(SinkError) as caught:
        asyncio.run(sink.open())
    return str(caught.value)


async def written(sink: PartitionedSink, workers: int = 2) -> None:
    """Write a row by each worker, and end."""
    await sink.open()
    _, grant = await sink.divide(workers)
    for worker in range(workers):
        part = sink.partition(worker, grant)
        await part.open()
        await part.write_ordered(worker + 2, orders(worker + 1), [Row(f"{worker}", worker)])
        await part.aclose()
    await sink.write(workers + 1, [workers])
    await sink.aclose()


def test_a_table_of_another_form_is_refused(tmp_path: Path) -> None:
    asyncio.run(written(table(tmp_path)))
    ordered = Sqlite(SqliteOptions(path=str(tmp_path / "out.db"), mode="resume"), EdgeContext("out", Row, None, "test"))
    said = refused(ordered)
    assert 'table out was written with order = "partitioned", not "ordered"' in said
    assert 'Set [sink.out] order = "partitioned"' in said
    assert "table out was written not with key name" in refused(table(tmp_path, key=("name",)))
    asyncio.run(written(table(tmp_path, mode="replace", key=("name",))))
    assert "table out was written with a key" in refused(table(tmp_path))
    read(tmp_path, "DROP TABLE flamestream_versions_out")
    assert "table flamestream_versions_out is missing" in refused(table(tmp_path, key=("name",)))


def test_a_position_that_is_missing_is_named(tmp_path: Path) -> None:
    asyncio.run(written(table(tmp_path), 3))
    database = sqlite3.connect(tmp_path / "out.db")
    database.execute(f"DELETE FROM {POSITIONS} WHERE sink = 'out/1'")
    database.commit()
    database.close()
    assert f"table {POSITIONS} has no row out/1, and that worker has written outputs" in refused(table(tmp_path))


def test_a_worker_without_the_database_makes_none(tmp_path: Path) -> None:
    assert "there is no such file" in refused(table(tmp_path).partition(0, "grant"))
    assert not (tmp_path / "out.db").exists()


def test_a_row_without_a_key_is_refused_and_nothing_of_its_batch_stays(tmp_path: Path) -> None:
    class Unnamed(NamedTuple):
        name: str | None
        number: int

    async def body() -> None:
        sink = table(tmp_path, Unnamed, key=("name",))
        await sink.open()
        _, grant = await sink.divide(1)
        part = sink.partition(0, grant)
        MADE.append(part)
        assert await part.open() == MIN_TIME
        with pytest.raises(SinkError, match=r"NOT NULL constraint failed: .*out\.name") as caught:
            await part.write_ordered(3, orders(1, 2), [Unnamed("one", 1), Unnamed(None, 2)])
        assert "Leave out payloads" in str(caught.value)
        with pytest.raises(SinkError, match="table out: column 'number' is 1180591620717411303424, which does not fit"):
            await part.write_ordered(3, orders(1, 2), [Unnamed("one", 1), Unnamed("two", 2**70)])
        await part.write_ordered(2, orders(1), [Unnamed("one", 1)])

    asyncio.run(body())
    assert read(tmp_path) == [("one", 1)]


def test_options_that_partitions_cannot_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink\.out\.mode is \"append\""):
        table(tmp_path, mode="append")
    with pytest.raises(ConfigError, match=r"sink\.out\.key: the payloads have no column nam") as caught:
        table(tmp_path, key=("nam",))
    assert "name" in str(caught.value)


def test_there_is_nothing_to_merge_before_a_job_has_run(tmp_path: Path) -> None:
    sink = table(tmp_path)
    with pytest.raises(SinkError, match="cannot be read"):
        list(sink.merged())
    with pytest.raises(SinkError, match="cannot be read"):
        sink.stored()
