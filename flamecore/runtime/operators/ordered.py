"""Ordered operations: items in order, once nothing can come before them.

The intake before the operator is a barrier: it holds what comes until the minimum time inbound has passed it, on one
worker too, for operations before it may take back what they have just made. So the operator repairs nothing: it keeps
the state of each key, and, for snapshots, a log of what the states were since the last settled time.

A timer is a future item of the operation, and in flight until it is due. Minimum times end where the fronts have ended:
a timer behind that stays in the state.

All that leaves is of one trace, the same on every worker, for it is never made again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from sys import maxsize
from typing import Any, Final

from flamecore.abc.operator import GONE, Site, StatefulOperator, Work
from flamecore.errors import NoInvalideeError, OrderViolationError
from flamecore.model.batch import Orders
from flamecore.model.failure import FlowMistake
from flamecore.model.hashing import canonical, check_key
from flamecore.model.meta import MAX_TIME, Meta, decode_time, encode_child, encode_time
from flamecore.model.ordered import MOST_PAST, Due, Now, Ordered, Outcome, Timer, timer_place
from flamecore.runtime.operators.reorder import ReorderBuffer

Record = tuple[Any, tuple[tuple[int, int], ...], int | None]
"""(state, timers, hold) of a key, as it is stored."""

Log = tuple[Orders, list[Any], list[Record | None]]
"""(orders, keys, records before): what has been worked on."""

_TIME_BYTES: Final = 8


class OrderedOperator(StatefulOperator):
    """The operator of all ordered operations: the records of the keys, and the work on them.

    Args:
        vertex: The ordered operation.
        site: Its place on the worker.
    """

    def __init__(self, vertex: Ordered, site: Site) -> None:
        self.names = []
        self.work: Work = vertex.work()
        self._vertex, self._name = vertex, vertex.name
        self._key_of = vertex.route.key  # type: ignore[union-attr]  # the vertex has checked it
        self._ident, self._emit_run, self._fail = site.ident, site.emit_run, site.fail
        self._snapshots = site.snapshots
        self._records: dict[Any, Record] = {}
        # (place, canonical key, key, timer) of every pending timer, and of some that are no longer
        self._timers: list[tuple[bytes, bytes, Any, Timer]] = []
        self._named: set[Any] = set()
        self._log: deque[Log] = deque()  # since the last trim
        self._since: dict[Any, Record | None] = {}  # for each key worked on since the last cut, its record then
        self._passed = b""  # the last order that has gone in
        self._place, self._number = b"", 0  # the place of the last outputs, and how many there were
        self._orders: list[bytes] = []  # the outputs that have not been emitted
        self._outputs: list[Any] = []
        self.work.open()

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
        """Work on several items, in ascending order, and on the timers before each.

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
        self.worked += len(orders)
        key_of, records, process, timers = self._key_of, self._records, self.work.process, self._timers
        worked: list[bytes] = []
        keys: list[Any] = []
        before: list[Record | None] = []
        for order, payload in zip(orders, payloads, strict=True):
            if timers and timers[0][0] < order:
                self._note(worked, keys, before)
                worked, keys, before = [], [], []
                self._run_timers(order)
            try:
                key = key_of(payload)
                record = records.get(key)
                if record is None:
                    check_key(key)
                now = Now(decode_time(order))
                outcome = process(key, None if record is None else record[0], payload, now)
                found = [*outcome.outputs]
                new = self._settled(key, order, outcome, now, found) if outcome.timers else _record(outcome)
            except Exception as error:  # noqa: BLE001 - the failing item is the user's to see
                self._fail(order, trace, True, payload, error)
                continue
            self._keep(key, record, new)
            worked.append(order)
            keys.append(key)
            before.append(record)
            if found:
                self._add(order, found)
        self._passed = orders[-1]
        self._note(worked, keys, before)
        self._emit()

    def on_known(self, known: bytes, most: int) -> bool:
        """Work on timers below an order; return whether there are more of them.

        Args:
            known: The order.
            most: Most timers to work on.
        """
        more = self._run_timers(known, most)
        self._emit()
        return more

    @property
    def lowest(self) -> bytes | None:
        """Return the place of the first pending timer, or None."""
        timers = self._timers
        while timers and not self._is_pending(*timers[0][2:]):
            heappop(timers)
        return timers[0][0] if timers else None

    def _is_pending(self, key: Any, timer: Timer) -> bool:
        record = self._records.get(key)
        return record is not None and timer in record[1]

    def _run_timers(self, limit: bytes, most: int = maxsize) -> bool:
        """Work on the timers below an order, but at most so many; return whether more are left."""
        while (place := self.lowest) is not None and place < limit:
            if most <= 0:
                return True
            most -= 1
            _, _, key, timer = heappop(self._timers)
            record = self._records[key]
            now = Now(timer.time)
            left: Record = (record[0], tuple([other for other in record[1] if other != timer]), record[2])
            try:
                outcome = self.work.on_time(key, record[0], timer, now)
                found = [*outcome.outputs]
                new = self._settled(key, place, outcome, now, found)
            except Exception as error:  # noqa: BLE001 - the failing timer is the user's to see
                self._fail(place, self._ident, True, Due(key, timer), error)
                new, found = None if left[0] is None and not left[1] else left, []
            self._keep(key, record, new)
            self._note([place], [key], [record])
            self._passed = max(self._passed, place)
            if found:
                self._add(place, found)
        return False

    def _settled(self, key: Any, place: bytes, outcome: Outcome, now: Now, outputs: list[Any]) -> Record | None:
        """Return the new record of a key; work on the timers that are past first.

        Args:
            key: The key.
            place: The order of the item or timer.
            outcome: The outcome of the call.
            now: The place of the call.
            outputs: The outputs of the call, to which those of the timers are added.

        Raises:
            FlowMistake: The vertex has no timers; or those that are past do not end.
        """
        pending = self._pending(outcome)
        for _ in range(MOST_PAST):
            if not pending or not self._is_past(pending[0], key, place, now):
                break
            outcome = self.work.on_time(key, outcome.state, pending[0], now)
            outputs += outcome.outputs
            pending = self._pending(outcome)
        else:
            raise FlowMistake(f"it has set {MOST_PAST:,} timers in a row that were past, the last {pending[0]}")
        if not pending:
            return _record(outcome)
        return outcome.state, tuple([(timer.time, timer.tag) for timer in pending]), None

    def _pending(self, outcome: Outcome) -> list[Timer]:
        timers = sorted({Timer(*timer) for timer in outcome.timers})
        if timers and not self._vertex.timers:
            raise FlowMistake(f"it sets a timer, and {type(self._vertex).__qualname__}.timers is not set")
        if timers and not (timers[-1].time <= MAX_TIME and all(-(2**63) <= timer.tag < 2**63 for timer in timers)):
            raise FlowMistake(f"it sets a timer beyond 64 bits: {timers}")
        return timers

    def _is_past(self, timer: Timer, key: Any, place: bytes, now: Now) -> bool:
        return timer.time < now.time or (timer.time == now.time and timer_place(self._vertex, timer, key) <= place)

    def _keep(self, key: Any, before: Record | None, record: Record | None) -> None:
        if record is None:
            if before is not None:
                del self._records[key]
            return
        self._records[key] = record
        if record[1]:
            self._await(key, record[1] if before is None else set(record[1]).difference(before[1]))

    def _await(self, key: Any, timers: Iterable[tuple[int, int]]) -> None:
        for each in timers:
            timer = Timer(*each)
            heappush(self._timers, (timer_place(self._vertex, timer, key), canonical(key), key, timer))

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
        if not (self._snapshots and orders):
            return
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
                changes[key] = GONE if record is None else record
        self._since = since
        return [changes] if changes else []

    def snapshot_of(self, names: Sequence[Any]) -> Mapping[Any, Any]:
        since, now = self._since, self._records
        found = ((name, since[name] if name in since else now.get(name)) for name in names)
        return {name: record for name, record in found if record is not None}

    def restore(self, states: Mapping[Any, Any]) -> None:
        self._records.update(states)
        new = [name for name in states if name not in self._named]
        self._named.update(new)
        self.names.extend(new)
        for key, (_, timers, _) in states.items():
            self._await(key, timers)


