"""Who asks a job for a change is answered when it has been made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from flamecore.changes import Changes
from flamecore.epoch import TurnError
from flamecore.messages import Refusal, Rescale, Status


class Crew:
    """Of two workers; others come when they are let."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.names = ["worker-0", "worker-1"]
        self.members = SimpleNamespace(named=lambda _: self.names, resting=set())
        self.asked, self.come = asyncio.Event(), asyncio.Event()

    def answer(self, client: str, message: Any) -> None:
        self.answers.append((client, message))

    async def fill(self, wanted: dict[str, int]) -> None:
        self.asked.set()
        await self.come.wait()
        self.names = [f"worker-{number}" for number in range(wanted["worker"])]

    def dismiss(self, names: list[str]) -> None:
        assert not names

    def dismiss_resting(self) -> None:
        assert not self.members.resting


class Runs:
    def __init__(self) -> None:
        self.epoch: Any = self.new_epoch(2)

    def new_epoch(self, workers: int) -> Any:
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

    async def until(self, condition: Any, *_: Any) -> None:
        assert condition()

    async def halt(self, epoch: Any) -> None:
        assert isinstance(epoch.outcome.exception(), TurnError)


class Life:
    history = object()
    plan = SimpleNamespace(workers=2)
    layout = SimpleNamespace(config=SimpleNamespace(deploy=SimpleNamespace(acker="worker")))
    workers = 2

    def __init__(self) -> None:
        self.gone_back = 0

    async def rescale(self, workers: int) -> None:
        self.workers = workers

    async def go_back(self) -> None:
        self.gone_back += 1


def test_a_job_that_moves_again_after_a_fault_has_not_done_what_was_asked_for_meanwhile() -> None:
    async def run() -> None:
        crew, runs, life = Crew(), Runs(), Life()
        changes: Any = Changes(runs, life, crew, None)  # type: ignore[arg-type]
        asking = asyncio.create_task(changes.asked("client/a", Rescale(3)))
        await asyncio.wait_for(crew.asked.wait(), 5)
        assert not changes.done(runs.epoch, 500.0), "it has recovered"
        assert crew.answers == []
        crew.come.set()
        await asking
        await changes.turn(runs.epoch)
        assert life.workers == 3
        assert changes.done(runs.new_epoch(3), 200.0)
        assert crew.answers == [("client/a", Status({"workers": 3, "pause_ms": 200.0}))]

    asyncio.run(run())


def test_who_asks_is_told_of_what_nobody_expects_too() -> None:
    """It would wait for its answer to the limit; and what is wrong would be seen nowhere."""

    class Broken(Crew):
        async def fill(self, wanted: dict[str, int]) -> None:
            raise KeyError(wanted["worker"])

    async def run() -> None:
        crew, runs = Broken(), Runs()
        changes: Any = Changes(runs, Life(), crew, None)  # type: ignore[arg-type]
        with pytest.raises(KeyError):
            await changes.asked("client/a", Rescale(3))
        assert crew.answers == [("client/a", Refusal("it has failed: KeyError: 3"))]
        assert not changes.done(runs.epoch, 200.0)

    asyncio.run(run())


def test_an_epoch_that_ends_for_what_was_refused_meanwhile() -> None:
    """Some fronts were told to stop for another version before somebody was found to be gone."""

    async def run() -> None:
        runs, life = Runs(), Life()
        changes: Any = Changes(runs, life, Crew(), None)  # type: ignore[arg-type]
        runs.epoch.fail(TurnError())
        await changes.turn(runs.epoch)
        assert life.gone_back == 1
        assert not changes.done(runs.new_epoch(2), 200.0)

    asyncio.run(run())
