"""Memory against the length of the stream.

Only the counts are held, so ten times the words take the same memory.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.corpora import zipf_lines
from benchmarks.noting import NOTING, noting
from benchmarks.processes import measured
from benchmarks.report import Spread, Table

TIMES: Final = 10


def peak_bytes() -> int:
    """Return the peak of this process's resident memory, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # here the figure of getrusage may be that of the process before `exec`
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def one_run(words: int, workers: int, kept: bool) -> dict[str, Any]:
    """Count generated words into a sink that only counts, with or without snapshots."""
    import flamecore as fc

    outputs = 0

    def take(_: int, payloads: Sequence[Any]) -> None:
        nonlocal outputs
        outputs += len(payloads)

    flow = fc.Flow("memory")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    with noting(take):
        settings = {"sink.counts.use": NOTING}
        with tempfile.TemporaryDirectory() as folder:
            flow.run({"lines": zipf_lines(words)}, workers=workers, state=folder if kept else None, settings=settings)
    return {"outputs": outputs, "peak_bytes": peak_bytes()}


def compare(*, words: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure peak memory for some words and for ten times as many.

    The jobs have 1 and 4 workers, and 1 that keeps its state.
    """
    ways = {"1 worker": (1, False), "4 workers": (4, False), "1 worker, snapshots": (1, True)}
    table = Table("Peak memory", ("words", *[f"{way}, MB" for way in ways]))
    runs: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for count in (words, words * TIMES):
            for way, (workers, kept) in ways.items():
                arguments = {"words": count, "workers": workers, "kept": kept}
                found = measured("memory", arguments, what=f"memory: {count:,} words, {way}")
                assert found["outputs"] == count, found
                runs.setdefault((count, way), []).append(found)
    spreads = {key: Spread.of([run["peak_bytes"] / 1e6 for run in found]) for key, found in runs.items()}
    for count in (words, words * TIMES):
        table.add(f"{count:,}", *[spreads[count, way] for way in ways])
    for way in ways:
        pairs = zip(runs[words * TIMES, way], runs[words, way], strict=True)
        grown = Spread.of([more["peak_bytes"] / less["peak_bytes"] for more, less in pairs])
        table.target("flamestream", f"memory of {TIMES} times the words, {way}", grown, 1.5, at_most=True)
    facts = {f"{count} words, {way}": found for (count, way), found in runs.items()}
    return table, {"runs": facts, "targets": table.targets}
