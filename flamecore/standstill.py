"""How long a job stands still between two epochs, and what is said of it when it moves again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from flamecore import events
from flamecore.epoch import Epoch
from flamecore.logs import logger

MOVE_S: Final = 5.0
"""How long to wait for a first delivery, before it is said that the job goes on."""


class Standstill:
    """Measures the pauses of a job.

    Args:
        job: Its id.
        changed: Whether it moves again because of a change: (epoch, how long it stood still, in milliseconds). Whoever
            has asked for that is told.
    """

    def __init__(self, job: str, changed: Callable[[Epoch, float], bool]) -> None:
        self._job, self._changed = job, changed
        self._since = 0.0  # 0: it moves

    def begin(self) -> None:
        """The job stands still. If it did already, it has since then."""
        self._since = self._since or time.monotonic()

    async def tell_when_over(self, epoch: Epoch) -> None:
        """Say how long it was: until something was delivered, or, if nothing comes, until it could be.

        Args:
            epoch: Another one, which has just begun.
        """
        began = time.monotonic()
        moved = asyncio.create_task(epoch.moved.wait())
        await asyncio.wait((moved, epoch.outcome), timeout=MOVE_S, return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
        if epoch.outcome.done() and (epoch.outcome.cancelled() or epoch.outcome.exception() is not None):
            return  # it stands still again
        since, self._since = self._since, 0.0
        took_ms = round(((time.monotonic() if epoch.moved.is_set() else began) - since) * 1000, 1)
        plan = epoch.plan
        if self._changed(epoch, took_ms):
            logger().info(events.JOB_TURNED, job=self._job, epoch=epoch.name, workers=plan.workers, pause_ms=took_ms)
        else:
            logger().info(events.JOB_RECOVERED, job=self._job, epoch=epoch.name, time=plan.start, took_ms=took_ms)
