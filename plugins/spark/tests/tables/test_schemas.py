"""Columns of outputs that go on: they are those of the output's own manifest, or are refused."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from flamecore.abc.sink import Mode
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamestream_spark.sink import SparkSink
from flamestream_spark.storage.folder import FolderPlace
from flamestream_spark.tables.claims import ClaimedFolder
from flamestream_spark.tables.outputs import has_grown, output_of, read_output
from flamestream_spark.tables.schemas import Schema, columns_of

KINDS = ["parquet", "json", "csv", "delta"]
Kind = Literal["parquet", "json", "csv", "delta"]


class Row(NamedTuple):
    id: int
    n: int


class Renamed(NamedTuple):
    id: int
    number: int


class Retyped(NamedTuple):
    id: int
    n: str


class Fewer(NamedTuple):
    id: int


class Moved(NamedTuple):
    n: int
    id: int


class More(NamedTuple):
    id: int
    note: str | None
    n: int


def make(folder: Path, row: type, mode: Mode, kind: Kind, schema: Schema = "keep", **options: Any) -> SparkSink:
    chosen = SparkSink.Options(path=str(folder), format=kind, mode=mode, schema=schema, **options)
    return SparkSink(chosen, EdgeContext("out", row, None, "f"))


async def deliver(sink: SparkSink, time: int, rows: Sequence[Any]) -> None:
    await sink.open()
    if rows:
        await sink.write(time, rows)
    await sink.aclose()


def read(folder: Path, kind: Kind) -> list[dict[str, Any]]:
    if kind == "delta":
        found = pa.table(DeltaTable(folder).to_pyarrow_dataset().to_table()).to_pylist()
    elif kind == "json":
        lines = (line for file in folder.glob("part-*") for line in file.read_text().splitlines())
        found = [{"note": None} | json.loads(line) for line in lines]
    else:
        files = sorted(map(str, folder.glob("part-*")))
        schema = pa.unify_schemas([ds.dataset(file, format=kind).schema for file in files])
        found = ds.dataset(files, schema, format=kind).to_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["append", "resume"])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Renamed(2, 2), "'number' is not there"),
        (Retyped(2, "x"), "'n' is "),
        (Fewer(2), "'n' is .* and not in the output"),
        (More(2, "x", 2), "'note' is not there"),
        (Moved(2, 2), "id, n, in this order"),
    ],
    ids=["renamed", "retyped", "fewer", "more", "moved"],
)
def test_other_columns_are_refused_and_change_nothing(
    kind: Kind, mode: Mode, row: Any, words: str, tmp_path: Path
) -> None:
    asyncio.run(deliver(make(tmp_path / "out", Row, "replace", kind), 1, [Row(1, 1)]))
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(SinkError, match=rf"has other columns than the output: .*{words}"):
        asyncio.run(deliver(make(tmp_path / "out", type(row), mode, kind), 2, [row]))
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    asyncio.run(deliver(make(tmp_path / "out", Row, mode, kind), 2, [Row(2, 2)]))
    assert [found["n"] for found in read(tmp_path / "out", kind)] == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_output_that_is_replaced_or_empty_may_get_other_columns(kind: Kind, tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out", Row, "replace", kind), 1, [Row(1, 1)]))
    asyncio.run(deliver(make(tmp_path / "out", Renamed, "replace", kind), 1, []))
    if kind != "delta":  # a table has its columns before it has rows
        asyncio.run(deliver(make(tmp_path / "out", Retyped, "append", kind), 1, [Retyped(1, "x")]))
        assert [found["n"] for found in read(tmp_path / "out", kind)] == ["x"]


@pytest.mark.parametrize("kind", ["parquet", "json", "delta"])
@pytest.mark.parametrize("mode", ["append", "resume"])
def test_columns_are_added_where_the_options_say_so(kind: Kind, mode: Mode, tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out", Row, "replace", kind), 1, [Row(1, 1)]))
    asyncio.run(deliver(make(tmp_path / "out", More, mode, kind, "add"), 2, [More(2, "x", 2)]))
    asyncio.run(deliver(make(tmp_path / "out", More, mode, kind, "add"), 3, [More(3, None, 3)]))
    expected = [{"id": 1, "n": 1, "note": None}, {"id": 2, "n": 2, "note": "x"}, {"id": 3, "n": 3, "note": None}]
    assert read(tmp_path / "out", kind) == expected
    for other, words in ((Row, "'note' is .*and not in the output"), (Retyped, "'n' is ")):
        with pytest.raises(SinkError, match=words):
            asyncio.run(deliver(make(tmp_path / "out", other, mode, kind, "add"), 4, []))
    if kind != "delta":
        assert has_grown(FolderPlace(tmp_path / "out"))


def test_no_columns_are_added_where_only_their_places_count(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink\.out\.schema: files of format 'csv'"):
        make(tmp_path / "out", Row, "append", "csv", "add")


def claimed(folder: Path, row: type, schema: Schema = "keep") -> ClaimedFolder:
    context = EdgeContext("out", row, None, "f")
    columns = dict.fromkeys(row.__annotations__, "int64")
    return ClaimedFolder(FolderPlace(folder), context, "append", "json", b"", (), columns, schema)


def write(table: Any, path: Path) -> None:
    path.write_text(str(table.to_pylist()))


def test_claims_say_which_columns_there_are(tmp_path: Path) -> None:
    def put(output: ClaimedFolder, time: int) -> None:
        output.open()
        output.put(time, pa.table({"n": [time]}), write)

    put(claimed(tmp_path, Row), 1)
    with pytest.raises(SinkError, match="'number' is not there"):
        claimed(tmp_path, Renamed).open()
    put(claimed(tmp_path, Row), 2)
    put(claimed(tmp_path, More, "add"), 3)
    with pytest.raises(SinkError, match="'note' is int64, and not in the output"):
        claimed(tmp_path, Row).open()
    assert columns_of(pa.schema({"a": pa.int64()})) == {"a": "int64"}


@pytest.mark.usefixtures("data_source")
def test_readers_find_null_in_rows_from_before_a_column_came(spark: Any, tmp_path: Path) -> None:
    """Spark's own reader of the output, the data source, and one that has begun before."""
    out = tmp_path / "out"
    asyncio.run(deliver(make(out, Row, "replace", "parquet"), 1, [Row(1, 1)]))
    stream = spark.readStream.format("flamestream").load(str(out))
    asyncio.run(deliver(make(out, More, "append", "parquet", "add"), 2, [More(2, "x", 2)]))
    expected = [(1, 1, None), (2, 2, "x")]
    assert output_of(FolderPlace(out)).schema().names == ["id", "note", "n"]
    for frame in (read_output(spark, str(out)), spark.read.format("flamestream").load(str(out))):
        assert [tuple(row) for row in frame.select("id", "n", "note").orderBy("id").collect()] == expected
    query = stream.writeStream.format("memory").queryName("grown").trigger(availableNow=True).start()
    query.awaitTermination()
    assert [tuple(row) for row in spark.table("grown").orderBy("id").collect()] == [(1, 1), (2, 2)]


class Timed(NamedTuple):
    at: datetime.datetime
    local: datetime.datetime


@pytest.mark.usefixtures("data_source")
def test_the_data_source_reads_times_with_and_without_a_zone(spark: Any, tmp_path: Path) -> None:
    noon = datetime.datetime(2024, 6, 1, 12)
    sink = make(tmp_path / "out", Timed, "replace", "parquet", types={"at": "timestamp", "local": "timestamp_ntz"})
    asyncio.run(deliver(sink, 1, [Timed(noon.replace(tzinfo=datetime.UTC), noon)]))
    found = spark.read.format("flamestream").load(str(tmp_path / "out"))
    assert found.dtypes == [("at", "timestamp"), ("local", "timestamp_ntz")]
    told = found.selectExpr("string(at)", "string(local)").collect()
    assert [tuple(row) for row in told] == [("2024-06-01 12:00:00",) * 2]
