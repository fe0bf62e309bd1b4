"""Drifting state: reduce, fold, stateful map (paper 004, section 2.7).

What it means is the paper's cycle, drawn by `flamecore.drawn`: a grouping of window 2 meets each entry with the
state that its predecessor left, a combining map makes the new state and the outputs, and the state goes round to be
grouped with the next entry. `DriftStep` runs that pattern as one operation that keeps, for each key, the states
where the bucket would hold them. Outputs, their orders and their repair are the same.

The place of what the cycle emits, relative to the entry: combine appends 0 for the state and 1, 2, … for outputs; the
broadcast behind it appends 0 on the way out and 1 on the way back; the maps that part the two append 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, Final

from flamecore.drawn import route_key
from flamecore.errors import DuplicateItemError, NoInvalideeError
from flamecore.meta import CHILD, encode_child
from flamecore.operations import Fail, Step
from flamecore.vertices import Drift

_WAY_OUT: Final = CHILD[0] + CHILD[0]
_FIRST_OUTPUT: Final = CHILD[1] + _WAY_OUT


Entry = tuple[bytes, int, Any, Any]
"""(order, trace, payload, the state after it)."""


class DriftStep:
    """A drifting state at work on one worker: the history of each key, and its compiled step.

    A history is a list of entries in order. Its first entry is the last one older than the minimum time, so that the
    state before anything that can still arrive is always at hand.

    Args:
        vertex: What the state is.
        ident: Random id of this physical instance.
        emit: Step of what comes next.
        fail: Where items go that a user function fails on.
    """

    def __init__(self, vertex: Drift, ident: int, emit: Step, fail: Fail) -> None:
        self.name = vertex.name
        self.initial = vertex.initial
        self.advance = vertex.advance
        self.histories: dict[Any, list[Entry]] = {}
        self.retracted = 0
        self._ident, self._emit, self._fail = ident, emit, fail
        self._long: dict[int, list[Entry]] = {}  # histories that have more than one entry, by id
        self.step = self._compile(route_key(vertex), vertex.accumulate)

    def _compile(self, key_of: Callable[[Any], Any], accumulate: Callable[[Any, Any], Any] | None) -> Step:
        """Items in order take the way below; a late item and a tombstone go to `_repair`."""
        histories, long, initial, advance = self.histories, self._long, self.initial, self.advance
        ident, emit, fail, repair, send = self._ident, self._emit, self._fail, self._repair, self._send

        def accumulating(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            try:
                key = key_of(payload)
                history = histories.get(key)
            except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
                return fail(order, trace, alive, payload, error)
            if not alive or (history is not None and history[-1][0] >= order):
                return repair(key, order, trace, alive, payload)
            state = initial if history is None else history[-1][3]
            failure = None
            try:
                state = accumulate(state, payload)  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001
                failure = error
            if history is None:
                histories[key] = [(order, trace, payload, state)]
            else:
                if len(history) == 1:
                    long[id(history)] = history
                history.append((order, trace, payload, state))
            if failure is not None:
                return fail(order, trace, True, payload, failure)
            return emit(order + _FIRST_OUTPUT, trace ^ ident, True, (key, state))

        def advancing(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            try:
                key = key_of(payload)
                history = histories.get(key)
            except Exception as error:  # noqa: BLE001
                return fail(order, trace, alive, payload, error)
            if not alive or (history is not None and history[-1][0] >= order):
                return repair(key, order, trace, alive, payload)
            state = initial if history is None else history[-1][3]
            state, outputs, failure = _run(advance, state, payload)
            if history is None:
                histories[key] = [(order, trace, payload, state)]
            else:
                if len(history) == 1:
                    long[id(history)] = history
                history.append((order, trace, payload, state))
            return send(order, trace, True, payload, outputs, failure)

        return advancing if accumulate is None else accumulating

    def _send(
        self, order: bytes, trace: int, alive: bool, payload: Any, outputs: list[Any], error: Exception | None
    ) -> None:
        """Emit what one entry gives, or gave."""
        if error is not None:
            return self._fail(order, trace, alive, payload, error)
        trace ^= self._ident
        for number, output in enumerate(outputs, 1):
            self._emit(order + encode_child(number) + _WAY_OUT, trace, alive, output)
        return None

    def _repair(self, key: Any, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Put a late item in, or take a tombstone's victim out: retract what comes after it, and run that again.

        Raises:
            DuplicateItemError: An item of the same identity is there.
            NoInvalideeError: The victim of a tombstone is not there.
        """
        history = self.histories.get(key, [])
        place = bisect_left(history, (order, trace))
        present = place < len(history) and history[place][:2] == (order, trace)
        if alive and present:
            raise DuplicateItemError(
                f"{self.name!r}: a second live item of one identity came: {payload!r}",
                hint="A user function, key or hash on its way is not deterministic.",
                vertex=self.name,
                record=payload,
            )
        if not alive and not present:
            raise NoInvalideeError(
                f"{self.name!r}: the item that a tombstone cancels is not there: {payload!r}",
                hint="A user function, key or hash on its way is not deterministic.",
                vertex=self.name,
                record=payload,
            )
        before = history[place - 1][3] if place else self.initial
        old = history[place:]
        again = [entry[:3] for entry in old]
        if alive:
            again.insert(0, (order, trace, payload))
        else:
            del again[0]
        # First everything is worked out and the history put right, then it is sent: what is sent may come back here.
        sent: list[tuple[bytes, int, bool, Any, list[Any], Exception | None]] = []
        state = before
        for old_order, old_trace, old_payload, _ in old:
            state, outputs, error = _run(self.advance, state, old_payload)
            sent.append((old_order, old_trace, False, old_payload, outputs, error))
        self.retracted += len(sent)
        state = before
        fresh: list[Entry] = []
        for new_order, new_trace, new_payload in again:
            state, outputs, error = _run(self.advance, state, new_payload)
            fresh.append((new_order, new_trace, new_payload, state))
            sent.append((new_order, new_trace, True, new_payload, outputs, error))
        history[place:] = fresh
        if not history:
            del self.histories[key]
        else:
            self.histories[key] = history
            self._long[id(history)] = history
        for parts in sent:
            self._send(*parts)

    def forget(self, before: bytes) -> None:
        """The minimum time is now `before` (encoded): keep of each history its last older entry and all that follow."""
        short = []
        for name, history in self._long.items():
            drop = bisect_left(history, (before,)) - 1
            if drop > 0:
                del history[:drop]
            if len(history) <= 1:
                short.append(name)
        for name in short:
            del self._long[name]


def _run(
    advance: Callable[[Any, Any], tuple[Any, Iterable[Any]]], state: Any, payload: Any
) -> tuple[Any, list[Any], Exception | None]:
    """One turn of the user's function: the state after it and the outputs; a failure leaves the state as it was."""
    try:
        after, outputs = advance(state, payload)
        return after, list(outputs), None
    except Exception as error:  # noqa: BLE001 - it is attributed where it is sent
        return state, [], error
