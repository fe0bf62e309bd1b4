"""The head of a cycle, where items go round once more or are stopped.

In a loop by key, everything derived from an item has the key with which the item entered. Items do not carry the key:
it is the key of the current work, and waiting items are stored together with it.
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
"""Growing child ids may take one byte for every 15 rounds of `max_rounds`. A round takes a few bytes, so this allows
far fewer rounds; the memory for them grows with the square of the rounds."""


class KeyedAgenda:
    """An agenda of a loop by key, whose waiting items keep their key.

    Args:
        name: Name of the loop.
        agenda: Agenda of the waiting items.

    Attributes:
        key: Key with which the item at work has entered.
    """

    def __init__(self, name: str, agenda: Agenda) -> None:
        self.name = name
        self.key: object = None
        self._agenda = agenda

    def keeping(self, step: Step) -> Step:
        """Return a step that stores an item with the current key for later."""

        def keep(order: bytes, trace: int, alive: bool, payload: object) -> None:
            step(order, trace, alive, (self.key, payload))

        return keep

    def going_on(self, step: Step) -> Step:
        """Return a step that continues with a stored item, and sets its key."""

        def go_on(order: bytes, trace: int, alive: bool, kept: Any) -> None:
            self.key, payload = kept
            step(order, trace, alive, payload)

        return go_on

    def gate(self, way: Way) -> Way:
        """Return a way that queues every item for its turn."""
        agenda, go_on = self._agenda, self.going_on(way.step)
        wait = agenda.turn(go_on) if isinstance(agenda, NumberedAgenda) else partial(agenda.put, go_on)
        step = self.keeping(wait)
        return Way(step, each(step))

    def checked(self, vertex: str, key_of: Callable[[object], object], step: Step, fail: Fail) -> Step:
        """Return a step before a vertex that passes items with the current key."""

        def check(order: bytes, trace: int, alive: bool, payload: object) -> None:
            try:
                key = key_of(payload)
            except Exception as error:  # noqa: BLE001 - a failing key is the user's to see
                return fail(order, trace, alive, payload, error)
            if key != self.key:
                return fail(order, trace, alive, payload, self.refusal(vertex, key, payload))
            return step(order, trace, alive, payload)

        return check

    def refusal(self, vertex: str, key: object, payload: object) -> LoopKeyError:
        """Return the error of an item with another key."""
        where = "comes back" if vertex == self.name else f"comes to {vertex!r}"
        return LoopKeyError(
            f"in the loop by key {self.name!r} an item {where} with key {shorten_repr(key)}, but its origin has "
            f"entered with key {shorten_repr(self.key)}",
            hint="Keep the key of all items in the loop; or draw the cycle before key_by, where items may change it.",
            vertex=vertex,
            loop=self.name,
            record=payload,
            entered=self.key,
            key=key,
        )


class LoopHead:
    """The head of a cycle: an item and all derived ones finish before the next begins.

    Args:
        name: Name of the merge that the cycle goes back to.
        most: Most rounds of an item, and most waiting items.
        fail: Failure handler of items beyond that.
        agenda: Agenda of the waiting items.
        keyed: Keyed agenda of a loop by key, or of a cycle inside of one.
    """

    def __init__(self, name: str, most: int, fail: Fail, agenda: Agenda, keyed: KeyedAgenda | None = None) -> None:
        self.name = name
        self.inside: Step = _nowhere
        self._most, self._fail, self._agenda, self._keyed = most, fail, agenda, keyed
        self._most_bytes = most // _ROUNDS_PER_BYTE
        self.feed_back = self._numbered(agenda) if isinstance(agenda, NumberedAgenda) else self._feed_back

    def letting_in(self, step: Step, fail: Fail) -> Step:
        """Return a step for items that enter, which stores their key if keys are noted.

        Args:
            step: Step that takes an item with its key.
            fail: Failure handler of items whose key function fails.
        """
        return step if self._keyed is None else self._keyed.keeping(step)

    def _feed_back(self, order: bytes, trace: int, alive: bool, payload: object) -> None:
        """Queue an item that has gone round once more, or fail it.

        Its trace is rotated by one bit: the rounds of a trace must not commute, or two recomputations that visited the
        same workers in another sequence would have one identity.
        """
        # The head's own bound, since orders grow with the rounds here. In bytes, not in rounds:
        # nothing else of an item says how often it has gone round.
        if len(order) > self._most_bytes + GLOBAL_TIME_BYTES:
            counted = f"its order has grown by {self._most_bytes:,} bytes, the most that job.max_rounds allows"
            return self._fail(order, trace, alive, payload, self._endless(counted, payload))
        if len(self._agenda) > self._most:
            raise self._crowded(payload)
        # Not at once: its producer may have more to emit, and a repair must not overtake what it repairs.
        kept = payload if self._keyed is None else (self._keyed.key, payload)
        self._agenda.put(self.inside, order, (trace << 1 | trace >> 63) & TRACE_MASK, alive, kept)
        return None

    def _numbered(self, agenda: NumberedAgenda) -> Step:
        """Return `feed_back` for an agenda that numbers turns and counts rounds."""
        most, waiting, emitted, keyed = self._most, agenda.inside, agenda.emitted, self._keyed

        def feed_back(order: bytes, trace: int, alive: bool, payload: object) -> None:
            rounds = agenda.rounds + 1
            if rounds > most:
                agenda.abandon()  # each of the others might go as far, and double in number
                counted = f"more than {most:,} rounds, the most that job.max_rounds allows"
                return self._fail(order, trace, alive, payload, self._endless(counted, payload))
            if len(waiting) > most:
                raise self._crowded(payload)
            kept = payload if keyed is None else (keyed.key, payload)
            emitted.append((self.inside, kept, rounds, agenda.visit))
            return None

        return feed_back

    def _endless(self, counted: str, payload: object) -> RunawayLoopError:
        return RunawayLoopError(
            f"an item has gone round the cycle at {self.name!r} without end: {counted}",
            hint="Give the cycle an exit condition. If it has one, raise max_rounds under [job].",
            vertex=self.name,
            record=payload,
        )

    def _crowded(self, payload: object) -> RunawayLoopError:
        return RunawayLoopError(
            f"more than {self._most:,} items of one record wait at the cycle at {self.name!r}, the most that "
            f"job.max_rounds allows: {payload!r:.160}",
            hint="A round makes too many items at once, or every round makes more than it ends.",
            vertex=self.name,
            record=payload,
        )


class KeyedLoopHead(LoopHead):
    """The head of a loop by key, which refuses items that come back with another key.

    Args:
        name: Name of the merge that the cycle goes back to.
        most: Most rounds of an item, and most waiting items.
        fail: Failure handler of items beyond that, or with another key.
        agenda: Agenda of the waiting items.
        keyed: Keyed agenda of the loop.
        key_of: Function that returns the key of an item.
    """

    def __init__(
        self, name: str, most: int, fail: Fail, agenda: Agenda, keyed: KeyedAgenda, key_of: Callable[[object], object]
    ) -> None:
        super().__init__(name, most, fail, agenda, keyed)
        self._key_of = key_of
        self.feed_back = keyed.checked(name, key_of, self.feed_back, fail)

    def letting_in(self, step: Step, fail: Fail) -> Step:
        key_of = self._key_of

        def let_in(order: bytes, trace: int, alive: bool, payload: object) -> None:
            try:
                key = key_of(payload)
            except Exception as error:  # noqa: BLE001 - a failing key is the user's to see
                return fail(order, trace, alive, payload, error)
            return step(order, trace, alive, (key, payload))

        return let_in


def _nowhere(order: bytes, trace: int, alive: bool, payload: object) -> None:
    raise AssertionError("the inside of a cycle has not been compiled")
