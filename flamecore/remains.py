"""What is still to be done for epochs that are over: it ends in its own time, beside the one that runs."""

from __future__ import annotations

import asyncio


class Remains:
    """Tasks that nobody waits for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def see_to(self, task: asyncio.Task[None]) -> None:
        """Let a task end in its own time. How it ends is of no account."""
        self.keep(task)
        task.add_done_callback(_heed)

    def keep(self, task: asyncio.Task[None]) -> None:
        """The same; what is unexpected is shown by asyncio."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End them all."""
        for task in tuple(self._tasks):
            task.cancel()


def _heed(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
