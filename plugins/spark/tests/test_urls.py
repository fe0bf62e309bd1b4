"""Programs whose outputs and streams lie in an object store: `scratch`, `checkpoint` and the data source at URLs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException

import flamecore as fc
import flamestream_spark
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError, SourceError
from flamestream_spark.sink import SparkSink
from flamestream_spark.storage.objects import ObjectPlace
from flamestream_spark.storage.place import Place
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.claims import CLAIMS
from flamestream_spark.tables.outputs import output_of

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
NOTHING = {"run": "", "time": 0}


class Count(NamedTuple):
    word: str
    number: int


def made(pair: tuple[str, int]) -> Count:
    return Count(*pair)


def counting() -> fc.Flow:
    flow = fc.Flow("counting")
    counts = flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count()
    counts.map(made).sink("counts")
    return flow


@pytest.fixture
def far(data_source: None, spark: Any, s3: str, s3_environment: None) -> Iterator[str]:
    """Yield a URL of its own, which tasks of Spark reach, too."""
    told = {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    from flamestream_spark.datasource import FlamestreamDataSource

    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(told)
    try:
        spark.dataSource.register(FlamestreamDataSource)  # anew, for its environment
    except AnalysisException:
        environment.clear()
        environment.update(before)
        pytest.skip("Spark before 4.2 keeps a data source that it has found, with the environment of that time")
    try:
        yield f"s3a://bucket/{token_hex(6)}"
    finally:
        environment.clear()
        environment.update(before)
        flamestream_spark.register(spark)


@pytest.fixture
def hadoop(spark: Any, tmp_path: Path) -> Iterator[None]:
    """Give Spark a file system for `s3a`, whose bucket is a folder."""
    (tmp_path / "bucket").mkdir()
    told = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.s3a.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.viewfs.mounttable.bucket.linkFallback": f"file://{tmp_path}/bucket",
        "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    }
    for name, value in told.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in told:
            spark.conf.unset(name)


def ordered(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row)[:2] for row in frame.orderBy(*flamestream_spark.TIMES).collect()]


WANTED = [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3)]


@pytest.mark.parametrize("on_spark", [False, True])
@pytest.mark.parametrize("store", ["far", "hdfs"])
def test_outputs_are_at_a_url(
    on_spark: bool, store: str, spark: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    far = f"{request.getfixturevalue(store)}/{token_hex(6)}"
    (tmp_path / "lines.txt").write_text("a b\na c\na\n")
    lines = spark.read.text(str(tmp_path / "lines.txt"))
    found = flamestream_spark.run(counting(), lines=lines, workers=1, scratch=f"{far}/scratch", on_spark=on_spark)
    assert ordered(found) == WANTED
    names = place_of(f"{far}/scratch", "scratch").names(below=True)
    assert names
    assert not any(".spool" in name for name in names)


def test_no_output_is_a_frame_without_rows(spark: Any, far: str) -> None:
    lines = spark.createDataFrame([], "line string")
    found = flamestream_spark.run(counting(), lines=lines, workers=1, scratch=far, order_by="line")
    assert found.columns == ["word", "number", *flamestream_spark.TIMES]
    assert ordered(found) == []


def stream_in_two_runs(spark: Any, checkpoint: str, folder: Path) -> set[str]:
    """Return the folders that are in the checkpoint of a stream after two runs, with a file each."""
    (folder / "in").mkdir()
    for number, text in enumerate(["a b\na c\n", "a\n"]):
        (folder / "in" / f"{number}.txt").write_text(text)
        lines = spark.readStream.text(str(folder / "in"))
        with flamestream_spark.stream(counting(), lines=lines, workers=1, checkpoint=checkpoint) as running:
            running.processAllAvailable()
    found = spark.read.format("flamestream").load(f"{checkpoint}/output/counts")
    assert ordered(found) == WANTED
    return {name.split("/")[0] for name in place_of(checkpoint, "checkpoint").names(below=True)}


def test_a_stream_goes_on_in_an_object_store(spark: Any, hadoop: None, far: str, tmp_path: Path) -> None:
    assert stream_in_two_runs(spark, f"{far}/job", tmp_path) == {"_flow.json", "output", "spool", "state"}
    assert list((tmp_path / "bucket").rglob("query/lines/commits/1"))


@pytest.mark.usefixtures("data_source")
def test_a_stream_goes_on_in_hdfs(spark: Any, hdfs: str, tmp_path: Path) -> None:
    assert stream_in_two_runs(spark, f"{hdfs}/{token_hex(6)}", tmp_path) == {
        "_flow.json",
        "output",
        "spool",
        "state",
        "query",
    }


@pytest.mark.usefixtures("data_source")
def test_a_delta_table_in_hdfs_is_written_and_read(spark: Any, hdfs: str) -> None:
    pytest.importorskip("deltalake")
    url = f"{hdfs}/{token_hex(6)}/table"
    settings = {"sink.counts.use": "spark", "sink.counts.path": url, "sink.counts.format": "delta"}
    for number in (1, 2):
        counting().run({"lines": ["a b", "a"]}, settings=settings | {"sink.counts.mode": "append"})
        assert spark.read.format("flamestream").load(url).count() == 3 * number


def test_the_data_source_follows_outputs_in_an_object_store(spark: Any, far: str, tmp_path: Path) -> None:
    url, seen = f"{far}/out", tmp_path / "seen"

    def write(*values: str) -> None:
        async def main() -> None:
            sink = SparkSink(SparkSink.Options(path=url, mode="append"), EdgeContext("words", str, None, "f"))
            time = await sink.open()
            for number, value in enumerate(values):
                await sink.write(time + number, [value])
            await sink.sync(time + len(values))
            await sink.aclose()

        asyncio.run(main())

    def follow() -> list[str]:
        frame = spark.readStream.format("flamestream").load(url)
        query = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "query"))
        query = query.trigger(availableNow=True).start(str(seen))
        query.awaitTermination()
        return sorted(row.value for row in spark.read.parquet(str(seen)).collect())

    write("a", "b")
    assert follow() == ["a", "b"]
    write("c")
    assert follow() == ["a", "b", "c"]
    assert sorted(row.value for row in spark.read.format("flamestream").load(url).collect()) == ["a", "b", "c"]


def test_a_delta_table_in_an_object_store_is_read(spark: Any, far: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deltalake")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    url = f"{far.replace('s3a', 's3')}/table"
    sink = SparkSink(SparkSink.Options(path=url, format="delta"), EdgeContext("words", str, None, "f"))

    async def main() -> None:
        await sink.open()
        await sink.write(1, ["a"])
        await sink.sync(2)
        await sink.write(3, ["b"])
        await sink.sync(4)
        await sink.aclose()

    asyncio.run(main())
    output = output_of(place_of(url, "path"))
    end = output.latest(NOTHING, None)
    assert output.between({"run": end["run"], "time": 0}, end) == output.files()
    assert len(output.files()) == 2
    assert sorted(row.value for row in spark.read.format("flamestream").load(url).collect()) == ["a", "b"]


# -- which files count -------------------------------------------------------------------------------------------------


def open_sink(url: str) -> SparkSink:
    sink = SparkSink(SparkSink.Options(path=url, mode="resume"), EdgeContext("words", str, None, "f"))
    asyncio.run(sink.open())
    return sink


def offsets(url: str, start: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the newest offset, and the number of files up to it."""
    output = output_of(place_of(url, "path"))
    end = output.latest(start, None)
    return end, 0 if end == start else len(output.between(start, end))


