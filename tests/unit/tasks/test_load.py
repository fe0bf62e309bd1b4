"""The load of a worker, reported for as long as it works."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from flamecore.model.clock import STOPWATCH
from flamecore.runtime.tasks.worker_task import LoadMeter
from flamecore.testing.simulation.virtual import run_virtually


class Watch:
    """Shows what it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self, meter: LoadMeter, seconds: float) -> None:
        meter.begin()
        self.now += seconds
        meter.end()


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    token = STOPWATCH.set(lambda: watch.now)
    yield watch
    STOPWATCH.reset(token)


def test_busy_time_is_reported_ten_times_a_second(watch: Watch) -> None:
    told: list[tuple[float, float]] = []

    async def live() -> None:
        meter = LoadMeter(lambda worked, passed: told.append((worked, passed)))
        for _ in range(30):
            watch.work(meter, 0.004)
            watch.work(meter, 0.001)
            await asyncio.sleep(0.01)
        meter.aclose()

    run_virtually(live())
    assert len(told) == 3
    for worked, passed in told:
        assert worked == pytest.approx(0.05, abs=0.01)
        assert passed == pytest.approx(0.1)


def test_an_idle_worker_reports_it_once(watch: Watch) -> None:
    told: list[float] = []

    async def live() -> None:
        meter = LoadMeter(lambda worked, passed: told.append(worked))
        await asyncio.sleep(1)
        assert told == [], "nothing was ever done"
        watch.work(meter, 0.09)
        await asyncio.sleep(10)
        assert told == [pytest.approx(0.09), 0.0]
        for _ in range(100):  # hardly anything
            watch.work(meter, 0.0001)
            await asyncio.sleep(0.1)
        assert len(told) == 2
        watch.work(meter, 0.03)
        await asyncio.sleep(1)
        assert told[2:] == [pytest.approx(0.03), 0.0]

    run_virtually(live())


def test_busy_time_never_exceeds_the_time_passed(watch: Watch) -> None:
    told: list[tuple[float, float]] = []

    async def live() -> None:
        meter = LoadMeter(lambda worked, passed: told.append((worked, passed)))
        watch.work(meter, 5.0)
        await asyncio.sleep(0.15)
        meter.aclose()
        await asyncio.sleep(1)

    run_virtually(live())
    ((worked, passed),) = told
    assert worked == passed
