"""The head of a cycle: where what comes back goes round once more, or is stopped.

In a loop by key all that comes of an item has the key that the item has entered with. Nothing is noted of items for
that: the key is that of what is at work, and what waits for its turn is put down together with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from flamecore.abc.operator import Fail, Step, Way, each
from flamecore.errors import LoopKeyError, RunawayLoopError
from flamecore.model.failure import shorten_repr
from flamecore.model.meta import GLOBAL_TIME_BYTES, TRACE_MASK
from flamecore.runtime.operators.agenda import Agenda, NumberedAgenda

_ROUNDS_PER_BYTE: Final = 15
"""Where child ids grow with the rounds they may take a byte for so many of the most rounds: as a round takes a few
bytes, that is far fewer rounds. What is noted of them takes memory with the square of the rounds."""


class KeyedAgenda:
    """An agenda as the operations of a loop by key see it: what waits keeps the key of what it came of.

    Args:
        name: The loop's.
        agenda: Where items wait for their turn.

    Attributes:
        key: The key that what is at work has entered with.
    """

    def __init__(self, name: str, agenda: Agenda) -> None:
        self.name = name
        self.key: Any = None
        self._agenda = agenda

    def keeping(self, step: Step) -> Step:
        """Return a step that puts an item down for another one, which goes on, with the key of what is at work."""

        def keep(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            step(order, trace, alive, (self.key, payload))

        return keep

    def going_on(self, step: Step) -> Step:
        """Return a step that goes on with what has waited."""

        def go_on(order: bytes, trace: int, alive: bool, kept: Any) -> None:
            self.key, payload = kept
            step(order, trace, alive, payload)

        return go_on

    def gate(self, way: Way) -> Way:
        """Return a way that gives everything its turn."""
        agenda, go_on = self._agenda, self.going_on(way.step)
        wait = agenda.turn(go_on) if isinstance(agenda, NumberedAgenda) else partial(agenda.put, go_on)
        step = self.keeping(wait)
        return Way(step, each(step))

    def checked(self, vertex: str, key_of: Callable[[Any], Any], step: Step, fail: Fail) -> Step:
        """Return a step before a vertex that lets pass what still has its key."""

        def check(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            try:
                key = key_of(payload)
            except Exception as error:  # noqa: BLE001 - a failing key is the user's to see
                return fail(order, trace, alive, payload, error)
            if key != self.key:
                return fail(order, trace, alive, payload, self.refusal(vertex, key, payload))
            return step(order, trace, alive, payload)

        return check

    def refusal(self, vertex: str, key: Any, payload: Any) -> LoopKeyError:
        """Make the error of an item that has another key."""
        where = "comes back" if vertex == self.name else f"comes to {vertex!r}"
        return LoopKeyError(
            f"in the loop by key {self.name!r} an item {where} with key {shorten_repr(key)}, and what it came of has "
            f"entered with key {shorten_repr(self.key)}",
            hint="Keep the key of all that goes round; or draw the cycle before key_by, where items may change it.",
            vertex=vertex,
            loop=self.name,
            record=payload,
            entered=self.key,
            key=key,
        )


class LoopHead:
    """Where a cycle begins: lets an item go round, with all that comes of it, before the next one.

    Args:
        name: The merge that the cycle goes back to.
        most: How often an item may go round, and how many may wait.
        fail: Where an item goes that exceeds it.
        agenda: Where items wait for their turn.
        keyed: Notes the key, in a loop by key or in a cycle inside of one.
    """

    def __init__(self, name: str, most: int, fail: Fail, agenda: Agenda, keyed: KeyedAgenda | None = None) -> None:
        self.name = name
        self.inside: Step = _nowhere
        self._most, self._fail, self._agenda, self._keyed = most, fail, agenda, keyed
        self._most_bytes = most // _ROUNDS_PER_BYTE
        self.feed_back = self._numbered(agenda) if isinstance(agenda, NumberedAgenda) else self._feed_back

    def letting_in(self, step: Step, fail: Fail) -> Step:
        """Return a step by which items come in, where keys are noted.

        Args:
            step: Takes an item with its key.
            fail: Where an item goes whose key cannot be had.
        """
        return step if self._keyed is None else self._keyed.keeping(step)

    def _feed_back(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Take an item that has gone round once more.

        Its trace is turned by one bit: the rounds of a trace must not be exchangeable, or two recomputations that saw
        the same workers in another sequence would have one identity.
        """
        if len(order) > self._most_bytes + GLOBAL_TIME_BYTES:
            counted = f"its order has grown by {self._most_bytes:,} bytes, the most that job.max_rounds allows"
            return self._fail(order, trace, alive, payload, self._endless(counted, payload))
        if len(self._agenda) > self._most:
            raise self._crowded(payload)
        # Not at once: what made it has perhaps more to emit, and a repair must not overtake what it repairs.
        kept = payload if self._keyed is None else (self._keyed.key, payload)
        self._agenda.put(self.inside, order, (trace << 1 | trace >> 63) & TRACE_MASK, alive, kept)
        return None

    def _numbered(self, agenda: NumberedAgenda) -> Step:
        """Return the same for an agenda whose orders do not grow, and which knows the rounds of an item."""
        most, waiting, emitted, keyed = self._most, agenda.inside, agenda.emitted, self._keyed

        def feed_back(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            rounds = agenda.rounds + 1
            if rounds > most:
                agenda.abandon()  # each of the others might go as far, and come to twice as many
                counted = f"more than {most:,} rounds, the most that job.max_rounds allows"
                return self._fail(order, trace, alive, payload, self._endless(counted, payload))
            if len(waiting) > most:
                raise self._crowded(payload)
            kept = payload if keyed is None else (keyed.key, payload)
            emitted.append((self.inside, kept, rounds, agenda.visit))
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


class KeyedLoopHead(LoopHead):
    """Where a loop by key begins: notes the key of what it lets in, and refuses what comes back with another one.

    Args:
        name: The merge that the cycle goes back to.
        most: How often an item may go round, and how many may wait.
        fail: Where an item goes that exceeds it, or has another key.
        agenda: Where items wait for their turn.
        keyed: Notes the key.
        key_of: Tells the key of an item.
    """

    def __init__(
        self, name: str, most: int, fail: Fail, agenda: Agenda, keyed: KeyedAgenda, key_of: Callable[[Any], Any]
    ) -> None:
        super().__init__(name, most, fail, agenda, keyed)
        self._key_of = key_of
        self.feed_back = keyed.checked(name, key_of, self.feed_back, fail)

    def letting_in(self, step: Step, fail: Fail) -> Step:
        key_of = self._key_of

        def let_in(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            try:
                key = key_of(payload)
            except Exception as error:  # noqa: BLE001 - a failing key is the user's to see
                return fail(order, trace, alive, payload, error)
            return step(order, trace, alive, (key, payload))

        return let_in


def _nowhere(order: bytes, trace: int, alive: bool, payload: Any) -> None:
    raise AssertionError("the inside of a cycle has not been compiled")