def test_a_batch_that_comes_to_nothing_is_passed_over(s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://bucket/{token_hex(6)}"
    assert offsets(url, NOTHING) == (NOTHING, 0)
    former = open_sink(url)
    assert offsets(url, NOTHING) == (NOTHING, 0)
    asyncio.run(former.write(5, ["a"]))
    first, files = offsets(url, NOTHING)
    assert files == 1

    def no(self: ObjectPlace, name: str, data: bytes) -> bool:
        raise OSError(name)

    create = ObjectPlace.create
    with monkeypatch.context() as patched:
        patched.setattr(ObjectPlace, "create", lambda *it: (no if it[1].startswith("part-") else create)(*it))
        with pytest.raises(SinkError):  # it dies between its claim and its file, of a time far ahead
            asyncio.run(former.write(99, ["late"]))
    assert offsets(url, NOTHING) == (first, 1)
    later = open_sink(url)
    assert offsets(url, NOTHING) == (first, 1), "there is a file of no rows now"
    asyncio.run(later.write(7, ["b"]))
    second, _ = offsets(url, first)
    where = place_of(url, "path")
    paths = output_of(where).between(first, second)
    assert [value for path in paths for value in rows(where, path)] == ["b"]
    assert offsets(url, second) == (second, 0)


def rows(where: Place, path: str) -> list[str]:
    with where.open(path.rpartition("/")[2]) as opened:
        found: list[str] = pq.read_table(opened).column(0).to_pylist()
        return found


def test_a_file_whose_fate_is_open_is_not_read(s3_environment: None) -> None:
    url = f"s3://bucket/{token_hex(6)}"
    where = place_of(url, "path")
    sink = open_sink(url)
    asyncio.run(sink.write(5, ["a"]))
    first, files = offsets(url, NOTHING)
    assert files == 1
    last = max(where.names(CLAIMS))
    opens = f"{CLAIMS}/{int(Path(last).stem) + 1:020d}.json"
    data = where.read(last) or b""
    assert b'"opens":false' in data
    where.create(opens, data.replace(b'"opens":false', b'"opens":true'))
    assert offsets(url, NOTHING) == (NOTHING, 0)
    where.remove([opens])
    assert offsets(url, NOTHING) == (first, 1)


@pytest.mark.parametrize("damage", [b"{", b'{"owner":"\xff"}'], ids=["short", "text"])
def test_a_damaged_claim_is_an_error_of_the_reader(s3_environment: None, damage: bytes) -> None:
    url = f"s3://bucket/{token_hex(6)}"
    open_sink(url)
    where = place_of(url, "path")
    where.replace(max(where.names(CLAIMS)), damage)
    with pytest.raises(SourceError, match="is not as it was written"):
        output_of(where).files()
