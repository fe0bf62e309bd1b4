"""The news of a tracker: to those at which an output waits at once, to the others a little later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from flamecore.abc.acker import Tracker
from flamecore.abc.transport import Delivery
from flamecore.model.messages import MinTimes, Patient, Report
from flamecore.runtime.tasks import tracker_task
from flamecore.runtime.tasks.tracker_task import TrackerTask
from flamecore.testing.progress import patience

PLAIN, PATIENT = "worker/0", "worker/1"


class Echo(Tracker):
    """Tells the node time of each report as the minimum time; `steps` of them, or the last one is enough."""

    def __init__(self, *, steps: bool = False) -> None:
        super().__init__()
        self.steps = steps

    def receive(self, report: Report) -> Sequence[MinTimes]:
        return (MinTimes((report.tick,), (report.tick,) if self.steps else ()),)

    def register(self, front: int, time: int | None = None) -> int:
        raise NotImplementedError

    def current(self) -> MinTimes:
        return MinTimes((0,))


class Wire:
    """A sender and its endpoint: reports in, news out."""

    address = "acker/0"

    def __init__(self) -> None:
        self.reports: asyncio.Queue[Delivery] = asyncio.Queue()
        self.told: dict[str, list[int]] = {PLAIN: [], PATIENT: []}
        self.failed: list[BaseException] = []
        self.endpoint = self
        self.breaks = False

    def receive_nowait(self) -> Delivery | None:
        return self.reports.get_nowait() if self.reports.qsize() else None

    async def receive(self) -> Delivery:
        return await self.reports.get()

    def send(self, to: str, news: MinTimes) -> None:
        if self.breaks and to == PATIENT:
            raise OSError("broken")
        self.told[to].append(news.times[0])

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)

    def report(self, tick: int) -> None:
        self.reports.put_nowait(Delivery(PLAIN, Report(0, tick)))


def played(story: Callable[[Wire, TrackerTask], Awaitable[None]], *, steps: bool = False) -> Wire:
    async def run() -> Wire:
        wire = Wire()
        sender: Any = wire
        task = TrackerTask(Echo(steps=steps), sender)
        task.tracker.subscribe(PLAIN)
        task.tracker.subscribe(PATIENT)
        wire.reports.put_nowait(Delivery(PATIENT, Patient(True)))
        running = asyncio.create_task(task.run())
        async with patience(10):
            await story(wire, task)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        task.aclose()
        return wire

    return asyncio.run(run())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_a_patient_subscriber_gets_the_latest_of_several_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_task, "_PATIENCE_S", 1000.0)

    async def story(wire: Wire, task: TrackerTask) -> None:
        for tick in range(1, 4):
            wire.report(tick)
            await until(lambda: wire.told[PLAIN][-1:] == [tick])  # noqa: B023 - asked at once
        assert wire.told[PATIENT] == []
        task._tell_latest()  # as its timer does
        wire.report(4)
        await until(lambda: wire.told[PLAIN][-1:] == [4])

    wire = played(story)
    assert wire.told == {PLAIN: [1, 2, 3, 4], PATIENT: [3]}


def test_a_patient_subscriber_is_told_in_a_while() -> None:
    async def story(wire: Wire, task: TrackerTask) -> None:
        for tick in (1, 2):
            wire.report(tick)
            await until(lambda: wire.told[PATIENT][-1:] == [tick])  # noqa: B023 - asked at once

    assert played(story).told == {PLAIN: [1, 2], PATIENT: [1, 2]}


@pytest.mark.parametrize("how", ["impatient", "steps"])
def test_who_waits_again_and_news_of_which_each_counts_are_served_at_once(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_task, "_PATIENCE_S", 1000.0)

    async def story(wire: Wire, task: TrackerTask) -> None:
        wire.report(1)
        await until(lambda: wire.told[PLAIN])
        assert wire.told[PATIENT] == ([1] if how == "steps" else [])
        if how == "impatient":
            wire.reports.put_nowait(Delivery(PATIENT, Patient(False)))
            await until(lambda: wire.told[PATIENT] == [1])
        wire.report(2)
        await until(lambda: wire.told[PATIENT][-1:] == [2])

    assert played(story, steps=how == "steps").told[PLAIN] == [1, 2]


def test_an_address_that_has_not_subscribed_gets_nothing() -> None:
    async def story(wire: Wire, task: TrackerTask) -> None:
        wire.reports.put_nowait(Delivery("client/9", Patient(True)))
        wire.report(1)
        await until(lambda: wire.told[PATIENT] == [1])

    wire = played(story)
    assert (wire.told, wire.failed) == ({PLAIN: [1], PATIENT: [1]}, [])


def test_old_news_do_not_follow_newer_ones() -> None:
    async def story(wire: Wire, task: TrackerTask) -> None:
        wire.report(1)
        await until(lambda: wire.told[PLAIN] == [1])
        wire.reports.put_nowait(Delivery(PATIENT, Patient(False)))
        wire.report(2)
        await until(lambda: wire.told[PATIENT] == [1, 2])
        wire.reports.put_nowait(Delivery(PATIENT, Patient(True)))
        await asyncio.sleep(0.03)

    assert played(story).told[PATIENT] == [1, 2]


def test_what_fails_a_little_later_ends_the_job() -> None:
    async def story(wire: Wire, task: TrackerTask) -> None:
        wire.breaks = True
        wire.report(1)
        await until(lambda: wire.failed)

    assert [type(error) for error in played(story).failed] == [OSError]


def test_nothing_is_told_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_task, "_PATIENCE_S", 1000.0)

    async def story(wire: Wire, task: TrackerTask) -> None:
        wire.report(1)
        await until(lambda: task._timer is not None)
        timer = task._timer
        task.aclose()
        assert timer is not None
        assert timer.cancelled()

    assert played(story).told[PATIENT] == []
