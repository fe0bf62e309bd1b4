"""Tables of a real Iceberg, which change between two reads: rows are added or merged, and programs killed.

The programs are processes of their own, since a session has the jars that it began with.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flamecore.testing.progress import Patience

pytestmark = pytest.mark.jvm

LIMIT_S = 120

FLOW = """
import time
from typing import NamedTuple

import flamecore as fc


class Row(NamedTuple):
    id: int
    line: str


class Count(NamedTuple):
    word: str
    number: int


def words(row: Row) -> list[str]:
    time.sleep(0.004)
    return row.line.split()


def made(pair: tuple[str, int]) -> Count:
    return Count(*pair)


flow = fc.Flow("words")
flow.source("lines", Row).flat_map(words).key_by(lambda word: word).count().map(made).sink("counts")
"""

PROGRAM = """
import json
import os
import sys
from pathlib import Path

import flamestream_spark
from flamecore.errors import FlameError
from flamestream_spark.session.session import session
from words import flow

NAME = "ice.shelf.lines"


def stream(**more):
    lines = spark.readStream.option("streaming-max-files-per-micro-batch", "1").table(NAME)
    running = flamestream_spark.stream(flow, lines=lines, checkpoint="job", **more)
    running.awaitTermination()
    return running.output()


def run():
    options = {"use": "spark", "table": NAME, "columns": ["id", "line"], "order_by": ["id"]}
    settings = {f"source.lines.{key}": value for key, value in options.items()}
    settings |= {"sink.counts.use": "spark", "sink.counts.path": "out", "sink.counts.mode": "resume"}
    settings |= {"sink.counts.times": True, "job.guarantee": "exactly_once"}
    flow.run(settings=settings, state="state")
    return spark.read.parquet("out")


def rewritten():
    counts = flamestream_spark.run(flow, lines=spark.table(NAME), order_by="id")
    counts.writeTo("ice.shelf.counts").createOrReplace()
    return spark.table("ice.shelf.counts")


jars, steps = json.loads(sys.argv[1])
config = {
    "spark.jars": jars,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.warehouse": os.path.abspath("warehouse"),
}
ways = {"stream": lambda: stream(trigger={"availableNow": True}), "follow": stream, "run": run, "rewrite": rewritten}
results = []
with session("local[4]", config) as spark:
    for step in steps:
        if step not in ways:
            spark.sql(step)
            continue
        try:
            rows = ways[step]().orderBy("_time", "_front", "_place").collect()
            results.append([[row.word, row.number] for row in rows])
        except FlameError as error:
            results.append(f"{error.what} | {error.hint}")
Path("results.json").write_text(json.dumps(results))
"""


def start(folder: Path, jars: str, *steps: str) -> subprocess.Popen[bytes]:
    """Start a program with a session, which does some steps: statements, and reads of the table."""
    (folder / "words.py").write_text(FLOW)
    (folder / "program.py").write_text(PROGRAM)
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.Popen([sys.executable, "program.py", json.dumps([jars, steps])], cwd=folder, env=environ)


def results(folder: Path, jars: str, *steps: str) -> list[Any]:
    """Return the result of each read: counts in the order of the records, or an error."""
    assert start(folder, jars, *steps).wait() == 0
    return list(json.loads((folder / "results.json").read_text()))


def counts(*lines: str) -> list[list[Any]]:
    seen: Counter[str] = Counter()
    found: list[list[Any]] = []
    for word in " ".join(lines).split():
        seen[word] += 1
        found.append([word, seen[word]])
    return found


def table(mode: str) -> str:
    """Return the statement that makes the table; its changes are made of it as `mode` says."""
    properties = f"'format-version' = '2', 'write.merge.mode' = '{mode}'"
    return f"CREATE TABLE ice.shelf.lines (id INT, line STRING) USING iceberg TBLPROPERTIES ({properties})"


def added(*rows: tuple[int, str]) -> str:
    """Return the statement that adds rows, in one file."""
    values = ", ".join(f"({number}, '{line}')" for number, line in rows)
    return f"INSERT INTO ice.shelf.lines SELECT /*+ COALESCE(1) */ * FROM VALUES {values}"


def merged(number: int, line: str) -> str:
    """Return the statement that gives a row another value, and adds one behind all others."""
    rows = f"SELECT {number} AS id, '{line}' AS line UNION ALL SELECT 1000, 'x'"
    return (
        f"MERGE INTO ice.shelf.lines AS old USING ({rows}) AS new ON old.id = new.id "
        "WHEN MATCHED THEN UPDATE SET line = new.line WHEN NOT MATCHED THEN INSERT *"
    )


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_rows_that_are_added_are_read_on_and_a_merge_of_those_before_is_refused(
    mode: str, iceberg_jars: str, tmp_path: Path
) -> None:
    first, more = [(1, "a b"), (2, "b c"), (3, "c")], [(4, "a"), (5, "b")]
    steps = [table(mode), added(*first), "run", added(*more), "run", merged(2, "z"), "run", "rewrite"]
    begun, grown, changed, anew = results(tmp_path, iceberg_jars, *steps)
    assert begun == counts("a b", "b c", "c")
    assert grown == counts("a b", "b c", "c", "a", "b")
    assert "source 'lines': rows 1 to 5 are not those that were read" in changed
    assert "start afresh" in changed
    assert anew == counts("a b", "z", "c", "a", "b", "x"), "a run from the beginning has what the table is now"


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_stream_of_a_table_goes_on_after_a_kill_and_refuses_a_merge(
    mode: str, iceberg_jars: str, tmp_path: Path
) -> None:
    files = [[(20 * part + row, f"w{row % 5} v{part % 3}") for row in range(20)] for part in range(8)]
    program = start(tmp_path, iceberg_jars, table(mode), *(added(*rows) for rows in files), "follow")
    try:
        limit = Patience(LIMIT_S)
        while not (tmp_path / "job" / "query" / "lines" / "commits" / "1").exists():
            assert program.poll() is None
            assert not limit.passed()
            time.sleep(0.02)
    finally:
        program.kill()
        code = program.wait()
    begun = len(list((tmp_path / "job" / "query" / "lines" / "offsets").glob("[0-9]*")))
    print(f"killed in batch {begun}, of {len(files)}")
    assert (code, begun < len(files)) == (-signal.SIGKILL, True), "the kill has hit a job that still had to read"
    lines = [line for rows in files for _, line in rows]
    steps = [added((500, "a b")), "stream", merged(3, "z"), "stream"]
    found, changed = results(tmp_path, iceberg_jars, *steps)
    assert found == counts(*lines, "a b")
    assert "source 'lines': Spark cannot read it" in changed
    assert "overwrite snapshot" in changed
    assert "streaming-skip-overwrite-snapshots" in changed.partition(" | ")[2], "and what to do"
