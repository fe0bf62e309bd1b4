"""Fronts at work: one task reads a partition to its end, and time goes on while nothing comes.

Time is made up, so a number of heartbeats is exact, on however busy a machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.source import Batch
from flamecore.model.clock import WALL_CLOCK
from flamecore.model.meta import FrontId
from flamecore.model.settings import JobSettings
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.engine.job import Job
from flamecore.runtime.launch import make_job
from flamecore.runtime.parts.front import Front
from flamecore.runtime.tasks.front_task import Ended, Reading
from flamecore.testing.simulation.virtual import VirtualLoop, run_virtually
from flamestream_edges.memory import SequenceReader

pytestmark = pytest.mark.usefixtures("installed")


INTERVAL_S = JobSettings().heartbeat_interval_s


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture(autouse=True)
def made_up_clock() -> Iterator[None]:
    token = WALL_CLOCK.set(lambda: 1_000_000 + round(now() * 1_000_000))
    yield
    WALL_CLOCK.reset(token)


class Arrivals(list[Any]):
    """The outputs of a sink, with the moments at which it got them."""

    def extend(self, values: Iterable[Any]) -> None:
        super().extend([(value, now()) for value in values])


async def lines(moments: Iterable[float]) -> AsyncIterator[float]:
    """Yield the lines of a file that grows.

    Each line is the moment at which it is appended.
    """
    for moment in moments:
        await asyncio.sleep(max(moment - now(), 0))
        yield moment


def job(flow: fc.Flow, given: Mapping[str, Any], **settings: Any) -> Job:
    made = make_job(make_config(from_program({"job.clock": "wall", **settings})), flow, given=given)
    assert isinstance(made, Job)
    return made


def counting(names: Iterable[str], build: Callable[[fc.Stream[Any]], fc.Stream[Any]]) -> fc.Flow:
    flow = fc.Flow("growing")
    first, *others = [flow.source(name) for name in names]
    build(first.merge(*others)).sink("out")
    return flow


BUILDS: dict[str, Callable[[fc.Stream[Any]], fc.Stream[Any]]] = {
    "a map": lambda stream: stream.map(lambda moment: moment),
    "a state": lambda stream: stream.key_by(lambda moment: 0).stateful_map(0, lambda n, moment: (n + 1, [moment])),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("acker", ["centralized", "local", "sharded"])
def test_a_line_appended_to_either_of_two_files_is_out_within_two_heartbeats(
    build: str, workers: int, acker: str
) -> None:
    """The other file stands still for as long as that takes, and much longer."""
    first = [0.001, 0.049, 0.05, 0.1, 2.0, 2.0001, 2.0002, 7.77, 9.0]
    second = [0.051, 1.0, 1.24, 1.26, 4.001, 8.0]
    out = Arrivals()
    given = {"a": lines(first), "b": lines(second), "out": out}
    made = job(counting("ab", BUILDS[build]), given, **{"job.workers": workers, "acker.use": acker})
    run_virtually(made.run())
    assert [moment for moment, _ in out] == sorted(first + second)
    for moment, arrived in out:
        assert arrived - moment <= 2 * INTERVAL_S, moment


def test_time_goes_on_for_all_fronts_of_a_worker_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a timer for each of them, sixty files that stand still would keep a processor busy."""
    timers: list[float] = []
    call_at = VirtualLoop.call_at

    def counted(loop: VirtualLoop, when: float, *arguments: Any, **settings: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(loop, when, *arguments, **settings)

    monkeypatch.setattr(VirtualLoop, "call_at", counted)

    def needed(count: int) -> int:
        timers.clear()
        names = [f"s{number}" for number in range(count)]
        given = {name: lines([10.0]) for name in names}
        run_virtually(job(counting(names, BUILDS["a state"]), {**given, "out": Arrivals()}).run())
        return len(timers)

    heartbeats = round(10.0 / INTERVAL_S)
    assert heartbeats <= needed(2) < needed(60) < 2 * heartbeats


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("most", [1, 30])
def test_a_job_does_not_wait_for_the_interval_when_it_may_read_no_more_between_snapshots(
    clock: str, names: str, workers: int, most: int
) -> None:
    given = {name: range(number * 40, 200) for number, name in enumerate(names)}  # some end before the others
    out: list[Any] = []
    settings = {"job.clock": clock, "job.workers": workers, "state.use": "memory"}
    limits = {"state.interval_s": 3600.0, "state.max_uncommitted": most}
    took: list[float] = []

    async def main() -> None:
        begun = now()
        await job(counting(names, BUILDS["a state"]), {**given, "out": out}, **settings, **limits).run()
        took.append(now() - begun)

    run_virtually(main())
    assert sorted(out) == sorted([record for records in given.values() for record in records])
    assert took[0] < 60


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("fronts", [1, 3])
def test_a_front_needs_no_task_for_a_read(clock: str, fronts: int) -> None:
    names = "abc"[:fronts]

    def tasks(count: int) -> int:
        made: list[Any] = []

        async def main() -> None:
            def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any) -> asyncio.Task[Any]:
                made.append(coroutine)
                return asyncio.Task(coroutine, loop=loop, **settings)

            asyncio.get_running_loop().set_task_factory(make)
            given = {name: range(count) for name in names}
            settings = {"job.clock": clock, "job.max_in_flight": 30}
            flow = counting(names, BUILDS["a state"])
            out: list[Any] = []
            await job(flow, {**given, "out": out}, **settings).run()
            assert len(out) == fronts * count

        run_virtually(main())
        return len(made)

    assert tasks(3000) == tasks(30)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_a_file_that_grows_slowly_has_room_beside_one_that_is_there(workers: int, clock: str) -> None:
    """And no more is in flight than the job allows."""
    slow, most = [0.5 * turn for turn in range(1, 21)], 40
    out = Arrivals()
    given = {"a": lines(slow), "b": [100.0] * 5000, "out": out}
    made = job(
        counting("ab", BUILDS["a state"]),
        given,
        **{"job.clock": clock, "job.max_in_flight": most, "job.workers": workers},
    )
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(made.stats().in_flight)
            await asyncio.sleep(0.01)

    async def main() -> None:
        watching = asyncio.create_task(watch())
        await made.run()
        watching.cancel()

    run_virtually(main())
    assert len(out) == len(slow) + 5000
    assert 0 < max(seen) <= most
    arrived = dict(out)
    if clock == "wall":
        assert all(arrived[moment] - moment <= 2 * INTERVAL_S for moment in slow)
    else:  # as many of the other as of this one are before it
        assert [moment for moment, _ in out[:40:2]] == slow
        assert arrived[100.0] == pytest.approx(10.0), "all that is left of the other, at once"


