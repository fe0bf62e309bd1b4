"""Release latency at a fixed rate.

It is the time from a line's hand-over to the delivery of the last of its ten updates.

A feeder process writes lines into the pipe that is the stdin of the measured process, on a schedule of its own. The
sink notes when each update arrives. Nothing is measured inside an engine; the pipe and the waking of the process count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.contenders import OURS, Contender, contenders, named
from benchmarks.noting import NOTING, noting
from benchmarks.processes import LIMIT_S, ROOT, RunError, say
from benchmarks.report import Spread, Table

RATE: Final = 1000
"""Lines a second."""

READY: Final = "ready"

Update = tuple[str, int, int]
"""(word, how often so far, number of the line)."""


def numbered_words(line: str) -> list[tuple[str, int]]:
    """Return the words of a line, each with the line's number."""
    number, *words = line.split()
    return [(word, int(number)) for word in words]


def count_word(seen: int, item: tuple[str, int]) -> tuple[int, list[Update]]:
    """Count the word once more."""
    return seen + 1, [(item[0], seen + 1, item[1])]


class Arrivals:
    """The arrival of the latest update of each line.

    Times are nanoseconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.updates = 0

    def note(self, updates: Sequence[Any], line_of: Callable[[Any], int]) -> None:
        """Note that updates have arrived now."""
        now = time.monotonic_ns()
        self.updates += len(updates)
        for update in updates:
            self.last[line_of(update)] = now


def one_run(contender: str) -> dict[str, Any]:
    """Count the words of stdin in this process; write to stdout just before reading."""
    arrivals = Arrivals()
    run = {"plain": _plain, "flamestream": _flamestream, "bytewax": _bytewax}
    one = named(contender)
    start = time.process_time()
    run[one.kind](one, arrivals)
    busy = time.process_time() - start
    return {"last": list(arrivals.last.items()), "updates": arrivals.updates, "cpu_seconds": busy}


def ready() -> None:
    """Say that reading begins."""
    print(READY, flush=True)


def _plain(_: Contender, arrivals: Arrivals) -> None:
    counts: dict[str, int] = {}
    ready()
    while line := sys.stdin.readline():
        updates: list[Update] = []
        for item in numbered_words(line):
            counts[item[0]], new = count_word(counts.get(item[0], 0), item)
            updates += new
        arrivals.note(updates, lambda update: update[2])


def _flamestream(one: Contender, arrivals: Arrivals) -> None:
    import flamecore as fc

    def take(time: int, payloads: Sequence[Any]) -> None:
        arrivals.note(payloads, lambda update: update[2])

    flow = fc.Flow("latency")
    words = flow.source("lines", str).flat_map(numbered_words)
    words.key_by(lambda item: item[0]).stateful_map(0, count_word).sink("counts")
    settings = {"source.lines.use": "stdin", "sink.counts.use": NOTING}
    with noting(take, ready):
        flow.run(workers=one.workers, acker=one.acker, settings=settings)


def _bytewax(_: Contender, arrivals: Arrivals) -> None:
    from benchmarks.bytewax_latency import run

    run(arrivals, ready)


def fed(kind: str, arguments: dict[str, Any], *, lines: int, rate: int, what: str) -> tuple[dict[str, Any], list[int]]:
    """Run a measurement that reads lines from a feeder.

    Args:
        kind: Its name in `benchmarks.child`; it says `READY` when it is about to read.
        arguments: Its arguments.
        lines, rate: Number of lines, and lines a second.
        what: Its name in errors.

    Returns:
        Its result, and when each line was handed over, in nanoseconds of the monotonic clock.

    Raises:
        RunError: It failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder, "stamps.json")
        python = [sys.executable, "-m"]
        feeder = subprocess.Popen(
            [*python, "benchmarks.feeder", str(rate), str(lines), str(stamps)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        reader = subprocess.Popen(
            [*python, "benchmarks.child", kind, json.dumps(arguments)],
            cwd=ROOT,
            stdin=feeder.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert feeder.stdin is not None
        assert feeder.stdout is not None
        assert reader.stdout is not None
        feeder.stdout.close()
        try:
            if reader.stdout.readline().strip() != READY:
                raise RunError(f"{what}: {reader.communicate(timeout=LIMIT_S)[1][-3000:]}")
            feeder.stdin.write("go\n")
            feeder.stdin.close()
            found, errors = reader.communicate(timeout=LIMIT_S)
            feeder.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"{what}: not done after {LIMIT_S:.0f} s") from error
        finally:
            feeder.kill()
            reader.kill()
        if reader.returncode or feeder.returncode:
            raise RunError(f"{what}: exit code {reader.returncode or feeder.returncode}\n{errors[-3000:]}")
        handed: list[int] = json.loads(stamps.read_text())
    result: dict[str, Any] = json.loads(found.splitlines()[-1])
    return result, handed


def told(result: dict[str, Any], handed: list[int], *, rate: int, what: str) -> dict[str, float]:
    """Return the latencies of a result in milliseconds.

    Its `last` has pairs: a line, and when the last update of it arrived.

    Raises:
        RunError: Something did not arrive.
    """
    arrived = dict(result["last"])
    if len(arrived) != len(handed):
        raise RunError(f"{what}: of {len(handed)} lines {len(arrived)} came")
    took = sorted((arrived[number] - at) / 1e6 for number, at in enumerate(handed))
    late = sorted(at - handed[0] - number * 1e9 / rate for number, at in enumerate(handed))
    return {
        "p50_ms": took[len(took) // 2],
        "p99_ms": took[len(took) * 99 // 100],
        "max_ms": took[-1],
        "cpu_share": result["cpu_seconds"] / (len(handed) / rate),
        "feeder_late_p99_ms": late[len(late) * 99 // 100] / 1e6,
    }


def _once(one: Contender, lines: int, rate: int) -> dict[str, float]:
    """Run a feeder and a contender."""
    what = f"latency of {one.name}"
    result, handed = fed("latency", {"contender": one.name}, lines=lines, rate=rate, what=what)
    if result["updates"] != 10 * lines:
        raise RunError(f"{what}: {result['updates']} updates came, not {10 * lines}")
    return told(result, handed, rate=rate, what=what)


def compare(*, lines: int, rounds: int, rate: int = RATE) -> tuple[Table, dict[str, Any]]:
    """Everybody in turn, several rounds."""
    field = contenders("latency")
    runs: dict[str, list[dict[str, Any]]] = {one.name: [] for one in field}
    for _ in range(rounds):
        for one in field:
            say(f"latency: {one.name}")
            runs[one.name].append(_once(one, lines, rate))
    table = Table(f"Latency in ms at {rate:,} lines/s", ("contender", "p50", "p99", "max", "CPU share"))
    for name, found in runs.items():
        columns = [Spread.of([run[key] for run in found]) for key in ("p50_ms", "p99_ms", "max_ms", "cpu_share")]
        table.add(name, *columns)
        if name == OURS.name:
            table.target(name, "p50 in ms", columns[0], 1.0, at_most=True)
            table.target(name, "p99 in ms", columns[1], 5.0, at_most=True)
    return table, {"lines": lines, "rate": rate, "contenders": runs, "targets": table.targets}


def stdin_lines() -> Callable[[], list[str] | None]:
    """Return a function that reads the lines that are there now.

    The function does not wait, and returns None at the end.
    """
    os.set_blocking(0, False)
    rest = b""

    def lines() -> list[str] | None:
        nonlocal rest
        try:
            found = os.read(0, 1 << 16)
        except BlockingIOError:
            return []
        if not found:
            return None
        *whole, rest = (rest + found).split(b"\n")
        return [line.decode() for line in whole]

    return lines
