"""Puts what comes to a stateful operation by several ways into the order of time, while there is much of it.

An operation takes items in any order and repairs what comes late; but a repair costs many times what an item in order
does, and where workers share the work nearly every item comes late: each is ahead of the others by what it has just
read. So what comes to an operation waits here until the calls of one step of the worker are over, and goes in sorted.
While much comes, or much comes late, only that goes in which every way has gone past; the rest waits for the ways that
are behind, but not for long, and not when the minimum time says that they have nothing. This only guesses what is still
to come: what it guesses wrong is repaired, as ever (paper 004, "prioritised queues").

What waits is in flight: the worker reports it as a hand-over to itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress
from typing import Any, Final

from flamecore.abc.operator import Run, Step
from flamecore.model.batch import Orders, concat, joined, materialise

_PATIENCE_S: Final = 0.1
"""Longest wait for a way that is behind, since anything has gone in."""

_STILL_S: Final = 0.03
"""After so long a wait, what the minimum time says is heeded too. Not before: it goes on record by record."""

_AGAIN_S: Final = 0.25
"""For so long there is waiting after too much has come late."""

_SHORT_S: Final = 0.1
"""What comes late in so short a time is counted together."""

_MUCH_PER_S: Final = 100_000
_MUCH: Final = 2_000
"""What comes in greater numbers is better waited with from the beginning: so much as is ahead of a late item is to be
looked through for it."""

_FINE: Final = 64
"""What is cut into parts as small as that is spelled out before: it costs less than to note so many."""

Waiting = tuple[int, bool, Orders, Sequence[Any]]
"""(trace, alive, orders, payloads): in ascending order."""


class Origin:
    """By which way the items come that a worker is taking in."""

    __slots__ = ("way",)

    def __init__(self) -> None:
        self.way: Hashable = None


class ReorderBuffer:
    """What waits to go into one operation.

    Args:
        step, run: The operation's own.
        origin: By which way items come now.
        segment: The operation's.
        late: So many late items a second are repaired without ado.
        ways: Those by which items may come from other workers.
        undo: The operation's own for several tombstones; None: they go in one by one.
    """

    def __init__(
        self,
        step: Step,
        run: Run,
        origin: Origin,
        segment: int,
        late: int,
        ways: Iterable[Hashable] = (),
        undo: Run | None = None,
    ) -> None:
        self.segment = segment
        self._step, self._run, self._undo, self._origin, self._late = step, run, undo, origin, late
        self._waiting: list[Waiting] = []
        self._single: tuple[list[bytes], list[Any]] | None = None  # the last of them, if it may be added to
        self._ahead: dict[Hashable, bytes] = dict.fromkeys(ways, b"")  # the greatest order that has come by each way
        self._latest = b""  # the greatest order that had come by the last step of the worker
        self._passed = b""  # the greatest order that has gone in
        self._seen = 0  # how many of what waits had come by then
        self._since = 0.0  # what waits now waits since then for a way that is behind
        self._due = 0.0
        self._tolerated = 0.0  # late items that may still come without ado
        self._bearable: float = _MUCH  # items that may still come before they are many
        self._counted = 0.0
        self._patient_until = -1.0

    # -- what comes in -----------------------------------------------------------------------------------------------

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Take one item."""
        self._note(order)
        if self._single is not None:
            last_trace, last_alive, _, _ = self._waiting[-1]
            orders, payloads = self._single
            if last_trace == trace and last_alive is alive and orders[-1] < order:
                orders.append(order)
                payloads.append(payload)
                return
        self._single = ([order], [payload])
        self._waiting.append((trace, alive, *self._single))

    def run(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Take a run."""
        self._single = None
        self._waiting.append((trace, True, orders, payloads))
        self._note(orders[-1])

    def _note(self, order: bytes) -> None:
        way = self._origin.way
        if order > self._ahead.get(way, b""):
            self._ahead[way] = order

    # -- what goes on ------------------------------------------------------------------------------------------------

    @property
    def lowest(self) -> bytes | None:
        """The lowest order that waits."""
        return min([orders[0] for _, _, orders, _ in self._waiting], default=None)

    def due(self) -> float | None:
        """When all that waits is to go in, whatever is still to come."""
        return self._due if self._waiting else None

    def drain(self, now: float, past: bytes = b"") -> None:
        """Let go in what is not to wait any longer.

        Args:
            now: A monotonic clock, in seconds.
            past: Nothing is on its way any more that is below this (encoded time), but for what is of the time before
                it, and is waiting here.
        """
        if not self._waiting:
            return
        if not self._seen:
            self._since = now
        self._count(now)
        limit = None
        if now < self._patient_until:
            limit = min(self._ahead.values(), default=None)
            if now >= self._since + _PATIENCE_S:  # whoever was waited for has nothing for this operation, or not now
                self._ahead.clear()
                limit = None
        ready = self._take(limit)
        if ready:
            self._since = now
        elif limit is not None and past > limit and now >= self._since + _STILL_S:
            ready = self._take(past)
        self._due = self._since + (_STILL_S if now < self._since + _STILL_S else _PATIENCE_S)
        if ready:
            self._put_in(ready)

    def _count(self, now: float) -> None:
        """Be patient for a while if much has come since the last step, or too much behind what came before it."""
        fresh = [orders for _, _, orders, _ in self._waiting[self._seen :]]
        late = sum([bisect_left(orders, self._latest) for orders in fresh])
        self._latest = max([self._latest, *[orders[-1] for orders in fresh]])
        passed = now - self._counted
        self._counted = now
        self._tolerated = min(self._tolerated + passed * self._late, self._late * _SHORT_S) - late
        self._bearable = min(self._bearable + passed * _MUCH_PER_S, _MUCH) - sum(map(len, fresh))
        if self._tolerated < 0 or self._bearable < 0:
            self._patient_until = now + _AGAIN_S
        self._tolerated = max(self._tolerated, 0)
        self._bearable = max(self._bearable, 0)

    def _take(self, limit: bytes | None) -> list[Waiting]:
        """What waits up to an order, or all of it."""
        waiting, self._waiting, self._single = self._waiting, [], None
        ready: list[Waiting] = waiting if limit is None else []
        if limit is not None:
            for trace, alive, orders, payloads in waiting:
                if orders[-1] <= limit:
                    ready.append((trace, alive, orders, payloads))
                    continue
                end = bisect_right(orders, limit)
                if end:
                    ready.append((trace, alive, orders[:end], payloads[:end]))
                self._waiting.append((trace, alive, orders[end:], payloads[end:]))
        self._seen = len(self._waiting)
        return ready

    def _put_in(self, ready: list[Waiting]) -> None:
        """First what is late, in as few runs as there are, since every run is a repair; then the rest, merged.

        What is of one order goes in as it came.
        """
        if not all(alive for _, alive, _, _ in ready):
            ready = _without_cancelled(ready)
        heads = []
        for number, (trace, alive, orders, payloads) in enumerate(ready):
            late = bisect_right(orders, self._passed)
            if late:
                self._pass(trace, alive, orders[:late], payloads[:late])
            if late < len(orders):
                heads.append((orders[late], number, late))
        heapify(heads)
        kind: tuple[int, bool] | None = None  # what follows straight, of one trace, goes in together
        places: list[Orders] = []
        parts: list[Sequence[Any]] = []
        last: tuple[list[bytes], list[Any]] | None = None  # of these, if they are lists that were cut out here
        while heads:
            _, number, start = heappop(heads)
            trace, alive, orders, payloads = ready[number]
            end = max(bisect_left(orders, heads[0][0], start), start + 1) if heads else len(orders)
            if end < len(orders):
                if end - start < _FINE and not type(orders) is type(payloads) is list:
                    orders, payloads = materialise(orders), payloads if type(payloads) is list else list(payloads)
                    ready[number] = (trace, alive, orders, payloads)
                heappush(heads, (orders[end], number, end))
            if kind is not None and (kind != (trace, alive) or places[-1][-1] >= orders[start]):
                self._pass(*kind, joined(places), concat(parts))
                places, parts, last = [], [], None
            kind = (trace, alive)
            if start == 0 and end == len(orders):
                places.append(orders)
                parts.append(payloads)
                last = None
                continue
            orders, payloads = orders[start:end], payloads[start:end]
            both = (orders, payloads) if type(orders) is list and type(payloads) is list else None
            if last is not None and both is not None:
                last[0].extend(both[0])
                last[1].extend(both[1])
                continue
            places.append(orders)
            parts.append(payloads)
            last = both
        if kind is not None:
            self._passed = places[-1][-1]
            self._pass(*kind, joined(places), concat(parts))

    def _pass(self, trace: int, alive: bool, orders: Orders, payloads: Sequence[Any]) -> None:
        if alive:
            self._run(orders, trace, payloads)
        elif self._undo is not None:
            self._undo(orders, trace, payloads)
        else:
            for order, payload in zip(orders, payloads, strict=True):
                self._step(order, trace, False, payload)


def _without_cancelled(waiting: Sequence[Waiting]) -> list[Waiting]:
    """What is left when tombstones have met the items they cancel, as far as these wait here too.

    Where one operation repairs and repairs again what it has sent, all versions but the last go no further. Without
    this every stateful operation in a row would multiply them.
    """
    places: dict[tuple[bytes, int], tuple[int, int]] = {}  # of live items
    gone: list[set[int]] = [set() for _ in waiting]
    for number, (trace, alive, orders, _) in enumerate(waiting):
        for at, order in enumerate(orders):
            if alive:
                places[order, trace] = (number, at)
            elif (victim := places.pop((order, trace), None)) is not None:
                gone[victim[0]].add(victim[1])
                gone[number].add(at)
    left: list[Waiting] = []
    for (trace, alive, orders, payloads), out in zip(waiting, gone, strict=True):
        if not out:
            left.append((trace, alive, orders, payloads))
        elif len(out) < len(orders):
            kept = [at not in out for at in range(len(orders))]
            left.append((trace, alive, list(compress(orders, kept)), list(compress(payloads, kept))))
    return left
