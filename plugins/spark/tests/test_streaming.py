"""Streaming DataFrames through flows, and the data source both ways, with real queries and real faults."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_spark
from flamecore.errors import ConfigError, JobError, SinkError, SourceError, UnknownKeyError
from flamecore.testing.progress import Patience
from flamestream_spark.queries import Query
from flamestream_spark.spool.spool import Batch, Spool, Taken
from flamestream_spark.streaming import Streaming

pytestmark = [pytest.mark.usefixtures("spark")]


def word_of(word: str) -> str:
    return word


def upper(line: str) -> str:
    return line.upper()


def counting(words: Callable[[str], list[str]] = str.split) -> fc.Flow:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(words).key_by(word_of).count(name="count").sink("counts")
    return flow


def expected(*lines: str) -> list[tuple[str, int]]:
    found = counting().run({"lines": list(lines)})["counts"]
    return [(word, count) for word, count in found]


def add(folder: Path, name: str, *lines: str) -> None:
    """Add a file that is there at once, as Spark wants it."""
    folder.mkdir(exist_ok=True)
    aside = folder / f".{name}"
    aside.write_text("".join(f"{line}\n" for line in lines))
    aside.rename(folder / name)


def counts(running: Streaming) -> list[tuple[str, int]]:
    rows = running.output().orderBy(*flamestream_spark.TIMES).collect()
    return [(row[0], row[1]) for row in rows]


def test_a_stream_goes_through_a_flow_and_goes_on(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "to be", "or not")
    lines = spark.readStream.text(str(tmp_path / "in"))
    with flamestream_spark.stream(counting(), lines=lines, checkpoint=tmp_path / "job") as running:
        running.processAllAvailable()
        assert sorted(counts(running)) == sorted(expected("to be", "or not"))
        add(tmp_path / "in", "b.txt", "to be")
        running.processAllAvailable()
        assert len(counts(running)) == 6
        assert running.isActive
        progress = running.progress()
        assert (progress["waiting"], progress["items_in"], progress["items_out"]) == (0, 3, {"counts": 6})
    assert not running.isActive
    add(tmp_path / "in", "c.txt", "be")
    again = spark.readStream.text(str(tmp_path / "in"))
    with flamestream_spark.stream(counting(), lines=again, checkpoint=tmp_path / "job") as running:
        running.processAllAvailable()
        assert counts(running)[-1] == ("be", 3)
        assert running.progress()["items_in"] == 1, "it did not begin anew"


def test_a_source_that_has_no_more_rows_is_named_as_what_holds_others_back(spark: Any, tmp_path: Path) -> None:
    flow = fc.Flow("both")
    flow.source("a", str).merge(flow.source("b", str)).map(upper).sink("out")
    add(tmp_path / "a", "0.txt", "a", "b", "c")
    add(tmp_path / "b", "0.txt", "d")
    frames = {name: spark.readStream.text(str(tmp_path / name)) for name in "ab"}
    running = flamestream_spark.stream(flow, frames, checkpoint=tmp_path / "job")
    with pytest.raises(JobError, match="not everything is delivered") as caught:
        running.processAllAvailable(timeout=5)
    assert '"job.clock": "wall"' in caught.value.hint
    add(tmp_path / "b", "1.txt", "e", "f")
    running.processAllAvailable()
    rows = running.output().orderBy(*flamestream_spark.TIMES).collect()
    running.stop()
    assert [row[0] for row in rows] == ["A", "D", "B", "E", "C", "F"]
    live = {"job.clock": "wall"}
    with flamestream_spark.stream(flow, frames, checkpoint=tmp_path / "live", settings=live) as running:
        add(tmp_path / "a", "1.txt", "g")
        running.processAllAvailable()
        assert running.output().count() == 7


def test_a_query_with_available_now_ends_by_itself(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "to be", "or not to be")
    lines = spark.readStream.text(str(tmp_path / "in"))
    running = flamestream_spark.stream(
        counting(), lines=lines, checkpoint=tmp_path / "job", trigger={"availableNow": True}
    )
    assert running.awaitTermination(60)
    assert counts(running) == expected("to be", "or not to be")
    assert running.exception() is None
    assert not list((tmp_path / "job" / "spool" / "lines").glob("batch-*/*.json"))


def test_a_batch_that_comes_again_changes_nothing(spark: Any, tmp_path: Path) -> None:
    into = flamestream_spark.Into(tmp_path / "spool")
    into(spark.createDataFrame([("a",)], "line string"), 0)
    into(spark.createDataFrame([("b",)], "line string"), 0)
    into(spark.createDataFrame([("c",)], "line string"), 1)
    spool = Spool(tmp_path / "spool", "lines")
    spool.end()
    out = counting().run(settings={"source.lines.use": "spark", "source.lines.spool": str(tmp_path / "spool")})
    assert out["counts"] == [("a", 1), ("c", 1)]


@pytest.mark.parametrize("taken", [False, True])
def test_a_query_with_another_checkpoint_is_refused(taken: bool, spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "to be")
    lines = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "line")

    def query(checkpoint: str) -> None:
        into = flamestream_spark.Into(tmp_path / "spool")
        writer = lines.writeStream.foreachBatch(into).option("checkpointLocation", str(tmp_path / checkpoint))
        running = writer.trigger(availableNow=True).start()
        running.awaitTermination()

    query("first")
    spool = Spool(tmp_path / "spool", "lines")
    if taken:
        spool.forget(Taken(1, 1))
    with pytest.raises(Exception, match="holds batches of another query") as caught:
        query("second")
    assert str(tmp_path / "spool") in str(caught.value)
    add(tmp_path / "in", "b.txt", "or not")
    query("first")
    assert spool.last() == (1, Batch(1, spool.last()[1].parts, spool.last()[1].query))  # type: ignore[index]
    assert spool.last()[1].query  # type: ignore[index]


def test_a_stream_goes_on_with_the_output_mode_that_it_began_with(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "to be")
    lines = spark.readStream.text(str(tmp_path / "in"))
    with flamestream_spark.stream(counting(), lines=lines, checkpoint=tmp_path / "job") as running:
        running.processAllAvailable()
    totals = lines.groupBy("value").count().select("value")
    with pytest.raises(SourceError, match=r"source 'lines': .*job/spool/lines holds batches of output mode") as caught:
        flamestream_spark.stream(counting(), lines=totals, checkpoint=tmp_path / "job", output_mode="update")
    assert 'output_mode="append"' in caught.value.hint
    with flamestream_spark.stream(counting(), lines=lines, checkpoint=tmp_path / "job") as running:
        running.processAllAvailable()
        assert counts(running) == expected("to be")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("'3' as n, 'b' as line", "column 'n' is of type string, and was of type int before"),
        ("3L as n, 'b' as line", "column 'n' is of type bigint, and was of type int before"),
        ("3 as n", "column 'line', which was of type string before, is missing"),
        ("3 as n, 'b' as line, null as x", "column 'x', of type void, is new"),
    ],
)
def test_a_batch_with_other_columns_is_refused_and_changes_nothing(
    spark: Any, second: str, words: str, tmp_path: Path
) -> None:
    into = flamestream_spark.Into(tmp_path / "spool")
    into(spark.sql("select 1 as n, 'a' as line"), 0)
    with pytest.raises(SourceError, match=f"batch 1: {words}"):
        into(spark.sql(f"select {second}"), 1)
    into(spark.sql("select 2 as n, 'c' as line"), 1)
    spool = Spool(tmp_path / "spool", "lines")
    spool.end()
    flow = fc.Flow("numbers")
    flow.source("lines", dict).map(lambda row: row["n"]).sink("numbers")
    out = flow.run(settings={"source.lines.use": "spark", "source.lines.spool": str(tmp_path / "spool")})
    assert out["numbers"] == [1, 2]


@pytest.mark.usefixtures("data_source")
def test_a_stream_whose_columns_change_is_refused_before_its_first_row(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "1")
    lines = spark.readStream.text(str(tmp_path / "in"))
    with flamestream_spark.stream(counting(), lines=lines, checkpoint=tmp_path / "job") as running:
        running.processAllAvailable()
    changed = lines.selectExpr("cast(value as int) as value")
    words = r"source 'lines': batch 1: column 'value' is of type int, and was of type string before"
    with pytest.raises(SourceError, match=words):
        flamestream_spark.stream(counting(), lines=changed, checkpoint=tmp_path / "job")
    feed = lines.writeStream.format("flamestream").option("checkpointLocation", str(tmp_path / "feed"))
    query = feed.start(str(tmp_path / "spool"))
    query.processAllAvailable()
    query.stop()
    add(tmp_path / "in", "b.txt", "2")
    feed = changed.writeStream.format("flamestream").option("checkpointLocation", str(tmp_path / "feed"))
    with pytest.raises(Exception, match=r"column 'value' is of type int, and was of type string before"):
        feed.start(str(tmp_path / "spool")).processAllAvailable()


def named(name: str) -> fc.Flow:
    flow = fc.Flow(name)
    flow.source("lines", str).key_by(word_of).count().sink("counts")
    return flow


def test_a_checkpoint_belongs_to_one_flow_until_it_is_replaced(spark: Any, tmp_path: Path) -> None:
    """Another flow opens nothing; with `replace` nothing of the first one is left."""
    add(tmp_path / "in", "a.txt", "a", "b")
    lines = spark.readStream.text(str(tmp_path / "in"))
    job = tmp_path / "job"

    def run(flow: str, **options: Any) -> list[tuple[str, int]]:
        trigger = {"availableNow": True}
        with flamestream_spark.stream(named(flow), lines=lines, checkpoint=job, trigger=trigger, **options) as running:
            running.awaitTermination()
        return counts(running)

    assert run("one") == [("a", 1), ("b", 1)]
    add(tmp_path / "in", "b.txt", "a")
    before = {path: path.stat().st_mtime_ns for path in job.rglob("*")}
    with pytest.raises(ConfigError, match="belongs to flow 'one', and this is flow 'two'") as caught:
        run("two")
    assert "replace=True" in caught.value.hint
    assert {path: path.stat().st_mtime_ns for path in job.rglob("*")} == before
    assert run("one") == [("a", 1), ("b", 1), ("a", 2)]
    assert sorted(run("two", replace=True)) == [("a", 1), ("a", 2), ("b", 1)]
    add(tmp_path / "in", "c.txt", "b")
    assert run("two")[-1] == ("b", 2)
    with pytest.raises(ConfigError, match="belongs to flow 'two'"):
        run("one")


def test_output_is_not_replaced_because_the_state_has_gone(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "a", "b")
    lines = spark.readStream.text(str(tmp_path / "in"))
    with flamestream_spark.stream(named("one"), lines=lines, checkpoint=tmp_path / "job") as running:
        running.processAllAvailable()
    for folder in ("state", "query", "spool"):
        shutil.rmtree(tmp_path / "job" / folder)
    again = flamestream_spark.stream(named("one"), lines=lines, checkpoint=tmp_path / "job")
    with pytest.raises(SinkError, match="cannot be resumed"):
        again.awaitTermination(60)
    assert counts(running) == [("a", 1), ("b", 1)]


def test_a_stream_started_again_takes_over(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "a", "b")
    lines = spark.readStream.text(str(tmp_path / "in"))
    job = tmp_path / "job"
    first = flamestream_spark.stream(named("one"), lines=lines, checkpoint=job)
    first.processAllAvailable()
    (tmp_path / "link").symlink_to(job)
    with flamestream_spark.stream(named("one"), lines=lines, checkpoint=tmp_path / "link") as second:
        assert not first.isActive
        assert first.exception() is None
        add(tmp_path / "in", "b.txt", "a")
        second.processAllAvailable()
        assert counts(second) == [("a", 1), ("b", 1), ("a", 2)]
        spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
        try:
            with pytest.raises(JobError, match="is running on checkpoint"):
                flamestream_spark.stream(named("one"), lines=lines, checkpoint=job)
        finally:
            spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")
        assert second.isActive


def test_a_query_that_others_stop_ends_the_run_and_not_the_stream(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "a", "b")
    lines = spark.readStream.text(str(tmp_path / "in"))
    running = flamestream_spark.stream(named("one"), lines=lines, checkpoint=tmp_path / "job")
    running.processAllAvailable()
    running.queries["lines"].query.stop()
    assert running.awaitTermination(60)
    assert not (tmp_path / "job" / "spool" / "lines" / "_end.json").exists()
    spool = Spool(tmp_path / "spool", "lines")
    alone = Query(lines, spool, "lines", tmp_path / "query")
    alone.start()
    alone.query.stop()
    limit = Patience(60)
    while spool.place.read("_failed.json") is None:
        assert not limit.passed()
        time.sleep(0.01)
    with pytest.raises(SourceError, match="was stopped by others"):
        spool.over(1)


def test_a_query_that_fails_fails_the_job(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "1", "2", "x")
    lines = spark.readStream.text(str(tmp_path / "in")).selectExpr("cast(cast(value as int) as string) as line")
    running = flamestream_spark.stream(counting(), lines=lines, checkpoint=tmp_path / "job")
    with pytest.raises(SourceError, match=r"source 'lines': Spark cannot read it: .*CAST_INVALID_INPUT"):
        running.awaitTermination(60)
    assert not running.isActive
    assert isinstance(running.exception(), SourceError)


def test_a_job_that_fails_ends_the_query(spark: Any, tmp_path: Path) -> None:
    def words(line: str) -> list[str]:
        if line == "x":
            raise ValueError("not this one")
        return line.split()

    add(tmp_path / "in", "a.txt", "1", "x")
    lines = spark.readStream.text(str(tmp_path / "in"))
    running = flamestream_spark.stream(counting(words), lines=lines, checkpoint=tmp_path / "job")
    with pytest.raises(fc.OperationError, match=r"not this one"):
        running.awaitTermination(60)
    assert not running.queries["lines"].query.isActive
    with flamestream_spark.stream(counting(), lines=lines, checkpoint=tmp_path / "job") as again:
        again.processAllAvailable()
        assert counts(again) == [("1", 1), ("x", 1)]


def test_inputs_that_are_no_stream_are_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no stream"):
        flamestream_spark.stream(counting(), lines=spark.range(3), checkpoint=tmp_path / "job")
    options: dict[str, Any] = {"checkpoint": tmp_path / "job", "output_mode": {"line": "update"}}
    with pytest.raises(UnknownKeyError, match=r"output_mode.line: flow .* has no such source"):
        flamestream_spark.stream(counting(), lines=spark.range(3), **options)
    with pytest.raises(ConfigError, match=r"no DataFrame is given"):
        flamestream_spark.stream(counting(), checkpoint=tmp_path / "job")


@pytest.mark.parametrize("format", ["parquet", "delta"])
@pytest.mark.usefixtures("data_source")
def test_the_data_source_reads_and_writes(spark: Any, format: str, tmp_path: Path) -> None:
    """Files → query → spool → job → folder → query → table, each part on its own, found by Spark without a word."""
    add(tmp_path / "in", "a.txt", "to be", "or not")
    add(tmp_path / "in", "b.txt", "to be")
    lines = spark.readStream.text(str(tmp_path / "in"))
    feed = lines.writeStream.format("flamestream").option("checkpointLocation", str(tmp_path / "feed"))
    query = feed.start(str(tmp_path / "spool"))
    query.processAllAvailable()
    query.stop()
    Spool(tmp_path / "spool", "lines").end()
    settings = {
        "source.lines.use": "spark",
        "source.lines.spool": str(tmp_path / "spool"),
        "sink.counts.use": "spark",
        "sink.counts.path": str(tmp_path / "out"),
        "sink.counts.format": format,
        "sink.counts.times": True,
    }
    counting().run(settings=settings, state=tmp_path / "state")
    everything = spark.read.format("flamestream").load(str(tmp_path / "out"))
    assert sorted((row[0], row[1]) for row in everything.collect()) == sorted(expected("to be", "or not", "to be"))
    out = spark.readStream.format("flamestream").load(str(tmp_path / "out"))
    sunk = out.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "sunk")).outputMode("append")
    drain = sunk.start(str(tmp_path / "table"))
    drain.processAllAvailable()
    assert spark.read.parquet(str(tmp_path / "table")).count() == 6
    drain.stop()
    # Everything goes on: the job, its output, the query that reads it.
    add(tmp_path / "in", "c.txt", "be")
    query = feed.start(str(tmp_path / "spool"))
    query.processAllAvailable()
    query.stop()
    Spool(tmp_path / "spool", "lines").end()
    counting().run(settings=settings, state=tmp_path / "state")
    drain = sunk.start(str(tmp_path / "table"))
    drain.processAllAvailable()
    drain.stop()
    table = spark.read.parquet(str(tmp_path / "table"))
    assert table.count() == 7
    assert table.where("key = 'be'").selectExpr("max(value)").first()[0] == 3


@pytest.mark.usefixtures("data_source")
def test_the_data_source_explains_errors(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(Exception, match=r"is no output of a job"):
        spark.read.format("flamestream").load(str(tmp_path / "x")).collect()
    with pytest.raises(Exception, match=r"needs a path"):
        spark.read.format("flamestream").load().collect()


PROGRAM = """
import json
import sys
from pathlib import Path

