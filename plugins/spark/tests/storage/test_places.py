"""Places for files: folders, object stores and HDFS do the same; and URLs that nobody here reaches are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import flamecore as fc
import flamestream_spark
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, MissingDependencyError, SourceError
from flamecore.toolkit.places import is_url
from flamestream_spark.source import SparkSource
from flamestream_spark.storage.place import Place, local_path
from flamestream_spark.storage.places import place_of


@pytest.fixture(params=["folder", "file://", "s3", "s3a", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "hdfs":
        return place_of(f"{request.getfixturevalue('hdfs')}{tmp_path}/place", "path")
    if not request.param.startswith("s3"):
        return place_of(f"{request.param if request.param == 'file://' else ''}{tmp_path}/place", "path")
    request.getfixturevalue("s3_environment")
    return place_of(f"{request.param}://bucket{tmp_path}/place", "path")


def four(path: Path) -> None:
    path.write_bytes(b"four")


def test_files_are_made_once_replaced_and_removed(place: Place) -> None:
    place.make()
    assert place.names(below=True) == []
    assert place.read("a") is None
    assert place.create("a", b"1")
    assert not place.create("a", b"2")
    assert place.read("a") == b"1"
    place.replace("a", b"3")
    assert place.read("a") == b"3"
    assert place.put("b", four) == 4
    place.force(["a", ""])
    place.remove(["a", "gone"])
    assert place.names() == ["b"]
    with place.open("b") as file:
        file.seek(1)
        assert file.read(2) == b"ou"


def test_files_are_found_by_their_folders(place: Place) -> None:
    place.make()
    for name in ("a", "x=1/b", "x=%3A/c", "_log/d", "_y=2/e", "_log/deep/f"):
        place.create(name, b"")
    assert place.names() == ["a"]
    assert sorted(place.names(below=True)) == ["_y=2/e", "a", "x=%3A/c", "x=1/b"]
    assert place.names("_log") == ["_log/d"]
    place.clear("_log")
    assert place.names("_log") == []
    place.clear()
    assert place.names(below=True) == []


def test_a_file_that_cannot_be_written_leaves_nothing_behind(place: Place) -> None:
    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise pa.ArrowInvalid("no")

    place.make()
    with pytest.raises(pa.ArrowInvalid):
        place.put("a", fails)
    assert place.names() == []


def test_errors_of_a_server_name_the_place(s3_environment: None) -> None:
    nowhere = place_of("s3://nowhere/x", "path")
    for call in (nowhere.make, lambda: nowhere.create("a", b""), lambda: nowhere.replace("a", b"")):
        with pytest.raises(OSError, match="s3://nowhere/x"):
            call()


@pytest.mark.parametrize("path", ["/a/b", "file:///a/b", "file:/a/b"])
def test_a_url_of_this_machine_is_a_path(path: str) -> None:
    assert not is_url(path)
    assert local_path(path) == Path("/a/b")


URLS = ["webhdfs://host/x", "ftp://host/x", "simplecache::s3://bucket/x", "memory://x", "dbfs:/x", "hdfs:/x", "s3a:/x"]


@pytest.mark.parametrize("url", URLS)
def test_a_place_where_nothing_is_made_once_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="only if there is none") as caught:
        place_of(url, "sink.x.path")
    assert caught.value.path == "sink.x.path"


def test_a_client_that_is_missing_is_named() -> None:
    with pytest.raises(MissingDependencyError, match="gcsfs"):
        place_of("gs://bucket/x", "path")


# -- what is read in place, and what Spark reads itself ----------------------------------------------------------------


def words() -> fc.Flow:
    flow = fc.Flow("words")
    flow.source("lines", str).sink("words")
    return flow


def test_a_spool_is_in_no_place_where_nothing_is_made_once() -> None:
    with pytest.raises(ConfigError, match="only if there is none") as caught:
        SparkSource(SparkSource.Options(path="in", spool="ftp://host/x"), EdgeContext("lines", str))
    assert caught.value.path == "source.lines.spool"


def test_a_stream_whose_spool_spark_does_not_reach_is_refused(s3_environment: None, spark: Any, tmp_path: Path) -> None:
    options = SparkSource.Options(
        path=str(tmp_path), format="text", stream=True, spool="s3a://bucket/spools/stream", schema="value string"
    )
    source = SparkSource(options, EdgeContext("lines", str))
    with pytest.raises(SourceError, match="Spark has no file system for s3a://bucket/spools/stream/_query"):
        source.feed(lambda error: None)


def test_a_spool_may_be_given_as_a_url_of_this_machine(spark: Any, tmp_path: Path) -> None:
    flamestream_spark.Into(f"file://{tmp_path}/spool")(spark.createDataFrame([("a",)], "line string"), 0)
    assert (tmp_path / "spool" / "batch-00000000000000000000.json").exists()


def test_scratch_and_checkpoint_are_in_no_place_where_nothing_is_made_once(spark: Any, tmp_path: Path) -> None:
    lines = spark.createDataFrame([("a",)], "line string")
    with pytest.raises(ConfigError, match="scratch: ftp://host/x: nothing here writes"):
        flamestream_spark.run(words(), lines=lines, scratch="ftp://host/x")
    with pytest.raises(ConfigError, match="checkpoint: ftp://host/x: nothing here writes"):
        flamestream_spark.stream(words(), lines=lines, checkpoint="ftp://host/x")


def test_scratch_may_be_given_as_a_url_of_this_machine(spark: Any, tmp_path: Path) -> None:
    lines = spark.createDataFrame([("a",)], "line string")
    found = flamestream_spark.run(words(), lines=lines, scratch=f"file://{tmp_path}/deep/scratch", order_by="line")
    assert [row.value for row in found.collect()] == ["a"]
    assert list((tmp_path / "deep" / "scratch").iterdir())


def test_a_bucket_that_is_not_there_is_an_error_of_the_option(s3_environment: None, spark: Any) -> None:
    lines = spark.createDataFrame([("a",)], "line string")
    with pytest.raises(ConfigError, match="scratch: s3a://nowhere/x cannot be made") as caught:
        flamestream_spark.run(words(), lines=lines, scratch="s3a://nowhere/x")
    assert caught.value.path == "scratch"


def test_a_checkpoint_that_spark_does_not_reach_is_refused(s3_environment: None, spark: Any, tmp_path: Path) -> None:
    lines = spark.readStream.text(str(tmp_path))
    with pytest.raises(SourceError, match="Spark has no file system for s3a://bucket/job") as caught:
        flamestream_spark.stream(words(), lines=lines, checkpoint="s3a://bucket/job")
    assert "hadoop-aws" in caught.value.hint


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s3a://bucket/x", "org.apache.hadoop:hadoop-aws:3."),
        ("abfss://box@account/x", "org.apache.hadoop:hadoop-azure:3."),
        ("gs://bucket/x", "gcs-connector"),
        ("s3://bucket/x", "or say s3a://"),
    ],
)
def test_a_file_system_that_spark_has_not_is_named_before_the_start(spark: Any, url: str, hint: str) -> None:
    source = SparkSource(SparkSource.Options(path=url, format="text"), EdgeContext("lines", str))
    with pytest.raises(SourceError, match=f"source 'lines': Spark has no file system for {url}") as caught:
        source.frame(spark)
    assert hint in caught.value.hint


def test_a_file_system_that_spark_is_given_is_used(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    spark.conf.set("fs.mine.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
    try:
        source = SparkSource(SparkSource.Options(path="mine:///no such", format="text"), EdgeContext("lines", str))
        with pytest.raises(SourceError) as caught:
            source.frame(spark)
        assert "Spark has no file system" not in str(caught.value)
    finally:
        spark.conf.unset("fs.mine.impl")
