"""Memory of a job on Spark against its rows, Parquet to Parquet, exactly once.

Only the counts of a thousand keys are held, so ten times the rows take what one does. Spark decides how much
memory its Java processes take, up to the limit that it is given; that is shown without a target.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import below, measured
from benchmarks.report import Spread, Table
from benchmarks.sparkfeed import KEYS, counting_job
from benchmarks.sparkjobs import run_job, spark_of

MASTER: Final = "local[3]"
TIMES: Final = 10
GROWS: Final = 1.5
_LOOK_S: Final = 0.2
_LIMIT_S: Final = 3600.0
_ROLES: Final = {
    "driver": "the driver's Python",
    "worker": "the larger worker",
    "task": "Python of a task, the largest",
    "java": "Spark's Java",
}


def compare(*, rows: int) -> tuple[Table, dict[str, Any]]:
    """Return peak memory for some rows and for ten times as many.

    It is the most memory resident at once. Each number of rows has a process of its own.

    Args:
        rows: The fewer.
    """
    title = f"Peak memory in MB, keyed count from Parquet to Parquet on Spark, {MASTER}, two workers, exactly once"
    table = Table(title, ("rows", "rows/s", *_ROLES.values()))
    runs = {}
    for count in (rows, rows * TIMES):
        runs[count] = found = measured(
            "sparkmemory", {"rows": count}, what=f"memory on Spark: {count:,} rows", limit_s=_LIMIT_S
        )
        peaks = (Spread.of([found["peaks"][role] / 1e6]) for role in _ROLES)
        table.add(f"{count:,}", Spread.of([count / found["seconds"]]), *peaks)
    for role in ("driver", "worker"):
        grown = Spread.of([runs[rows * TIMES]["peaks"][role] / runs[rows]["peaks"][role]])
        table.target("flamestream", f"{_ROLES[role]}, {TIMES} times the rows", grown, GROWS, at_most=True)
    return table, {"runs": runs, "targets": table.targets}


def run(*, rows: int) -> dict[str, Any]:
    """In the measured process."""
    from benchmarks.flows.counting import flow

    with spark_of(MASTER, driver__memory="1g") as spark, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        made = spark.range(0, rows, 1, 8).selectExpr("id", f"pmod(id * 7919, {KEYS}) AS key", "repeat('x', 90) AS x")
        made.write.parquet(str(place / "in"))
        with Watch() as watch:
            begin = time.perf_counter()
            run_job(flow, counting_job(place) | {"job.workers": 2, "deploy.on": "spark"})
            seconds = time.perf_counter() - begin
        each = rows // KEYS
        found = spark.read.parquet(str(place / "out")).selectExpr("count(*)", "sum(value)").first()
        assert tuple(found) == (rows, KEYS * each * (each + 1) // 2), f"wrong counts: {found}"
        return {"peaks": watch.peaks, "seconds": seconds}


class Watch:
    """Looks at this process and those below it, several times a second.

    Attributes:
        peaks: The most bytes that one process of each role has had.
    """

    def __init__(self) -> None:
        self.peaks = dict.fromkeys(_ROLES, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._over.wait(_LOOK_S):
            for pid, role in _below(os.getpid()):
                try:
                    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
                except (OSError, IndexError):  # it is gone
                    continue
                self.peaks[role] = max(self.peaks[role], resident)


def _below(pid: int) -> list[tuple[int, str]]:
    """Return a process and those below it, with their kinds."""
    found = [(pid, "driver")]
    for each, command in below(pid).items():
        role = "worker" if b"node_process" in command else "task" if b"pyspark" in command else "java"
        found.append((each, "java" if b"/java" in command[:64] else role))
    return found