import flamestream_spark
from flamestream_spark.session.session import session

sys.path.insert(0, sys.argv[1])
from words import flow

with session("local[2]", {"spark.sql.shuffle.partitions": "2"}) as spark:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(sys.argv[1] + "/in")
    running = flamestream_spark.stream(flow, lines=lines, checkpoint=sys.argv[1] + "/job", **json.loads(sys.argv[2]))
    print("runs", flush=True)
    running.awaitTermination()
"""


INTERRUPTED = """
import signal
import sys
import threading
import time

from pyspark.sql import SparkSession

import flamestream_spark

sys.path.insert(0, sys.argv[1])
from words import flow


def say() -> None:
    while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        time.sleep(0.01)
    print("runs", flush=True)


spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
lines = spark.readStream.text(sys.argv[1] + "/in")
running = flamestream_spark.stream(flow, lines=lines, checkpoint=sys.argv[1] + "/job")
running.processAllAvailable(200)
if sys.argv[2] == "waits":
    thread = threading.Thread(target=say)
    thread.start()
    running.awaitTermination()
else:
    print("runs", flush=True)
    while True:  # in short steps: a signal that comes as `sleep` lets the interpreter go does not end it
        time.sleep(0.1)
print("ended", running.isActive, running.exception() is None, flush=True)
"""


@pytest.mark.parametrize(
    ("how", "code", "said"), [("waits", 0, "ended False True\n"), ("does something else", -signal.SIGINT, "")]
)
def test_ctrl_c_ends_a_stream_with_everything_delivered(
    spark: Any, how: str, code: int, said: str, tmp_path: Path
) -> None:
    add(tmp_path / "in", "a.txt", "to be", "or not to be")
    (tmp_path / "words.py").write_text(
        "import flamecore as fc\n"
        "def word(word: str) -> str:\n    return word\n"
        "flow = fc.Flow('words')\n"
        "flow.source('lines', str).flat_map(str.split).key_by(word).count(name='count').sink('counts')\n"
    )
    (tmp_path / "program.py").write_text(INTERRUPTED)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), how]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "runs\n"
            os.killpg(program.pid, signal.SIGINT)  # as a terminal does
            rest, _ = program.communicate()
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    assert (program.returncode, rest) == (code, said)
    rows = spark.read.parquet(str(tmp_path / "job" / "output" / "counts")).orderBy(*flamestream_spark.TIMES).collect()
    assert [(row[0], row[1]) for row in rows] == expected("to be", "or not to be")


def test_a_program_that_is_killed_loses_nothing_and_repeats_nothing(spark: Any, tmp_path: Path) -> None:
    """SIGKILL to the whole program, Spark included, while it works; then to the end, from the same folder."""
    given = [[f"w{number % 7} v{number % 3}" for number in range(part * 50, part * 50 + 50)] for part in range(8)]
    for number, lines in enumerate(given):
        add(tmp_path / "in", f"{number}.txt", *lines)
        os.utime(tmp_path / "in" / f"{number}.txt", (1_700_000_000 + number, 1_700_000_000 + number))
    (tmp_path / "words.py").write_text(
        "import time\nimport flamecore as fc\n"
        "def words(line: str) -> list[str]:\n    time.sleep(0.005)\n    return line.split()\n"
        "def word(word: str) -> str:\n    return word\n"
        "flow = fc.Flow('words')\n"
        "flow.source('lines', str).flat_map(words).key_by(word).count(name='count').sink('counts')\n"
    )
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(options: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    out = tmp_path / "job" / "output" / "counts"
    first = start("{}")
    limit = Patience(90)
    while len(list(out.glob("part-*"))) < 3:
        assert first.poll() is None
        assert not limit.passed()
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    held = spark.read.parquet(str(out)).count()
    assert 0 < held < 800
    second = start('{"trigger": {"availableNow": true}}')
    second.communicate()
    assert second.returncode == 0
    rows = spark.read.parquet(str(out)).orderBy(*flamestream_spark.TIMES).collect()
    assert [(row[0], row[1]) for row in rows] == expected(*(line for lines in given for line in lines))
