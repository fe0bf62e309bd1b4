"""Ordered operations: items in order, once nothing can come before them.

The buffer before the operator is a barrier: it holds items until the minimum time inbound has passed them, on one
worker too, for operations before it may take back what they have just made. So the operator repairs nothing: it keeps
the state of each key, and, for snapshots, a log of what the states were since the last settled time.

Marks are the other thing that comes in order: they raise the watermark, on which timers may wait. A partition of the
operation says a mark of its own for each that comes, behind all that comes of it.

A timer is a future item of the operation, and in flight until it is due. Minimum times end where the fronts have ended:
a timer behind that stays in the state.

All that leaves is of one trace, the same on every worker, for it is never made again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import itemgetter
from sys import maxsize
from typing import Any, Final, Literal

from flamecore.abc.operator import GONE, NEVER_OVER, Record, Round, Site, StatefulOperator, Turn, Work
from flamecore.errors import JobError, NoInvalideeError, OrderViolationError
from flamecore.model.batch import Orders
from flamecore.model.failure import FlowMistake, describe, shorten_repr
from flamecore.model.hashing import ALIKE, check_key
from flamecore.model.meta import MAX_TIME, MIN_TIME, Meta, child_codes, decode_time, encode_child, encode_time
from flamecore.model.ordered import (
    KEPT,
    MOST_PAST,
    Due,
    Now,
    Ordered,
    Outcome,
    Timer,
    is_shared,
    rank_of,
    tie_of,
    timer_place,
)
from flamecore.runtime.operators.keyed_state import MOST_ENDED, FirstKeys
from flamecore.runtime.operators.reorder import ReorderBuffer, Waiting
from flamecore.runtime.operators.watermark import Watermark

_NONE: Final[Record] = (None, (), None)

_PLAIN: Final = ((), None)
"""The rest of a record without timers and hold."""

_NEW: Final[Callable[..., Any]] = tuple.__new__
_NUMBER: Final = int.from_bytes
"""As `Now` and `decode_time` do, for less."""

_SPARE, _SLACK = 256, 4
"""A heap is cleaned once so many times the entries that count are in it, and some more."""

_BY_KIND: Final = itemgetter(2, 0, 1)


class _OrderedKeys(FirstKeys):
    """First keys of items in order.

    Args:
        known: Returns all keys that have state, or had it at the last cut.
        has_state: Whether a key has state.
        snapshots: Whether snapshots are taken.
    """

    def __init__(
        self, known: Callable[[], Iterable[Any]], has_state: Callable[[Any], bool], *, snapshots: bool
    ) -> None:
        super().__init__(known)
        self._has_state, self._snapshots = has_state, snapshots
        self._begun: deque[tuple[bytes, Any]] = deque()  # (order, the key before) where others have begun
        self._enough = MOST_ENDED

    def of_item(self, order: bytes, key: Any) -> Any:
        """Return the key of an item as its first item has it, which may be this one.

        Raises:
            TypeError: It cannot be a key.
        """
        if self._first is None and type(key) in ALIKE:  # as mostly; a look at the types of several costs more
            return key
        if not self.watch((key,)):
            return key
        if self._has_state(key):
            return self.of(key)
        self._forget_ended()
        return self._begin_at(order, key)

    def of_items(self, orders: Sequence[bytes], keys: Sequence[Any]) -> Sequence[Any]:
        """Return the keys of items between which no state ends.

        Raises:
            TypeError: One cannot be a key.
        """
        if not self.watch(keys):
            return keys
        self._forget_ended()  # before all of them: those that begin here have no state yet
        first: dict[Any, Any] = {}
        for order, key in zip(orders, keys, strict=False):
            if key not in first:
                first[key] = self.of(key) if self._has_state(key) else self._begin_at(order, key)
        return [*map(first.__getitem__, keys)]

    def _begin_at(self, order: bytes, key: Any) -> Any:
        """Note the key of an item that has found no state, and return it."""
        before = self.begin(key)
        if before is not None and self._snapshots:
            self._begun.append((order, before))
        return key

    def _forget_ended(self) -> None:
        """Forget the keys that have ended, if there are enough; with snapshots `OrderedOperator.compact` does."""
        assert self._first is not None
        if not self._snapshots and len(self._first) >= self._enough:
            self.forget(self._known())
            self._enough = max(MOST_ENDED, 2 * len(self._first))

    def trim(self, before: bytes) -> None:
        """Forget the keys that ended below an encoded time."""
        begun = self._begun
        while begun and begun[0][0] < before:
            begun.popleft()

    def stored(self, states: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return states of the time of the last trim by their first keys of that time."""
        if not self._begun:
            return self.named(states)
        # Of several that have ended since, the first one had state then.
        then = {before: before for _, before in reversed(self._begun)}
        return {then.get(key, self.of(key)): state for key, state in states.items()}


