"""Costly function before the first key, run by one worker or by executors.

Executors of Spark run it as they read. Compared is the processor time of the busiest Python process: the limit of a
job on a machine with a core for each of them. Start and end are subtracted: the same job over a page a file, in the
same round.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import measured
from benchmarks.report import Table
from benchmarks.several import turns_per_us
from benchmarks.sparkjobs import compared, run_job, spark_of, spent_on

SLOTS: Final = (1, 2)
"""Slots of Spark beside that of the worker."""
COST_US: Final = 1000
WANTED: Final = 1.7
_LIMIT_S: Final = 3600.0
_FILES: Final = 8
_AHEAD: Final = "on executors, as they read"
_AFTER: Final = "by the worker"


def compare(*, pages: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure both, each number of slots in one process.

    Args:
        pages: How many there are; each takes a millisecond of the processor.
        rounds: How often, after once to warm up.
    """
    runs: dict[int, list[dict[str, dict[str, Any]]]] = {}
    for slots in SLOTS:
        arguments = {"pages": pages, "rounds": rounds, "slots": slots}
        what = f"a prefix on Spark, {slots} slots"
        runs[slots] = measured("sparkprefix", arguments, what=what, limit_s=_LIMIT_S)["runs"]
    title = f"{COST_US / 1000:g} ms for each of {pages:,} pages before the first key, one worker on Spark, by CPU time"
    table = compared(title, runs, (_AFTER, _AHEAD), WANTED)
    return table, {"pages": pages, "runs": runs, "targets": table.targets}


def run(*, pages: int, rounds: int, slots: int) -> dict[str, Any]:
    """In the measured process."""
    os.environ["TURNS"] = str(round(COST_US * turns_per_us()))  # executors and their workers have it from here
    with spark_of(f"local[{1 + slots}]"), tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _write(place / "few", _FILES)
        _write(place / "many", pages)
        runs = []
        for number in range(rounds + 1):
            of: dict[str, dict[str, Any]] = {}
            for name, ahead in ((_AFTER, False), (_AHEAD, True)):
                few, many = place / f"few-{number}-{ahead}", place / f"many-{number}-{ahead}"
                of[name] = spent_on(
                    partial(_job, place / "many", many, ahead=ahead), partial(_job, place / "few", few, ahead=ahead)
                )
                of[name]["outputs"] = hashlib.sha256(many.read_bytes()).hexdigest()
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


def _job(pages: Path, out: Path, *, ahead: bool) -> None:
    from benchmarks.flows.costly_pages import flow

    source = {"use": "spark", "path": str(pages), "prefix": ahead}
    settings = {f"source.pages.{key}": value for key, value in source.items()}
    sink = {"sink.counts.use": "jsonl", "sink.counts.path": str(out)}
    run_job(flow, settings | sink | {"job.workers": 1, "deploy.on": "spark"})