def _record(outcome: Outcome) -> Record | None:
    """Return the record that an outcome without timers leaves."""
    return None if outcome.state is None else (outcome.state, (), None)


class OrderedIntake(ReorderBuffer):
    """The barrier before an ordered operation.

    Args:
        name: Name of the operation.
        operator: The operation.
        segment: Its segment: items that wait, and timers, are in flight there.
    """

    def __init__(self, name: str, operator: OrderedOperator, segment: int) -> None:
        super().__init__(name, operator, segment, advance=False)
        self.to_store: int | None = None
        """The time that the journal is to say has passed (see `wait_for_journal`); None: it need not say more."""
        self._ordered = operator
        self._stored: bytes | None = None

    @property
    def lowest(self) -> bytes | None:
        waiting, timer = super().lowest, self._ordered.lowest
        return timer if waiting is None else waiting if timer is None else min(waiting, timer)

    def wait_for_journal(self) -> None:
        """Have timers wait until the journal says how far time has passed.

        Timers are due at times of the wall clock that no record has; a sink must hold nothing of a time that no journal
        accounts for.
        """
        self._stored = b""

    def note_stored(self, time: int) -> None:
        """Note that the journal says that time has passed to `time`."""
        if self._stored is not None:
            self._stored = max(self._stored, encode_time(time))

    def drain(self, known: bytes, most: int = maxsize) -> None:
        """Let the operation work on items and timers below an order, in a step."""
        lowest = self.lowest
        if lowest is None or lowest >= known:
            self.is_ready = False
            return
        work = self._ordered.work
        work.begin()
        try:
            passed = self._bound(known, most) or known
            if self._waiting and self._waiting[0][0] < passed:
                self._put_in(self._take(passed), final=True)
            # Timers before an item need not wait: its record's time is in the journal.
            self._ordered.on_known(passed if self._stored is None else min(passed, self._stored), most)
        finally:
            work.end()
        lowest = self.lowest
        self.is_ready = lowest is not None and lowest < known
        if self.is_ready and self._stored is not None and self._waits_for_journal(known):
            self.to_store, self.is_ready = decode_time(known), False

    def _waits_for_journal(self, known: bytes) -> bool:
        """Return whether all that could go in is timers which the journal does not account for."""
        timer, stored = self._ordered.lowest, self._stored
        assert stored is not None
        return timer is not None and timer >= stored and not (self._waiting and self._waiting[0][0] < known)
