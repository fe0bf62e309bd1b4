"""Limits of tests that count time without progress: how fast a machine is decides nothing.

Progress is time of a processor that this process and those that it has started have used. On a machine that is busy
with other work a test takes long and goes on; a test that waits in vain uses next to none.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

T = TypeVar("T")

LEAST: Final = 0.02
"""Part of a processor that counts as progress: several times what idle processes of a job use."""

MOST: Final = 20
"""A limit passes after that many times its length for all progress: loops without an end use processors, too."""

_TICKS_S: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cpu_s() -> dict[tuple[int, int], float]:
    """Return the time of processors, in s, that this process and each of its descendants have used.

    Each is told by its id and the time of its start; this one has the times of its children that have ended, too.
    """
    children: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold anything.
            fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it is gone
        children[int(fields[1])].append((int(folder.name), int(fields[19]), int(fields[11]) + int(fields[12])))
    used, waiting = {(os.getpid(), 0): _own_s()}, [os.getpid()]
    while waiting:
        for number, born, ticks in children.get(waiting.pop(), ()):
            used[number, born] = ticks / _TICKS_S
            waiting.append(number)
    return used


def worked_s(before: Mapping[tuple[int, int], float], now: Mapping[tuple[int, int], float]) -> float:
    """Return the time of processors, in s, that was used between two results of `cpu_s`.

    It is infinite if a process has ended meanwhile, whose last time nobody knows: that is progress, too.

    >>> worked_s({(7, 0): 1.0}, {(7, 0): 1.5, (8, 3): 0.25}), worked_s({(7, 0): 1.0}, {(8, 3): 1.0})
    (0.75, inf)
    """
    if before.keys() - now.keys():
        return inf
    return sum(time_s - before.get(process, 0.0) for process, time_s in now.items())


class Patience:
    """A limit of time without progress.

    Other processes are looked at only once the limit is over for this one, since to list them takes some milliseconds:
    so it may last twice as long.

    Args:
        limit_s: Time without progress after which it has passed.
        clock: Returns the time in s.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = monotonic) -> None:
        self.limit_s, self._clock = limit_s, clock
        self._end = clock() + MOST * limit_s
        self._renew(None)

    @property
    def left_s(self) -> float:
        """Time until `passed` may be true; not below 0."""
        return max(0.0, min(self._until, self._end) - self._clock())

    def passed(self) -> bool:
        """Return whether there was no progress for the limit; if there was some, the limit begins anew."""
        if self.left_s > 0:
            return False
        if self._clock() >= self._end:
            return True
        least = LEAST * self.limit_s
        if _own_s() - self._own >= least:
            self._renew(None)
            return False
        used = cpu_s()
        if self._used is None or worked_s(self._used, used) >= least:
            self._renew(used)
            return False
        return True

    def _renew(self, used: Mapping[tuple[int, int], float] | None) -> None:
        self._own, self._used = _own_s(), used
        self._until = self._clock() + self.limit_s


def _own_s() -> float:
    """Return the time of processors that this process has used, and those of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@asynccontextmanager
async def patience(limit_s: float) -> AsyncIterator[None]:
    """Limit the time without progress of what is in the block, by the clock of the event loop.

    Raises:
        TimeoutError: There was none for `limit_s`.
    """
    loop = asyncio.get_running_loop()
    limit = Patience(limit_s, loop.time)
    async with asyncio.timeout(None) as timeout:
        handles: list[asyncio.TimerHandle] = []

        def look() -> None:
            if limit.passed():
                timeout.reschedule(loop.time())
            else:
                handles[:] = [loop.call_later(limit.left_s, look)]

        look()
        try:
            yield
        finally:
            for handle in handles:
                handle.cancel()


async def patiently(awaitable: Awaitable[T], limit_s: float) -> T:
    """Return the result of an awaitable, within a limit of time without progress.

    Raises:
        TimeoutError: There was none for `limit_s`.
    """
    async with patience(limit_s):
        return await awaitable
