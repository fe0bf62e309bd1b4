"""Ordered operations: items in order, once nothing can come before them.

The intake before the operator is a barrier: it holds what comes until the minimum time inbound has passed it, on one
worker too, for operations before it may take back what they have just made. So the operator repairs nothing: it keeps
the state of each key, and, for snapshots, a log of what the states were since the last settled time.

All that leaves is of one trace, the same on every worker, for it is never made again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from sys import maxsize
from typing import Any, Final

from flamecore.abc.operator import GONE, Site, StatefulOperator, Work
from flamecore.errors import NoInvalideeError, OrderViolationError
from flamecore.model.batch import Orders
from flamecore.model.hashing import check_key
from flamecore.model.meta import Meta, child_codes, decode_time
from flamecore.model.ordered import Now, Ordered
from flamecore.runtime.operators.reorder import ReorderBuffer

Record = tuple[Any, tuple[tuple[int, int, bool], ...], int | None]
"""(state, timers, hold) of a key, as it is stored."""

Log = tuple[Orders, list[Any], list[Record | None]]
"""(orders, keys, records before): what has been worked on."""

_NOTHING: Final[Record] = (None, (), None)


class OrderedOperator(StatefulOperator):
    """The operator of all ordered operations: the records of the keys, and the work on them.

    Args:
        vertex: The ordered operation.
        site: Its place on the worker.
    """

    def __init__(self, vertex: Ordered, site: Site) -> None:
        self.names = []
        self.work: Work = vertex.work()
        self._name = vertex.name
        self._key_of = vertex.route.key  # type: ignore[union-attr]  # the vertex has checked it
        self._ident, self._emit_run, self._fail = site.ident, site.emit_run, site.fail
        self._snapshots = site.snapshots
        self._records: dict[Any, Record] = {}
        self._named: set[Any] = set()
        self._log: deque[Log] = deque()  # since the last trim
        self._since: dict[Any, Record | None] = {}  # for each key worked on since the last cut, its record then
        self._passed = b""  # the last order that has gone in
        self.work.open()

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
        """Work on several items, in ascending order.

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
        self._passed = orders[-1]
        self.worked += len(orders)
        key_of, records, process = self._key_of, self._records, self.work.process
        keys: list[Any] = []
        before: list[Record | None] = []
        places: list[bytes] = []
        outputs: list[Any] = []
        for order, payload in zip(orders, payloads, strict=True):
            try:
                key = key_of(payload)
                record = records.get(key)
                if record is None:
                    check_key(key)
                state = None if record is None else record[0]
                after, results = process(key, state, payload, Now(decode_time(order)))
                found = list(results)
            except Exception as error:  # noqa: BLE001 - the failing item is the user's to see
                self._fail(order, trace, True, payload, error)
                key, record, found = None, _NOTHING, []
            else:
                if after is not None:
                    records[key] = (after, (), None)
                elif record is not None:
                    del records[key]
            keys.append(key)
            before.append(record)
            if found:
                places += map(order.__add__, child_codes(len(found)))
                outputs += found
        if self._snapshots:
            self._note(orders, keys, before)
        if outputs:
            self._emit_run(places, self._ident, outputs)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _note(self, orders: Orders, keys: list[Any], before: list[Record | None]) -> None:
        self._log.append((orders, keys, before))
        since, named = self._since, self._named
        for key, record in zip(keys, before, strict=True):
            if record is not _NOTHING and key not in since:
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
            noted = zip(reversed(keys[start:]), reversed(records[start:]), strict=True)
            since.update((key, record) for key, record in noted if record is not _NOTHING)
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


class OrderedIntake(ReorderBuffer):
    """The barrier before an ordered operation.

    Args:
        name: Name of the operation.
        operator: The operation.
        segment: Its segment.
    """

    def __init__(self, name: str, operator: OrderedOperator, segment: int) -> None:
        super().__init__(name, operator, segment, advance=False)
        self._work = operator.work

    def drain(self, known: bytes, most: int = maxsize) -> None:
        """Let the operation work on items below an order, in a step."""
        lowest = self.lowest
        if lowest is None or lowest >= known:
            return
        self._work.begin()
        try:
            super().drain(known, most)
        finally:
            self._work.end()
