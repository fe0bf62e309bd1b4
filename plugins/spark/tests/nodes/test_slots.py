"""Slots of sessions: workers hold theirs for as long as the job runs, also where executors come and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flamecore.abc.host import HostContext
from flamecore.errors import ConfigError
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamestream_spark.nodes.slots import check_slots, check_speculation

FLOW = """
import time

import flamecore as fc


def slow(line: str) -> str:
    time.sleep(0.02)
    return line


flow = fc.Flow("lines")
flow.source("lines", str).rebalance().map(slow).key_by(lambda line: line).count().sink("out")
"""

PROGRAM = """
import json
import threading
import time

import flamestream_spark
import pyarrow.parquet as pq
from lines import flow
from flamestream_spark.session.session import settings_of
from pyspark.sql import SparkSession

master = "local-cluster[3,1,1024]"
config = {
    "spark.executor.memory": "500m",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
}
builder = SparkSession.builder.master(master)
for key, value in settings_of(master, config).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
java = spark._jsc.sc()
counts, over = [], threading.Event()


def executors():
    return java.getExecutorMemoryStatus().size() - 1  # the driver is one of them


def watch():
    while not over.wait(0.2):
        counts.append(executors())


threading.Thread(target=watch, daemon=True).start()
rows = spark.createDataFrame([(f"{n % 3}",) for n in range(300)], "line string")
assert not executors()
settings = {"deploy.start_timeout_s": 200}  # executors are started first
outputs = flamestream_spark.run(
    flow, lines=rows, order_by="line", on_spark=True, workers=2, scratch="scratch", settings=settings
)
limit = time.monotonic() + 60
while executors() and time.monotonic() < limit:
    time.sleep(0.1)
over.set()
found = pq.read_table([file.removeprefix("file://") for file in outputs.inputFiles()])  # no executor is there for it
rows = sorted(zip(found.column(0).to_pylist(), found.column(1).to_pylist()))
print(json.dumps({"most": max(counts), "left": executors(), "rows": rows}))
spark.stop()
"""


@pytest.mark.jvm
def test_executors_come_and_go_with_the_workers(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(FLOW)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    wanted = [[f"{n}", count] for n in range(3) for count in range(1, 101)]
    run = json.loads(done.stdout.splitlines()[-1])
    assert run["most"] >= 2, "each worker holds a core, and an executor has one"
    assert run["left"] == 0, "they go when the job has ended"
    assert run["rows"] == wanted


class Session:
    """A session with some settings."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.conf = self
        self._settings = settings

    def get(self, name: str, default: str) -> str:
        return self._settings.get(name, default)


def slots(master: str, workers: int, **dynamic: str) -> int:
    """Return the slots of a session whose executors come and go, for a job that Spark also reads for."""
    settings = {f"spark.dynamicAllocation.{name}": value for name, value in dynamic.items()}
    settings |= {"spark.master": master, "spark.dynamicAllocation.enabled": "true"}
    settings |= {"spark.executor.cores": "4", "spark.task.cpus": "2"}
    config = make_config(from_program({"job.workers": workers}))
    return check_slots(Session(settings), HostContext("job", config, {"source.lines": "spark"}))


def test_executors_that_are_still_to_come_count() -> None:
    assert slots("yarn", 50) == slots("yarn", 50, maxExecutors=str(2**31 - 1)) == 0
    assert slots("yarn", 5, maxExecutors="3") == 0
    with pytest.raises(ConfigError, match="has 6 slots at most, and the job needs 7"):
        slots("yarn", 6, maxExecutors="3")
    with pytest.raises(ConfigError, match="has 2 slots at most, and the job needs 3"):
        slots("local-cluster[2,2,1024]", 2)


def test_speculation_by_time_is_refused() -> None:
    threshold = "spark.speculation.task.duration.threshold"
    check_speculation(Session({"spark.speculation": "true"}).get)
    check_speculation(Session({threshold: "1s"}).get)
    with pytest.raises(ConfigError, match="for a slow task"):
        check_speculation(Session({"spark.speculation": "true", threshold: "1s"}).get)
