"""The cost of an idle job, whose source waits.

It is measured with either clock, in one process and on several.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.deployed import TRANSPORTS, Run, missing, transport
from benchmarks.processes import measured, say
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


def _on_processes(over: list[str], clock: str, workers: int, seconds: float) -> float:
    """Share of one core that all processes of a waiting job take together."""
    edges = ["--source", "lines=stdin", "--sink", "counts=stdout", "--set", f"job.clock={clock}"]
    run = Run("numbered_words", [*edges, "-w", str(workers), *over], stdin=-1, stdout=-1)
    try:
        assert run.process.stdin is not None
        assert run.process.stdout is not None
        run.process.stdin.write(b"0 to\n")
        run.process.stdin.flush()
        run.process.stdout.readline()
        time.sleep(1.0)  # until the first line is through, and told of
        before, start = sum(run.look().values()), time.perf_counter()
        time.sleep(seconds)
        spent = (sum(run.look().values()) - before) / (time.perf_counter() - start)
        run.process.stdin.close()
        run.process.stdin = None
        run.finish()
    finally:
        run.process.kill()
    return spent


def compare(*, seconds: float, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Both clocks, 1 and 4 workers in one process, and 4 in processes of their own."""
    columns = ("clock", "1 worker", "4 workers", *(f"4 processes over {name}" for name in TRANSPORTS))
    table = Table("CPU of an idle job, in % of a core", columns)
    lacking = {name: why for name in TRANSPORTS if (why := missing(name))}
    for why in lacking.values():
        table.note(why)
    facts: dict[str, Any] = {}
    for clock in ("sequence", "wall"):
        cells: list[Spread | str] = []
        for workers in (1, 4):
            arguments = {"clock": clock, "workers": workers, "seconds": seconds}
            runs = [measured("idle", arguments, what=f"idle: {clock}, {workers} workers") for _ in range(rounds)]
            spent = Spread.of([run["cpu_share"] * 100 for run in runs])
            cells.append(spent)
            facts[f"{clock} {workers}w"] = [run["cpu_share"] for run in runs]
            table.target("flamestream", f"% of a core, {clock} clock, {workers} workers", spent, 2.0, at_most=True)
        for name in TRANSPORTS:
            if name in lacking:
                cells.append("-")
                continue
            say(f"idle: {clock}, 4 processes over {name}")
            with transport(name) as over:
                shares = [_on_processes(over, clock, 4, max(seconds, 2.0)) for _ in range(rounds)]
            spent = Spread.of([share * 100 for share in shares])
            cells.append(spent)
            facts[f"{clock} 4 processes {name}"] = shares
            table.target(name, f"% of a core, {clock} clock, 4 processes over {name}", spent, 2.0, at_most=True)
        table.add(clock, *cells)
    return table, {"cpu_share": facts, "targets": table.targets}
