"""Whoever waits for something of a job is told of it, also where several wait at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flamecore.config import DeployTable
from flamecore.turnout import Turnout


def test_nobody_takes_a_change_from_another_who_waits() -> None:
    """One who has just begun to wait must be told of what changes before another begins to."""

    async def run() -> None:
        turnout = Turnout(DeployTable(start_timeout_s=5.0), str, lambda name: None)
        epoch: Any = SimpleNamespace(outcome=asyncio.get_running_loop().create_future())
        come: list[str] = []

        async def comes(name: str) -> None:
            come.append(name)
            turnout.wake()

        one = asyncio.create_task(turnout.until(lambda: "one" in come, epoch, "joined"))
        first = asyncio.create_task(comes("one"))
        other = asyncio.create_task(turnout.until(lambda: "other" in come, epoch, "joined"))
        await asyncio.wait((one,), timeout=2)
        assert one.done()
        await first
        await comes("other")
        await other

    asyncio.run(run())
