"""A part refuses what no part of a job says to it, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.abc.transport import Delivery
from flamecore.events import MESSAGE_REFUSED
from flamecore.model.messages import CONTROL, Delivered, MinTimes, Released, Report, Settled
from flamecore.runtime.parts.collector import Collector
from flamecore.runtime.tasks.door import Door, anything
from flamecore.runtime.tasks.rear_task import RearTask
from flamecore.runtime.tasks.sender import Sender
from flamecore.runtime.tasks.tracker_task import TrackerTask
from flamecore.testing.progress import patience

NONSENSE = ([[]], 5, None, "text", {"a": 1}, object())


def test_a_message_of_another_kind_is_refused_and_counted_and_its_sender_named_once() -> None:
    door = Door("worker/0", {Settled: anything, Delivered: lambda word: word.rear == "out"})
    with capture_logs() as logs:
        assert door.admits(CONTROL, Settled(1))
        assert door.admits(CONTROL, Delivered("out", 1))
        assert not door.admits(CONTROL, Delivered("elsewhere", 1))
        for message in NONSENSE:
            assert not door.admits("worker/9", message)
    assert door.refused == {CONTROL: 1, "worker/9": len(NONSENSE)}
    assert [(log["event"], log["address"], log["sender"], log["kind"]) for log in logs] == [
        (MESSAGE_REFUSED, "worker/0", CONTROL, "Delivered"),
        (MESSAGE_REFUSED, "worker/0", "worker/9", "list"),
    ]


def test_made_up_senders_fill_no_memory_and_no_log() -> None:
    door = Door("job", {})
    with capture_logs() as logs:
        for number in range(3000):
            door.admits(f"client/{number}", 5)
    assert door.refused.total() == 3000
    assert len(door.refused) == 1001
    assert len(logs) == 1000


class Endpoint:
    """An address that has been sent some messages, and then nothing more."""

    def __init__(self, address: str, *messages: Any) -> None:
        self.address = address
        self.come = [Delivery("worker/0", message) for message in messages]
        self.sent: list[Any] = []

    def send_nowait(self, to: str, message: Any) -> bool:
        self.sent.append(message)
        return True

    async def receive(self) -> Delivery:
        if not self.come:
            await asyncio.get_running_loop().create_future()
        return self.come.pop(0)

    def receive_nowait(self) -> Delivery | None:
        return self.come.pop(0) if self.come else None


class Tracker:
    subscribers = ("worker/0",)

    def receive(self, report: Report) -> list[MinTimes]:
        return [MinTimes((report.tick,))]


class Quiet(Sink):
    """Takes whatever comes."""

    name = "quiet"

    def __init__(self) -> None:
        super().__init__(None, EdgeContext("out"))

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise AssertionError("nothing was released")

    async def sync(self, time: int) -> None:
        return


async def ran(work: Any, until: Any) -> None:
    task = asyncio.create_task(work)
    async with patience(10):
        while not until() and not task.done():
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_tracker_goes_on_after_nonsense() -> None:
    async def run() -> None:
        endpoint: Any = Endpoint("acker/0", *NONSENSE, Report(0, 7))
        task = TrackerTask(Tracker(), Sender(endpoint, lambda error: None))  # type: ignore[arg-type]
        await ran(task.run(), lambda: endpoint.sent)
        assert endpoint.sent == [MinTimes((7,))]
        assert task.door.refused == {"worker/0": len(NONSENSE)}

    asyncio.run(run())


def test_a_rear_goes_on_after_nonsense_and_releases_of_nobody() -> None:
    async def run() -> None:
        wrong = [Released(worker, 5, [], [], []) for worker in (-1, 1, 99)]
        endpoint: Any = Endpoint("rear/out", *NONSENSE, *wrong, Released(0, 9, [], [], []))
        told: list[int] = []
        task = RearTask(
            Collector("out", 1),
            Quiet(),
            Sender(endpoint, lambda error: None),
            listeners=(),
            delivered=lambda name, time, count: told.append(time),
        )
        await ran(task.run(), lambda: told)
        assert told == [9]
        assert task.door.refused == {"worker/0": len(NONSENSE) + 3}

    asyncio.run(run())
