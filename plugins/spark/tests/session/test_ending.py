"""Sessions and processes that end under a flow, by every way to start one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

import flamestream_spark
from flamecore.testing.progress import Patience

pytestmark = [
    pytest.mark.usefixtures("spark"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups"),
]

STOPPED: Final = """
import json, sys, threading, time
from pathlib import Path

import flamecore as fc
import flamestream_spark
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from flamestream_spark import scratch
from slow import flow, late

flow_of = {"reading": flow, "computing": late}


def new_session():
    builder = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
    return builder.config("spark.log.level", "OFF").getOrCreate()


def slowly(number):
    time.sleep(0.005)
    return number


def run(spark, folder, **options):
    rows = spark.range(100_000).select(udf(slowly, "long")("id").alias("id"))
    flamestream_spark.run(flow, numbers=rows, order_by="id", workers=1, **options)


def computes(spark, folder):
    flamestream_spark.run(late, numbers=spark.range(3000), order_by="id", workers=1)


def through(spark, folder, **options):
    rows = spark.range(100_000).select(udf(slowly, "long")("id").alias("id"))
    rows.transform(flamestream_spark.through(flow, order_by="id", workers=1, **options))


def stream(spark, folder, **options):
    rows = spark.readStream.schema("n bigint").json("in")
    running = flamestream_spark.stream(flow, numbers=rows, checkpoint="job", workers=1, **options)
    running.processAllAvailable(200)
    Path("begun").touch()
    running.awaitTermination()


WAYS = {
    "run": (run, {}),
    "run on executors": (run, {"on_spark": True}),
    "run when all is read": (computes, {}),
    "through": (through, {}),
    "through on executors": (through, {"on_spark": True}),
    "stream": (stream, {}),
}


def begun(spark, name):
    if "stream" in name:
        return Path("begun").exists()
    if name == "run when all is read":
        return Path("late").exists()
    return len(spark.sparkContext.statusTracker().getActiveJobsIds()) > ("executors" in name)


for name, (way, options) in WAYS.items():
    spark = new_session()

    def stop():
        while not begun(spark, name):
            time.sleep(0.05)
        spark.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        way(spark, None, **options)
        said = "no error"
    except Exception as error:
        said = str(error)
    thread.join()
    print(json.dumps([name, said, [str(folder) for folder in scratch._made if "spool" not in str(folder)]]), flush=True)
spark = new_session()
Path("in/b.json").write_text('{"n": 1}')
with flamestream_spark.stream(
    flow, numbers=spark.readStream.schema("n bigint").json("in"), checkpoint="job", trigger={"availableNow": True}
) as running:
    running.awaitTermination()
    rows = running.output().orderBy(*flamestream_spark.TIMES).collect()
    print(json.dumps(["again", [list(row)[:2] for row in rows], []]))
spark.stop()
"""
FLOW: Final = """
import time
from pathlib import Path

import flamecore as fc


def third(number: int) -> int:
    return number % 3


def slow(number: int) -> int:
    Path("late").touch()
    time.sleep(0.02)
    return number


flow = fc.Flow("stopped")
flow.source("numbers", int).key_by(third).count(name="count").sink("out")
late = fc.Flow("late")
late.source("numbers", int).map(slow).key_by(third).count(name="count").sink("out")
"""
WAYS: Final = (
    "run",
    "run on executors",
    "run when all is read",
    "through",
    "through on executors",
    "stream",
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, list[str]]]:
    """Return what each way has ended with, and the temporary folders that are left, of one program."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text('{"n": 1}\n{"n": 2}\n')
    (folder / "slow.py").write_text(FLOW)
    (folder / "program.py").write_text(STOPPED)
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: (said, left) for name, said, left in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_is_stopped_ends_its_flow_in_two_lines(way: str, stopped: dict[str, Any]) -> None:
    said, left = stopped[way]
    first, second = said.splitlines()
    assert first == "Spark has ended: its session was stopped, or its Java has ended"
    assert "Run the flow again on a new session" in second
    assert not left


def test_a_stream_whose_session_was_stopped_goes_on_exactly(stopped: dict[str, Any]) -> None:
    assert stopped["again"][0] == [[1, 1], [2, 1], [1, 2]]


JOB: Final = """
schema = 1
[job]
flow = "slow.py:flow"
guarantee = "exactly_once"
workers = 1
[deploy]
on = "{on}"
[spark]
master = "local[2]"
[source.numbers]
use = "spark"
format = "json"
stream = true
path = "in"
schema = "n bigint"
spool = "spool"
master = "local[2]"
[sink.out]
use = "spark"
path = "counts"
mode = "resume"
times = true
[state]
use = "sqlite"
path = "state"
"""


class Grouped:
    """A job whose processes, Spark's Java too, are a process group."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        with self.log.open("wb") as said:
            command = [sys.executable, "-m", "flamecore", "run", "job.toml", "-q"]
            self.process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, start_new_session=True)

    def until_delivered(self, spark: Any, count: int) -> None:
        limit = Patience(120)
        while len(list((self.folder / "counts").glob("part-*"))) == 0 or len(delivered(spark, self.folder)) < count:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert not limit.passed(), self.log.read_text()[-4000:]
            time.sleep(0.2)

    def stop(self, whom: str, number: int) -> int:
        if whom == "group":
            os.killpg(self.process.pid, number)
        else:
            (java,) = children(self.process.pid, "org.apache.spark.deploy.SparkSubmit")
            os.kill(java, number)
        return self.process.wait(120)


def children(pid: int, what: str) -> list[int]:
    """Return the processes below that one whose command contains a text."""
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [child for child in found if what in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")]


def delivered(spark: Any, folder: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "counts")).orderBy(*flamestream_spark.TIMES).collect()
    return [(row[0], row[1]) for row in rows]


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc, and needs setsid")
@pytest.mark.parametrize(
    ("whom", "number"),
    [("group", signal.SIGINT), ("group", signal.SIGTERM), ("Java", signal.SIGTERM)],
    ids=["SIGINT", "SIGTERM", "SIGTERM to Java alone"],
)
@pytest.mark.parametrize("on", ["here", "spark"])
def test_a_job_is_drained_by_a_signal_to_its_group_ends_with_java_and_goes_on(
    on: str, whom: str, number: int, spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "slow.py").write_text(FLOW)
    (tmp_path / "job.toml").write_text(JOB.format(on=on))
    job = Grouped(tmp_path)
    try:
        job.until_delivered(spark, 2)
        code, said = job.stop(whom, number), job.log.read_text()
    finally:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
    if whom == "group":
        assert code == 0, said
        assert "\tat " not in said
        assert "Traceback" not in said
    else:
        assert code == 1, said
        (error,) = (line for line in said.splitlines() if line.startswith("error: "))
        assert error.endswith("Spark has ended: its session was stopped, or its Java has ended")
        assert "mistake in the plugin" not in said
    (tmp_path / "in" / "b.json").write_text('{"n": 1}\n')
    job = Grouped(tmp_path)
    try:
        job.until_delivered(spark, 3)
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(120) == 0, job.log.read_text()
    finally:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
    assert delivered(spark, tmp_path) == [(1, 1), (2, 1), (1, 2)]
