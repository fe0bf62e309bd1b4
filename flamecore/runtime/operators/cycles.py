"""The head of a cycle: where what comes back goes round once more, or is stopped."""

from __future__ import annotations

from typing import Any, Final

from flamecore.abc.operator import Fail, Step
from flamecore.errors import RunawayLoopError
from flamecore.model.meta import GLOBAL_TIME_BYTES, TRACE_MASK
from flamecore.runtime.operators.agenda import Agenda

_WAITING_LIMIT: Final = 1_000_000


class LoopHead:
    """Where a cycle begins: lets an item go round, with all that comes of it, before the next one.

    Args:
        name: The merge that the cycle goes back to.
        limit_bytes: Longest child ids an item may gather.
        fail: Where an item goes that exceeds it.
        agenda: Where items wait for their turn.
    """

    def __init__(self, name: str, limit_bytes: int, fail: Fail, agenda: Agenda) -> None:
        self.name = name
        self.limit = limit_bytes + GLOBAL_TIME_BYTES
        self.inside: Step = _nowhere
        self._fail = fail
        self._agenda = agenda

    def enter(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Take an item from outside the cycle."""
        self._agenda.enter(self.inside, order, trace, alive, payload)

    def feed_back(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Take an item that has gone round once more.

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
        if len(self._agenda) > _WAITING_LIMIT:
            raise RunawayLoopError(
                f"more than {_WAITING_LIMIT} items of one record wait at the cycle at {self.name!r}: {payload!r:.160}",
                hint="A round makes too many items at once, or every round makes more than it ends.",
                vertex=self.name,
                record=payload,
            )
        # Not at once: what made it has perhaps more to emit, and a repair must not overtake what it repairs.
        self._agenda.put(self.inside, order, (trace << 1 | trace >> 63) & TRACE_MASK, alive, payload)
        return None


def _nowhere(order: bytes, trace: int, alive: bool, payload: Any) -> None:
    raise AssertionError("the inside of a cycle has not been compiled")
