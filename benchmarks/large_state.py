"""Large state: how long a snapshot of it delays outputs, and how much it writes."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from random import Random
from threading import Thread
from typing import IO, Any, Final

from benchmarks.corpora import SEED, WORDS_A_LINE, many_words
from benchmarks.deployed import Run, missing, transport
from benchmarks.noting import NOTING, noting
from benchmarks.processes import RunError, measured, say
from benchmarks.report import Spread, Table

GAP_MS: Final = 50.0
RATE: Final = 200
"""Lines a second once all keys are there."""
WORKERS: Final = 2

_CALM_S: Final = 0.3


def one_run(keys: int, interval_s: float, seconds: float, kept: bool) -> dict[str, Any]:
    """Count many different words at full speed, then a few more of them every second.

    Args:
        keys: How many words.
        interval_s: A snapshot so often; until the first the words should be through.
        seconds: When to end, after the beginning.
        kept: Whether state is kept at all.

    Returns:
        The longest time between two releases, in ms, while words came at the fixed rate; when all keys were there;
        bytes and time of every snapshot's parts.
    """
    import flamecore as fc
    from flamecore.testing import override
    from flamestream_stores.sqlite import Sqlite

    released: list[float] = []
    written: dict[str, int] = {}
    recorded: list[tuple[float, int]] = []
    loaded = 0.0

    class Weighing(Sqlite):
        async def create(self, name: str, data: bytes) -> bool:
            kind, _, place = name.partition("/")
            if kind == "part":
                number = place.split("/")[1]
                written[number] = written.get(number, 0) + len(data)
            created = await super().create(name, data)
            if kind == "commit":
                recorded.append((time.monotonic(), written.get(name.rpartition("/")[2], 0)))
            return created

    async def lines() -> AsyncIterator[str]:
        nonlocal loaded
        for line, due in _lines(keys, begun + seconds):
            if due:
                loaded = loaded or due
                await asyncio.sleep(max(due - time.monotonic(), 0))
            yield line

    flow = fc.Flow("large-state")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    settings: dict[str, Any] = {"sink.counts.use": NOTING}
    inputs: dict[str, Any] = {"lines": lines()}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, noting(lambda *_: released.append(time.monotonic())):
        if kept:
            settings |= {"state.use": "weighing", "state.path": folder, "state.interval_s": interval_s}
        with override("store", "weighing", Weighing):
            flow.run(inputs, settings=settings)
    return {
        "gap_ms": _longest_gap([at for at in released if loaded + _CALM_S < at < begun + seconds]),
        "loaded_s": loaded - begun,
        "snapshots": [(at - begun, size) for at, size in recorded],
    }


def _lines(keys: int, until: float) -> Iterator[tuple[str, float]]:
    """Yield lines, and when each is due.

    All words come once, at once (0); then some of them again at the fixed rate.
    """
    words, random = many_words(keys), Random(SEED)
    for start in range(0, keys, WORDS_A_LINE):
        yield " ".join(words[start : start + WORDS_A_LINE]), 0.0
    due = time.monotonic()
    while due < until:
        yield " ".join(random.choices(words, k=WORDS_A_LINE)), due
        due += 1 / RATE


def _longest_gap(times: Sequence[float]) -> float:
    """Return the longest time between two of `times`, in ms."""
    return max(((after - before) * 1000 for before, after in pairwise(times)), default=0.0)


def away(keys: int, interval_s: float, seconds: float, kept: bool) -> float:
    """Measure the same on two processes over sockets, from outside.

    Args: as of `one_run`.

    Returns:
        The longest time between two reads of the outputs, in ms.

    Raises:
        RunError: The job fails, or is not through with all words in time.
    """
    with tempfile.TemporaryDirectory() as folder, transport("socket") as over:
        arguments = ["--source", "lines=stdin", "--sink", "counts=stdout", "-w", str(WORKERS), *over]
        if kept:
            arguments += ["--set", "state.use=sqlite", "--set", f"state.path={folder}"]
            arguments += ["--set", f"state.interval_s={interval_s}"]
        run = Run("costly_words", arguments, stdin=-1, stdout=-1)
        assert run.process.stdin is not None
        assert run.process.stdout is not None
        until = time.monotonic() + seconds
        feeder = Thread(target=_feed, args=(run.process.stdin, keys, until))
        feeder.start()
        out, updates, times = run.process.stdout.fileno(), 0, []
        while chunk := os.read(out, 1 << 20):
            updates += chunk.count(b"\n")
            if updates > keys:
                times.append(time.monotonic())
        feeder.join()
        run.process.stdin = None
        run.finish()
    calm = [at for at in times if times[0] + _CALM_S < at < until]
    if not calm or until - calm[0] < seconds / 3:
        raise RunError(f"large_state: {keys} keys are not through in time")
    return _longest_gap(calm)


def _feed(stdin: IO[bytes], keys: int, until: float) -> None:
    with stdin:
        for line, due in _lines(keys, until):
            if due:
                stdin.flush()
                time.sleep(max(due - time.monotonic(), 0))
            stdin.write(line.encode() + b"\n")


def compare(*, keys: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure one snapshot of all keys, and many of few changed ones, beside none."""
    scale = keys / 1_000_000
    first_s, seconds = 1 + 3 * scale, 3 + 5 * scale
    intervals = {"no state": 0.0, "one snapshot of all": first_s, "a snapshot every 0.5 s": 0.5}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in intervals}
    apart: dict[str, list[float]] = {name: [] for name in intervals}
    why = missing("socket")
    for _ in range(rounds):
        for name, interval in intervals.items():
            arguments = {"keys": keys, "interval_s": interval, "seconds": seconds, "kept": interval > 0}
            runs[name].append(measured("large_state", arguments, what=f"large_state: {name}"))
            if not why:
                say(f"large_state: {name}, {WORKERS} processes")
                apart[name].append(away(keys, 2 * interval if interval > 1 else interval, 2 * seconds, interval > 0))
    columns = (
        f"{keys:,} keys, {RATE * WORDS_A_LINE:,} changes/s",
        "longest gap in ms",
        f"on {WORKERS} processes",
        "snapshots",
        "KB a snapshot",
    )
    table = Table("Snapshots of a large state", columns)
    if why:
        table.note(why)
    for name, found in runs.items():
        gaps = Spread.of([run["gap_ms"] for run in found])
        others = Spread.of(apart[name]) if apart[name] else None
        sizes = [_sizes(run, first=name.startswith("one")) for run in found]
        counts = Spread.of([len(run["snapshots"]) for run in found])
        table.add(name, gaps, others or "-", counts, Spread.of(sizes) if any(sizes) else "-")
        if intervals[name]:
            table.target(name, f"longest gap in ms, {name}", gaps, GAP_MS, at_most=True)
            if others:
                table.target(name, f"the same on {WORKERS} processes", others, GAP_MS, at_most=True)
    return table, {"keys": keys, "runs": runs, "apart_ms": apart, "targets": table.targets}


def _sizes(run: dict[str, Any], *, first: bool) -> float:
    """KB of the largest snapshot, or of the median one once all keys are there."""
    if first:
        return max((size for _, size in run["snapshots"]), default=0) / 1e3
    later = sorted(size for at, size in run["snapshots"] if at > run["loaded_s"] + 1)
    return later[len(later) // 2] / 1e3 if later else 0.0
