"""A job with cycles, each at home on one worker, beside states and a loop by key that all workers share, moves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.launch import make_job
from flamecore.testing.flows.reference import interpret
from flamecore.testing.progress import patiently

CYCLES = ("first", "second", "third")
NUMBERS = [(number * 7919) % 97 for number in range(400)]


def turn(state: int, item: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
    return (state + item[1]) % 1009, [(item[0] - 1, (item[1] * 31 + state) % 97)]


def body(stream: fc.Stream[Any]) -> Any:
    return stream.key_by(lambda item: item[1] % 5).stateful_map(0, turn).branch(lambda item: item[0] > 0)


def refine(stream: fc.KeyedStream[int, Any]) -> Any:
    return stream.stateful_map(0, once_more).branch(lambda item: item[0] > 0)


def once_more(state: int, item: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
    return state + item[0], [(item[0] - 1, (item[1] + state * 10) % 1000)]


flow = fc.Flow("homes")
numbers = flow.source("numbers", str).map(int)
numbers.key_by(lambda number: number).count().sink("counts")
numbers.key_by(lambda number: number % 10).fold(0, lambda total, number: total + number).sink("totals")
for cycle in CYCLES:
    numbers.map(lambda number: (number % 3, number)).loop(body, name=cycle).sink(cycle)
items = numbers.map(lambda number: (number % 3, number))
items.key_by(lambda item: item[1] % 10).loop(refine).sink("refined")

SINKS = ("counts", "totals", "refined", *CYCLES)


def run(folder: Path, workers: int, owners: int | None, drain_at: int | None) -> None:
    chosen: dict[str, Any] = {
        "job.workers": workers,
        "job.max_in_flight": 20,
        "job.guarantee": "exactly_once",
        "state.use": "directory",
        "state.path": str(folder / "state"),
        "state.interval_s": 0.005,
        "source.numbers.use": "lines",
        "source.numbers.path": str(folder / "numbers.txt"),
        **{f"sink.{name}.use": "jsonl" for name in SINKS},
        **{f"sink.{name}.path": str(folder / f"{name}.jsonl") for name in SINKS},
    }
    if owners is not None:
        chosen["job.owners"] = owners
    job = make_job(make_config(from_program(chosen)), flow)

    async def live() -> None:
        running = asyncio.create_task(job.run())
        while drain_at is not None and job.stats().items_in < drain_at and not running.done():
            # Not 0: a loop that never waits leaves the thread of the store a few ms for each call of the disk.
            await asyncio.sleep(0.001)
        if drain_at is not None:
            job.drain()
        await running

    asyncio.run(patiently(live(), 60))


@pytest.mark.parametrize("story", [(1, 2, 3, 1), (4, 1, 4, 2), (2, 2, 3, 3)])
@pytest.mark.parametrize("owners", [None, 2])
def test_cycles_and_what_is_beside_them_move_to_other_workers(
    tmp_path: Path, story: tuple[int, ...], owners: int | None
) -> None:
    (tmp_path / "numbers.txt").write_text("".join(f"{number}\n" for number in NUMBERS))
    for turn, workers in enumerate(story):
        run(tmp_path, workers, owners, 80 if turn < len(story) - 1 else None)
    wanted = interpret(flow.graph(), {"numbers": list(map(str, NUMBERS))})
    for name in SINKS:
        found = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert found == [json.loads(json.dumps(output.payload)) for output in wanted[name]], name
