"""Slots of sessions that workers cannot have for good: refused at the start, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flamestream_spark.session.messages import FIXED_SLOTS

FLOW = """
import flamecore as fc

flow = fc.Flow("lines")
flow.source("lines", str).sink("out")
"""

PROGRAM = """
import flamestream_spark
from lines import flow
from flamestream_spark.session.session import settings_of
from flamecore.errors import ConfigError
from pyspark.sql import SparkSession

master = "local-cluster[2,2,1024]"
builder = SparkSession.builder.master(master).config("spark.executor.memory", "500m")
for key, value in settings_of(master, {"spark.dynamicAllocation.enabled": "true"}).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = spark.createDataFrame([("a",), ("b",)], "line string")
try:
    print(flamestream_spark.run(flow, lines=rows, order_by="line", on_spark=True).count())
except ConfigError as error:
    print(error.what)
    print(error.hint)
spark.stop()
"""


@pytest.mark.timeout(200)
def test_a_session_of_the_program_with_dynamic_allocation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(FLOW)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    what, hint = done.stdout.splitlines()
    assert what.startswith("spark.dynamicAllocation.enabled is true, and workers keep their slots")
    assert "SPARK-24942" in what
    assert hint == FIXED_SLOTS
