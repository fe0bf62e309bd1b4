"""An event loop whose time is made up: waiting takes none, and the same program does the same things in the same order.

When nothing is left to do at this moment, time goes on to the next moment for which something is planned. There are no
files, sockets or threads in it: whatever a program waits for has to be in the program.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from flamecore.testing.simulation.simulation import SimulationStuckError

T = TypeVar("T")

_MOST_ROUNDS = 1_000_000
_MOST_FAREWELLS = 50


class _MadeUp(selectors.BaseSelector):
    """Waits for files by letting time go on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rounds = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.rounds += 1
        if timeout is None:
            raise SimulationStuckError(f"nothing can happen any more, at {self.now:.3f} s")
        if self.rounds > _MOST_ROUNDS:
            raise SimulationStuckError(f"not done after {_MOST_ROUNDS} rounds of the event loop, at {self.now:.3f} s")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `time` starts at 0."""

    def __init__(self) -> None:
        self._made_up = _MadeUp()
        super().__init__(self._made_up)

    def refresh(self) -> None:
        """It may go on for as long again."""
        self._made_up.rounds = 0

    def time(self) -> float:
        """Seconds since it began."""
        return self._made_up.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in made-up time; whatever tasks it leaves behind are cancelled.

    Raises:
        SimulationStuckError: It waits for something that will never be.
    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        for _ in range(_MOST_FAREWELLS):
            left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
            if not left:
                break
            loop.refresh()
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.close()
