"""A small simulated world for jobs, driven by a seed.

It has processes that die at any moment, a network, a disk and a wall clock. Every action of a process on the outside
takes virtual time, and is a *moment* at which something may go wrong: `World.moment` is called for each of them, and
may kill the process. Answers that a dead process waits for never come. Messages and calls that it had on their way may
arrive or be lost, by chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from itertools import accumulate, count
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

PROCESS: Final[ContextVar[Process | None]] = ContextVar("process", default=None)
"""The current process."""


class World:
    """The world that processes share.

    Args:
        random: Decides everything that is left to chance.
        moment: Fate: called with the process at each of its actions on the outside.
        delay_s: Usual duration of an action.
        tears: Whether a part or manifest that is being stored when its process dies may be there in part. No store may
            do that; but disks do.
        copy: Applied to every message between processes, as a codec would.
    """

    def __init__(
        self,
        random: Random,
        moment: Callable[[Process], None],
        *,
        delay_s: float = 0.001,
        tears: bool = False,
        copy: Callable[[Any], Any] | None = None,
    ) -> None:
        self.random = random
        self.moment = moment
        self.delay_s = delay_s
        self.tears = tears
        self.copy = copy
        self.disk: dict[str, bytes] = {}
        self.under_way = 0
        """Number of calls that have not arrived yet. A call of a process may arrive after its death."""
        self.wall_us = 1_700_000_000_000_000
        self.store_mishap = Mishap()
        self.stored: Callable[[str], None] = lambda name: None
        """Called with every blob that is now on the disk."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds; `wall_us` puts it back or forward."""
        return self.wall_us + round(asyncio.get_running_loop().time() * 1e6)

    def delay(self) -> float:
        """Return the seconds that the next action takes: seldom very long."""
        random = self.random.random()
        return self.delay_s * (random if random < 0.95 else 200 * (random - 0.95) * 20)


def stopwatch(seed: int) -> Callable[[], float]:
    """Return a stopwatch that advances by chance on every reading."""
    random = Random(f"stopwatch {seed}")
    readings = accumulate(random.random() * 0.01 for _ in count())
    return lambda: next(readings)


class Mishap:
    """A fault of the next call to the outside, once.

    Attributes:
        when: The call fails "before" it takes effect, or "after"; "": it does not fail.
    """

    def __init__(self) -> None:
        self.when = ""

    def around(self, do: Callable[[], T], error: Callable[[], Exception]) -> T:
        """Return the result of `do`, unless the call fails. Raises `error` if it does."""
        when, self.when = self.when, ""
        if when == "before":
            raise error()
        result = do()
        if when == "after":
            raise error()
        return result


class Process:
    """A process: its tasks reach the outside only while it lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self._tasks: set[asyncio.Task[Any]] = set()
        self._limbo: list[asyncio.Future[Any]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as a task of this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def began(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this process; cancel it if the process is dead."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self.alive:
            asyncio.get_running_loop().call_soon(task.cancel)

    def kill(self) -> None:
        """Kill the process, in the midst of its work."""
        if self.alive:
            self.alive = False
            asyncio.get_running_loop().call_soon(self._sweep)

    def _sweep(self) -> None:
        for task in sorted(self._tasks, key=lambda task: task.get_name()):
            task.cancel()

    async def wait(self) -> None:
        """Wait for the duration of an action."""
        await self.check()
        await asyncio.sleep(self.world.delay())
        await self.check()

    async def check(self) -> None:
        """Pass a moment; never return in a dead process."""
        if self.alive:
            self.world.moment(self)
        if not self.alive:
            await self.never()

    async def never(self) -> None:
        """Wait for ever."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._limbo.append(future)
        await future

    async def reach(self, do: Callable[[], T], late: Callable[[], None] = lambda: None) -> T:
        """Call something outside; the call takes time, and so does its answer.

        Args:
            do: Called on arrival, if this process lives then, or by chance if it does not.
            late: Called instead, if it is not.
        """
        loop, world = asyncio.get_running_loop(), self.world
        await self.check()
        answer: asyncio.Future[T] = loop.create_future()
        self._limbo.append(answer)

        def arrive() -> None:
            try:
                get_there()
            finally:
                world.under_way -= 1

        def get_there() -> None:
            if self.alive:
                world.moment(self)
            if not self.alive and world.random.random() < 0.5:
                return late()
            try:
                result = do()
            except Exception as error:  # noqa: BLE001 - the answer
                loop.call_later(world.delay(), hear, None, error)
            else:
                loop.call_later(world.delay(), hear, result, None)
            return None

        def hear(result: Any, error: Exception | None) -> None:
            if self.alive:
                world.moment(self)
            if self.alive and not answer.done():
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)

        world.under_way += 1
        loop.call_later(world.delay(), arrive)
        try:
            return await answer
        finally:
            self._limbo.remove(answer)


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make every process of a loop know its tasks."""

    def factory(loop: asyncio.AbstractEventLoop, work: Any, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.began(task)
        return task

    loop.set_task_factory(factory)
