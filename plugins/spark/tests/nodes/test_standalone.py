"""A cluster of a master and two workers, started from the wheel: executors that no session of this process has made."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from flamecore.testing.progress import Patience

pytestmark = pytest.mark.jvm

START_S: Final = 60.0

FLOW = """
import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""


@contextmanager
def started(folder: Path, name: str, said: str, *arguments: str) -> Iterator[str]:
    """Start a daemon of Spark, and yield the address that its log names."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    log = folder / f"{name}.log"
    kind = "master.Master" if name == "master" else "worker.Worker"
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
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
        yield found[1]
    finally:
        daemon.terminate()
        daemon.wait(20)


def test_a_job_runs_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(FLOW)
    (tmp_path / "lines").write_text("".join(f"a b{n % 3}\n" for n in range(500)))
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    worker = (*place, "--cores", "1", "--memory", "1g")
    with (
        started(tmp_path, "master", r"Starting Spark master at (spark://\S+)", *place) as master,
        started(tmp_path, "one", r"Successfully registered with master (\S+)", *worker, master),
        started(tmp_path, "two", r"Successfully registered with master (\S+)", *worker, master),
    ):
        settings = [
            f"spark.master={master}",
            'spark.config={"spark.executor.memory"="500m","spark.ui.enabled"="false","spark.driver.host"="127.0.0.1"}',
            f"source.lines.path={tmp_path / 'lines'}",
            f"sink.counts.path={tmp_path / 'out.jsonl'}",
        ]
        options = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "flamecore", "run", "words.py", "--on", "spark", "-w", "2", "-q", "--json"]
        done = subprocess.run(
            [*command, "--source", "lines=lines", "--sink", "counts=jsonl", *options],
            cwd=tmp_path,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert '"executors": 2' in done.stdout, done.stdout
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1000
