"""A round ends by time: whatever a function takes, others have their turn behind the call at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as windows
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.launch import make_job
from flamecore.testing.simulation.virtual import VirtualLoop, run_virtually

pytestmark = pytest.mark.usefixtures("installed")

RECORDS = 400
CALL_S = 0.2
"""Seconds of a slow call, more than a round may take."""


class Calls:
    """A function that takes no time at first, and much after some calls."""

    def __init__(self) -> None:
        self.fast = self.count = self.slow = 0

    def note(self, value: Any) -> Any:
        self.count += 1
        if self.count > self.fast:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.spend(CALL_S)
            self.slow += 1
        return value


CALLS = Calls()
slow = CALLS.note


def add(total: int, value: Any) -> int:
    slow(value)
    return total + 1


def halves(inside: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
    seen = inside.map(slow)
    return seen.filter(lambda n: n > 300).map(lambda n: n // 2), seen


def timed(stream: fc.Stream[int]) -> fc.Stream[int]:
    return windows.event_time(stream, float)


SHAPES: dict[str, Callable[[fc.Stream[int]], fc.Stream[Any]]] = {
    "map": lambda s: s.map(slow),
    "rebalanced": lambda s: s.rebalance().map(slow),
    "filter": lambda s: s.filter(lambda n: slow(n) >= 0),
    "rare": lambda s: s.filter(lambda n: slow(n) % 50 == 0),
    "flat_map": lambda s: s.flat_map(lambda n: [slow(n)] * 2),
    "behind flat_map": lambda s: s.flat_map(lambda n: [n] * 3).map(slow),
    "inspect": lambda s: s.inspect(slow),
    "key": lambda s: s.key_by(lambda n: slow(n) % 7).count(),
    "fold": lambda s: s.key_by(lambda n: n % 7).fold(0, add),
    "stateful_map": lambda s: s.key_by(lambda n: n % 7).stateful_map(0, lambda state, n: (state + slow(1), [state])),
    "behind a state": lambda s: s.key_by(lambda n: n % 7).count().map(slow),
    "between states": lambda s: s.key_by(lambda n: n % 7).count().map(slow).key_by(lambda pair: pair[1] % 3).count(),
    "beside a direct copy": lambda s: s.map(slow).merge(s.filter(lambda n: n % 2 == 0)).key_by(lambda n: n % 5).count(),
    "loop": lambda s: s.loop(halves).key_by(lambda n: n % 3).count(),
    "group": lambda s: s.key_by(lambda n: slow(n) % 3).group(2).map(str),
    "window": lambda s: (
        timed(s)
        .key_by(lambda n: n % 3)
        .window(windows.fixed(seconds=1), emit="updates", panes="accumulating")
        .fold(0, add)
        .map(str)
    ),
    "distinct": lambda s: timed(s).key_by(lambda n: slow(n) % 90).distinct(within=timedelta(seconds=5)).map(str),
}


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    CALLS.count = CALLS.slow = 0
    yield
    CALLS.count = CALLS.slow = 0


def outputs_and_turns(shape: str, workers: int, fast: int) -> tuple[list[Any], list[int]]:
    """Return the outputs, and the number of slow calls between two turns of another task."""
    CALLS.count, CALLS.slow, CALLS.fast = 0, 0, fast
    flow = fc.Flow("slow")
    SHAPES[shape](flow.source("numbers", int)).sink("out")
    out: list[Any] = []
    given = {"numbers": range(RECORDS), "out": out}
    job = make_job(make_config(from_program({"job.workers": workers}), environ={}), flow, given=given)
    turns = [0]

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        while True:
            turns.append(CALLS.slow)
            loop.refresh()
            await asyncio.sleep(0)

    async def main() -> None:
        watching = asyncio.create_task(watch())
        await job.run()
        watching.cancel()

    run_virtually(main())
    return out, [after - before for before, after in pairwise(turns)]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("fast", [0, 150])
@pytest.mark.parametrize("shape", SHAPES)
def test_others_have_a_turn_behind_each_slow_call(shape: str, fast: int, workers: int) -> None:
    wanted, turns = outputs_and_turns(shape, 1, 1_000_000)
    assert sum(turns) == 0
    out, turns = outputs_and_turns(shape, workers, fast)
    assert out == wanted
    # In one turn of the event loop each worker may make a call, and so may the reader of the records.
    assert 0 < max(turns) <= workers + 1


@pytest.mark.parametrize("shape", ["map", "fold", "between states"])
def test_outputs_leave_as_they_are_made(shape: str) -> None:
    flow = fc.Flow("slow")
    SHAPES[shape](flow.source("numbers", int)).sink("out")
    out: list[Any] = []
    behind: list[int] = []
    CALLS.fast = 0
    given = {"numbers": range(60), "out": out}
    job = make_job(make_config(from_program({"job.workers": 2}), environ={}), flow, given=given)

    async def watch() -> None:
        while True:
            behind.append(CALLS.slow - len(out))
            await asyncio.sleep(0)

    async def main() -> None:
        watching = asyncio.create_task(watch())
        await job.run()
        watching.cancel()

    run_virtually(main())
    assert max(behind) <= 4
