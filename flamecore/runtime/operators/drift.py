"""Drifting state: reduce, fold, stateful map (paper 004, section 2.7).

Its meaning is the paper's cycle, drawn by `flamecore.model.drift`: a grouping of window 2 pairs each entry with the
state that its predecessor left, a combining map makes the new state and the outputs, and the state goes round to be
grouped with the next entry. `DriftOperator` runs that pattern as one operation that keeps, for each key, the states
that the bucket would hold. Outputs, their orders and their repair are the same.

The places of the cycle's outputs, relative to the entry: combine appends 0 for the state and 1, 2, … for outputs; the
broadcast behind it appends 0 on the way out and 1 on the way back; the maps that part the two append 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, NamedTuple, NoReturn, overload

from flamecore.abc.operator import Site, StatefulOperator, Step
from flamecore.errors import ConsistencyError, DuplicateItemError, NoInvalideeError
from flamecore.model.batch import Orders, Rows, children, extended, many_of, selected
from flamecore.model.drift import MISSING, Drift, one_more, route_key
from flamecore.model.hashing import check_key
from flamecore.model.meta import CHILD, child_codes
from flamecore.runtime.operators.keyed_state import (
    ABSENT,
    MOST_ENDED,
    Ended,
    FirstKeys,
    Initial,
    LabelledState,
    LayeredState,
)

# The codes of usual outputs are made once: the order of an output is then one concatenation.
_WAY_OUT: Final = CHILD[0] + CHILD[0]
_OUTPUTS: Final = tuple([child + _WAY_OUT for child in CHILD[1:]])
_FIRST_OUTPUT: Final = _OUTPUTS[0]

_ORDER: Final = itemgetter(0)
_IDENTITY: Final = itemgetter(0, 1)

Item = tuple[bytes, int, object]
"""(order, trace, payload)."""

Entry = tuple[bytes, int, object, object]
"""(order, trace, payload, the state before it)."""

Result = tuple[bytes, int, object, list[object], Exception | None]
"""(order, trace, payload, outputs, failure): the result of an entry."""


class _OneLess(Sequence[int]):
    """The counts before items, given those after them.

    Only repairs and cuts look at them.

    Args:
        after: The counts after the items; they must not be changed any more.
    """

    __slots__ = ("_after",)

    def __init__(self, after: Sequence[int]) -> None:
        self._after = after

    def __len__(self) -> int:
        return len(self._after)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> _OneLess: ...

    def __getitem__(self, index: int | slice) -> int | _OneLess:
        return _OneLess(self._after[index]) if isinstance(index, slice) else self._after[index] - 1

    def __iter__(self) -> Iterator[int]:
        return iter([count - 1 for count in self._after])

    def __reversed__(self) -> Iterator[int]:
        return iter([count - 1 for count in reversed(self._after)])


Work = Callable[[Orders, int, Sequence[object]], int]
"""Processes a run in order, up to an item that a user function fails on; returns the number of items processed."""


def _all_keys(
    keys_of: Callable[[Sequence[object]], Sequence[object]] | None, payloads: Sequence[object]
) -> Sequence[object] | None:
    """Return the keys of payloads by one call; None: they are to be asked for one by one."""
    if keys_of is None:
        return None
    try:
        return keys_of(payloads)
    except Exception:  # noqa: BLE001 - the key function fails on one of them, too
        return None


class InOrder(NamedTuple):
    """Items of one trace in order, each with its key and the state before it."""

    orders: Orders
    trace: int
    payloads: Sequence[object]
    keys: Sequence[object]
    states: Sequence[object]


OpenNote = tuple[int, list[bytes], list[object], list[object], list[object]]
"""(trace, orders, payloads, keys, states) of a growing `InOrder`."""


# The cycle as drawn would group, combine, copy and feed back each item, with an order for each of
# these steps. Here an item in order is one look into a dictionary. The drawn cycle stays the
# meaning of it: property tests run both.
class DriftOperator(StatefulOperator):
    """The operator of a drifting state: states by key, and their history for repair.

    Items in order only advance the states, and are noted as they came. The first late item or tombstone sorts the notes
    into histories: for each key its entries in order, from the minimum time on.

    Args:
        vertex: The drifting state.
        site: Its place on the worker.
    """

    def __init__(self, vertex: Drift, site: Site) -> None:
        self._name = vertex.name
        self.initial = vertex.initial
        self.advance = vertex.advance
        self._snapshots = site.snapshots and not vertex.labelled
        self._state_type = int if vertex.accumulate is one_more else None
        self.states = (
            LabelledState(vertex.initial)
            if vertex.labelled
            else LayeredState(vertex.initial, snapshots=self._snapshots, integers=self._state_type is int)
        )
        self.names = self.states.names
        self._first_keys = FirstKeys(self.names.copy)
        self._others: set[object] = set()  # keys that have begun since the last cut, and not for the first time
        self._initial = Initial(vertex.initial, site.stored)
        # Whether an item may leave the state with which a key begins. A count does not, nor does a reduce.
        self._ends = vertex.accumulate is not one_more and vertex.initial is not MISSING
        self._dropped = False  # whether a key has lost all of its items
        self._enough = MOST_ENDED  # number of keys from which on those that have ended are forgotten
        self.histories: dict[object, list[Entry]] = {}
        self._key_of = route_key(vertex)
        self._ident, self._emit, self._fail, self._emit_run = site.ident, site.emit, site.fail, site.emit_run
        self._notes: deque[InOrder] = deque()
        self._open: OpenNote | None = None  # the last note, while single items are added to it
        self._latest = b""  # the greatest order so far
        strict = site.strict if isinstance(site.strict, Drift) else vertex
        self._early, self._round = site.early, site.round
        self._strict_advance, self._strict_accumulate = strict.advance, strict.accumulate
        self._work = self._working(vertex)
        self._strict_work = self._working(strict)
        self.step = self._single(vertex.accumulate)

    @property
    def name_types(self) -> Collection[type] | None:
        return self.states.key_types if self._snapshots and not self._first_keys.is_on else None

    @property
    def state_type(self) -> type | None:
        return self._state_type

    def _working(self, vertex: Drift) -> Work:
        if vertex.accumulate is one_more:
            return self._counting()
        return self._advancing(vertex.advance) if vertex.accumulate is None else self._accumulating(vertex.accumulate)

    def _single(self, accumulate: Callable[[object, object], object] | None) -> Step:
        """Return the step of one item, like a run of one, but without its overhead."""
        layered, load, key_of, early = self.states, self.states.load, self._key_of, self._early
        advance, strict_advance, emit, ident = self.advance, self._strict_advance, self._emit, self._ident
        strict_accumulate = self._strict_accumulate

        def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
            # The latest order of all keys, not of this one: it takes one comparison and no look-up.
            # An item that is late only for other keys finds nothing behind it in its own history,
            # so its repair is an insertion.
            if not (alive and order > self._latest):
                return self._repair((order,), trace, alive, (payload,))
            states = layered.top
            try:
                key = key_of(payload)
                state = states.get(key, ABSENT)
                if state is ABSENT:
                    state = load(key)
                strict = early and order < early[0]
                if accumulate is None or strict_accumulate is None:
                    after, results = (strict_advance if strict else advance)(state, payload)
                    outputs = list(results)
                else:
                    after = (strict_accumulate if strict else accumulate)(state, payload)
                    outputs = [(key, after)]
                # Stored last: a function that fails leaves the state as it was, and the repair
                # calls it again from there.
                states[key] = after
            except Exception:  # noqa: BLE001 - the repair reports failing items
                return self._repair((order,), trace, alive, (payload,))
            self._latest = order
            note = self._open
            # Items of one trace share a note: in cycles items come one by one, and each would make tuples and lists of
            # its own.
            if note is None or note[0] != trace:
                note = self._open_note(trace)
            _, orders, payloads, keys, before = note
            orders.append(order)
            payloads.append(payload)
            keys.append(key)
            before.append(state)
            trace ^= ident
            for place, output in zip(_places_of(len(outputs)), outputs, strict=True):
                emit(order + place, trace, True, output)
            return None

        return step

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        """Process several live items of one trace, in ascending order."""
        work, early = self._work, self._early
        if early and orders[0] < early[0]:
            work = self._strict_work
            if orders[-1] >= early[0]:
                count = bisect_left(orders, early[0])
                self.run(orders[:count], trace, payloads[:count])
                return self.run(orders[count:], trace, payloads[count:])
        done = work(orders, trace, payloads) if orders[0] > self._latest else 0
        if done < len(orders):
            # With the round the rest is left; otherwise the next item is late, or fails.
            if self._round.is_over:
                self._round.leave(self.run, orders[done:], trace, payloads[done:])
            else:
                self._repair(orders[done:], trace, True, payloads[done:])
        return None

    def undo(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        """Process several tombstones of one trace, in ascending order.

        Later entries run again once for all of them, not once for each.

        Raises:
            NoInvalideeError: The victim of a tombstone is not there.
        """
        self._repair(orders, trace, False, payloads)

    def followers(self, orders: Orders, payloads: Sequence[object]) -> int:
        self._sort_notes()
        count = 0
        for order, payload in zip(orders, payloads, strict=True):
            try:
                history = self.histories.get(self._key_of(payload), ())
            except Exception:  # noqa: BLE001 - processing it reports the failure
                continue
            count += len(history) - bisect_left(history, (order,))
        return count

    def _accumulating(self, accumulate: Callable[[object, object], object]) -> Work:
        """Return the processing of items with one output each: key and new state."""
        layered, load, key_of, turn = self.states, self.states.load, self._key_of, self._round

        def work(orders: Orders, trace: int, payloads: Sequence[object]) -> int:
            states = layered.top
            state_of = states.get
            keys: list[object] = []
            before: list[object] = []
            afters: list[object] = []
            with suppress(Exception):  # the failing item is processed alone, which reports it
                for payload in turn.iterate(payloads):
                    key = key_of(payload)
                    state = state_of(key, ABSENT)
                    if state is ABSENT:
                        state = load(key)
                    states[key] = after = accumulate(state, payload)
                    keys.append(key)
                    before.append(state)
                    afters.append(after)
            turn.finish()
            if (done := len(before)) < len(orders):
                orders, payloads = orders[:done], payloads[:done]
            self._note(orders, trace, payloads, keys, before)
            if keys:
                # The pairs of keys and states stay two columns. They are made where a function or a
                # sink looks at them: mostly the columns are encoded as they are.
                self._emit_run(extended(orders, _FIRST_OUTPUT), trace ^ self._ident, Rows((keys, afters)))
            return len(before)

        return work

    def _counting(self) -> Work:
        """Return the processing of items that are only counted.

        It is `_accumulating` without a call and an entry of the note for each item.
        """
        layered, load, key_of, turn = self.states, self.states.load, self._key_of, self._round
        keys_of = many_of(key_of)

        def work(orders: Orders, trace: int, payloads: Sequence[object]) -> int:
            states: dict[object, Any] = layered.top
            count_of = states.get
            known = _all_keys(keys_of, payloads)
            keys: list[object] = []
            counts: list[int] = []
            count: Any
            with suppress(Exception):  # as above
                if known is None:
                    for payload in turn.iterate(payloads):
                        key = key_of(payload)
                        count = count_of(key)
                        if count is None:
                            count = load(key)
                        states[key] = count = count + 1
                        keys.append(key)
                        counts.append(count)
                else:
                    for key in turn.iterate(known):
                        count = count_of(key)
                        if count is None:
                            count = load(key)
                        states[key] = count = count + 1
                        counts.append(count)
            turn.finish()
            if (done := len(counts)) < len(orders):
                orders, payloads, known = orders[:done], payloads[:done], known and known[:done]
            named = keys if known is None else known
            self._note(orders, trace, payloads, named, _OneLess(counts))
            if counts:
                self._emit_run(extended(orders, _FIRST_OUTPUT), trace ^ self._ident, Rows((named, counts)))
            return len(counts)

        return work

    def _advancing(self, advance: Callable[[object, object], tuple[object, Iterable[object]]]) -> Work:
        """Return the processing of items with any number of outputs each."""
        layered, load, key_of, turn = self.states, self.states.load, self._key_of, self._round

        def work(orders: Orders, trace: int, payloads: Sequence[object]) -> int:
            states = layered.top
            state_of = states.get
            keys: list[object] = []
            before: list[object] = []
            counts: list[int] = []
            outputs: list[object] = []
            with suppress(Exception):  # as above
                for payload in turn.iterate(payloads):
                    key = key_of(payload)
                    state = state_of(key, ABSENT)
                    if state is ABSENT:
                        state = load(key)
                    after, results = advance(state, payload)
                    found = list(results)
                    states[key] = after
                    keys.append(key)
                    before.append(state)
                    counts.append(len(found))
                    outputs += found
            turn.finish()
            if (done := len(before)) < len(orders):
                orders, payloads = orders[:done], payloads[:done]
            self._note(orders, trace, payloads, keys, before)
            if outputs:
                self._emit_run(_places(orders, counts), trace ^ self._ident, outputs)
            return len(before)

        return work

    def _note(
        self,
        orders: Orders,
        trace: int,
        payloads: Sequence[object],
        keys: Sequence[object],
        states: Sequence[object],
    ) -> None:
        if orders:
            self._latest = orders[-1]
            self._open = None
            self._notes.append(InOrder(orders, trace, payloads, keys, states))

    @property
    def calls(self) -> int:
        return super().calls + self._noted

    @property
    def _noted(self) -> int:
        """Return the number of items in the notes.

        They are counted when they leave the notes, so that no item pays for it.
        """
        return sum([len(note.orders) for note in self._notes])

    def _open_note(self, trace: int) -> OpenNote:
        """Begin a note for single items of one trace."""
        note: OpenNote = trace, [], [], [], []
        _, orders, payloads, keys, states = note
        self._notes.append(InOrder(orders, trace, payloads, keys, states))
        self._open = note
        return note

    def _sort_notes(self) -> None:
        """Sort the notes into the histories of their keys."""
        self.worked += self._noted
        for orders, trace, payloads, keys, states in self._notes:
            for order, payload, key, state in zip(orders, payloads, keys, states, strict=True):
                self.histories.setdefault(key, []).append((order, trace, payload, state))
        self._notes.clear()
        self._open = None

    def _repair(self, orders: Orders, trace: int, alive: bool, payloads: Sequence[object]) -> None:
        """Insert late items or remove victims; retract later outputs, and redo them.

        Raises:
            DuplicateItemError: An item of the same identity is there.
            NoInvalideeError: The victim of a tombstone is not there.
        """
        self._sort_notes()
        self._latest = max(self._latest, orders[-1])
        changes: dict[object, list[Item]] = {}
        for order, payload in zip(orders, payloads, strict=True):
            try:
                # Checked before anything changes: a failing or unhashable key takes no part in the
                # repair.
                key = self._key_of(payload)
                if key not in changes:
                    check_key(key)
                    if key not in self.states.top:
                        self.states.load(key)
                changes.setdefault(key, []).append((order, trace, payload))
            except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
                self._fail(order, trace, alive, payload, error)
        # Send only when all histories are repaired: what is sent may come back here.
        gone: list[Result] = []
        come: list[Result] = []
        for key, items in changes.items():
            self._repair_key(key, items, alive, gone, come)
        self.retracted += len(gone)
        for result in sorted(gone, key=_ORDER):
            self._send(result, alive=False)
        for result in sorted(come, key=_ORDER):
            self._send(result, alive=True)

    def _repair_key(self, key: object, items: list[Item], alive: bool, gone: list[Result], come: list[Result]) -> None:
        """Change the history of one key; add retracted results to `gone`, new to `come`."""
        history = self.histories.setdefault(key, [])
        # The items are in ascending order, so nothing before the first of them changes.
        place = bisect_left(history, items[0][:2])
        old = history[place:]
        state = old[0][3] if old else self.states.get(key)
        again = self._changed([entry[:3] for entry in old], items, alive)
        self.worked += len(items) if alive else 0
        self.repeated += len(old) + (len(again) - len(items) if alive else len(again))
        # Outputs are not kept for this: functions are deterministic, so what has to be taken back
        # is computed again. To keep them would cost every item memory, and few are late.
        for order, trace, payload, before in old:
            _, outputs, failure = _run(self._advance_at(order), before, payload)
            gone.append((order, trace, payload, outputs, failure))
        del history[place:]
        for order, trace, payload in again:
            history.append((order, trace, payload, state))
            state, outputs, failure = _run(self._advance_at(order), state, payload)
            come.append((order, trace, payload, outputs, failure))
        if not history:
            del self.histories[key]
        if history or state is not self.initial:
            self.states.top[key] = state
        else:
            self.states.drop(key)
            self._dropped = True

    def _advance_at(self, order: bytes) -> Callable[[object, object], tuple[object, Iterable[object]]]:
        return self._strict_advance if self._early and order < self._early[0] else self.advance

    def _changed(self, entries: list[Item], items: list[Item], alive: bool) -> list[Item]:
        """Return the entries with live items inserted, or with victims removed."""
        identities = {entry[:2] for entry in entries}
        for item in items:
            if alive and item[:2] in identities:
                self._refuse(DuplicateItemError, "a second live item of one identity came", item)
            if not alive and item[:2] not in identities:
                self._refuse(NoInvalideeError, "the item that a tombstone cancels is not there", item)
        if alive:
            # By order and trace: two versions of one item, by two workers, may be there until the
            # tombstone of one comes.
            return sorted(entries + items, key=_IDENTITY) if entries else items
        victims = {item[:2] for item in items}
        return [entry for entry in entries if entry[:2] not in victims]

    def _refuse(self, kind: type[ConsistencyError], what: str, item: Item) -> NoReturn:
        raise kind(
            f"{self._name!r}: {what}: {item[2]!r}",
            hint="A user function, key or hash on its way is not deterministic.",
            vertex=self._name,
            record=item[2],
        )

    def _send(self, result: Result, *, alive: bool) -> None:
        """Emit or retract the outputs of one entry."""
        order, trace, payload, outputs, failure = result
        if failure is not None:
            return self._fail(order, trace, alive, payload, failure)
        trace ^= self._ident
        for place, output in zip(_places_of(len(outputs)), outputs, strict=True):
            self._emit(order + place, trace, alive, output)
        return None

    def on_time(self, minimum: bytes) -> None:
        """Drop the history that no repair can reach.

        If snapshots are taken, they drop it instead.
        """
        if not self._snapshots:
            self._forget(minimum)
            self._compact(self.states.top)

    def _forget(self, before: bytes) -> None:
        """Drop the history below the encoded time `before`, which no repair can reach."""
        self._open = None  # a note is dropped as a whole, so it must not grow forever
        for key, history in list(self.histories.items()):
            drop = bisect_left(history, (before,))
            if self._snapshots:
                self._note_begun([entry[2:] for entry in history[:drop]])
            if drop == len(history):
                del self.histories[key]
            elif drop:
                del history[:drop]
        notes = self._notes  # what is in them is later than the histories
        while notes and notes[0].orders[-1] < before:
            note = notes.popleft()
            self.worked += len(note.orders)
            if self._snapshots:
                self._note_first(note.keys, note.states)
        self.states.forget(before)

    def _note_begun(self, entries: Iterable[tuple[object, object]]) -> None:
        """Note the keys that have begun with one of some entries of a history, each (payload, state before)."""
        for payload, state in entries:
            if self._initial.is_(state):
                self._note_first((self._key_of(payload),), (state,))

    def _note_first(self, keys: Sequence[object], states: Sequence[object]) -> None:
        """Note the keys that have begun, of items in order, each with the state before it."""
        # Where no key ends, those that begin enter the states.
        if not self._watch(keys if self._ends or self._dropped else ()):
            return
        is_initial, begin = self._initial.is_, self._first_keys.begin
        for key, state in zip(keys, states, strict=True):
            if is_initial(state) and begin(key) is not None:
                self._others.add(key)

    def _watch(self, keys: Collection[object]) -> bool:
        """Return whether keys can differ: some, those that have entered the states, or earlier ones."""
        entered, first_keys = self.states.entered, self._first_keys
        can_differ = first_keys.watch(entered) or first_keys.watch(keys)
        entered.clear()
        return can_differ

    # -- snapshots -------------------------------------------------------------------------------------------------

    def trim(self, before: bytes) -> None:
        self._forget(before)
        self.states.trim()

    def cut(self, before: bytes) -> list[Mapping[object, object]]:
        """Return the state of each changed key at the time `before`; forget its entries.

        A key has changed if it had entries since the last cut.
        """
        self._forget(before)
        if self._notes and self._notes[0].orders[0] < before:
            note, place = self._notes[0], bisect_left(self._notes[0].orders, before)
            self._note_first(note.keys[:place], note.states[:place])
        since: dict[object, object] = {}  # for each key, the state before its first entry at or after `before`
        # Backwards, so that of several entries of a key the earliest is written last, and stays.
        for note in reversed(self._notes):
            keys, states = note.keys, note.states
            if note.orders[0] < before:
                start = bisect_left(note.orders, before)
                keys, states = keys[start:], states[start:]
            since.update(zip(reversed(keys), reversed(states), strict=True))
        since.update((key, history[0][3]) for key, history in self.histories.items())  # older than the notes
        self._watch(since)  # items behind the cut name states from here on
        changed = self.states.cut(since)
        pieces: list[Mapping[object, object]] = []
        if changed:
            ended = Ended(changed, self._initial, ends=self._ends)
            # Keys that can differ are named at once: while the others are read, items go on.
            pieces.append(self._first_keys.named(ended) if self._first_keys.is_on else ended)
        # A key that has ended and begun as another one has changed, though its state may be what it was.
        others, self._others = self.snapshot_of([*self._others]), set()
        return [*pieces, others] if others else pieces

    def snapshot_of(self, names: Sequence[object]) -> Mapping[object, object]:
        is_initial = self._initial.is_
        found = self.states.snapshot_of(names)
        return self._first_keys.named({key: state for key, state in found.items() if not is_initial(state)})

    def compact(self) -> None:
        self._compact(self.names)

    def _compact(self, keys: Collection[object]) -> None:
        """Forget those of some keys that have ended, if there are enough."""
        if len(keys) > self._enough and (self._ends or self._dropped):
            self.states.compact(self._initial.is_)
            self._first_keys.forget(self.names)
            self._enough = max(MOST_ENDED, 2 * len(keys))

    def restore(self, states: Mapping[object, object]) -> None:
        self.states.restore(states)
        # They may be those of another function, of an earlier version of the flow.
        if not {self._state_type}.issuperset(map(type, states.values())):
            self._state_type, self.states.integers = None, False


def _places_of(count: int) -> Sequence[bytes]:
    """Return the codes to append to an entry's order for `count` outputs."""
    if count <= len(_OUTPUTS):
        return _OUTPUTS[:count]
    return [child + _WAY_OUT for child in child_codes(count + 1)[1:]]


def _places(orders: Orders, counts: Sequence[int]) -> Orders:
    """Return the orders of the outputs of all entries, given their counts."""
    if set(counts) == {1}:
        return extended(orders, _FIRST_OUTPUT)
    if not all(counts):
        orders = selected(orders, [at for at, count in enumerate(counts) if count])
        counts = list(filter(None, counts))
    return children(orders, counts, first=1, tail=_WAY_OUT)


def _run(
    advance: Callable[[object, object], tuple[object, Iterable[object]]], state: object, payload: object
) -> tuple[object, list[object], Exception | None]:
    """Call the user's function; return new state, outputs and failure.

    A failure leaves the state as it was.
    """
    try:
        after, outputs = advance(state, payload)
        return after, list(outputs), None
    except Exception as error:  # noqa: BLE001 - it is attributed where it is sent
        return state, [], error
