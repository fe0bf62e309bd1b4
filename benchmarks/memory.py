"""Memory against the length of the stream: only the counts are held, so ten times the words take what one does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.corpora import zipf_lines
from benchmarks.processes import measured
from benchmarks.report import Spread, Table

TIMES: Final = 10


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # here the figure of getrusage may be that of the process before `exec`
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def one_run(words: int, workers: int) -> dict[str, Any]:
    """Count words of a generator into a sink that only counts."""
    import flamecore as fc
    from flamecore.rear import Guarantee, Sink
    from flamecore.registry import override

    class Counting(Sink):
        name = "counting"
        count = 0

        @property
        def guarantee(self) -> Guarantee:
            return "at_least_once"

        async def write(self, time: int, payloads: Sequence[Any]) -> None:
            Counting.count += len(payloads)

    flow = fc.Flow("memory")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    with override("sink", "counting", Counting):
        flow.run({"lines": zipf_lines(words)}, workers=workers, settings={"sink.counts.use": "counting"})
    return {"outputs": Counting.count, "peak_bytes": peak_bytes()}


def compare(*, words: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Peak memory for some words and for ten times as many, 1 and 4 workers."""
    table = Table("Peak memory", ("words", "1 worker, MB", "4 workers, MB"))
    runs: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for count in (words, words * TIMES):
            for workers in (1, 4):
                arguments = {"words": count, "workers": workers}
                found = measured("memory", arguments, what=f"memory: {count:,} words, {workers} workers")
                assert found["outputs"] == count, found
                runs.setdefault((count, workers), []).append(found)
    spreads = {key: Spread.of([run["peak_bytes"] / 1e6 for run in found]) for key, found in runs.items()}
    for count in (words, words * TIMES):
        table.add(f"{count:,}", spreads[count, 1], spreads[count, 4])
    for workers in (1, 4):
        pairs = zip(runs[words * TIMES, workers], runs[words, workers], strict=True)
        grown = Spread.of([more["peak_bytes"] / less["peak_bytes"] for more, less in pairs])
        table.target("flamestream", f"memory of {TIMES} times the words, {workers} workers", grown, 1.5, at_most=True)
    facts = {f"{count} words {workers} workers": found for (count, workers), found in runs.items()}
    return table, {"runs": facts, "targets": table.targets}
