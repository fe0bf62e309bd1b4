"""The answer to a client that asks for a change, once it has been made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from flamecore.errors import JobError
from flamecore.model.messages import Refusal, Rescale, Status
from flamecore.runtime.cluster.reconfiguration import Reconfiguration
from flamecore.runtime.engine.epoch import FaultError, ReconfigureSignal
from flamecore.testing.progress import patiently


class Nodes:
    """A manager of two workers; others come when they are let."""

    required: Mapping[str, int] = {"worker": 2, "acker": 0}

    def __init__(self) -> None:
        self.context = Context()
        self.answers: list[Any] = []
        self.names = ["worker-0", "worker-1"]
        self.members = SimpleNamespace(named=lambda _: self.names, standby=set())
        self.asked, self.come = asyncio.Event(), asyncio.Event()

    def answer(self, client: str, message: Any) -> None:
        self.answers.append((client, message))

    async def start_missing(self, required: dict[str, int]) -> None:
        self.asked.set()
        await self.come.wait()
        self.names = [f"worker-{number}" for number in range(required["worker"])]

    async def wait_until(self, condition: Any, *_: Any) -> None:
        assert condition()

    def dismiss(self, names: list[str]) -> None:
        assert not names

    def dismiss_standby(self) -> None:
        assert not self.members.standby


def new_epoch(workers: int) -> Any:
    outcome = asyncio.get_running_loop().create_future()

    async def commit() -> None:
        return

    return SimpleNamespace(
        outcome=outcome,
        begun=True,
        commit=commit,
        fail=outcome.set_exception,
        plan=SimpleNamespace(workers=workers),
    )


class Context:
    history = object()
    workers = 2

    def __init__(self) -> None:
        self.rewound = 0
        self.moved: list[str] = []

    @property
    def settings(self) -> Any:
        return SimpleNamespace(workers=self.workers)

    async def move(self, placement: str) -> None:
        self.moved.append(placement)

    async def rescale(self, workers: int) -> None:
        self.workers = workers

    async def rewind(self) -> None:
        self.rewound += 1


def test_a_request_during_a_fault_is_not_answered_as_done() -> None:
    async def run() -> None:
        nodes, epoch = Nodes(), new_epoch(2)
        reconfiguration: Any = Reconfiguration(nodes, None)  # type: ignore[arg-type]
        asking = asyncio.create_task(reconfiguration.asked("operator/a", Rescale(3), epoch))
        await patiently(nodes.asked.wait(), 5)
        assert not reconfiguration.done(epoch, 500.0), "it has recovered"
        assert nodes.answers == []
        nodes.come.set()
        await asking
        assert isinstance(epoch.outcome.exception(), ReconfigureSignal)
        await reconfiguration.apply()
        assert nodes.context.workers == 3
        assert reconfiguration.done(new_epoch(3), 200.0)
        assert nodes.answers == [("operator/a", Status({"workers": 3, "pause_ms": 200.0}))]

    asyncio.run(run())


def test_an_unexpected_error_is_answered_too() -> None:
    """It would wait for its answer to the limit; and what is wrong would be seen nowhere."""

    class Broken(Nodes):
        async def start_missing(self, required: dict[str, int]) -> None:
            raise KeyError(required["worker"])

    async def run() -> None:
        nodes, epoch = Broken(), new_epoch(2)
        reconfiguration: Any = Reconfiguration(nodes, None)  # type: ignore[arg-type]
        with pytest.raises(KeyError):
            await reconfiguration.asked("operator/a", Rescale(3), epoch)
        assert nodes.answers == [("operator/a", Refusal("it has failed: KeyError: 3"))]
        assert not reconfiguration.done(epoch, 200.0)

    asyncio.run(run())


def test_an_epoch_may_end_for_a_change_refused_meanwhile() -> None:
    """Some fronts were told to stop for another version before somebody was found to be gone."""

    async def run() -> None:
        nodes = Nodes()
        reconfiguration: Any = Reconfiguration(nodes, None)  # type: ignore[arg-type]
        await reconfiguration.apply()
        assert nodes.context.rewound == 1
        assert not reconfiguration.done(new_epoch(2), 200.0)

    asyncio.run(run())


def test_a_move_of_parts_ends_the_epoch_and_answers_nobody() -> None:
    async def run() -> None:
        nodes, epoch = Nodes(), new_epoch(2)
        reconfiguration: Any = Reconfiguration(nodes, None)  # type: ignore[arg-type]
        await reconfiguration.move("elsewhere", epoch)
        assert isinstance(epoch.outcome.exception(), ReconfigureSignal)
        await reconfiguration.apply()
        assert nodes.context.moved == ["elsewhere"]
        assert reconfiguration.done(new_epoch(2), 200.0)
        assert nodes.answers == []

    asyncio.run(run())


def test_a_move_gives_way_to_a_fault_and_to_another_change() -> None:
    async def run() -> None:
        nodes, epoch = Nodes(), new_epoch(2)
        reconfiguration: Any = Reconfiguration(nodes, None)  # type: ignore[arg-type]
        asking = asyncio.create_task(reconfiguration.asked("operator/a", Rescale(3), epoch))
        await patiently(nodes.asked.wait(), 5)
        await reconfiguration.move("elsewhere", epoch)
        assert not epoch.outcome.done()
        nodes.come.set()
        await asking
        await reconfiguration.move("elsewhere", epoch)
        await reconfiguration.apply()
        assert (nodes.context.workers, nodes.context.moved) == (3, [])

        async def fail() -> None:
            raise FaultError(JobError("worker-1 is gone"))

        reconfiguration.done(new_epoch(3), 200.0)
        faulty = new_epoch(3)
        faulty.commit = fail
        await reconfiguration.move("elsewhere", faulty)
        await reconfiguration.apply()
        assert (nodes.context.rewound, nodes.context.moved) == (1, [])

    asyncio.run(run())
