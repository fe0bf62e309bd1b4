"""The head of a cycle: where what comes back goes round once more, or is stopped."""

from __future__ import annotations

from typing import Any, Final

from flamecore.abc.operator import Fail, Step
from flamecore.errors import RunawayLoopError
from flamecore.model.meta import GLOBAL_TIME_BYTES, TRACE_MASK
from flamecore.runtime.operators.agenda import Agenda, NumberedAgenda

_ROUNDS_PER_BYTE: Final = 15
"""Where child ids grow with the rounds they may take a byte for so many of the most rounds: as a round takes a few
bytes, that is far fewer rounds. What is noted of them takes memory with the square of the rounds."""


class LoopHead:
    """Where a cycle begins: lets an item go round, with all that comes of it, before the next one.

    Args:
        name: The merge that the cycle goes back to.
        most: How often an item may go round, and how many may wait.
        fail: Where an item goes that exceeds it.
        agenda: Where items wait for their turn.
    """

    def __init__(self, name: str, most: int, fail: Fail, agenda: Agenda) -> None:
        self.name = name
        self.inside: Step = _nowhere
        self._most, self._fail, self._agenda = most, fail, agenda
        self._most_bytes = most // _ROUNDS_PER_BYTE
        self.feed_back = self._numbered(agenda) if isinstance(agenda, NumberedAgenda) else self._feed_back

    def _feed_back(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Take an item that has gone round once more.

        Its trace is turned by one bit: the rounds of a trace must not be exchangeable, or two recomputations that saw
        the same workers in another sequence would have one identity.
        """
        if len(order) > self._most_bytes + GLOBAL_TIME_BYTES:
            counted = f"its child ids have {self._most_bytes:,} bytes, the most that job.max_rounds allows"
            return self._fail(order, trace, alive, payload, self._endless(counted, payload))
        if len(self._agenda) > self._most:
            raise self._crowded(payload)
        # Not at once: what made it has perhaps more to emit, and a repair must not overtake what it repairs.
        self._agenda.put(self.inside, order, (trace << 1 | trace >> 63) & TRACE_MASK, alive, payload)
        return None

    def _numbered(self, agenda: NumberedAgenda) -> Step:
        """Return the same for an agenda whose orders do not grow, and which knows the rounds of an item."""
        most, waiting, emitted = self._most, agenda.inside, agenda.emitted

        def feed_back(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            rounds = agenda.rounds + 1
            if rounds > most:
                counted = f"more than {most:,} rounds, the most that job.max_rounds allows"
                return self._fail(order, trace, alive, payload, self._endless(counted, payload))
            if len(waiting) > most:
                raise self._crowded(payload)
            emitted.append((self.inside, payload, rounds, agenda.visit))
            return None

        return feed_back

    def _endless(self, counted: str, payload: Any) -> RunawayLoopError:
        return RunawayLoopError(
            f"an item has gone round the cycle at {self.name!r} without end: {counted}",
            hint="Give the cycle an exit condition. If it has one, raise max_rounds under [job].",
            vertex=self.name,
            record=payload,
        )

    def _crowded(self, payload: Any) -> RunawayLoopError:
        return RunawayLoopError(
            f"more than {self._most:,} items of one record wait at the cycle at {self.name!r}, the most that "
            f"job.max_rounds allows: {payload!r:.160}",
            hint="A round makes too many items at once, or every round makes more than it ends.",
            vertex=self.name,
            record=payload,
        )


def _nowhere(order: bytes, trace: int, alive: bool, payload: Any) -> None:
    raise AssertionError("the inside of a cycle has not been compiled")
