"""Costly function behind the last key, run by one worker or by tasks of Spark.

Compared is the processor time of the busiest Python process: the limit of a job on a machine with a core for each of
them. Start and end are subtracted: the same job over a few words, in the same round.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import measured
from benchmarks.report import Table
from benchmarks.several import turns_per_us
from benchmarks.sparkjobs import compared, digest, run_job, spark_of, spent_on

SLOTS: Final = (1, 2)
"""Slots of Spark; the worker has one of them until it ends."""
COST_US: Final = 1000
WANTED: Final = 1.5
_LIMIT_S: Final = 3600.0
_FEW: Final = 8
_BEHIND: Final = "in tasks, behind the workers"
_WITHIN: Final = "by the worker"


def compare(*, outputs: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure both, each number of slots in one process.

    Args:
        outputs: How many there are; each takes a millisecond of the processor.
        rounds: How often, after once to warm up.
    """
    runs: dict[int, list[dict[str, dict[str, Any]]]] = {}
    for slots in SLOTS:
        arguments = {"outputs": outputs, "rounds": rounds, "slots": slots}
        what = f"a suffix on Spark, {slots} slots"
        runs[slots] = measured("sparksuffix", arguments, what=what, limit_s=_LIMIT_S)["runs"]
    title = (
        f"{COST_US / 1000:g} ms for each of {outputs:,} outputs behind the last key, one worker on Spark, by CPU time"
    )
    table = compared(title, runs, (_WITHIN, _BEHIND), WANTED)
    return table, {"outputs": outputs, "runs": runs, "targets": table.targets}


def run(*, outputs: int, rounds: int, slots: int) -> dict[str, Any]:
    """Run both in turn, in the measured process."""
    os.environ["TURNS"] = str(round(COST_US * turns_per_us()))  # tasks and workers have it from here
    with spark_of(f"local[{slots}]") as spark, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, count in (("few", _FEW), ("many", outputs)):
            (place / name).write_text("".join(f"w{number % 97}\n" for number in range(count)))
        runs = []
        for number in range(rounds + 1):
            of: dict[str, dict[str, Any]] = {}
            for name, behind in ((_WITHIN, False), (_BEHIND, True)):
                few, many = place / f"few-{number}-{behind}", place / f"many-{number}-{behind}"
                of[name] = spent_on(
                    partial(_job, place / "many", many, behind=behind), partial(_job, place / "few", few, behind=behind)
                )
                of[name]["outputs"] = digest(spark, many)
            if number:
                runs.append(of)
        return {"runs": runs}


def _job(words: Path, out: Path, *, behind: bool) -> None:
    from benchmarks.flows.costly_outputs import flow

    source = {"source.words.use": "lines", "source.words.path": str(words)}
    sink = {"use": "spark", "path": str(out), "times": True, "suffix": behind}
    settings = source | {f"sink.counts.{key}": value for key, value in sink.items()}
    run_job(flow, settings | {"job.workers": 1, "deploy.on": "spark"})
