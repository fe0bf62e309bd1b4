"""Over Spark Connect: a program without a JVM of its own, and a server that is started from the same package."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from ephemeral_port_reserve import reserve

from flamecore.testing.progress import Patience
from flamestream_spark.session.java import find_java

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(not all(map(find_spec, ("grpc_status", "zstandard"))), reason="needs extra [connect]"),
]

FLOW = """
import flamecore as fc


def word(word: str) -> str:
    return word


flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(word).count(name="count").sink("counts")
"""

PROGRAM = """
import sys

from pyspark.sql import SparkSession

import flamecore as fc
import flamestream_spark
from words import flow

port, folder = sys.argv[1:]
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
rows = spark.createDataFrame([(2, "to be"), (1, "or not"), (3, "to be")], "n int, line string")
counts = flamestream_spark.run(flow, lines=rows, order_by="n")
print([tuple(row)[:2] for row in counts.orderBy("_time", "_place").collect()])
text = spark.read.text(folder + "/in")
print(text.transform(flamestream_spark.through(flow)).count())
lines = spark.readStream.text(folder + "/in")
with flamestream_spark.stream(flow, lines=lines, checkpoint=folder + "/job") as running:
    running.processAllAvailable()
    print(running.output().count())
out = spark.read.format("flamestream").load(folder + "/job/output/counts")
print(out.selectExpr("max(value)").first()[0])
hosted = flamestream_spark.run(flow, lines=rows, order_by="n", on_spark=True)
print(hosted.count())


def shout(word: str) -> str:
    return word.upper() + mark


mark = "!"
own = fc.Flow("main")
own.source("lines", str).flat_map(str.split).map(shout).sink("out")
shouted = flamestream_spark.run(own, lines=rows, order_by="n", on_spark=True)
print([row.value for row in shouted.orderBy("_time", "_place").collect()])
"""


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Start a server, and yield its port and that of its pages."""
    import pyspark

    if not [*Path(pyspark.__file__).with_name("jars").glob("spark-connect_*.jar")]:
        pytest.skip(f"PySpark {pyspark.__version__} has no server of Spark Connect in it")
    port, pages = reserve(), reserve()
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[4]"),
        *(
            "--conf",
            "spark.connect.grpc.binding.address=127.0.0.1",
            "--conf",
            f"spark.connect.grpc.binding.port={port}",
        ),
        *("--conf", f"spark.ui.port={pages}", "--conf", "spark.sql.shuffle.partitions=2"),
        "spark-internal",
    ]
    home = find_java()
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])])
    if home is not None:
        environment["JAVA_HOME"] = str(home)
    log = tmp_path / "server.log"
    with log.open("wb") as said:
        server = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        limit = Patience(90)
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, log.read_text()
            assert not limit.passed(), log.read_text()
            time.sleep(0.1)
        yield port, pages
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def jobs_of(pages: int) -> list[dict[str, Any]]:
    """Return what Spark's pages show of its jobs."""

    def got(path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{pages}/api/v1/applications{path}") as answer:
            return json.load(answer)

    (application,) = got("")
    return list(got(f"/{application['id']}/jobs"))


def test_flows_run_over_connect(ports: tuple[int, int], tmp_path: Path) -> None:
    port, pages = ports
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("to be\nor not to be\n")
    (tmp_path / "words.py").write_text(FLOW)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(port), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.splitlines() == [
        "[('or', 1), ('not', 1), ('to', 1), ('be', 1), ('to', 2), ('be', 2)]",
        "6",
        "6",
        "2",
        "6",
        "['OR!', 'NOT!', 'TO!', 'BE!', 'TO!', 'BE!']",
    ]
    shown = " ".join(tag for job in jobs_of(pages) for tag in job["jobTags"])
    print(shown)
    assert "flamestream main: ended: 3 in" in shown
