"""What a job costs that has nothing to do: a source that waits, with either clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.processes import measured
from benchmarks.report import Spread, Table


def one_run(clock: str, workers: int, seconds: float) -> dict[str, Any]:
    """Share of one core that a waiting job takes."""
    import flamecore as fc

    spent = 0.0

    async def waiting() -> AsyncIterator[str]:
        nonlocal spent
        yield "to be"
        await asyncio.sleep(0.2)  # until the first line is through
        start, start_wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        spent = (time.process_time() - start) / (time.perf_counter() - start_wall)

    flow = fc.Flow("idle")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    inputs: dict[str, Any] = {"lines": waiting()}
    outputs = flow.run(inputs, workers=workers, settings={"job.clock": clock})
    assert len(outputs["counts"]) == 2
    return {"cpu_share": spent}


def compare(*, seconds: float, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Both clocks, 1 and 4 workers."""
    table = Table("CPU of an idle job, in % of a core", ("clock", "1 worker", "4 workers"))
    facts: dict[str, Any] = {}
    for clock in ("sequence", "wall"):
        cells = []
        for workers in (1, 4):
            arguments = {"clock": clock, "workers": workers, "seconds": seconds}
            runs = [measured("idle", arguments, what=f"idle: {clock}, {workers} workers") for _ in range(rounds)]
            cells.append(Spread.of([run["cpu_share"] * 100 for run in runs]))
            facts[f"{clock} {workers}w"] = [run["cpu_share"] for run in runs]
            table.target("flamestream", f"% of a core, {clock} clock, {workers} workers", cells[-1], 2.0, at_most=True)
        table.add(clock, *cells)
    return table, {"cpu_share": facts, "targets": table.targets}
