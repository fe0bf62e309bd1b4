"""Outputs in an object store, batch for batch: a server that speaks S3, and writers who come late."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow.parquet as pq
import pytest

from flamecore.abc.sink import Mode, Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import MissingDependencyError, SinkError
from flamecore.testing.checks.edges import SinkTests
from flamestream_spark.sink import SparkSink
from flamestream_spark.storage.place import Place
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.claims import CLAIMS, Claim, ClaimedFolder

Kind = Literal["parquet", "json", "csv"]


class Posting(NamedTuple):
    letter: str | None
    page: int


def told(server: str) -> dict[str, Any]:
    return {"key": "key", "secret": "hush", "endpoint_url": server}


def place(url: str, server: str) -> Place:
    return place_of(url, "path", told(server))


def make(url: str, server: str, mode: Mode = "resume", fingerprint: str = "f", **options: Any) -> SparkSink:
    chosen = SparkSink.Options(path=url, mode=mode, storage_options=told(server), **options)
    type_ = Posting if options.get("partition_by") else str
    return SparkSink(chosen, EdgeContext("counts", type_, None, fingerprint))


def read(url: str, server: str) -> list[dict[str, Any]]:
    """Return the rows in the order of file names, as a reader finds them that leaves hidden folders out."""
    where = place(url, server)
    found: list[dict[str, Any]] = []
    for name in sorted(where.names(below=True), key=lambda name: name.rpartition("/")[2]):
        data = where.read(name) or b""
        if name.endswith(".parquet"):
            found += pq.ParquetFile(io.BytesIO(data)).read().to_pylist()
        elif name.endswith(".json"):
            found += map(json.loads, data.decode().splitlines())
        else:
            found += csv.DictReader(io.StringIO(data.decode(), newline=""))
    return found


class TestObjects(SinkTests):
    """The laws of a sink."""

    kind: Kind = "parquet"

    @pytest.fixture(autouse=True)
    def _server(self, s3: str) -> None:
        self.server = s3

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        mode: Mode = "resume" if resume else "replace"
        return make(f"s3a://bucket{folder}/out", self.server, mode, fingerprint, format=self.kind)

    def read_back(self, folder: Path) -> Sequence[Any]:
        return [row["value"] for row in read(f"s3a://bucket{folder}/out", self.server)]


LETTERS = ["a", "b", "c", None]


def batch(page: int) -> list[Posting]:
    return [Posting(letter, page) for letter in LETTERS]


class Stops(BaseException):
    """The process of a writer stands still, or ends."""


def stopped_after(sink: SparkSink, files: int) -> None:
    """Stop the writer in the midst of its next batch, after so many files."""
    created: list[str] = []
    where = sink._folder._place  # type: ignore[union-attr]
    create = where.create  # type: ignore[union-attr]

    def one(name: str, data: bytes) -> bool:
        if name.startswith(CLAIMS):
            return bool(create(name, data))
        if len(created) == files:
            sink.late = (create, name, data)  # type: ignore[attr-defined]
            raise Stops
        created.append(name)
        return bool(create(name, data))

    where.create = one  # type: ignore[method-assign,union-attr]


@pytest.mark.parametrize("files", [0, 1, 3])
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_a_batch_of_which_files_are_missing_comes_to_nothing(kind: Kind, files: int, s3: str) -> None:
    url = f"s3://bucket/torn/{kind}/{files}"

    async def body() -> None:
        torn = make(url, s3, format=kind, partition_by=("letter",))
        await torn.open()
        await torn.write(1, batch(1))
        stopped_after(torn, files)
        with pytest.raises(Stops):
            await torn.write(2, batch(2))
        for _ in range(2):  # what the first of them leaves undone, the next does
            later = make(url, s3, format=kind, partition_by=("letter",))
            assert await later.open() == 1
        create, name, data = torn.late  # type: ignore[attr-defined]
        assert not create(name, data)  # the former one wakes up, and finds the name taken
        await later.write(2, batch(2))
        await later.write(3, batch(3))

    asyncio.run(body())
    assert sorted(int(row["page"]) for row in read(url, s3)) == [page for page in (1, 2, 3) for _ in LETTERS]


def test_a_writer_that_is_late_takes_no_claim(s3: str) -> None:
    url = "s3://bucket/late"

    async def body() -> None:
        former = make(url, s3)
        await former.open()
        await former.write(1, ["a"])
        later = make(url, s3)
        assert await later.open() == 1
        for time in (5, 6):
            await later.write(time, [f"b{time}"])
        await later.sync(6)  # old claims are gone, and the former one finds its number free
        with pytest.raises(SinkError, match="another run"):
            await former.write(9, ["lost"])
        with pytest.raises(SinkError):
            await former.sync(9)
        assert await make(url, s3).open() == 6

    asyncio.run(body())
    assert [row["value"] for row in read(url, s3)] == ["a", "b5", "b6"]


def test_one_who_opens_and_dies_changes_nothing(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "s3://bucket/opens"
    create = ClaimedFolder._create

    def before_it_says_what_it_found(self: ClaimedFolder, number: int, claim: Claim) -> bool:
        if not claim.opens:
            raise Stops
        return create(self, number, claim)

    async def body() -> None:
        first = make(url, s3)
        await first.open()
        await first.write(4, ["a"])
        dies = make(url, s3)
        with monkeypatch.context() as patched:
            patched.setattr(ClaimedFolder, "_create", before_it_says_what_it_found)
            with pytest.raises(Stops):
                await dies.open()
        assert await make(url, s3).open() == 4

    asyncio.run(body())
    assert [row["value"] for row in read(url, s3)] == ["a"]


def test_output_is_replaced_and_added_to(s3: str) -> None:
    url = "s3://bucket/modes"

    async def deliver(mode: Mode, fingerprint: str, time: int, value: str) -> None:
        sink = make(url, s3, mode, fingerprint)
        await sink.open()
        await sink.write(time, [value])
        await sink.sync(time)

    asyncio.run(deliver("replace", "f", 7, "a"))
    asyncio.run(deliver("append", "g", 3, "b"))
    assert sorted(row["value"] for row in read(url, s3)) == ["a", "b"]
    with pytest.raises(SinkError, match="cannot be resumed"):
        asyncio.run(make(url, s3, "resume", "h").open())
    asyncio.run(deliver("replace", "h", 1, "c"))
    assert [row["value"] for row in read(url, s3)] == ["c"]
    assert len(place(url, s3).names(CLAIMS)) == 1


def test_files_of_others_are_not_touched(s3: str) -> None:
    url = "s3://bucket/strange"
    place(url, s3).create("part-00000-1b2c.snappy.parquet", b"theirs")
    with pytest.raises(SinkError, match=r"files that no such sink has written: part-00000-1b2c.snappy.parquet"):
        asyncio.run(make(url, s3).open())
    assert place(url, s3).names(CLAIMS) == []


def test_other_partitions_are_refused(s3: str) -> None:
    async def body() -> None:
        sink = make("s3://bucket/cut", s3, partition_by=("letter",))
        await sink.open()
        await sink.write(1, batch(1))
        other = make("s3://bucket/cut", s3, partition_by=("page",))
        with pytest.raises(SinkError, match="is partitioned by letter"):
            await other.open()
        await sink.write(2, batch(2))  # who was refused has taken nothing over

    asyncio.run(body())


@pytest.mark.parametrize("damage", [b"{", b'{"owner":"\xff"}'], ids=["short", "text"])
def test_a_damaged_claim_is_an_error(s3: str, damage: bytes) -> None:
    url = f"s3://bucket/damaged-{len(damage)}"
    asyncio.run(make(url, s3).open())
    (claim,) = place(url, s3).names(CLAIMS)
    place(url, s3).replace(claim, damage)
    with pytest.raises(SinkError, match="is not as it was written"):
        asyncio.run(make(url, s3).open())


def test_a_bucket_that_is_not_there_is_an_error(s3: str) -> None:
    with pytest.raises(SinkError, match="s3://nowhere/out"):
        asyncio.run(make("s3://nowhere/out", s3).open())


def test_a_client_that_is_not_installed_is_named() -> None:
    with pytest.raises(MissingDependencyError, match=r"gcsfs") as caught:
        SparkSink(SparkSink.Options(path="gs://bucket/x"), EdgeContext("counts", str))
    assert "pip install" in caught.value.hint