class OrderedOperator(StatefulOperator):
    """The operator of all ordered operations: records of keys, and the work on them.

    Args:
        vertex: The ordered operation.
        site: Its place on the worker.
        work: Its work; None: a new one of the vertex.

    Attributes:
        firing_place: Its place among the operations that have outputs at one mark or time. It is set before all else.

    Raises:
        JobError: The work cannot be opened.
    """

    firing_place: int = 0

    def __init__(self, vertex: Ordered, site: Site, work: Work | None = None) -> None:
        self.names = []
        self.work: Work = vertex.work() if work is None else work
        self._vertex, self._name = vertex, vertex.name
        self._key_of = vertex.route.key  # type: ignore[union-attr]  # the vertex has checked it
        self._ident, self._emit_run, self._fail, self._round = site.ident, site.emit_run, site.fail, site.round
        self._snapshots = site.snapshots and not vertex.passing
        self._records: dict[Any, Record] = {}
        self._first_keys = _OrderedKeys(self._kept_keys, self._has_state, snapshots=self._snapshots)
        self._find: Callable[[Any], Record | None] = self._records.get
        self._whole = True  # whether every record is among these
        # (place, tie, key, timer) of every pending timer, and of some that are no longer
        self._timers: list[tuple[bytes, bytes, Any, Timer]] = []
        # The keys with a timer for the watermark, by its time and tag; these, and some that are no longer, as a heap
        self._by_mark: dict[Turn, dict[Any, Any]] = {}
        self._turns: list[Turn] = []
        self._held: dict[int, int] = {}  # how many keys hold the marks back, by hold
        self._holds: list[int] = []  # these as a heap, and some that are no longer
        self._timer_count = 0  # number of pending timers that do not wait for the watermark
        self.watermark = Watermark()
        self._named: set[Any] = set()
        self._enough = MOST_ENDED  # number of names from which on those without state are forgotten
        # (orders, keys, records before) of what has been worked on since the last trim
        self._log: deque[tuple[Any, ...]] = deque()
        self._since: dict[Any, Record | None] = {}  # for each key worked on since the last cut, its record then
        self._passed = b""  # the last order that has gone in
        self._place, self._number = b"", 0  # the place of the last outputs, and how many there were
        self._orders: list[bytes] = []  # the outputs that have not been emitted
        self._outputs: list[Any] = []
        self._is_open = False
        self._call("open")
        self._is_open = True
        self._stored: Callable[[Record], Record] | None = getattr(self.work, "stored", None)

    def close(self) -> None:
        """Close the work; a second call does nothing.

        Raises:
            JobError: It cannot be closed.
        """
        if self._is_open:
            self._is_open = False
            self._call("close")

    def _call(self, method: Literal["open", "close", "begin", "end"]) -> None:
        try:
            getattr(self.work, method)()
        except Exception as error:
            raise JobError(
                f"{self._vertex!r}: {method} of its {type(self.work).__qualname__} failed: {describe(error)}",
                hint="The failure is not of one record, so the job ends. Correct the work, or its resources.",
            ) from error

    def begin(self) -> None:
        """Begin a step of the work.

        Raises:
            JobError: It fails.
        """
        self._call("begin")

    def end(self) -> None:
        """End a step of the work.

        Raises:
            JobError: It fails.
        """
        self._call("end")

    @property
    def pending(self) -> int:
        """Return the number of pending timers."""
        return self._timer_count + sum(map(len, self._by_mark.values()))

    def held(self) -> int:
        """Return the number of items whose outputs come only when the watermark rises.

        It looks at the state of each key.
        """
        records = self._records.values()
        return sum(self.work.held(state) for state, timers, _ in records if any(timer[2] for timer in timers))

    def _kept_keys(self) -> Iterable[Any]:
        """Return the keys that have state, or had it at the last cut."""
        return chain(self._records, self._since)

    def _has_state(self, key: Any) -> bool:
        return key in self._records

    # -- work ------------------------------------------------------------------------------------------------------

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Work on one item.

        Raises:
            NoInvalideeError: It is a tombstone: its victim has not waited with it.
        """
        if not alive:
            raise NoInvalideeError(
                f"{self._name!r}: the item that a tombstone cancels is not here: {payload!r} ({Meta.decode(order)})",
                hint="A user function, key or hash on its way is not deterministic.",
                vertex=self._name,
                record=payload,
            )
        self.run((order,), trace, (payload,))

    def run(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Work on items in ascending order, and on the timers and marks before each.

        Raises:
            OrderViolationError: One comes too late, or two have one order.
        """
        if orders[0] <= self._passed:
            raise OrderViolationError(
                f"{self._name!r}: an item came after others had gone in that sort behind it, or has the order of one "
                f"({Meta.decode(orders[0])})",
                hint="An acker, a source or a user function breaks its contract.",
                vertex=self._name,
                record=payloads[0],
            )
        done = self._work_on(orders, trace, payloads)
        self.worked += done
        if done:
            self._passed = orders[done - 1]
        self._emit()
        if done < len(orders):
            self._round.leave(self._go_on, orders[done:], trace, payloads[done:])

    def _go_on(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Work on what was left of a round, in a step of its own."""
        self.begin()
        try:
            self.run(orders, trace, payloads)
        finally:
            self.end()

    def _work_on(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> int:
        """Work on items, and on the timers and marks before each; return how many the round has come to."""
        done = self._work_on_each(orders, trace, self._round.iterate(payloads))
        self._round.finish()
        return done

    def _work_on_each(self, orders: Orders, trace: int, payloads: Iterable[Any]) -> int:
        """Work on items one after another; return their number.

        Args:
            orders: Their orders, and perhaps some behind.
            trace: Their trace.
            payloads: The items.
        """
        key_of, find, process = self._key_of, self._find, self.work.process
        first_of = self._first_keys.of_item
        records, whole = self._records, self._whole
        timers, marks, watermark = self._timers, self.watermark.marks, self.watermark
        worked: list[bytes] = []
        keys: list[Any] = []
        before: list[Record | None] = []
        places, outputs, value = self._orders, self._outputs, watermark.value
        done = 0
        for done, (order, payload) in enumerate(zip(orders, payloads, strict=False), 1):  # noqa: B007
            if (timers and timers[0][0] < order) or (marks and marks[0][0] < order):
                self._note(worked, keys, before)
                worked, keys, before = [], [], []
                self._run_events(order)
                places, outputs, value = self._orders, self._outputs, watermark.value
            try:
                key = first_of(order, key_of(payload))
                record = find(key)
                if record is None:
                    check_key(key)
                now = _NEW(Now, (_NUMBER(order[:8], "big") - 2**63, value, value))
                outcome = process(key, None if record is None else record[0], payload, now)
                if type(outcome) is not Outcome:
                    raise _no_outcome(outcome)
                found = [*outcome.outputs]
                if (stays := outcome.timers is KEPT) and record is not None:
                    new: Record | None = (outcome.state, record[1], record[2])
                else:
                    new = self._settled(key, order, outcome, now, found) if outcome.timers else _record(outcome)
            except Exception as error:  # noqa: BLE001 - the failing item is the user's to see
                self._fail(order, trace, True, payload, error)
                continue
            if (
                whole
                and new is not None
                and (stays or (new[1:] == _PLAIN and (record is None or record[1:] == _PLAIN)))
            ):
                records[key] = new
            else:
                self._keep(key, record, new)
            worked.append(order)
            keys.append(key)
            before.append(record)
            if found:
                places += [order + code for code in child_codes(len(found))]
                outputs += found
        self._note(worked, keys, before)
        return done

    def on_known(self, known: bytes, most: int, stored: bytes | None = None) -> bool:
        """Work on timers and marks below an order; return whether there are more of them.

        Args:
            known: The order.
            most: Most timers and marks to work on.
            stored: An encoded time from which on timers have to wait, and what is behind them; None: none has.
        """
        more = self._run_events(known, most, stored)
        self._emit()
        return more

    @property
    def lowest(self) -> bytes | None:
        """Return the place of the first pending timer or mark, or None."""
        timer, marks = self.first_timer, self.watermark.marks
        if marks and (timer is None or marks[0][0] < timer):
            return marks[0][0]
        return timer

    @property
    def first_timer(self) -> bytes | None:
        """Return the place of the first pending timer, or None."""
        timers = self._timers
        while timers and not self._is_pending(*timers[0][2:]):
            heappop(timers)
        return timers[0][0] if timers else None

    def _is_pending(self, key: Any, timer: Timer) -> bool:
        record = self._records.get(key)
        return record is not None and timer in record[1]

    def _run_events(self, limit: bytes, most: int = maxsize, stored: bytes | None = None) -> bool:
        """Work on at most `most` timers and marks below an order.

        Return whether more are left.
        """
        while (place := self.lowest) is not None and place < limit:
            if most <= 0 or (stored is not None and place >= stored and place == self.first_timer):
                return True
            most -= 1
            self._passed = max(self._passed, place)
            if place == self.first_timer:
                _, _, key, timer = heappop(self._timers)
                self._run_timer(place, key, timer, self.watermark.value)
            else:
                before = self.watermark.value
                if self.watermark.advance(place):
                    self._run_mark(place, before)
        return False

    def _run_mark(self, mark: bytes, before: int) -> None:
        """Work on the timers that the watermark has reached; emit the operation's marks."""
        turns, value = self._turns, self.watermark.value
        while turns and turns[0][0] <= value:
            turn = heappop(turns)
            keys = self._by_mark.pop(turn, None)
            if keys is not None:
                self._run_turn(Timer(*turn, True), keys, mark, before)
        self._emit()
        holds, held = self._holds, self._held
        while holds and holds[0] not in held:
            heappop(holds)
        self.watermark.say(mark, min(value, holds[0]) if holds else value)

    def _run_turn(self, timer: Timer, keys: dict[Any, Any], mark: bytes, before: int) -> None:
        """Work on a timer that a mark makes due for some keys."""
        prefix = self._prefix(mark, timer)
        for rank, _, key in sorted([(rank_of(key), tie_of(key), key) for key in keys], key=itemgetter(0, 1)):
            self._run_timer(prefix + encode_child(rank), key, timer, before)

    def _prefix(self, mark: bytes, timer: Timer) -> bytes:
        """Return the prefix of the places of a timer that a mark makes due.

        The rank of the key follows it.
        """
        return mark + b"".join(map(encode_child, (self.firing_place, timer.time + 2**63, timer.tag + 2**63)))

    def _run_timer(self, place: bytes, key: Any, timer: Timer, before: int) -> None:
        """Work on a timer that is due."""
        record = self._find(key)
        assert record is not None
        now = Now(decode_time(place), self.watermark.value, before)
        try:
            outcome = self._on_time(key, record[0], timer, now)
            found = [*outcome.outputs]
            new = self._settled(key, place, outcome, now, found, timer)
        except Exception as error:  # noqa: BLE001 - the failing timer is the user's to see
            self._fail(place, self._ident, True, Due(key, timer), error)
            new, found = self._left_out(place, key, record, timer, now)
        self._keep(key, record, new)
        self._note([place], [key], [record])
        if found:
            self._add(place, found)

    def _left_out(
        self, place: bytes, key: Any, record: Record, timer: Timer, now: Now
    ) -> tuple[Record | None, list[Any]]:
        """Return the record of a key whose timer is left out, as it has failed, and the outputs."""
        try:
            outcome = self.work.leave_out(key, record[0], timer, now)
            if outcome is not None:
                found = [*outcome.outputs]
                return self._settled(key, place, outcome, now, found, timer), found
        except Exception:  # noqa: BLE001 - it fails as the timer did, which is told
            pass
        left: Record = (record[0], tuple([other for other in record[1] if other != timer]), record[2])
        return None if left == _NONE else left, []

    def _on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        outcome = self.work.on_time(key, state, timer, now)
        if type(outcome) is not Outcome:
            raise _no_outcome(outcome)
        return outcome

    def _settled(
        self, key: Any, place: bytes, outcome: Outcome, now: Now, outputs: list[Any], due: Timer | None = None
    ) -> Record | None:
        """Return the new record of a key; work on the timers that are past first.

        Args:
            key: The key.
            place: The order of the item or timer.
            outcome: The outcome of the call.
            now: The place of the call.
            outputs: The outputs of the call, to which those of the timers are added.
            due: The timer.

        Raises:
            FlowMistake: The vertex has no timers; or those that are past do not end.
        """
        pending = self._pending(outcome)
        for _ in range(MOST_PAST):
            past = next((timer for timer in pending if self._is_past(timer, key, place, now, due)), None)
            if past is None:
                break
            outcome = self._on_time(key, outcome.state, past, now)
            outputs += outcome.outputs
            pending = self._pending(outcome)
        else:
            raise FlowMistake(f"it has set {MOST_PAST:,} timers in a row that were past, the last {past}")
        if not pending:
            return _record(outcome)
        return outcome.state, tuple([(*timer,) for timer in pending]), outcome.hold

    def _pending(self, outcome: Outcome) -> list[Timer]:
        """Return the timers of an outcome, by time and tag, those for the watermark last."""
        timers = [Timer(*timer) for timer in outcome.timers]
        if len(timers) > 1:
            timers = sorted({*timers}, key=_BY_KIND)
        for time, tag, mark in timers:
            if not mark and not self._vertex.timers:
                raise FlowMistake(f"it sets a timer, and {type(self._vertex).__qualname__}.timers is not set")
            if not (MIN_TIME < time <= MAX_TIME and MIN_TIME <= tag <= MAX_TIME):
                raise FlowMistake(f"it sets a timer beyond 64 bits: {timers}")
        return timers

    def _is_past(self, timer: Timer, key: Any, place: bytes, now: Now, due: Timer | None) -> bool:
        if not timer.mark:
            is_now = timer.time == now.time
            return timer.time < now.time or (is_now and timer_place(self.firing_place, timer, key) <= place)
        if due is not None and due.mark and timer.time <= now.watermark:
            return timer[:2] <= due[:2]  # of the others each has a place of its own behind the mark
        return timer.time <= now.watermark

    def _keep(self, key: Any, before: Record | None, record: Record | None) -> None:
        """Keep the record of a key; note its timers, and its hold."""
        _, old, held = _NONE if before is None else before
        _, new, hold = _NONE if record is None else record
        if record is not None:
            self._records[key] = record
        elif before is not None:
            del self._records[key]
        if new is old:
            pass
        elif len(new) == len(old) == 1:
            if new != old:
                self._cancel(key, old[0])
                self._await(key, new[0])
        elif new != old:
            for timer in {*old}.difference(new):
                self._cancel(key, timer)
            for timer in {*new}.difference(old):
                self._await(key, timer)
        if hold != held:
            if held is not None:
                self._let_go(held)
            if hold is not None:
                self._hold(hold)

    def _await(self, key: Any, timer: tuple[int, int, bool]) -> None:
        if timer[2]:
            self._keys_of(timer[:2])[key] = None
            return
        timers, timed = self._timers, Timer(*timer)
        self._timer_count += 1
        heappush(timers, (timer_place(self.firing_place, timed, key), tie_of(key), key, timed))
        # Cancelled ones are not looked for in a heap: but a timer that every item sets anew would take memory until its
        # time.
        if len(timers) > _SPARE + _SLACK * self._timer_count:  # most have been cancelled
            timers[:] = [entry for entry in timers if self._is_pending(entry[2], entry[3])]
            heapify(timers)

    def _keys_of(self, turn: Turn) -> dict[Any, Any]:
        """Return the keys that wait for a turn; they may be changed."""
        keys = self._by_mark.get(turn)
        if keys is None:
            keys = self._by_mark[turn] = {}
            heappush(self._turns, turn)
            if len(self._turns) > _SPARE + _SLACK * len(self._by_mark):
                self._turns[:] = self._by_mark
                heapify(self._turns)
        return keys

    def _cancel(self, key: Any, timer: tuple[int, int, bool]) -> None:
        if not timer[2]:
            self._timer_count -= 1
        elif (keys := self._by_mark.get(timer[:2])) is not None:  # None: it is due
            keys.pop(key, None)
            if not keys:
                del self._by_mark[timer[:2]]

    def _hold(self, hold: int, times: int = 1) -> None:
        held = self._held
        count = held.get(hold)
        held[hold] = times if count is None else count + times
        if count is None:
            heappush(self._holds, hold)
            if len(self._holds) > _SPARE + _SLACK * len(held):
                self._holds[:] = held
                heapify(self._holds)

    def _let_go(self, hold: int, times: int = 1) -> None:
        count = self._held.pop(hold)
        if count > times:
            self._held[hold] = count - times

    # -- outputs ---------------------------------------------------------------------------------------------------

    def _add(self, place: bytes, outputs: Sequence[Any]) -> None:
        """Add outputs at a place, numbered on from others that are there."""
        first = self._number if place == self._place else 0
        self._place, self._number = place, first + len(outputs)
        self._orders += [place + encode_child(number) for number in range(first, self._number)]
        self._outputs += outputs

    def _emit(self) -> None:
        orders, outputs = self._orders, self._outputs
        if orders:
            self._orders, self._outputs = [], []
            self._emit_run(orders, self._ident, outputs)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _note(self, orders: list[bytes], keys: list[Any], before: list[Record | None]) -> None:
        if self._snapshots and orders:
            self._log.append((orders, keys, before))
            since, named = self._since, self._named
            for key, record in zip(keys, before, strict=True):
                if key not in since:
                    since[key] = record
                    if key not in named:
                        named.add(key)
                        self.names.append(key)

    def trim(self, before: bytes) -> None:
        """Drop the log below an encoded time: no cut is earlier."""
        log = self._log
        while log and log[0][0][-1] < before:
            log.popleft()
        self._first_keys.trim(before)

    def cut(self, before: bytes) -> Sequence[Mapping[Any, Any]]:
        self.trim(before)
        since: dict[Any, Record | None] = {}
        for orders, keys, records in reversed(self._log):
            start = bisect_left(orders, before) if orders[0] < before else 0
            since.update(zip(reversed(keys[start:]), reversed(records[start:]), strict=True))
        now, then = self._records, self._since
        changes: dict[Any, Any] = {}
        for key, old in then.items():
            record = since[key] if key in since else now.get(key)
            if record is not old:
                changes[key] = GONE if record is None else self._as_stored(record)
        self._since = since
        return self._as_cut(changes, before)

    def _as_cut(self, changes: Mapping[Any, Any], before: bytes) -> Sequence[Mapping[Any, Any]]:
        """Return the changes of records up to a cut with those of the watermark."""
        found = {**self._first_keys.stored(changes), **self.watermark.cut(before)}
        return [found] if found else []

    def snapshot_of(self, names: Sequence[Any]) -> Mapping[Any, Any]:
        since, now, shared = self._since, self._records, self.watermark.stored
        found = {name: since[name] if name in since else now.get(name) for name in names if name not in shared}
        return self._as_read(found, names)

    def _as_read(self, found: Mapping[Any, Record | None], names: Sequence[Any]) -> Mapping[Any, Any]:
        """Return records of the last cut as they are stored, with what partitions share."""
        own = {name: self._as_stored(record) for name, record in found.items() if record is not None}
        shared = self.watermark.stored
        return {**self._first_keys.stored(own), **{name: shared[name] for name in names if name in shared}}

    def _as_stored(self, record: Record) -> Record:
        return record if self._stored is None else self._stored(record)

    def compact(self) -> None:
        if len(self.names) < self._enough:
            return
        kept = dict.fromkeys(self._kept_keys())
        self._named.intersection_update(kept)
        self.names[:] = [name for name in self.names if name in self._named or is_shared(name)]
        self._first_keys.forget(kept)
        self._enough = max(MOST_ENDED, 2 * len(self.names))

    def restore(self, states: Mapping[Any, Any]) -> None:
        own = {name: record for name, record in states.items() if not is_shared(name)}
        self._records.update(own)
        new = [name for name in own if name not in self._named]
        self._named.update(new)
        self.names.extend(new)
        for key, record in own.items():
            self._keep(key, None, record)
        self._first_keys.watch(own)
        self.watermark.restore(record[0] for name, record in states.items() if is_shared(name))


def _no_outcome(found: object) -> FlowMistake:
    return FlowMistake(f"its work returned {shorten_repr(found)}, and no Outcome")


def _record(outcome: Outcome) -> Record | None:
    """Return the record that an outcome without timers leaves."""
    return None if outcome.state is None and outcome.hold is None else (outcome.state, (), outcome.hold)


class OrderedBuffer(ReorderBuffer):
    """The barrier before an ordered operation.

    Args:
        name: Name of the operation.
        operator: The operation.
        segment: Its segment: items that wait, and timers, are in flight there.
        turn: The rounds of the worker.
    """

    def __init__(self, name: str, operator: OrderedOperator, segment: int, turn: Round = NEVER_OVER) -> None:
        super().__init__(name, operator, segment, advance=False, turn=turn)
        self.to_store: int | None = None
        """The time that the journal is to say has passed (see `wait_for_journal`); None: it need not say more."""
        self._ordered = operator
        self._stored: bytes | None = None

    @property
    def lowest(self) -> bytes | None:
        waiting, event = super().lowest, self._ordered.lowest
        return event if waiting is None else waiting if event is None else min(waiting, event)

    def put_mark(self, place: bytes, mark: tuple[int, int, int]) -> None:
        """Queue a mark: (index of its vertex, number of the front or worker, value)."""
        index, number, value = mark
        self._ordered.watermark.put(place, (index, number), value)

    def _take(self, limit: bytes | None) -> list[Waiting]:
        # In their only version items need no trace, and those that came by several ways go in as one run.
        return [
            (0 if alive else trace, alive, orders, payloads) for trace, alive, orders, payloads in super()._take(limit)
        ]

    def wait_for_journal(self) -> None:
        """Hold timers back until the journal shows how far time has passed.

        Timers are due at times of the wall clock that no record has; a sink must hold nothing of a time that no journal
        accounts for.
        """
        self._stored = b""

    def note_stored(self, time: int) -> None:
        """Note that time has passed to `time`, by the journal."""
        if self._stored is not None:
            self._stored = max(self._stored, encode_time(time))

    def drain(self, known: bytes, most: int = maxsize) -> None:
        """Run the work on items and timers below an order, in one step."""
        lowest = self.lowest
        if lowest is None or lowest >= known:
            self.is_ready = False
            return
        # Around all calls of one step: a work may prepare once what they share.
        self._ordered.begin()
        try:
            passed = self._bound(known, most) or known
            if self._waiting and self._waiting[0][0] < passed:
                self._put_back(self._put_in(self._take(passed), final=True))
            # Timers before an item need not wait: its record's time is in the journal. So is that of a mark's.
            if not self._round.is_over:
                self._ordered.on_known(passed, most, self._stored)
        finally:
            self._ordered.end()
        lowest = self.lowest
        self.is_ready = lowest is not None and lowest < known
        if self.is_ready and self._stored is not None and self._waits_for_journal(known):
            self.to_store, self.is_ready = decode_time(known), False

    def _waits_for_journal(self, known: bytes) -> bool:
        """Return whether only timers that the journal does not account for could go in."""
        timer, stored = self._ordered.first_timer, self._stored
        assert stored is not None
        return timer is not None and timer >= stored and not (self._waiting and self._waiting[0][0] < known)
