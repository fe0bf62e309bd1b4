"""Delta tables in an object store: a server that speaks S3."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

import flamecore as fc
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamestream_spark.sink import SparkSink


class Count(NamedTuple):
    word: str
    number: int


def made(pair: tuple[str, int]) -> Count:
    return Count(*pair)


@pytest.fixture
def options(s3: str) -> dict[str, str]:
    """Return the options of the server for delta-rs."""
    return {
        "aws_endpoint_url": s3,
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hush",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


def make(url: str, options: dict[str, str], fingerprint: str = "f", mode: Any = "resume") -> SparkSink:
    chosen = SparkSink.Options(path=url, format="delta", mode=mode, storage_options=options)
    return SparkSink(chosen, EdgeContext("counts", str, None, fingerprint))


class Posting(NamedTuple):
    letter: str | None
    page: int


ODD = ["a", "é", ":", "%", "a b", "=/x", "..", "#?", None]


def test_rows_are_in_the_folders_of_their_values(options: dict[str, str]) -> None:
    url = "s3://bucket/delta/cut"
    payloads = [Posting(letter, page) for page, letter in enumerate(ODD)]

    def cut(mode: Any) -> SparkSink:
        chosen = SparkSink.Options(
            path=url, format="delta", mode=mode, storage_options=options, partition_by=("letter",)
        )
        return SparkSink(chosen, EdgeContext("index", Posting, None, "f"))

    async def body() -> None:
        first = cut("replace")
        await first.open()
        await first.write(1, payloads[:4])
        await first.sync(1)
        later = cut("resume")
        assert await later.open() == 1
        await later.write(2, payloads[4:])

    asyncio.run(body())
    found = pa.table(table(url, options).to_pyarrow_dataset().to_table()).to_pylist()
    assert sorted((row["page"], row["letter"]) for row in found) == [(one.page, one.letter) for one in payloads]


def test_a_row_takes_the_place_of_that_of_its_key(options: dict[str, str]) -> None:
    url = "s3://bucket/delta/keyed"

    async def body() -> None:
        chosen = SparkSink.Options(
            path=url, format="delta", storage_options=options, key=("letter",), partition_by=("letter",)
        )
        sink = SparkSink(chosen, EdgeContext("index", Posting, None, "f"))
        await sink.open()
        await sink.write(1, [Posting("a", 1), Posting("b", 1), Posting("a", 2)])
        await sink.write(2, [Posting("b", 3), Posting("c", 3)])
        await sink.sync(2)

    asyncio.run(body())
    found = pa.table(table(url, options).to_pyarrow_dataset().to_table()).to_pylist()
    assert sorted((row["letter"], row["page"]) for row in found) == [("a", 2), ("b", 3), ("c", 3)]


def table(url: str, options: dict[str, str]) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(url, storage_options=options)


def values(url: str, options: dict[str, str]) -> list[Any]:
    rows = pa.table(table(url, options).to_pyarrow_dataset().to_table()).to_pylist()
    return sorted(row["value"] for row in rows)


def test_a_job_writes_replaces_and_adds_to_a_table(options: dict[str, str]) -> None:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().map(made).sink("counts")
    settings: dict[str, Any] = {
        "sink.counts.use": "spark",
        "sink.counts.path": "s3://bucket/delta/tables/a job",
        "sink.counts.format": "delta",
        "sink.counts.storage_options": options,
    }

    def rows() -> list[tuple[str, int]]:
        found = pa.table(table("s3://bucket/delta/tables/a job", options).to_pyarrow_dataset().to_table()).to_pylist()
        return sorted((row["word"], row["number"]) for row in found)

    flow.run({"lines": ["to be", "be"]}, settings=settings)
    assert rows() == [("be", 1), ("be", 2), ("to", 1)]
    flow.run({"lines": ["or"]}, settings={**settings, "sink.counts.mode": "append"})
    assert rows() == [("be", 1), ("be", 2), ("or", 1), ("to", 1)]
    flow.run({"lines": ["not"]}, settings=settings)
    assert rows() == [("not", 1)]


def test_a_run_goes_on_and_the_former_one_writes_no_more(options: dict[str, str]) -> None:
    url = "s3://bucket/delta/resumed"

    async def body() -> None:
        former = make(url, options)
        await former.open()
        await former.write(1, ["a"])
        await former.write(5, ["b"])
        await former.sync(5)
        later = make(url, options)
        assert await later.open() == 5
        await later.write(7, ["c"])
        with pytest.raises(SinkError, match="another"):
            await former.write(9, ["lost"])
        again = make(url, options)
        assert await again.open() == 7

    asyncio.run(body())
    assert values(url, options) == ["a", "b", "c"]


def test_others_add_to_the_table_between_batches(options: dict[str, str]) -> None:
    from deltalake import write_deltalake

    url = "s3://bucket/delta/shared"

    async def body() -> None:
        sink = make(url, options)
        await sink.open()
        for number in range(3):
            others = pa.table({"value": [f"other {number}"]}, sink._form.schema)
            write_deltalake(url, others, mode="append", storage_options=options)
            await sink.write(number, [f"mine {number}"])
        assert await make(url, options).open() == 2

    asyncio.run(body())
    assert values(url, options) == [f"{whose} {number}" for whose in ("mine", "other") for number in range(3)]


def test_files_of_no_version_go_when_the_table_is_opened(options: dict[str, str]) -> None:
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import FileSelector, PyFileSystem

    url = "s3://bucket/delta/left"
    files = PyFileSystem(DeltaStorageHandler(url, options))

    def names() -> list[str]:
        return sorted(one.base_name for one in files.get_file_info(FileSelector("")) if one.is_file)

    async def body() -> None:
        sink = make(url, options)
        await sink.open()
        await sink.write(3, ["a"])
        (kept,) = names()
        run = json.loads(table(url, options).metadata().configuration["flamestream"])["run"]
        assert kept.startswith(f"part-{run}-")
        left = kept.replace(f"{3:020d}", f"{4:020d}")
        other = left.replace(run, "0" * 8)
        for name in (left, other):
            with files.open_output_stream(name, buffer_size=100) as stream:
                stream.write(b"half")
        assert await make(url, options).open() == 3
        assert names() == sorted([kept, other])

    asyncio.run(body())


def test_files_of_others_and_places_that_are_not_there_are_refused(options: dict[str, str]) -> None:
    notes = f"{options['aws_endpoint_url']}/bucket/delta/strange/notes.txt"
    urlopen(Request(notes, method="PUT", data=b"x"))
    with pytest.raises(SinkError, match=r"s3://bucket/delta/strange is no Delta table, and holds files: notes.txt"):
        asyncio.run(make("s3://bucket/delta/strange", options).open())
    with pytest.raises(SinkError, match=r"s3://nowhere/table"):
        asyncio.run(make("s3://nowhere/table", options).open())


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"path": "ftp://host/x", "format": "delta"}, "s3, s3a, gs"),
        ({"path": "hdfs://host:8020/a table", "format": "delta"}, "a path of ASCII letters"),
        ({"path": "s3://bucket/delta/x", "format": "delta", "table": "db.x"}, "CREATE TABLE db.x USING delta"),
    ],
)
def test_a_place_that_no_table_can_be_in_is_refused_at_once(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SparkSink(SparkSink.Options(**chosen), EdgeContext("counts", str, None, "f"))
    assert words in caught.value.hint


def test_secrets_are_not_shown() -> None:
    shown = repr(SparkSink.Options(path="s3://b/t", format="delta", storage_options={"aws_secret_access_key": "hush"}))
    assert "hush" not in shown
    assert "aws_secret_access_key" in shown


def test_why_a_server_is_not_used_is_said_in_one_line(options: dict[str, str]) -> None:
    with pytest.raises(SinkError) as caught:
        asyncio.run(make("s3://nothing/there", options).open())
    assert str(caught.value).startswith(
        "sink 'counts': s3://nothing/there cannot be opened: Generic S3 error: The specified bucket does not exist\n"
    )
    del options["allow_http"]
    with pytest.raises(SinkError, match=r'opened: Generic S3 error: http:// is used only if .* allow_http = "true"'):
        asyncio.run(make("s3://bucket/there", options).open())