def test_a_large_round_is_delivered_before_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the caches of the processor then, and nothing is under way when a snapshot is asked for."""
    out: list[Any] = []
    waiting: list[tuple[int, int]] = []
    read, done = SequenceReader.read, [0]

    async def noted(reader: SequenceReader, limit: int) -> Batch | None:
        waiting.append((limit, done[0] - len(out)))
        batch = await read(reader, limit)
        done[0] += 0 if batch is None else len(batch.values)
        return batch

    monkeypatch.setattr(SequenceReader, "read", noted)
    flow = fc.Flow("large")
    flow.source("numbers", int).key_by(lambda number: number % 5).count().sink("out")
    run_virtually(job(flow, {"numbers": range(100_000), "out": out}, **{"job.clock": "sequence"}).run())
    large = [left for limit, left in waiting if limit == 4096]
    assert len(large) > 20
    assert sum(large) == 0
    assert len(out) == 100_000


@pytest.mark.parametrize("full", [False, True])
def test_a_batch_grows_and_shrinks_with_the_time_that_the_last_one_took(full: bool) -> None:
    """One that is not full has taken all there is: a larger one would get no more. It has less time."""
    step_s = 0.02 if full else 0.005

    def fitted(limit: int, took_s: float) -> int:
        reading = Reading(Front(FrontId("a", 1), 1), Ended())
        reading.limit = limit
        reading.adapt(took_s, limit if full else limit - 1)
        return reading.limit

    assert fitted(100, step_s * 0.49) == (200 if full else 100)
    assert [fitted(100, step_s * share) for share in (0.51, 1.0)] == [100, 100]
    assert fitted(100, step_s * 2) == 50
    assert fitted(100, 60.0) == fitted(1, step_s * 2) == 1
    assert [fitted(limit, 0.0) for limit in (4000, 4096)] == ([4096, 4096] if full else [4000, 4096])
