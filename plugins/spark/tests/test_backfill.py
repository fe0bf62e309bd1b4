"""History on Spark, then live elsewhere, with one state: the outputs are those of one run, kills or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

import flamecore as fc
import flamestream_spark
from flamecore.testing.progress import Patience
from flamestream_spark.spool.spool import Spool

FLOW = """
import time
from typing import NamedTuple

import flamecore as fc


class Sale(NamedTuple):
    shop: str
    amount: int


def worked(sale: Sale) -> Sale:
    time.sleep(0.002)
    return sale


def shop_of(sale: Sale) -> str:
    return sale.shop


def total(state: int, sale: Sale) -> tuple[int, list[tuple[str, int]]]:
    return state + sale.amount, [(sale.shop, state + sale.amount)]


flow = fc.Flow("totals")
flow.source("sales", Sale).map(worked).key_by(shop_of).stateful_map(0, total, name="total").sink("totals")
"""

JOB = """
schema = 1

[job]
flow = "totals.py"
guarantee = "exactly_once"
workers = 2
max_in_flight = 32

[source.sales]
{source}

[sink.totals]
use = "spark"
path = "out"
format = "delta"
times = true

[state]
use = "directory"
path = "state/"
interval_s = 0.05
"""

HISTORY = 'use = "spark"\npath = "history"\norder_by = ["n"]\ncolumns = ["shop", "amount"]'
LIVE = 'use = "spark"\nspool = "spool"\nphase = 2'


def rows_of(numbers: range) -> list[tuple[int, str, int]]:
    return [(number, f"shop {number % 5}", number % 17) for number in numbers]


LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.own.ref = own
appender.own.type = File
appender.own.name = own
appender.own.fileName = {}/spark.log
appender.own.layout.type = PatternLayout
appender.own.layout.pattern = %m%n
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from flamecore.cli import main; main()", "run", *arguments, "--quiet"]
    environ = {**os.environ, **environment}
    return subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)


def files(folder: Path) -> list[Path]:
    """Return the files of the output.

    At most one of each process that was killed is in no version.
    """
    return list((folder / "out").glob("part-*"))


def kill_when(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Kill the command, and Spark with it, when there are so many files of output."""
    limit = Patience(100)
    while len(files(folder)) < count:
        assert process.poll() is None, process.communicate()[1]
        assert not limit.passed()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def done(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a job that ends well."""
    _, said = process.communicate()
    assert process.returncode == 0, said


def outputs(folder: Path) -> list[tuple[int, str, int]]:
    """Time, shop and total of all that was put out, in order."""
    rows = pa.table(DeltaTable(folder / "out").to_pyarrow_dataset().to_table()).to_pylist()
    rows.sort(key=lambda row: [row[name] for name in flamestream_spark.TIMES])
    return [(row["_time"], *list(row.values())[:2]) for row in rows]


def test_a_job_reads_history_on_spark_then_live_through_kills(spark: Any, tmp_path: Path) -> None:
    history, live = rows_of(range(900)), rows_of(range(900, 1500))
    (tmp_path / "history").mkdir()
    shuffled = sorted(history, key=lambda row: row[0] * 7919 % 900)
    for part in range(3):
        columns = zip(("n", "shop", "amount"), zip(*shuffled[part::3], strict=True), strict=True)
        pq.write_table(pa.table({name: list(values) for name, values in columns}), tmp_path / "history" / f"{part}.pq")
    (tmp_path / "totals.py").write_text(FLOW)
    (tmp_path / "history.toml").write_text(JOB.format(source=HISTORY) + '\n[spark]\nmaster = "local[4]"\n')
    (tmp_path / "live.toml").write_text(JOB.format(source=LIVE))

    kill_when(run(tmp_path, "history.toml", "--on", "spark"), tmp_path, 4)
    assert len(outputs(tmp_path)) < 900
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text(LOGGING.format(tmp_path))
    done(run(tmp_path, "history.toml", SPARK_CONF_DIR=str(tmp_path / "conf")))
    begun = (tmp_path / "spark.log").read_text().count("Submitted application")
    assert begun == 1, "there is one Spark, which the driver has: no worker makes another"
    assert len(outputs(tmp_path)) == 900

    into = flamestream_spark.Into(tmp_path / "spool")
    half = spark.createDataFrame([row[1:] for row in live[:300]], "shop string, amount bigint").coalesce(1)
    into(half, 0)
    before = len(files(tmp_path))
    kill_when(run(tmp_path, "live.toml", "--on", "here"), tmp_path, before + 4)
    assert 900 < len(outputs(tmp_path)) < 1500
    into(half, 0)
    into(spark.createDataFrame([row[1:] for row in live[300:]], "shop string, amount bigint").coalesce(1), 1)
    Spool(tmp_path / "spool", "sales").end()
    done(run(tmp_path, "live.toml", "--on", "here"))

    totals: dict[str, int] = {}
    expected = []
    for number, name, sold in history + live:
        totals[name] = totals.get(name, 0) + sold
        expected.append((number, name, totals[name]))
    assert outputs(tmp_path) == expected, "times go on where history ended"


def test_a_job_reads_history_in_the_program_then_live(spark: Any, tmp_path: Path) -> None:
    """The same without a process of its own: source `spark` embedded, then what is handed over in the program."""
    flow = fc.Flow("counts")
    flow.source("words", str).key_by(lambda word: word).count(name="count").sink("counts")
    pq.write_table(pa.table({"word": ["a", "b", "a"]}), tmp_path / "history.parquet")
    source = {"source.words.use": "spark", "source.words.path": str(tmp_path / "history.parquet")}
    first = flow.run(settings=source, state=tmp_path / "state")
    flamestream_spark.Into(tmp_path / "spool")(spark.createDataFrame([("a",), ("c",)], "word string").coalesce(1), 0)
    Spool(tmp_path / "spool", "words").end()
    live = {"source.words.use": "spark", "source.words.spool": str(tmp_path / "spool"), "source.words.phase": 2}
    second = flow.run(settings=live, state=tmp_path / "state")
    assert first["counts"] + second["counts"] == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("c", 1)]
