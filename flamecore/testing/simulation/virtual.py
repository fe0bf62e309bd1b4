"""An event loop with virtual time: waiting takes none, and runs repeat exactly.

When nothing is left to do at this moment, time advances to the next moment for which something is planned. The loop has
no files, sockets or threads: everything that a program waits for must be in the program.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from flamecore.runtime.operators.rounds import Rounds
from flamecore.runtime.tasks.watch import ROUND_S, WATCH
from flamecore.testing.simulation.simulation import SimulationStuckError

T = TypeVar("T")

_MOST_ROUNDS = 1_000_000
_MOST_FAREWELLS = 50


class _MadeUp(selectors.BaseSelector):
    """A selector that waits for files by advancing virtual time."""

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


class VirtualWatch:
    """The watch on rounds, by virtual time: it looks when a function has let time pass.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._rounds: Rounds | None = None
        self._began = 0.0

    def begin(self, rounds: Rounds) -> None:
        rounds.begin()
        self._rounds, self._began = rounds, self._loop.time()

    def end(self) -> None:
        self._rounds = None

    def release(self) -> None:
        self._rounds = None

    def look(self) -> None:
        """End a round that has lasted long enough."""
        if self._rounds is not None and self._loop.time() >= self._began + ROUND_S:
            self._rounds.end()


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `time` starts at 0."""

    def __init__(self) -> None:
        self._made_up = _MadeUp()
        self.watch = VirtualWatch(self)
        super().__init__(self._made_up)

    def refresh(self) -> None:
        """Allow the full number of rounds again."""
        self._made_up.rounds = 0

    def time(self) -> float:
        """Return the virtual seconds since the loop began."""
        return self._made_up.now

    def spend(self, seconds: float) -> None:
        """Let time pass as in a function that keeps the event loop, whatever is planned meanwhile."""
        self._made_up.now += seconds
        self.watch.look()


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time; cancel the tasks it leaves behind.

    Raises:
        SimulationStuckError: It waits for something that will never happen.
    """
    loop = VirtualLoop()
    watching = WATCH.set(loop.watch)
    try:
        return loop.run_until_complete(main)
    finally:
        WATCH.reset(watching)
        for _ in range(_MOST_FAREWELLS):
            left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
            if not left:
                break
            loop.refresh()
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.close()
