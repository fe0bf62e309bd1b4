"""A whole job on Spark from a folder to S3 or HDFS, where its rows pass and its state is; its driver is killed."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flamecore.testing.progress import Patience
from flamestream_spark.storage.place import Place
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.claims import CLAIMS

pytestmark = pytest.mark.jvm

FLOW = """
import time
from typing import NamedTuple

import flamecore as fc


class Count(NamedTuple):
    word: str
    number: int


def split(line: str) -> list[str]:
    time.sleep(0.004)
    return line.split()


def made(pair: tuple[str, int]) -> Count:
    return Count(*pair)


flow = fc.Flow("words")
counts = flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count()
counts.map(made).sink("counts")
"""

JOB = """schema = 1
[job]
flow = "words.py:flow"
workers = 2
guarantee = "exactly_once"

[source.lines]
use = "spark"
format = "text"
path = "lines"
spool = "{root}/job/spool"

[sink.counts]
use = "spark"
path = "{root}/job/out"
mode = "resume"
times = true

[state]
use = "directory"
path = "{root}/job/state"
interval_s = 1

[spark]
master = "local[4]"
config = {{ "spark.driver.memory" = "600m" }}
"""

LINES = 2000


def line(n: int) -> str:
    return f"a b{n % 3} c{n % 7}"


def wanted() -> list[tuple[str, int]]:
    seen: Counter[str] = Counter()
    outputs = []
    for word in (word for n in range(LINES) for word in line(n).split()):
        seen[word] += 1
        outputs.append((word, seen[word]))
    return outputs


def rows(where: Place) -> list[dict[str, Any]]:
    """Return the rows in the order of delivery."""
    found = []
    for name in where.names(below=True):
        found += pq.ParquetFile(io.BytesIO(where.read(name) or b"")).read().to_pylist()
    return sorted(found, key=lambda row: [row[name] for name in ("_time", "_front", "_place")])


@pytest.mark.parametrize("store", ["s3", "hdfs"])
def test_a_driver_is_killed_and_the_next_one_goes_on(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if store == "s3":
        request.getfixturevalue("s3_environment")
    root = "s3a://bucket" if store == "s3" else request.getfixturevalue("hdfs")
    (tmp_path / "words.py").write_text(FLOW)
    (tmp_path / "job.toml").write_text(JOB.format(root=root))
    (tmp_path / "lines").mkdir()
    for part in range(3):
        at = range(part * LINES // 3, (part + 1) * LINES // 3)
        (tmp_path / "lines" / f"part-{part}.txt").write_text("".join(f"{line(n)}\n" for n in at))
    where = place_of(f"{root}/job/out", "path")
    log = tmp_path / "log"

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as said:
            command = [sys.executable, "-m", "flamecore", "run", "job.toml", "-q"]
            return subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said)

    job = start()
    try:
        limit = Patience(400)
        while sum(not name.startswith(CLAIMS) for name in where.names(below=True)) < 5:
            assert job.poll() is None, log.read_text()[-4000:]
            assert not limit.passed(), log.read_text()[-4000:]
            time.sleep(0.1)
        job.kill()
        job.wait()
        before = rows(where)
        assert 0 < len(before) < 3 * LINES, "it was killed too late"
        for _ in range(2):  # the second time there is nothing left to do
            job = start()
            assert job.wait(500) == 0, log.read_text()[-4000:]
            assert [(row["word"], row["number"]) for row in rows(where)] == wanted()
    finally:
        job.kill()
        job.wait()
