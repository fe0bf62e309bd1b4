"""Costly function before the first key, run by one worker or by executors.

Executors of Spark run it as they read.

The time of starting and ending is subtracted: the same job over a page a file, in the same round.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import measured
from benchmarks.report import Table
from benchmarks.several import turns_per_us
from benchmarks.sparkjobs import compared, run_job, spark_of

MASTER: Final = "local[3]"
COST_US: Final = 1000
WANTED: Final = 1.7
_FILES: Final = 8
_AHEAD: Final = "on executors, as they read"
_AFTER: Final = "by the worker"


def compare(*, pages: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure both in one process.

    Args:
        pages: How many there are; each takes a millisecond of the processor.
        rounds: How often, after once to warm up.
    """
    arguments = {"pages": pages, "rounds": rounds}
    runs: list[dict[str, dict[str, Any]]] = measured("sparkprefix", arguments, what="a prefix on Spark")["runs"]
    title = f"{COST_US / 1000:g} ms for each of {pages:,} pages, one worker, Spark on {MASTER}, without start and end"
    table = compared(title, "pages", runs, (_AFTER, _AHEAD), WANTED)
    return table, {"pages": pages, "runs": runs, "targets": table.targets}


def run(*, pages: int, rounds: int) -> dict[str, Any]:
    """In the measured process."""
    os.environ["TURNS"] = str(round(COST_US * turns_per_us()))  # executors and their workers have it from here
    with spark_of(MASTER), tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _write(place / "few", _FILES)
        count = _write(place / "many", pages)
        runs = []
        for number in range(rounds + 1):
            of: dict[str, dict[str, Any]] = {}
            for name, ahead in ((_AFTER, False), (_AHEAD, True)):
                little, _ = _timed(place / "few", place / f"few-{number}-{ahead}", ahead=ahead)
                seconds, outputs = _timed(place / "many", place / f"many-{number}-{ahead}", ahead=ahead)
                seconds -= little
                of[name] = {"seconds": seconds, "start_s": little, "rate": count / seconds, "outputs": outputs}
            if number:
                runs.append(of)
        return {"runs": runs}


def _write(folder: Path, pages: int) -> int:
    """Write pages in eight files; return their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    each = pages // _FILES
    for file in range(_FILES):
        texts = [f"w{n * 7919 % 1000} w{n % 13} w{n}" for n in range(file * each, (file + 1) * each)]
        pq.write_table(pa.table({"page": texts}), folder / f"{file}.parquet")
    return each * _FILES


def _timed(pages: Path, out: Path, *, ahead: bool) -> tuple[float, str]:
    """Run the job; return its seconds, and a digest of the outputs."""
    from benchmarks.flows.costly_pages import flow

    source = {"use": "spark", "path": str(pages), "prefix": ahead}
    settings = {f"source.pages.{key}": value for key, value in source.items()}
    begin = time.perf_counter()
    sink = {"sink.counts.use": "jsonl", "sink.counts.path": str(out)}
    run_job(flow, settings | sink | {"job.workers": 1, "deploy.on": "spark"})
    return time.perf_counter() - begin, hashlib.sha256(out.read_bytes()).hexdigest()
