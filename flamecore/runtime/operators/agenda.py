"""The order of work where items do not come in order by themselves: round a cycle, in it, and behind it.

An item's third output leaves an operation before its second has gone round, and is greater than all that comes of that.
If it went on at once, a state behind it would see the two in the wrong order, and repair: in a cycle each repair is the
cause of more. So nothing goes on at once there. It waits, and the least goes first. All that is derived from an item
sorts after it and before whatever follows it, so on one worker every state sees ascending orders, in any graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from flamecore.abc.operator import Step, Way
from flamecore.model.batch import Orders


class Agenda:
    """What waits for its turn on one worker, by order. What is of one order keeps the sequence in which it came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[bytes, int, Step, int, bool, Any]] = []
        self._arrivals = count()
        self._at_work = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, step: Step, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Let an item wait for its turn to take a step."""
        heappush(self._waiting, (order, next(self._arrivals), step, trace, alive, payload))

    def enter(self, step: Step, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Let an item from outside take a step, and then all that comes of it; it waits if something is at work."""
        if self._at_work:
            return self.put(step, order, trace, alive, payload)
        self._at_work = True
        step(order, trace, alive, payload)
        waiting = self._waiting
        while waiting:
            order, _, step, trace, alive, payload = heappop(waiting)
            step(order, trace, alive, payload)
        self._at_work = False
        return None

    def gate(self, way: Way) -> Way:
        """Return a way that lets pass what comes while nothing is at work; the rest waits for its turn."""
        pass_step, pass_run = way

        def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            if self._at_work:
                self.put(pass_step, order, trace, alive, payload)
            else:
                pass_step(order, trace, alive, payload)

        def run(orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
            if self._at_work:
                for order, payload in zip(orders, payloads, strict=True):
                    self.put(pass_step, order, trace, True, payload)
            else:
                pass_run(orders, trace, payloads)

        return Way(step, run)
