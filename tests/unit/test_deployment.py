"""Whoever waits for something of a job is told of it, also where several wait at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flamecore.deployment import Deployment


def test_nobody_takes_a_change_from_another_who_waits() -> None:
    """One who has just begun to wait must be told of what changes before another begins to."""

    async def run() -> None:
        job: Any = Deployment.__new__(Deployment)
        job._deploy = SimpleNamespace(start_timeout_s=5.0)
        job._members = SimpleNamespace(nodes={})
        job._changed = asyncio.Event()
        epoch: Any = SimpleNamespace(outcome=asyncio.get_running_loop().create_future())
        come: list[str] = []

        async def comes(name: str) -> None:
            come.append(name)
            job.wake()

        one = asyncio.create_task(job.until(lambda: "one" in come, epoch, "joined"))
        first = asyncio.create_task(comes("one"))
        other = asyncio.create_task(job.until(lambda: "other" in come, epoch, "joined"))
        await asyncio.wait((one,), timeout=2)
        assert one.done()
        await first
        await comes("other")
        await other

    asyncio.run(run())
