"""The barrier: the only buffer, before the rear.

Sources: paper 004, section 3.1; paper 000, "Minimal time within stream".

It holds every arriving item, drops the items that tombstones cancel, and releases in meta order everything below the
minimum time: nothing older is in flight, so no tombstone for it can come.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from operator import eq, itemgetter
from typing import Any, Final

from flamecore.abc.operator import Columns, Operator, OutputBuffer, Site, Step
from flamecore.errors import DuplicateItemError, NoInvalideeError, OrderViolationError, TimeRegressionError
from flamecore.model.batch import Orders, concat, joined
from flamecore.model.clock import global_time
from flamecore.model.meta import Meta, decode_time, encode_time
from flamecore.model.vertices import Sink

Held = tuple[bytes, bytes, Orders, int, Sequence[Any]]
"""(first order, last order, orders, trace, payloads): a run. Its ends are looked at often, and may be packed."""

_ORDER: Final = itemgetter(0)


# Not one sorted list, nor a heap of items: both look at every item, and nearly all come in order.
# Runs in order are released from the front of a queue, and only the one that the minimum time cuts
# is looked into.
class Barrier(OutputBuffer):
    """The output buffer of one sink on one worker: hold, cancel, release.

    Args:
        name: Name of the sink, for errors.
    """

    def __init__(self, name: str) -> None:
        self.sink = name
        self.released = b""
        self._runs: deque[Held] = deque()  # runs, as they came
        self._latest = b""  # the greatest order among the runs so far
        self._crossed = False  # whether runs overlap; they are then merged at release
        self._buffered: dict[bytes, tuple[int, object]] = {}  # single items: (trace, payload) by order
        # Two recomputations of one item that came by different workers may be here at once: one order, two traces. All
        # but the one in `_buffered` wait here.
        self._twins: dict[tuple[bytes, int], object] = {}
        self.step = self._compile()

    def _compile(self) -> Step:
        buffered, insert, cancel = self._buffered, self._insert_twin, self._cancel

        def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
            if alive:
                if order in buffered:
                    insert(order, trace, payload)
                else:
                    buffered[order] = (trace, payload)
            else:
                cancel(order, trace, payload)

        return step

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        """Buffer several live items of one trace, in ascending order."""
        first, last = orders[0], orders[-1]
        if first <= self._latest:
            self._crossed = True
        # The last order, not the last run's: a long run may reach beyond one that came after it.
        if last > self._latest:
            self._latest = last
        self._runs.append((first, last, orders, trace, payloads))

    def _buffer(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        for order, payload in zip(orders, payloads, strict=True):
            self.step(order, trace, True, payload)

    def _buffer_all(self) -> None:
        """Move the items of all runs to `_buffered`, where each can be found."""
        while self._runs:
            self._buffer(*self._runs.popleft()[2:])
        self._crossed = False

    def __len__(self) -> int:
        return sum(len(orders) for _, _, orders, _, _ in self._runs) + len(self._buffered) + len(self._twins)

    def _insert_twin(self, order: bytes, trace: int, payload: object) -> None:
        if self._buffered[order][0] == trace or (order, trace) in self._twins:
            raise DuplicateItemError(
                f"sink {self.sink!r}: a second live item of one identity came: {payload!r} ({Meta.decode(order)})",
                hint="A user function, key or hash on its way is not deterministic.",
                vertex=self.sink,
                record=payload,
            )
        self._twins[order, trace] = payload

    def _cancel(self, order: bytes, trace: int, payload: object) -> None:
        """Drop the victim of a tombstone.

        Raises:
            NoInvalideeError: The victim is not here.
        """
        # Only a tombstone, and a twin, need to find one item. Until one comes, runs stay what they
        # are.
        self._buffer_all()
        held = self._buffered.get(order)
        if held is not None and held[0] == trace:
            del self._buffered[order]
            for twin in self._twins:
                if twin[0] == order:
                    self._buffered[order] = (twin[1], self._twins.pop(twin))
                    break
        elif (order, trace) in self._twins:
            del self._twins[order, trace]
        else:
            raise NoInvalideeError(
                f"sink {self.sink!r}: the item that a tombstone cancels is not here: "
                f"{payload!r} ({Meta.decode(order)})",
                hint="A user function, key or hash on its way is not deterministic.",
                vertex=self.sink,
                record=payload,
            )

    def release(self, time: int) -> list[tuple[bytes, Any]]:
        """Take out the items below `time` as (order, payload), in meta order.

        Raises:
            TimeRegressionError, OrderViolationError: As `columns`.
        """
        return list(zip(*self.columns(time), strict=True))

    def columns(self, time: int) -> Columns:
        """Take out the items strictly below `time`: orders and payloads, in meta order.

        Raises:
            TimeRegressionError: `time` is below an earlier one.
            OrderViolationError: An item came too late; or two valid items have one order, and only random traces
                would tell them apart.
        """
        limit = encode_time(time)
        if limit < self.released:
            last = decode_time(self.released)
            raise TimeRegressionError(
                f"sink {self.sink!r}: release at {global_time(time)} after one at {global_time(last)}",
                hint="An acker breaks its contract: a minimum time never goes back.",
                time=time,
                limit=last,
            )
        previous, self.released = self.released, limit
        if self._buffered:
            batch = self._sorted(limit)
        else:
            batch = self._merged(limit) if self._crossed else self._in_order(limit)
        # Checked on every release, at the cost of one comparison: an output that comes too late
        # cannot be put in its place any more, and a wrong sequence must not leave.
        if batch[0] and batch[0][0] < previous:
            order, payload = batch[0][0], batch[1][0]
            raise OrderViolationError(
                f"sink {self.sink!r}: an item came after the minimum time had passed it ({Meta.decode(order)})",
                hint="An acker, a source or a user function breaks its contract.",
                vertex=self.sink,
                record=payload,
            )
        return batch

    def _in_order(self, limit: bytes) -> Columns:
        """Take out the items below `limit` from runs that do not overlap."""
        runs = self._runs
        places: list[Orders] = []
        parts: list[Sequence[object]] = []
        while runs and runs[0][0] < limit:
            _, last, orders, trace, payloads = runs.popleft()
            if last >= limit:
                end = bisect_left(orders, limit)
                runs.appendleft((orders[end], last, orders[end:], trace, payloads[end:]))
                orders, payloads = orders[:end], payloads[:end]
            places.append(orders)
            parts.append(payloads)
        return joined(places), concat(parts)

    def _merged(self, limit: bytes) -> Columns:
        """Take out the items below `limit` from runs that may overlap.

        Raises:
            DuplicateItemError: Two items have one identity.
            OrderViolationError: Two valid items have one order.
        """
        batch: list[tuple[bytes, object]] = []
        rest: deque[Held] = deque()
        self._latest, self._crossed = b"", False
        for _, last, orders, trace, payloads in self._runs:
            end = bisect_left(orders, limit) if last >= limit else len(orders)
            batch += zip(orders[:end], payloads, strict=False)
            if end < len(orders):
                first = orders[end]
                self._crossed |= first <= self._latest
                self._latest = max(self._latest, last)
                rest.append((first, last, orders[end:], trace, payloads[end:]))
        batch.sort(key=_ORDER)  # the sort detects runs, so it is a merge
        released = list(map(_ORDER, batch))
        if any(map(eq, released, released[1:])):
            self._buffer_all()  # raises if two items have one identity
            return self._sorted(limit)  # raises if two valid items have one order
        self._runs = rest
        return released, [payload for _, payload in batch]

    def _sorted(self, limit: bytes) -> Columns:
        """Take out the items below `limit`, which came in any order.

        Raises:
            OrderViolationError: Two valid items have one order.
        """
        self._buffer_all()
        buffered = self._buffered
        for order, _ in self._twins:
            if order < limit:
                raise OrderViolationError(
                    f"sink {self.sink!r}: two valid items have one order ({Meta.decode(order)})",
                    hint="A user function on their way is not deterministic.",
                    vertex=self.sink,
                    record=buffered[order][1],
                )
        orders = sorted(buffered)
        if orders[-1] < limit:
            payloads = [buffered[order][1] for order in orders]
            buffered.clear()
            return orders, payloads
        del orders[bisect_left(orders, limit) :]
        return orders, [buffered.pop(order)[1] for order in orders]


class Outlet(Operator):
    """The end of a stream without a barrier: items leave with the next flush.

    Attributes:
        items: (order, payload) of the items so far.
    """

    def __init__(self, vertex: Sink, site: Site) -> None:
        items: list[tuple[bytes, object]] = []

        def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
            items.append((order, payload))

        def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
            items.extend(zip(orders, payloads, strict=True))

        self.items, self.step, self.run = items, step, run


def sink_operator(vertex: Sink, site: Site) -> Operator:
    """Return the operator of a sink: a barrier, or an outlet without one."""
    return Barrier(vertex.name) if site.barrier else Outlet(vertex, site)
