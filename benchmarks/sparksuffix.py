"""Costly function behind the last key, run by one worker or by tasks of Spark.

The time of starting and ending is subtracted: the same job over a few words, in the same round.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import measured
from benchmarks.report import Table
from benchmarks.several import turns_per_us
from benchmarks.sparkjobs import compared, digest, run_job, spark_of

MASTER: Final = "local[3]"
COST_US: Final = 1000
WANTED: Final = 1.7
_FEW: Final = 8
_BEHIND: Final = "in tasks, behind the workers"
_WITHIN: Final = "by the worker"


def compare(*, outputs: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure both in one process.

    Args:
        outputs: How many there are; each takes a millisecond of the processor.
        rounds: How often, after once to warm up.
    """
    arguments = {"outputs": outputs, "rounds": rounds}
    runs: list[dict[str, dict[str, Any]]] = measured("sparksuffix", arguments, what="a suffix on Spark")["runs"]
    title = (
        f"{COST_US / 1000:g} ms for each of {outputs:,} outputs, one worker, Spark on {MASTER}, without start and end"
    )
    table = compared(title, "outputs", runs, (_WITHIN, _BEHIND), WANTED)
    return table, {"outputs": outputs, "runs": runs, "targets": table.targets}


def run(*, outputs: int, rounds: int) -> dict[str, Any]:
    """Run both in turn, in the measured process."""
    os.environ["TURNS"] = str(round(COST_US * turns_per_us()))  # tasks and workers have it from here
    with spark_of(MASTER) as spark, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, count in (("few", _FEW), ("many", outputs)):
            (place / name).write_text("".join(f"w{number % 97}\n" for number in range(count)))
        runs = []
        for number in range(rounds + 1):
            of: dict[str, dict[str, Any]] = {}
            for name, behind in ((_WITHIN, False), (_BEHIND, True)):
                little = _timed(place / "few", place / f"few-{number}-{behind}", behind=behind)
                out = place / f"many-{number}-{behind}"
                seconds = _timed(place / "many", out, behind=behind) - little
                rate = outputs / seconds
                of[name] = {"seconds": seconds, "start_s": little, "rate": rate, "outputs": digest(spark, out)}
            if number:
                runs.append(of)
        return {"runs": runs}


def _timed(words: Path, out: Path, *, behind: bool) -> float:
    """Run the job; return its seconds."""
    from benchmarks.flows.costly_outputs import flow

    source = {"source.words.use": "lines", "source.words.path": str(words)}
    sink = {"use": "spark", "path": str(out), "times": True, "suffix": behind}
    settings = source | {f"sink.counts.{key}": value for key, value in sink.items()}
    begin = time.perf_counter()
    run_job(flow, settings | {"job.workers": 1, "deploy.on": "spark"})
    return time.perf_counter() - begin
