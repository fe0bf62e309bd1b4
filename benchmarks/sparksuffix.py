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
from benchmarks.report import Spread, Table, ratios
from benchmarks.several import NOTHING, SHORT_S, turns_per_us
from benchmarks.sparkjobs import digest, run_job, spark_of

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
    table = Table(title, ("where the function runs", "outputs/s", f"x {_WITHIN}"))
    for name in (_WITHIN, _BEHIND):
        faster = ratios([run[name] for run in runs], [run[_WITHIN] for run in runs], "rate")
        if any(run[name]["digest"] != run[_WITHIN]["digest"] for run in runs):
            table.fail(name, "outputs are not those of the worker alone")
            continue
        if any(run[each]["seconds"] < SHORT_S for run in runs for each in run):
            table.note(NOTHING)
            continue
        table.add(name, Spread.of([run[name]["rate"] for run in runs]), faster)
        if name == _BEHIND:
            table.target(name, f"{name}: x {_WITHIN}", faster, WANTED)
    table.note("A machine with less than three cores to give cannot show more than its cores.")
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
                of[name] = {"seconds": seconds, "start_s": little, "rate": rate, "digest": digest(spark, out)}
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
