"""`df.write.format("flamestream")`: DataFrames that end, each as one batch for a job, whole or not at all."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog

import flamecore as fc
from flamestream_spark.spool import reader
from flamestream_spark.spool.spool import Spool

pytestmark = [pytest.mark.usefixtures("data_source", "spark")]


def collect(folder: Path) -> list[Any]:
    """Return the records that a job takes from a spool with an end."""
    flow = fc.Flow("numbers")
    flow.source("numbers", int).sink("out")
    found = flow.run(settings={"source.numbers.use": "spark", "source.numbers.spool": str(folder)})
    return list(found["out"])


def write(frame: Any, folder: Path, **options: Any) -> None:
    frame.write.format("flamestream").mode("append").options(**options).save(str(folder))


def test_data_frames_are_taken_in_their_order(spark: Any, tmp_path: Path) -> None:
    numbers = spark.range(0, 1000, 1, 7).selectExpr("id * 389 % 1000 as n")
    write(numbers.orderBy("n"), tmp_path / "spool")
    write(numbers.orderBy(numbers.n.desc()), tmp_path / "spool", end=True)
    assert collect(tmp_path / "spool") == [*range(1000), *range(999, -1, -1)]


def test_a_job_waits_for_more_until_it_is_told_the_end(spark: Any, tmp_path: Path) -> None:
    write(spark.range(3), tmp_path / "spool", end=True)
    write(spark.range(3, 5), tmp_path / "spool")
    assert not Spool(tmp_path / "spool", "numbers").over(2)
    write(spark.range(5, 5), tmp_path / "spool", end="true")
    assert collect(tmp_path / "spool") == [0, 1, 2, 3, 4]


def test_a_job_says_once_that_it_waits_for_the_end(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "TELL_S", 0.2)
    folder = tmp_path / "spool"
    write(spark.range(3), folder)
    settings = {"source.numbers.use": "spark", "source.numbers.spool": str(folder), "source.numbers.ends": True}
    flow = fc.Flow("numbers")
    flow.source("numbers", int).sink("out")
    with structlog.testing.capture_logs() as log, ThreadPoolExecutor() as pool:
        running = pool.submit(flow.run, settings=settings)
        while not log:  # the test's own limit
            assert not running.done()
            time.sleep(0.05)
        write(spark.range(3, 5), folder)
        write(spark.range(5, 5), folder, end=True)
        assert running.result()["out"] == [0, 1, 2, 3, 4]
    (said,) = log
    assert (said["event"], said["job"], said["source"]) == ("end.awaited", "numbers", "numbers")
    assert 'option("end", True)' in said["hint"]


def test_a_numbered_batch_that_comes_again_changes_nothing(spark: Any, tmp_path: Path) -> None:
    write(spark.range(3), tmp_path / "spool", batch=4)
    write(spark.range(10, 13), tmp_path / "spool", batch=4)
    write(spark.range(3, 5), tmp_path / "spool", batch=9)
    write(spark.range(20, 23), tmp_path / "spool", batch=4, end=True)
    write(spark.range(30, 33), tmp_path / "spool", batch=4)
    assert collect(tmp_path / "spool") == [0, 1, 2, 3, 4]


def test_a_data_frame_that_fails_leaves_nothing_that_counts(spark: Any, tmp_path: Path) -> None:
    spark.range(4, 7, 1, 3).write.format("flamestream").mode("append").save(str(tmp_path / "spool"))
    bad = spark.range(0, 8, 1, 4).selectExpr("if(id = 7, raise_error('no seven'), id) as id")
    with pytest.raises(Exception, match="no seven"):
        write(bad.selectExpr("cast(id as bigint) as id"), tmp_path / "spool")
    write(spark.range(1), tmp_path / "spool", end=True)
    assert collect(tmp_path / "spool") == [4, 5, 6, 0]


def test_writes_at_the_same_time_do_not_lose_rows_unseen(spark: Any, tmp_path: Path) -> None:
    from flamestream_spark.datasource import BatchWriter, Written

    spool = Spool(tmp_path / "spool", "numbers")
    first, second = (BatchWriter(spool.place.url, 0, None, False) for _ in range(2))
    first.commit([Written((), "df.write")])
    with pytest.raises(fc.SourceError, match="another program has written batch 0 meanwhile"):
        second.commit([Written((), "df.write")])


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("overwrite", {}, "nothing takes its place"),
        ("append", {"batch": "-1"}, "option batch is '-1'"),
        ("append", {"end": "perhaps"}, "option end is 'perhaps'"),
    ],
)
def test_what_no_spool_can_be_told_is_refused(
    spark: Any, mode: str, options: dict[str, str], words: str, tmp_path: Path
) -> None:
    write(spark.range(3), tmp_path / "spool")
    with pytest.raises(Exception, match=words):
        spark.range(3).write.format("flamestream").mode(mode).options(**options).save(str(tmp_path / "spool"))
    with pytest.raises(Exception, match="column 'id' is of type string, and was of type bigint before"):
        write(spark.range(3).selectExpr("cast(id as string) as id"), tmp_path / "spool")
    write(spark.range(0), tmp_path / "spool", end=True)
    assert collect(tmp_path / "spool") == [0, 1, 2]


def query(spark: Any, folder: Path, name: str, mode: str = "append") -> Any:
    rows = spark.readStream.schema("id bigint").json(str(folder / "in"))
    rows = rows.groupBy("id").count().select("id") if mode == "complete" else rows
    written = rows.writeStream.format("flamestream").outputMode(mode)
    return written.option("checkpointLocation", str(folder / name)).start(str(folder / "spool"))


@pytest.mark.parametrize("first", ["a query", "a DataFrame"])
def test_batches_of_a_query_and_of_data_frames_do_not_mix(spark: Any, first: str, tmp_path: Path) -> None:
    spark.range(3).write.json(str(tmp_path / "in"))
    if first == "a query":
        running = query(spark, tmp_path, "feed")
        running.processAllAvailable()
        running.stop()
    else:
        write(spark.range(3), tmp_path / "spool", end=True)
        with pytest.raises(Exception, match="holds batches of another query"):
            query(spark, tmp_path, "feed").processAllAvailable()
        assert collect(tmp_path / "spool") == [0, 1, 2], "and the end is still there"
        return
    with pytest.raises(Exception, match="holds batches of another query"):
        write(spark.range(3), tmp_path / "spool")
    with pytest.raises(Exception, match="holds batches of another query"):
        query(spark, tmp_path, "another").processAllAvailable()


def test_a_query_in_complete_mode_is_refused(spark: Any, tmp_path: Path) -> None:
    spark.range(3).write.json(str(tmp_path / "in"))
    with pytest.raises(Exception, match="each batch holds all rows again"):
        query(spark, tmp_path, "feed", "complete").processAllAvailable()
