"""Spools: what is there once stays as it is, in one order, and goes when it is not needed any more. Without Spark."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SourceError
from flamestream_spark.source import SparkSource
from flamestream_spark.spool import parts
from flamestream_spark.spool.rows import rows_of
from flamestream_spark.spool.spool import Batch, Order, Spool, Taken, folder_of


def batch_of(numbers: range, **columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict({"n": list(numbers), **columns})


def written(spool: Spool, number: int, *batches: Any, **options: Any) -> list[tuple[str, int]]:
    told = parts.write_parts(batches, spool.batch(number), **options)
    return [(row["name"], row["rows"]) for found in told for row in found.to_pylist()]


def filled(folder: Path | str, *sizes: int) -> Spool:
    """Return a spool with a batch of each size."""
    spool = Spool(folder, "numbers")
    spool.open()
    at = 0
    for number, size in enumerate(sizes):
        assert spool.complete(number, written(spool, number, batch_of(range(at, at + size))))
        at += size
    return spool


def numbers_of(spool: Spool, after: int = 0) -> list[int]:
    stop = threading.Event()
    return [number for rows in rows_of(spool, after, stop) for number in rows.batch.column("n").to_pylist()]


def test_rows_come_in_the_order_of_batches_and_parts(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3, 0, 2)
    first = written(spool, 3, batch_of(range(5, 6)))
    second = written(spool, 3, batch_of(range(6, 8)))
    assert spool.complete(3, first + second)
    spool.end()
    assert numbers_of(spool) == list(range(8))
    assert numbers_of(spool, 6) == [6, 7]


def test_a_spool_in_an_object_store_is_as_one_in_a_folder(s3_environment: None) -> None:
    spool = filled("s3a://bucket/spools/one", 3, 0, 2)
    assert not spool.complete(0, written(spool, 0, batch_of(range(100, 200))))
    assert len(spool.place.names(folder_of(0))) == 1, "what is no part is taken away"
    with pytest.raises(SourceError, match="s3a://bucket/spools/one holds batches of another query"):
        filled("s3a://bucket/spools/one").check_query("b", Batch(0, (), "a"))
    assert spool.complete(3, written(spool, 3, batch_of(range(5, 6))) + written(spool, 3, batch_of(range(6, 8))))
    spool.end()
    assert numbers_of(spool) == list(range(8))
    spool.forget(Taken(6, 3, 1))
    again = Spool("s3://bucket/spools/one", "numbers")
    assert numbers_of(again, 6) == [6, 7]
    assert again.numbers() == [3]
    with pytest.raises(SourceError, match="those below 6 have been taken away"):
        numbers_of(again, 5)
    assert sorted(again.place.names(below=True)) == sorted([*again.place.names(), *again.place.names(folder_of(3))]), (
        "parts that were taken are gone"
    )
    again.clear()
    assert again.place.names(below=True) == []


def test_a_complete_batch_stays_as_it_is(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3)
    again = written(spool, 0, batch_of(range(100, 200)))
    assert not spool.complete(0, again)
    spool.end()
    assert numbers_of(spool) == [0, 1, 2]
    assert len(list((tmp_path / f"batch-{0:020d}").iterdir())) == 1, "what is no part is taken away"


def test_parts_of_a_failed_attempt_do_not_count(tmp_path: Path) -> None:
    spool = filled(tmp_path, 1)
    written(spool, 1, batch_of(range(50, 60)))
    (Path(spool.batch(1)) / ".part-000000-half.arrow").write_bytes(b"half")
    assert spool.complete(1, written(spool, 1, batch_of(range(1, 3))))
    spool.end()
    assert numbers_of(spool) == [0, 1, 2]
    assert len(list(Path(spool.batch(1)).iterdir())) == 1


def test_batches_of_another_query_are_refused(tmp_path: Path) -> None:
    spool = filled(tmp_path, 0)
    assert spool.complete(1, written(spool, 1, batch_of(range(3))), "query-a")
    assert spool.complete(2, written(spool, 2, batch_of(range(3, 4))), "query-a")
    with pytest.raises(SourceError, match=r"batches of another query"):
        spool.complete(3, (), "query-b")
    with pytest.raises(SourceError, match=r"Give the query the checkpoint"):
        spool.complete(1, (), "query-b") or spool.complete(3, (), "query-b")


def test_acknowledged_batches_are_deleted_and_numbers_go_on(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3, 3, 3)
    seen: list[Any] = []
    stop = threading.Event()
    rows = rows_of(spool, 0, stop, seen.append)
    for _ in range(3):
        next(rows)
    spool.forget(seen[1])
    rows.close()
    left = sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir())
    assert left[-1] == f"batch-{2:020d}"
    assert not any((tmp_path / f"batch-{0:020d}").glob("*"))
    assert spool.complete(3, written(spool, 3, batch_of(range(9, 11))))
    spool.end()
    assert numbers_of(spool, 6) == [6, 7, 8, 9, 10]
    with pytest.raises(SourceError, match=r"those below 6 have been taken away"):
        numbers_of(spool, 5)
    stop.set()


def test_blocks_of_files_are_read_before_all_are_there(tmp_path: Path) -> None:
    """Blocks come in any order; they are read in that of the files, as far as nothing is missing."""

    def block(file: str, start: int, numbers: range) -> Any:
        count = len(numbers)
        place: dict[str, list[Any]] = dict(
            zip(parts.PLACE, ([of] * count for of in (file, start, 10, 20)), strict=True)
        )
        return batch_of(numbers, **place)

    spool = Spool(tmp_path / "spool", "numbers")
    spool.open()
    spool.announce(Order(("file:/a", "file:/b")))
    options: dict[str, Any] = {"by_file": True, "drop": parts.PLACE}
    told = written(spool, 0, block("file:/b", 0, range(4, 6)), block("file:/a", 0, range(2)), **options)
    stop = threading.Event()
    rows = rows_of(spool, 0, stop)
    first = next(rows)
    assert (first.batch.to_pydict(), first.file) == ({"n": [0, 1]}, ("file:/a", 0))
    told += written(spool, 0, block("file:/a", 10, range(2, 4)), **options)
    second = next(rows)
    assert (second.first, second.batch.to_pydict(), second.file) == (2, {"n": [2, 3]}, ("file:/a", 0))
    third = next(rows)
    assert (third.first, third.batch.to_pydict(), third.file) == (4, {"n": [4, 5]}, ("file:/b", 4))
    spool.complete(0, [told[1], told[2], told[0]])
    spool.end()
    assert list(rows) == []


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3)
    (part,) = Path(spool.batch(0)).iterdir()
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(SourceError, match=rf"{part.name} cannot be read"):
        numbers_of(spool)
    (tmp_path / "_end.json").write_text("{")
    part.unlink()
    with pytest.raises(SourceError, match=r"cannot be read"):
        numbers_of(spool)


class TestSource:
    """A source that reads what others put into a spool needs neither Spark nor Java."""

    def source(self, folder: Path) -> SparkSource:
        return SparkSource(SparkSource.Options(spool=str(folder)), EdgeContext("numbers", int))

    def test_a_source_waits_for_batches_and_resumes_behind_acknowledged_ones(self, tmp_path: Path) -> None:
        spool = filled(tmp_path, 2, 2)

        async def run() -> None:
            reader = await self.source(tmp_path).open("")
            found: list[Any] = []
            positions: list[Any] = []
            for _ in range(2):
                batch = await reader.read(10)
                assert batch is not None
                found += batch.values
                positions += batch.positions
            waiting = asyncio.ensure_future(reader.read(10))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert spool.complete(2, written(spool, 2, batch_of(range(4, 5))))
            batch = await waiting
            assert batch is not None
            found += batch.values
            assert found == [0, 1, 2, 3, 4]
            await reader.acknowledge(positions[3])
            await reader.aclose()
            assert not any((tmp_path / f"batch-{1:020d}").glob("*"))
            again = await self.source(tmp_path).open("", positions[3])
            batch = await again.read(10)
            assert batch is not None
            assert list(batch.values) == [4]
            await again.aclose()
            with pytest.raises(SourceError, match=r"have been taken away"):
                await self.source(tmp_path).open("", positions[1])

        asyncio.run(run())
        assert self.source(tmp_path).capabilities.replayable
        assert not self.source(tmp_path).capabilities.bounded

    def test_impossible_options_are_refused(self) -> None:
        def made(**options: Any) -> SparkSource:
            return SparkSource(SparkSource.Options(**options), EdgeContext("numbers", int))

        with pytest.raises(ConfigError, match=r"a query is no stream"):
            made(sql="select 1", stream=True, spool="x")
        with pytest.raises(ConfigError, match=r"a stream needs a place"):
            made(path="x", stream=True)
        with pytest.raises(ConfigError, match=r"cannot be ordered by columns"):
            made(path="x", stream=True, order_by=("n",), spool="x")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"n": ["3"]}, "batch 1: column 'n' is of type string, and was of type int64 before"),
        ({"n": pa.array([3], pa.int32())}, "batch 1: column 'n' is of type int32, and was of type int64 before"),
        ({"m": [3]}, "batch 1: column 'n', which was of type int64 before, is missing"),
        ({"n": [3], "m": [[1]]}, "batch 1: column 'm', of type list<int64>, is new"),
    ],
)
def test_a_batch_with_other_columns_is_refused_by_who_reads_it(
    second: dict[str, Any], words: str, tmp_path: Path
) -> None:
    spool = filled(tmp_path, 2)
    assert spool.complete(1, written(spool, 1, pa.RecordBatch.from_pydict(second)))
    spool.end()

    async def run() -> None:
        source = SparkSource(SparkSource.Options(spool=str(tmp_path)), EdgeContext("numbers", dict))
        reader = await source.open("")
        try:
            first = await reader.read(10)
            assert first is not None
            assert first.values == [{"n": 0}, {"n": 1}]
            await reader.read(10)
        finally:
            await reader.aclose()

    with pytest.raises(SourceError, match=words):
        asyncio.run(run())


def test_batches_may_differ_in_where_nulls_are_allowed_and_in_the_order_of_columns(tmp_path: Path) -> None:
    def of(nullable: bool, numbers: list[int]) -> Any:
        kind = pa.list_(pa.field("element", pa.int64(), nullable=nullable))
        fields = [pa.field("n", pa.int64(), nullable=nullable), pa.field("l", kind, nullable=nullable)]
        columns = [pa.array(numbers), pa.array([[n] for n in numbers], kind)]
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        return batch if nullable else batch.select(["l", "n"])

    spool = Spool(tmp_path, "numbers")
    spool.open()
    assert spool.complete(0, written(spool, 0, of(False, [0])))
    assert spool.complete(1, written(spool, 1, of(True, [1])))
    spool.end()

    async def run() -> list[Any]:
        reader = await SparkSource(SparkSource.Options(spool=str(tmp_path)), EdgeContext("numbers", dict)).open("")
        found: list[Any] = []
        while (batch := await reader.read(10)) is not None:
            found += batch.values
        await reader.aclose()
        return found

    assert asyncio.run(run()) == [{"n": 0, "l": [0]}, {"n": 1, "l": [1]}]


def test_all_batches_are_expected_to_have_the_columns_of_the_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "numbers")
    spool.open()
    spool.expect(0, {"n": "int", "s": "string"})
    spool.expect(1, {"s": "string", "n": "int"})
    with pytest.raises(SourceError, match=r"batch 2: column 'n' is of type bigint, and was of type int before"):
        Spool(tmp_path, "numbers").expect(2, {"n": "bigint", "s": "string"})
    spool.clear()
    spool.expect(0, {"n": "bigint"})


def test_nobody_else_can_read_a_spool(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spool = filled(tmp_path / "deep" / "spool", 3, 2)
        spool.announce(Order())
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in Path(spool.place.url).rglob("*")}
    assert len(found) == 7, "two folders, with one part each, what they consist of, and the order"
    assert Path(spool.place.url).stat().st_mode & 0o777 == 0o700
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
