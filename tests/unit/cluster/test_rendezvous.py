"""A change of the membership wakes all that wait, also where several wait at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flamecore.abc.config import DeployTable
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.nodes import NodeManager


def test_a_change_is_taken_only_by_its_own_waiter() -> None:
    """One who has just begun to wait must be told of what changes before another begins to."""

    async def run() -> None:
        deploy, members, nobody = DeployTable(on="processes", start_timeout_s=5.0), Membership(), SimpleNamespace()
        context: Any = SimpleNamespace(spec=SimpleNamespace(config=SimpleNamespace(deploy=deploy)))
        nodes: Any = NodeManager("job", members, context, nobody, nobody, None, asyncio.Queue())  # type: ignore[arg-type]
        epoch: Any = SimpleNamespace(outcome=asyncio.get_running_loop().create_future())
        come: list[str] = []

        async def comes(name: str) -> None:
            come.append(name)
            members.wake()

        one = asyncio.create_task(nodes.wait_until(lambda: "one" in come, epoch, "joined"))
        first = asyncio.create_task(comes("one"))
        other = asyncio.create_task(nodes.wait_until(lambda: "other" in come, epoch, "joined"))
        await asyncio.wait((one,), timeout=2)
        assert one.done()
        await first
        await comes("other")
        await other

    asyncio.run(run())
