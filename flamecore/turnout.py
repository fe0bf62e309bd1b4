"""Waits for the nodes of a job: until all have come so far, or it is known who is late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from flamecore.epoch import Epoch, FaultError
from flamecore.errors import JobError

if TYPE_CHECKING:
    from flamecore.config import DeployTable

_START_HINT: Final = "Look at the workers' log lines above; each must reach the supervisor and import the flow."
_JOIN_HINT: Final = (
    "flamestream check says the commands that start them; each must reach the supervisor and import the flow, and says "
    "where it was started what keeps it. deploy.start_timeout_s is how long they may take."
)


class Turnout:
    """Who waits for nodes is told of every change.

    Args:
        deploy: Says how long they may take, and how they are started.
        roll: Says who is there and who is missing, in words.
        take_for_dead: Gives up a node, by name.
    """

    def __init__(self, deploy: DeployTable, roll: Callable[[], str], take_for_dead: Callable[[str], None]) -> None:
        self._deploy, self._roll, self._take_for_dead = deploy, roll, take_for_dead
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Something has changed that may be waited for. Each change has an event of its own, so that none of those who
        wait can take it from another."""
        self._changed.set()
        self._changed = asyncio.Event()

    def change(self) -> Awaitable[object]:
        """The next change from this very moment on."""
        return self._changed.wait()

    async def until(
        self, condition: Callable[[], bool], epoch: Epoch, what: str, late: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Wait for all nodes, or for the epoch to end.

        Args:
            condition: Whether they have all come so far.
            epoch: The present one.
            what: What they are waited for to do.
            late: Names of those who have not done it.

        Raises:
            JobError: It takes too long, and nobody can be blamed.
            FaultError: It takes too long: those who are late are taken for dead.
        """
        timeout_s = self._deploy.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if epoch.outcome.done():
                        await epoch.outcome
                    changed = asyncio.ensure_future(self.change())
                    ends = () if epoch.outcome.done() else (epoch.outcome,)  # what has ended well need not be awaited
                    try:
                        await asyncio.wait((changed, *ends), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        changed.cancel()
        except TimeoutError:
            error = JobError(
                f"after {timeout_s:g} s not all workers have {what} ({self._roll()})",
                hint=_JOIN_HINT if self._deploy.start == "join" else _START_HINT,
            )
            stuck = sorted(late())
            if not stuck:
                raise error from None
            for name in stuck:
                self._take_for_dead(name)
            raise FaultError(error) from None
