"""A cluster of a master and two workers, started from the wheel: executors that no session of this process has made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.jvm

FLOW = """
import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""


def test_a_job_runs_on_a_cluster(tmp_path: Path, cluster: Callable[..., Any]) -> None:
    (tmp_path / "words.py").write_text(FLOW)
    (tmp_path / "lines").write_text("".join(f"a b{n % 3}\n" for n in range(500)))
    with cluster() as there:
        settings = [
            f"spark.master={there.master}",
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
