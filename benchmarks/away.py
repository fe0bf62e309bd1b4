"""Release latency on two processes at a fixed rate, seen from outside.

It is the time from a line's hand-over to its last update: of the count of its words, or, where a line is a page, of the
inverted index.

A feeder process writes lines into the standard input of the job, which is that of the first worker; this process reads
the job's standard output, which is the supervisor's, and notes when each update arrives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.deployed import TRANSPORTS, Run, missing, transport
from benchmarks.feeder import texts_of
from benchmarks.processes import LIMIT_S, ROOT, RunError, say
from benchmarks.report import Spread, Table

WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Load:
    """Texts that arrive at a fixed rate, and the job that reads them.

    Attributes:
        texts: Kind of the texts, `lines` or `pages`.
        flow: Name of the file of the job's flow. A line that it writes ends with the number of a text.
        rate: Texts a second.
        wanted_ms: Greatest p50 that is wanted over a transport, in ms.
        wanted_p99_ms: The same for p99.
    """

    texts: str
    flow: str
    rate: int
    wanted_ms: Mapping[str, float]
    wanted_p99_ms: Mapping[str, float]

    def updates(self, count: int) -> int:
        """Return the number of updates of `count` texts."""
        if self.texts == "lines":
            return 10 * count
        return sum(len(text.split()) for text in texts_of(self.texts, count))


LINES: Final = Load(
    "lines", "numbered_words", 1000, {"socket": 0.8, "grpc": 0.8, "nats": 5.0}, {"socket": 2.0, "grpc": 2.0}
)
PAGES: Final = Load("pages", "numbered_postings", 100, {"socket": 2.0, "grpc": 2.0}, {"socket": 5.0, "grpc": 5.0})


def _once(over: list[str], lines: int, settings: list[str], load: Load = LINES) -> dict[str, float]:
    """Run a feeder and a job, and return their measures.

    These are latencies in ms, the processor's share of each, and messages by line.
    """
    updates = load.updates(lines)
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder, "stamps.json")
        into, lines_out = os.pipe()
        edges = ["--source", "lines=stdin", "--sink", "counts=stdout"]
        with os.fdopen(into, "rb") as stdin:
            run = Run(load.flow, [*edges, "-w", str(WORKERS), *over, *settings], stdin=stdin, stdout=-1)
        with os.fdopen(lines_out, "wb", buffering=0) as feed:
            feed.write(b"-1 begin\n")
            expect(run, b"begin 1 -1\n")
            feeder = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.feeder", str(load.rate), str(lines), str(stamps), load.texts],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=feed,
                text=True,
            )
        try:
            time.sleep(0.3)  # what is left of the start is over, and the feeder has made its lines
            before = dict(run.look())
            assert feeder.stdin is not None
            feeder.stdin.write("go\n")
            feeder.stdin.close()
            arrived = arrivals(run, updates)
            after = dict(run.look())
            feeder.wait(timeout=LIMIT_S)
            summary = run.finish()
        finally:
            feeder.kill()
            run.process.kill()
        handed = json.loads(stamps.read_text())
    took = sorted((arrived[number] - at) / 1e6 for number, at in enumerate(handed))
    spent = [after[pid] - before.get(pid, 0.0) for pid in after]
    return {
        "p50_ms": took[len(took) // 2],
        "p99_ms": took[len(took) * 99 // 100],
        "max_ms": took[-1],
        "cpu_share": sum(spent) / (lines / load.rate),
        "messages": sum(summary["messages"].values()) / lines,
    }


def expect(run: Run, line: bytes) -> None:
    """Read the first line that the job writes.

    Raises:
        RunError: It is another one.
    """
    assert run.process.stdout is not None
    found = run.process.stdout.readline()
    if found != line:
        run.process.kill()
        errors = run.process.communicate()[1]
        raise RunError(f"{run.flow} began with {found!r}\n{errors.decode()[-3000:]}")


def arrivals(run: Run, wanted: int) -> dict[int, int]:
    """Return when the last update of each line came, of so many updates.

    Times are nanoseconds of the monotonic clock.
    """
    assert run.process.stdout is not None
    descriptor = run.process.stdout.fileno()
    last: dict[int, int] = {}
    updates, rest = 0, b""
    while updates < wanted:
        chunk = os.read(descriptor, 1 << 16)
        now = time.monotonic_ns()
        if not chunk:
            raise RunError(f"{run.flow}: {updates} updates came, not {wanted}")
        *whole, rest = (rest + chunk).split(b"\n")
        updates += len(whole)
        for line in whole:
            last[int(line.rpartition(b" ")[2])] = now
    return last


def compare(*, lines: int, rounds: int, load: Load = LINES) -> tuple[Table, dict[str, Any]]:
    """Measure every transport, with the acker beside supervisor or first worker."""
    columns = ("transport, acker with", "p50", "p99", "max", "CPU share", f"messages/{load.texts.removesuffix('s')}")
    table = Table(f"Latency in ms at {load.rate:,} {load.texts}/s on 2 processes", columns)
    runs: dict[str, list[dict[str, float]]] = {}
    for name in TRANSPORTS:
        if why := missing(name):
            table.note(f"{name} is left out: {why}")
    for _ in range(rounds):
        for name in TRANSPORTS:
            if missing(name):
                continue
            with transport(name) as over:
                for place in ("worker", "supervisor"):
                    say(f"away: {load.texts}, {name}, {place}")
                    settings = ["--set", f"deploy.acker={place}"]
                    runs.setdefault(f"{name}, {place}", []).append(_once(over, lines, settings, load))
    for contender, found in runs.items():
        keys = ("p50_ms", "p99_ms", "max_ms", "cpu_share", "messages")
        columns_of = [Spread.of([run[key] for run in found]) for key in keys]
        table.add(contender, *columns_of)
        name, _, place = contender.partition(", ")
        if place == "worker":
            for figure, column, wanted in zip(
                ("p50", "p99"), columns_of, (load.wanted_ms, load.wanted_p99_ms), strict=False
            ):
                if name in wanted:
                    table.target(contender, f"{name}: {figure} in ms", column, wanted[name], at_most=True)
    return table, {"lines": lines, "rate": load.rate, "contenders": runs, "targets": table.targets}
