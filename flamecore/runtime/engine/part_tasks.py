"""The asyncio tasks of the parts of a node: started together, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from flamecore.errors import SinkError
from flamecore.runtime.tasks.deadlines import CallDeadline
from flamecore.runtime.tasks.event_loop import ended_by_errors, start
from flamecore.runtime.tasks.partition_task import PartitionTask
from flamecore.runtime.tasks.rear_task import RearTask
from flamecore.runtime.tasks.worker_task import WorkerTask


class Part(Protocol):
    """A part with a task of its own."""

    async def run(self) -> None: ...


class PartTasks:
    """The tasks of the parts of one node.

    Args:
        fail: Function called with the errors of parts.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._tasks: dict[asyncio.Task[None], CallDeadline | None] = {}

    def start(self, parts: Iterable[Part]) -> None:
        """Start a task for each part."""
        for part in parts:
            task = start(_run(part), self._fail, type(part).__name__)
            self._tasks[task] = part.writer.deadline if isinstance(part, RearTask | PartitionTask) else None

    async def end(self, workers: Sequence[WorkerTask], rears: Iterable[RearTask]) -> list[BaseException]:
        """End all parts; the rears and partitions finish the batch that is being written.

        Calls that timed out are left behind.

        Returns:
            The errors of sinks whose contents are not known.
        """
        for worker_task in workers:
            worker_task.aclose()
        for task, deadline in self._tasks.items():
            if deadline is None:
                task.cancel()
        # Rears are not cancelled with the others: the contents of a sink would be unknown after
        # half a write.
        written = await asyncio.gather(*[rear.writer.halt() for rear in rears], return_exceptions=True)
        # Errors of partitions do not count here: the next epoch or run opens them, and looks at their contents.
        partitions = [partition for worker in workers for partition in worker.partitions.values()]
        await asyncio.gather(*[partition.writer.halt() for partition in partitions], return_exceptions=True)
        for rear in rears:
            rear.aclose()
        for task, deadline in self._tasks.items():
            if deadline is None:
                await asyncio.wait((task,))
            else:
                task.cancel()
                with suppress(SinkError):  # already in `written`
                    await deadline.wait_done(task)
        # Only now: until its task has ended, it may still call the operations.
        for worker_task in workers:
            worker_task.worker.close()
        return [error for error in written if error is not None]


async def _run(part: Part) -> None:
    """Run a part."""
    with ended_by_errors(f"the work of a {type(part).__name__}"):
        await part.run()
