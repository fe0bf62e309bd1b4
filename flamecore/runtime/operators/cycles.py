"""The head of a cycle: one item goes round at a time, and all that comes of it before the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from flamecore.abc.operator import Fail, Step
from flamecore.errors import RunawayLoopError
from flamecore.model.meta import GLOBAL_TIME_BYTES, TRACE_MASK

_QUEUE_LIMIT: Final = 1_000_000


class LoopHead:
    """Where a cycle begins: lets one item at a time go round, on this worker, with all that comes of it.

    What comes back while an item is on its way waits until the operation that made it is through with what it emits;
    otherwise a repair could overtake the very outputs it repairs. Then it goes round before the next item does: so
    descendants meet in order, and on a single worker nothing is ever replayed.

    Args:
        name: The merge that the cycle goes back to.
        limit_bytes: Longest child ids an item may gather.
        fail: Where an item goes that exceeds it.
    """

    def __init__(self, name: str, limit_bytes: int, fail: Fail) -> None:
        self.name = name
        self.limit = limit_bytes + GLOBAL_TIME_BYTES
        self.inside: Step = _nowhere
        self.busy = False
        self.waiting: deque[tuple[bytes, int, bool, Any]] = deque()
        self._fail = fail

    def enter(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """An item comes from outside the cycle."""
        self.waiting.append((order, trace, alive, payload))
        if not self.busy:
            self.busy = True
            self.drain()
            self.busy = False

    def feed_back(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """An item has gone round once more.

        Its trace is turned by one bit: the rounds of a trace must not be exchangeable, or two recomputations that saw
        the same workers in another sequence would have one identity.
        """
        if len(order) > self.limit:
            error = RunawayLoopError(
                f"an item has gone round the cycle at {self.name!r} without end: {len(order)} bytes of child ids",
                hint="Give the cycle an exit condition.",
                vertex=self.name,
                record=payload,
            )
            return self._fail(order, trace, alive, payload, error)
        if len(self.waiting) > _QUEUE_LIMIT:
            raise RunawayLoopError(
                f"more than {_QUEUE_LIMIT} items of one record go round the cycle at {self.name!r}: {payload!r:.160}",
                hint="Every round makes more items than it ends; give the cycle an exit condition.",
                vertex=self.name,
                record=payload,
            )
        return self.enter(order, (trace << 1 | trace >> 63) & TRACE_MASK, alive, payload)

    def drain(self) -> None:
        """Let everything that waits go round, oldest first."""
        waiting, inside = self.waiting, self.inside
        while waiting:
            inside(*waiting.popleft())


def arriving(here: Step, heads: Sequence[LoopHead]) -> Step:
    """The step for items that come from another worker to a vertex on a cycle, in the midst of it.

    The vertex is then what is at work: what comes back to a head of its cycles waits until it is through.
    """
    if not heads:
        return here

    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        for head in heads:
            head.busy = True
        here(order, trace, alive, payload)
        while any(head.waiting for head in heads):
            for head in heads:
                head.drain()
        for head in heads:
            head.busy = False

    return step


def _nowhere(order: bytes, trace: int, alive: bool, payload: Any) -> None:
    raise AssertionError("the inside of a cycle has not been compiled")
