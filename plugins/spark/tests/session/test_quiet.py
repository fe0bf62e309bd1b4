"""A run is quiet about what went well, and Spark's pages name what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_spark
import flamestream_spark.host as host
from flamecore.errors import SourceError
from flamecore.runtime.config.flow_loader import load_flow

pytestmark = pytest.mark.jvm

FLOW = """
import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""

QUERY = """
schema = 1
[job]
flow = "words.py"
workers = 1
[spark]
master = "local[2]"
[source.lines]
use = "spark"
sql = "SELECT value FROM text.`in`"
order_by = ["value"]
[sink.counts]
use = "jsonl"
path = "out.jsonl"
"""

SETTINGS = ("source.lines.format=text", "source.lines.path=in", "sink.counts.path=out.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a flow, and its input."""
    (tmp_path / "words.py").write_text(FLOW)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("to be or not\nto be\n")
    return tmp_path


def words(folder: Path, *options: str, **environment: str) -> str:
    """Run the command with workers on Spark; return what it says on standard error."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "flamecore", "run", "words.py", "--on", "spark", "-w", "2", *options, *settings]
    done = subprocess.run(
        [*command, "--source", "lines=spark", "--sink", "counts=jsonl"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len((folder / "out.jsonl").read_text().splitlines()) == 6
    return done.stderr


@pytest.mark.parametrize("master", ["local[3]", "local-cluster[2,2,1024]"])
def test_a_quiet_run_says_nothing(folder: Path, master: str) -> None:
    config = 'spark.config={"spark.executor.memory"="500m"}'
    assert words(folder, "-q", "--set", f"spark.master={master}", "--set", config) == ""


def test_a_run_has_no_line_of_sparks(folder: Path) -> None:
    lines = words(folder, "--set", "spark.master=local[3]").splitlines()
    assert lines, "progress and the end are said"
    assert [line for line in lines if not line.startswith("timestamp=")] == []


def test_a_run_leaves_nothing_but_its_output(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "job.toml").write_text(QUERY)
    before, temporary = {file.name for file in folder.iterdir()}, tmp_path_factory.mktemp("tmp")
    command = [sys.executable, "-m", "flamecore", "run", "job.toml", "-q"]
    subprocess.run(command, cwd=folder, env={**os.environ, "TMPDIR": str(temporary)}, check=True)
    left = {file.name for file in folder.iterdir()} - before - {"__pycache__"}
    assert left == {"out.jsonl", "out.jsonl.checksums", "out.jsonl.position"}
    assert not list(temporary.iterdir())


def test_errors_that_spark_ignores_are_not_shown(spark: Any) -> None:
    logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger
    assert not logger("org.apache.spark.rpc.netty.Inbox").isErrorEnabled()
    assert logger("org.apache.spark.scheduler.DAGScheduler").isErrorEnabled()


LATE = """
from flamestream_spark.session.session import session

with session("local[1]") as spark:
    logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.network.server.Handler")
    logger.error("an error while it runs")
    stop = spark.stop
    spark.stop = lambda: (logger.error("an error as it stops"), stop())
"""


@pytest.mark.parametrize("own", [False, True])
def test_errors_of_a_session_that_stops_are_not_shown_unless_the_user_logs(tmp_path: Path, own: bool) -> None:
    (tmp_path / "log4j2.properties").write_text(
        "rootLogger.level = error\n"
        "rootLogger.appenderRef.own.ref = own\n"
        "appender.own.type = Console\n"
        "appender.own.name = own\n"
        "appender.own.target = SYSTEM_ERR\n"
    )
    environment = {**os.environ, **({"SPARK_CONF_DIR": str(tmp_path)} if own else {})}
    command = [sys.executable, "-c", LATE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "an error while it runs" in done.stderr
    assert ("an error as it stops" in done.stderr) == own


def test_a_log_that_the_user_has_set_up_stays(folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf" / "log4j2.properties").write_text(
        "rootLogger.level = info\n"
        "rootLogger.appenderRef.own.ref = own\n"
        "appender.own.type = File\n"
        "appender.own.name = own\n"
        f"appender.own.fileName = {folder}/spark.log\n"
        "appender.own.layout.type = PatternLayout\n"
        "appender.own.layout.pattern = %p %c{1}: %m%n\n"
    )
    words(folder, "-q", "--set", "spark.master=local[3]", SPARK_CONF_DIR=str(folder / "conf"))
    assert "INFO SparkContext: Submitted application: flamestream" in (folder / "spark.log").read_text()


def test_the_last_line_tells_rows_format_and_place_of_each_output(folder: Path) -> None:
    to = ("--set", "source.lines.format=text", "--set", "source.lines.path=in", "--set", "sink.counts.path=out")
    command = [sys.executable, "-m", "flamecore", "run", "words.py", "--on", "here", "--source", "lines=spark", *to]
    for form in ("parquet", "json"):
        said = subprocess.run(
            [*command, "--sink", "counts=spark", "--set", f"sink.counts.format={form}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stderr.splitlines()[-1]
        assert "event=job.ended" in said
        assert f'output.counts="6 rows to {form} in {folder.resolve()}/out/"' in said


@pytest.mark.parametrize("on", ["here", "spark"])
def test_an_error_of_a_task_is_said_once(on: str, folder: Path) -> None:
    (folder / "in" / "b.parquet").write_bytes(b"no Parquet at all")
    read = (
        "source.lines.schema=value string",
        "source.lines.path=in/b.parquet",
        "sink.counts.path=out",
        "job.workers=1",
    )
    settings = [part for setting in (*read, "spark.master=local[2]") for part in ("--set", setting)]
    command = [sys.executable, "-m", "flamecore", "run", "words.py", "--on", on, "-q", "--source", "lines=spark"]
    done = subprocess.run(
        [*command, "--sink", "counts=spark", *settings], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2), "while it runs, or before: it reads ahead"
    said = [line for line in done.stderr.splitlines() if "is not a Parquet file" in line and "job.delayed" not in line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("error: source 'lines'")
    assert "\tat " not in done.stderr


def reject(number):  # type: ignore[no-untyped-def]  # PySpark takes hints for those of pandas
    raise ValueError(f"no such number: {number}")


@pytest.mark.parametrize("on_spark", [False, True])
def test_an_error_of_a_function_of_spark_names_it_and_has_it_as_its_only_cause(on_spark: bool, spark: Any) -> None:
    from pyspark.sql.functions import udf

    flow = fc.Flow("numbers")
    flow.source("numbers", int).map(str).sink("out")
    rows = spark.range(1).select(udf(reject, "long")("id").alias("id"))
    with pytest.raises(SourceError, match=r"Spark cannot read it: ValueError: no such number: 0\n") as caught:
        flamestream_spark.run(flow, numbers=rows, order_by="id", on_spark=on_spark, workers=1)
    assert type(caught.value.__cause__).__module__.startswith("pyspark.")


def test_jobs_are_named_after_the_flow(spark: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_pages", lambda session: True)
    flow: Any = load_flow("words.py:flow", folder)
    lines = spark.read.text(str(folder / "in"))
    context = spark.sparkContext
    context.setJobDescription("mine")
    try:
        flamestream_spark.run(flow, lines=lines)
        flamestream_spark.run(flow, lines=lines, on_spark=True)
        with flamestream_spark.stream(
            flow, lines=spark.readStream.text(str(folder / "in")), checkpoint=str(folder / "job")
        ) as running:
            running.processAllAvailable()
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setJobDescription(None)
    jobs = context._jsc.sc().statusStore().jobsList(None)
    said = [jobs.apply(place).description() for place in range(jobs.size())]
    named = {each.get() for each in said if each.isDefined()}
    assert {
        "flamestream words: feed lines",
        "flamestream words: feed lines, batch 0",
        "flamestream words: look at counts",
        "flamestream words: node worker-0",
        "flamestream words: node worker-1",
    } <= named
    assert "mine" not in named, "as a job would be that has no name of its own"
    (ended,) = (name for name in named if name.startswith("flamestream words: ended"))
    assert ended.startswith("flamestream words: ended: 2 in, 6 out, ")
