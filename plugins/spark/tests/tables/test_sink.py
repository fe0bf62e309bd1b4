"""The sink, held against the laws of its contract, and what a reader finds."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flamecore as fc
from flamecore.abc.sink import Mode, Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamecore.testing.checks.edges import SinkTests
from flamestream_spark.sink import SparkSink
from flamestream_spark.tables.folder import MANIFEST


class Count(NamedTuple):
    word: str
    number: int


def make(folder: Path, mode: Mode = "replace", fingerprint: str = "kit", **options: Any) -> SparkSink:
    chosen = SparkSink.Options(path=str(folder), mode=mode, **options)
    return SparkSink(chosen, EdgeContext("counts", str, None, fingerprint))


def read(folder: Path) -> list[dict[str, Any]]:
    if (folder / "_delta_log").is_dir():
        return read_delta(folder)
    files = sorted(folder.glob("part-*"), key=lambda file: file.stem.rpartition("-")[2])
    found: list[dict[str, Any]] = []
    for file in files:
        if file.suffix == ".parquet":
            found += pq.ParquetFile(file).read().to_pylist()
        elif file.suffix == ".json":
            found += map(json.loads, file.read_text("utf-8").splitlines())
        else:
            with file.open(encoding="utf-8", newline="") as lines:
                found += csv.DictReader(lines)
    return found


def read_delta(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, in the order in which they were committed."""
    from deltalake import DeltaTable

    files = {file["path"]: file for file in pa.table(DeltaTable(folder).get_add_actions(flatten=True)).to_pylist()}
    entries = sorted((folder / "_delta_log").glob("*.json"))
    added = [json.loads(line).get("add") for entry in entries for line in entry.read_text().splitlines()]
    live = [add["path"] for add in added if add is not None and add["path"] in files]
    assert len(set(live)) == len(live) == len(files)
    return [row for path in live for row in pq.ParquetFile(folder / path).read().to_pylist()]


class FolderTests(SinkTests):
    kind: Literal["parquet", "json", "csv", "delta"]

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        return make(folder / "out", "resume" if resume else "replace", fingerprint, format=self.kind)

    def read_back(self, folder: Path) -> Sequence[Any]:
        return [row["value"] for row in read(folder / "out")]


class TestParquet(FolderTests):
    kind = "parquet"


class TestJson(FolderTests):
    kind = "json"


class TestCsv(FolderTests):
    kind = "csv"


class TestDelta(FolderTests):
    kind = "delta"


both = pytest.mark.parametrize("kind", ["parquet", "delta"])


async def deliver(sink: Sink, *batches: tuple[int, list[str]]) -> int:
    held = await sink.open()
    for time, payloads in batches:
        await sink.write(time, payloads)
    await sink.aclose()
    return held


@both
def test_batches_are_added_to_what_is_there(kind: str, tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out", format=kind), (5, ["a"])))
    asyncio.run(deliver(make(tmp_path / "out", "append", "another", format=kind), (3, ["b"]), (9, ["c"])))
    assert sorted(row["value"] for row in read(tmp_path / "out")) == ["a", "b", "c"]
    assert asyncio.run(deliver(make(tmp_path / "out", "resume", "another", format=kind))) == 9


def test_a_folder_of_others_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00000-1b2c.snappy.parquet").write_text("theirs")
    with pytest.raises(SinkError, match=r"files that no such sink has written: part-00000-1b2c.snappy.parquet"):
        asyncio.run(make(tmp_path / "out").open())
    asyncio.run(deliver(make(tmp_path / "out", "append"), (1, ["mine"])))
    assert (tmp_path / "out" / "part-00000-1b2c.snappy.parquet").read_text() == "theirs"


def test_files_of_a_run_that_was_to_be_replaced_do_not_count(tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out"), (5, ["a"])))
    (old,) = (tmp_path / "out").glob("part-*")
    left = old.with_name(old.name.replace(old.name[5:13], "00000000"))  # as if the end had come amid the removal
    old.rename(left)
    (tmp_path / "out" / ".part-half").write_text("half")
    assert asyncio.run(deliver(make(tmp_path / "out", "resume"), (7, ["b"]))) < 5
    assert [row["value"] for row in read(tmp_path / "out")] == ["b"]
    assert not list((tmp_path / "out").glob(".part-*"))


@pytest.mark.parametrize("damage", [b"{", b'{"owner":"\xff"}'], ids=["short", "text"])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, damage: bytes) -> None:
    asyncio.run(deliver(make(tmp_path / "out"), (5, ["a"])))
    (tmp_path / "out" / MANIFEST).write_bytes(damage)
    with pytest.raises(SinkError, match=r"is not as it was written"):
        asyncio.run(make(tmp_path / "out").open())


@pytest.mark.parametrize("path", ["webhdfs://x/out", "sftp://x/out", "simplecache::s3://bucket/out", "dbfs:/out"])
def test_a_place_where_batches_cannot_be_written_once_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="only if there is none") as caught:
        SparkSink(SparkSink.Options(path=path), EdgeContext("counts", str))
    assert "s3://" in caught.value.hint


def test_a_folder_may_be_given_as_a_url(tmp_path: Path) -> None:
    asyncio.run(deliver(make(f"file://{tmp_path}/out"), (1, ["a"])))  # type: ignore[arg-type]
    assert [row["value"] for row in read(tmp_path / "out")] == ["a"]


def test_a_folder_that_cannot_be_made_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"there is no folder"):
        make(tmp_path / "no" / "out").rehearse()
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"is a file"):
        make(tmp_path / "file").rehearse()


def split(line: str) -> list[str]:
    return line.split()


@both
@pytest.mark.parametrize("workers", [1, 3])
def test_rows_say_their_global_time(workers: int, kind: str, tmp_path: Path) -> None:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(split).sink("words")
    settings = {"sink.words.use": "spark", "sink.words.path": str(tmp_path / "out"), "sink.words.times": True}
    settings["sink.words.format"] = kind
    flow.run({"lines": ["to be", "or not"]}, workers=workers, settings=settings)
    found = [(row["value"], row["_time"], row["_front"], row["_place"]) for row in read(tmp_path / "out")]
    assert found == [("to", 0, 1, 0), ("be", 0, 1, 1), ("or", 1, 1, 0), ("not", 1, 1, 1)]


@both
def test_a_flow_goes_on_with_its_output(kind: str, tmp_path: Path) -> None:
    flow = fc.Flow("words")
    flow.source("lines", str).sink("words")
    settings = {"sink.words.use": "spark", "sink.words.path": str(tmp_path / "out"), "sink.words.format": kind}
    lines = [f"line {number}" for number in range(50)]
    for _ in range(2):
        flow.run({"lines": lines}, state=tmp_path / "state.db", settings=settings)
    assert [row["value"] for row in read(tmp_path / "out")] == lines
