"""The supervisor's part of an epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.hooks import Observers
from flamecore.errors import SendTimeout, SinkError
from flamecore.model.meta import FrontId
from flamecore.model.plan import Plan
from flamecore.runtime.engine.epoch import Epoch
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.testing.progress import patiently


class Failing:
    """Snapshots that cannot be taken."""

    async def commit(self, *, first: bool = False) -> None:
        raise SinkError("the disk is full", sink="out")


class Slow:
    """Snapshots that are being taken until they are let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.taken = False

    async def commit(self, *, first: bool = False) -> None:
        self.begun.set()
        await self.go.wait()
        self.taken = True


def in_an_epoch(check: Callable[[Epoch], Awaitable[None]]) -> None:
    flow = fc.Flow("counts")
    flow.source("lines", str).key_by(lambda line: line).count().sink("out")
    plan = Plan(flow.graph(), (FrontId("lines", 0),), partitions=("",))

    async def run() -> None:
        nobody: Any = None
        await check(Epoch(plan, nobody, Observers(()), deadlines=Deadlines()))

    asyncio.run(run())


def test_a_failed_snapshot_ends_the_epoch_for_any_requester() -> None:
    """Also a client who wants something changed: what was cut for it would be in no snapshot."""

    async def check(epoch: Epoch) -> None:
        epoch._coordinator = Failing()  # type: ignore[assignment]
        with pytest.raises(SinkError):
            await epoch.commit()
        with pytest.raises(SinkError, match="the disk is full"):
            await epoch.outcome

    in_an_epoch(check)


def test_a_requested_snapshot_ends_with_its_epoch() -> None:
    """It would be recorded beside the work of the next one, which has looked already at what there is."""

    async def check(epoch: Epoch) -> None:
        epoch._coordinator = slow = Slow()  # type: ignore[assignment]
        asked = asyncio.create_task(epoch.commit())
        await slow.begun.wait()
        await epoch.halt(lambda task: None)
        slow.go.set()
        await patiently(asked, 5)
        assert not slow.taken

    in_an_epoch(check)


def test_a_snapshot_goes_on_when_its_requester_leaves() -> None:
    async def check(epoch: Epoch) -> None:
        epoch._coordinator = slow = Slow()  # type: ignore[assignment]
        asked = asyncio.create_task(epoch.commit())
        await slow.begun.wait()
        asked.cancel()
        await asyncio.wait((asked,))
        slow.go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert slow.taken
        assert not epoch.outcome.done()

    in_an_epoch(check)


@pytest.mark.parametrize("how", ["aclose", "halt"])
def test_a_node_whose_first_part_cannot_be_closed_closes_the_rest(how: str) -> None:
    """A peer that takes nothing any more is no reason to leave files open."""
    closed: list[str] = []

    class Part:
        def __init__(self, name: str, error: Exception | None = None) -> None:
            self.name, self.error = name, error

        async def aclose(self) -> None:
            closed.append(self.name)
            if self.error is not None:
                raise self.error

    async def check(epoch: Epoch) -> None:
        node: Any = epoch.node
        late = SendTimeout("w1 takes nothing", address="worker/0", peer="worker/1", timeout_s=1.0)
        node.senders._senders = [Part("first", late if how == "aclose" else None), Part("second")]
        node._readers = Part("readers")
        if how == "aclose":
            with pytest.raises(SendTimeout):
                await node.aclose()
            assert closed == ["first", "second", "readers"]
            return
        full = SinkError("the disk is full", sink="out")

        async def fail(*_: object) -> list[BaseException]:
            raise full

        node._tasks.end = fail
        rest: list[asyncio.Task[None]] = []
        with pytest.raises(SinkError):
            await node.halt(rest.append)
        await asyncio.gather(*rest)
        assert sorted(closed) == ["first", "readers", "second"]

    in_an_epoch(check)
