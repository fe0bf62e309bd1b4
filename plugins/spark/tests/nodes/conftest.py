"""Fixtures of tests of workers on executors: a standalone cluster, and programs with the events that Spark logs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from flamecore.testing.progress import Patience

START_S: Final = 60.0
# Two: Spark starts no second attempt of a slow task on the host of the first one.
HOSTS: Final = ("127.0.0.1", "127.0.0.2")


class Cluster(NamedTuple):
    """A standalone cluster of Spark.

    Attributes:
        master: Its address.
        daemons: The processes of its master, "master", and of its workers, "worker-0" and so on.
    """

    master: str
    daemons: Mapping[str, subprocess.Popen[bytes]]


@contextmanager
def started(folder: Path, name: str, said: str, host: str, *arguments: str) -> Iterator[tuple[str, Any]]:
    """Start a daemon of Spark, and yield the address that its log names, and its process."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    log = folder / f"{name}.log"
    kind = "master.Master" if name == "master" else "worker.Worker"
    place = ("--host", host, "--port", "0", "--webui-port", "0")
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *place, *arguments]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_WORKER_DIR": str(folder / f"{name}-work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as out:
        daemon = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder)
    try:
        limit = Patience(START_S)
        while not (found := re.search(said, log.read_text())):
            assert daemon.poll() is None, log.read_text()[-2000:]
            assert not limit.passed(), log.read_text()[-2000:]
            time.sleep(0.2)
        yield found[1], daemon
    finally:
        daemon.terminate()
        daemon.wait(20)


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., AbstractContextManager[Cluster]]:
    """Return a function that starts a master, and a worker with one core on each of some hosts."""

    @contextmanager
    def start(hosts: Sequence[str] = HOSTS) -> Iterator[Cluster]:
        folder = tmp_path / "cluster"
        folder.mkdir()
        with ExitStack() as stack:
            said = r"Starting Spark master at (spark://\S+)"
            master, process = stack.enter_context(started(folder, "master", said, HOSTS[0]))
            daemons = {"master": process}
            for number, host in enumerate(hosts):
                said = r"Successfully registered with master (\S+)"
                arguments = ("--cores", "1", "--memory", "1g", master)
                name = f"worker-{number}"
                _, daemons[name] = stack.enter_context(started(folder, name, said, host, *arguments))
            yield Cluster(master, daemons)

    return start


class Done(NamedTuple):
    """A program of Spark that has ended.

    Attributes:
        told: The value that it printed last, as JSON.
        events: The events that Spark has logged, in order.
    """

    told: Any
    events: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind, such as "TaskEnd"."""
        return [event for event in self.events if event["Event"] == f"SparkListener{kind}"]


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., Done]:
    """Return a function that runs a program with a session `spark`, and returns what it printed and Spark's events.

    The program finds its folder as `folder`.
    """

    def run(source: str, master: str, **config: str) -> Done:
        log = tmp_path / "events"
        log.mkdir()
        settings = {
            "spark.executor.memory": "500m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": log.as_uri(),
            **{key.replace("__", "."): value for key, value in config.items()},
        }
        (tmp_path / "program.py").write_text(PROLOGUE.format(master=master, settings=settings) + source)
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[done.stderr.rfind("Traceback") :][:4000]
        (file,) = (path for path in log.iterdir() if not path.name.startswith("."))
        events = [json.loads(line) for line in file.read_text().splitlines()]
        return Done(json.loads(done.stdout.splitlines()[-1]), events)

    return run


PROLOGUE: Final = """
import json
import os
import signal
import threading
import time
from pathlib import Path

import flamecore as fc
import flamestream_spark
from flamecore.testing.progress import Patience
from flamestream_spark.session.session import settings_of
from pyspark.sql import SparkSession

folder = Path.cwd()
builder = SparkSession.builder.master({master!r})
for key, value in settings_of({master!r}, {settings!r}).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()


def wait_for(condition, limit_s=120):
    limit = Patience(limit_s)
    while not condition():
        assert not limit.passed(), "waited in vain"
        time.sleep(0.05)

"""
