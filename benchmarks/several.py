"""Throughput on two processes over sockets against one worker in one process.

The job is a word count behind a costly function.

Start and end are left out: the same job over ten lines, run in the same round, is subtracted.

Beside it stands what the machine gives in the same minute: two jobs of one process each that share nothing but the
machine, against one of them alone. Two cores that share their caches, or are one core's two threads, give less than 2.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.corpora import zipf_lines
from benchmarks.deployed import Run, missing, transport
from benchmarks.processes import say
from benchmarks.report import Spread, Table

WORKERS: Final = 2
COSTS_US: Final = (0, 5, 20, 100)
WANTED: Final = {0: 1.0, 5: 1.6, 20: 1.85, 100: 1.85}
_LITTLE: Final = 10
SHORT_S: Final = 0.3
NOTHING: Final = "a run that takes no longer than starting it says nothing"
_TURNS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its times in seconds, its messages, and the digest of its outputs.

    The times are wall time, CPU time of all processes, and CPU time of the busiest process.
    """

    seconds: float
    cpu: float
    busiest: float
    digest: str
    messages: int

    def without(self, little: Measured) -> Measured:
        """Return the measures without the cost of starting and ending."""
        return Measured(
            self.seconds - little.seconds,
            self.cpu - little.cpu,
            self.busiest - little.busiest,
            self.digest,
            self.messages - little.messages,
        )


def turns_per_us() -> float:
    """Return how often an empty loop turns in a microsecond of the processor."""
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        for _ in range(_TURNS):
            pass
        best = min(best, time.process_time() - start)
    return _TURNS / best / 1e6


def _run(lines: Path, cost_us: int, per_us: float, settings: list[str], *, beside: int = 0) -> Measured:
    """Run the job, and as many others like it at the same time; the slowest counts."""
    environment = {"TURNS": str(round(cost_us * per_us))}
    return run_lines("costly_words", str(lines), settings, environment=environment, beside=beside)


def run_lines(
    flow: str, path: str, settings: list[str], *, environment: dict[str, str] | None = None, beside: int = 0
) -> Measured:
    """Run a flow from a source `lines` to a sink `counts` over files of lines.

    Args:
        flow: Name of its file.
        path: Path of the files, or a pattern.
        settings: More arguments of `flamestream run`.
        environment: Added to this process's own.
        beside: Number of others like it that run at the same time; the slowest counts.
    """
    source = ["--source", "lines=lines", "--set", f"source.lines.path={path}", "--sink", "counts=stdout"]
    with ExitStack() as stack:
        outs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1 + beside)]
        runs = [Run(flow, [*source, *settings], environment=environment, stdout=out) for out in outs]
        for run in runs:
            stack.callback(run.process.kill)
        summaries = [run.finish() for run in runs]
        outs[0].seek(0)
        digest = hashlib.file_digest(outs[0], "sha256").hexdigest()
    spent = runs[0].spent.values()
    seconds = max(summary["elapsed_s"] for summary in summaries)
    return Measured(seconds, sum(spent), max(spent, default=0.0), digest, sum(summaries[0]["messages"].values()))


def compare(*, lines: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Both in turn for every cost of the function."""
    columns = (
        "µs a line",
        "1 process, lines/s",
        "2 processes",
        "x 1 process",
        "CPU, x 1",
        "by CPU time",
        "2 apart, x 1",
        "messages/line",
    )
    table = Table("Word count in lines/s, on 1 process and on 2 over sockets", columns)
    if why := missing("socket"):
        table.note(why)
        return table, {"missing": why}
    per_us = turns_per_us()
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, transport("socket") as over:
        modes = {"one": (["-w", "1"], 0), "two": (["-w", str(WORKERS), *over], 0), "apart": (["-w", "1"], WORKERS - 1)}
        little = _written(Path(folder, "little"), _LITTLE)
        for cost in COSTS_US:
            count = max(lines * 10 // (10 + cost), 1000)
            full = _written(Path(folder, str(cost)), count)
            runs: dict[str, list[Measured]] = {name: [] for name in modes}
            for _ in range(rounds):
                for name, (settings, beside) in modes.items():
                    say(f"several: {name}, {cost} µs")
                    start = _run(little, cost, per_us, settings, beside=beside)
                    runs[name].append(_run(full, cost, per_us, settings, beside=beside).without(start))
            _judge(table, facts, cost, count, runs)
    return table, {"costs": facts, "targets": table.targets}


def _judge(table: Table, facts: dict[str, Any], cost: int, count: int, runs: dict[str, list[Measured]]) -> None:
    if len({run.digest for found in runs.values() for run in found}) != 1:
        table.fail(str(cost), "two processes give other outputs than one")
        return
    if min(run.seconds for found in runs.values() for run in found) < SHORT_S:
        table.add(cost, *["-"] * 7)
        table.note(NOTHING)
        return
    pairs = list(zip(runs["one"], runs["two"], strict=True))
    wall = Spread.of([one.seconds / two.seconds for one, two in pairs])
    cpu = Spread.of([two.cpu / one.cpu for one, two in pairs]) if pairs[0][0].cpu else None
    # On two free cores a job takes as long as its busiest process, and at least half of what all take together.
    free = Spread.of([one.cpu / max(two.cpu / 2, two.busiest) for one, two in pairs]) if cpu is not None else None
    pairs_apart = zip(runs["one"], runs["apart"], strict=True)
    apart = Spread.of([WORKERS * one.seconds / both.seconds for one, both in pairs_apart])
    speeds = [Spread.of([count / run.seconds for run in runs[name]]) for name in ("one", "two")]
    messages = Spread.of([two.messages / count for _, two in pairs])
    table.add(cost, *speeds, wall, cpu or "-", free or "-", apart, messages)
    facts[str(cost)] = {
        "lines": count,
        "times_one": wall.facts(),
        "cpu_times_one": cpu.facts() if cpu else None,
        "times_one_by_cpu": free.facts() if free else None,
        "apart_times_one": apart.facts(),
        "messages_per_line": messages.facts(),
    }
    if cost in WANTED:
        table.target("2 processes", f"{cost} µs a line, times 1 process", wall, WANTED[cost])
        if free is not None:
            table.target("2 processes", f"{cost} µs a line, the same by CPU time", free, WANTED[cost])


def _written(path: Path, count: int) -> Path:
    path.write_text("".join(f"{line}\n" for line in zipf_lines(count * 10)))
    return path
