"""An item before a stateful operation waits for fronts that are behind.

It does not wait for those that have nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import flamecore as fc
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.launch import make_job
from flamecore.testing.progress import patience

MUCH = [number % 97 for number in range(20_000)]
LIMIT_S = 60.0

flow = fc.Flow("ways")
merged = flow.source("busy", int).merge(flow.source("idle", int), flow.source("ended", int)).rebalance()
merged.map(lambda number: number).key_by(lambda number: number).count().sink("counts")


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("clock", ["wall", "sequence"])
def test_an_idle_front_delays_no_other(clock: str, workers: int) -> None:
    """By the wall clock what has come is put out meanwhile; by the other one once nothing more is read."""
    settings = {"job.workers": workers, "job.owners": workers, "job.clock": clock, "job.max_in_flight": 100_000}

    async def live() -> list[Any]:
        counts: list[Any] = []
        forever = asyncio.Event()

        async def busy() -> AsyncIterator[int]:
            for number in MUCH:
                yield number
            await forever.wait()

        async def idle() -> AsyncIterator[int]:
            await forever.wait()
            yield 0

        given = {"busy": busy(), "idle": idle(), "ended": [], "counts": counts}
        job = make_job(make_config(from_program(settings)), flow, given=given)
        running = asyncio.create_task(job.run())
        async with patience(LIMIT_S):
            wanted = len(MUCH)
            while (len(counts) if clock == "wall" else job.stats().items_in) < wanted:
                assert not running.done(), await running
                await asyncio.sleep(0.01)
            job.drain()
            await running
        return counts

    wanted = sorted((key, n) for key, total in Counter(MUCH).items() for n in range(1, total + 1))
    assert sorted(asyncio.run(live())) == wanted
