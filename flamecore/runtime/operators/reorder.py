"""The room before a stateful operation, where items wait until nothing can come before them any more.

Where workers share the work each is ahead of the others by what it has just read, so what comes to an operation by
several ways is in no order. Once the minimum time inbound has passed a time, all of that time has come, and in its only
version: what waits below it goes in sorted, and the operation has nothing to repair, on any number of workers.

To wait costs a round of messages with the acker. So what waits may go in early, while it is little, on an advance: it
counts as outstanding until it is known to be right, and if it was not, what it cost is charged for good. The advance
grows by a tenth of the calls that are final. When it cannot pay a repair, all that is outstanding behind the late item
is taken back at once and waits like the rest; so no interleaving, and no function of the user, causes more calls in
vain.

What waits is in flight: the worker reports it as a hand-over to itself. What is outstanding is not: its outputs wait at
the barrier, or at the next operation, for a minimum time that has passed whatever might come before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress, groupby, pairwise
from operator import itemgetter
from sys import maxsize
from typing import Any, Final

from flamecore.abc.operator import Run, StatefulOperator, each
from flamecore.model.batch import Orders, concat, interleaved, joined, materialise
from flamecore.model.meta import decode_time, encode_time

_ADVANCE: Final = 32
_SHARE: Final = 10
"""Calls in vain are fewer than these, and one for each so many that were needed."""

_CALLS: Final = 2
"""Calls in vain for an item that is taken back: the one that was early, and one for what its outputs were."""

_LITTLE: Final = 256
"""No more items than these are outstanding: where more come in the time that it takes to know, waiting costs less than
it does to put late ones among them."""

_FINE: Final = 64
"""What is cut into parts as small as that is spelled out before: it costs less than to note so many."""

_IDENTITY: Final = itemgetter(0, 1)
_TRACE: Final = itemgetter(1)
_ALIVE: Final = itemgetter(1)
"""Part of a piece: whether its items are live."""
_LOWEST: Final = itemgetter(0)
_NUMBER: Final = itemgetter(1)

Waiting = tuple[int, bool, Orders, Sequence[Any]]
"""(trace, alive, orders, payloads): in ascending order."""


class ReorderBuffer:
    """What waits to go into one operation of a worker.

    Args:
        name: That of the operation.
        operator: The operation, a stateful one.
        segment: Its own: what waits is in flight there, and waits for the minimum times inbound to it.
        advance: Whether items may go in early.
    """

    def __init__(self, name: str, operator: StatefulOperator, segment: int, *, advance: bool = True) -> None:
        self.name = name
        self.segment = segment
        self.in_vain = 0
        """Calls that were made in vain, at most."""
        self.is_ready = False
        """True if something waits only because enough has gone in at once."""
        self._operator, self._advance = operator, advance
        self._run: Run = operator.run or each(operator.step)
        self._waiting: list[tuple[bytes, int, Waiting]] = []  # a heap of (lowest order, number of arrival, piece)
        self._count = 0  # how many items that are, tombstones too
        self._arrivals = 0
        self._backs = 0  # how many pieces have come back
        self._single: tuple[int, bool, list[bytes], list[Any]] | None = None  # the last, if it may be added to
        self._early: list[Waiting] = []  # what has gone in and is not known to be right
        self._outstanding = 0  # how many items that are
        self._final = 0  # how many have gone in that are
        self._passed = b""  # the greatest order that has gone in

    # -- what comes in -----------------------------------------------------------------------------------------------

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Take one item."""
        self._count += 1
        if self._single is not None:
            last_trace, last_alive, orders, payloads = self._single
            if last_trace == trace and last_alive is alive and orders[-1] < order:
                orders.append(order)
                payloads.append(payload)
                return
        self._arrivals += 1
        self._single = (trace, alive, [order], [payload])
        heappush(self._waiting, (order, self._arrivals, self._single))

    def run(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Take a run."""
        self._count += len(orders)
        self._arrivals += 1
        self._single = None
        heappush(self._waiting, (orders[0], self._arrivals, (trace, True, orders, payloads)))

    # -- what goes on ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._count

    @property
    def lowest(self) -> bytes | None:
        """The lowest order that waits."""
        return self._waiting[0][0] if self._waiting else None

    def drain(self, known: bytes, most: int = maxsize) -> None:
        """Let go in what nothing can come before any more, and what may go in early.

        Args:
            known: Nothing below it (encoded time) is to come any more.
            most: How many items, about: what is made of one record goes in together.
        """
        passed = known
        if self._waiting and self._waiting[0][0] < known:
            passed = self._bound(known, most) or known
            left = self._put_in(self._take(passed), final=True)
            if left:
                self._put_in(self._take_back(left, passed), final=True)
        if self._early:
            self._confirm(passed)
        self.is_ready = bool(self._waiting) and self._waiting[0][0] < known
        if self._waiting and not self.is_ready and self._advance and self._outstanding + self._count <= _LITTLE:
            bound = self._bound(None, most)
            left = self._put_in(self._take(bound), final=False)
            self._put_back(left)
            self.is_ready = bound is not None and not left

    def _bound(self, limit: bytes | None, most: int) -> bytes | None:
        """Return the order below which about so many items wait, and below a limit; the limit if no more do.

        It is a time, so that what is made of a record is not parted.
        """
        if self._count <= most:
            return limit
        first = self._waiting[0][0]
        count = 0
        for lowest, _, (_, _, orders, _) in sorted(self._waiting, key=_LOWEST):
            if limit is not None and lowest >= limit:
                break
            count += len(orders)
            if count > most:  # the first that does not fit
                bound = encode_time(max(decode_time(orders[len(orders) - count + most]), decode_time(first) + 1))
                return bound if limit is None else min(limit, bound)
        return limit

    def _put_in(self, ready: Sequence[Waiting], *, final: bool) -> list[Waiting]:
        """Let go in what is ready, sorted; what is behind something that is in already has that repaired.

        Returns:
            What the advance is not enough for.
        """
        if self._early:
            late, ready = _parted(ready, self._passed + b"\0")
            repairs = list(_merged(late))
            for number, piece in enumerate(repairs):
                if not self._affords(piece, self._outstanding + (0 if final else len(piece[2]))):
                    return [*repairs[number:], *ready]
                self._repair(*piece)
                self._note(piece, final=final)
        count = 0 if final else self._outstanding + _live(ready)
        if not final and not self._allows(count):
            return [*ready]
        pieces = _merged(ready)
        for piece in pieces:
            trace, alive, orders, payloads = piece
            if orders[0] != self._passed:
                self._pass(trace, alive, orders, payloads)
            elif final or self._affords(piece, count):  # another version of what has just gone in: by another worker
                self._repair(*piece)
            else:
                return [piece, *pieces]
            self._passed = orders[-1]
            self._note(piece, final=final)
        return []

    def _affords(self, piece: Waiting, count: int) -> bool:
        """Return whether the advance is enough to put a piece among what is in, and to take back `count` items."""
        _, _, orders, payloads = piece
        again = self._operator.followers(orders, payloads)
        return self._allows(count + (self._outstanding if again is None else again))

    def _note(self, piece: Waiting, *, final: bool) -> None:
        _, alive, orders, _ = piece
        if not alive:
            return
        if final:
            self._final += len(orders)
        else:
            self._early.append(piece)
            self._outstanding += len(orders)

    def _allows(self, items: int) -> bool:
        """Return whether the advance is enough to work again on so many, or to take them back."""
        return self.in_vain + _CALLS * items <= _ADVANCE + self._final // _SHARE

    def _confirm(self, known: bytes) -> None:
        """Note that what is early and below an order has proved right."""
        right, self._early = _parted(self._early, known)
        self._outstanding -= _live(right)
        self._final += _live(right)

    def _take_back(self, ready: Sequence[Waiting], known: bytes) -> list[Waiting]:
        """Take out of the operation what is outstanding and behind any of what is ready; returns what is ready then.

        What is before that may have left the job already: it is known to be right, only not here yet.
        """
        lowest = min([orders[0] for _, _, orders, _ in ready])
        self._early, back = _parted(self._early, lowest)
        items = [
            (order, trace, payload)
            for trace, _, orders, payloads in back
            for order, payload in zip(orders, payloads, strict=True)
        ]
        items.sort(key=_IDENTITY, reverse=True)  # the last first, so that nothing is worked on again
        for trace, some in groupby(items, _TRACE):
            run = list(some)[::-1]
            self._undo([order for order, _, _ in run], trace, [payload for _, _, payload in run])
        self.in_vain += _CALLS * len(items)
        self._outstanding -= len(items)
        self._passed = max([orders[-1] for _, _, orders, _ in self._early], default=b"")
        right, back = _parted(back, known)
        self._put_back(back)
        ready = [*right, *ready]
        return ready if all(alive for _, alive, _, _ in ready) else _without_cancelled(ready)

    def _put_back(self, pieces: Sequence[Waiting]) -> None:
        """Let pieces wait that have come before all that waits."""
        for piece in reversed(pieces):
            self._backs += 1
            self._count += len(piece[2])
            heappush(self._waiting, (piece[2][0], -self._backs, piece))

    def _take(self, limit: bytes | None) -> list[Waiting]:
        """Take out what waits below an order, or all of it, as it came, but for what tombstones have met."""
        self._single = None
        waiting = self._waiting
        if limit is None:
            taken, self._waiting = waiting, []
        else:
            taken = []
            while waiting and waiting[0][0] < limit:
                lowest, number, piece = heappop(waiting)
                trace, alive, orders, payloads = piece
                if orders[-1] >= limit:
                    end = bisect_left(orders, limit)
                    heappush(waiting, (orders[end], number, (trace, alive, orders[end:], payloads[end:])))
                    piece = (trace, alive, orders[:end], payloads[:end])
                taken.append((lowest, number, piece))
        taken.sort(key=_NUMBER)
        ready = [piece for _, _, piece in taken]
        self._count -= sum([len(piece[2]) for piece in ready])
        return ready if all(alive for _, alive, _, _ in ready) else _without_cancelled(ready)

    def _repair(self, trace: int, alive: bool, orders: Orders, payloads: Sequence[Any]) -> None:
        """Put in what is late, and charge what it makes the operation do again."""
        operator = self._operator
        repeated, retracted = operator.repeated, operator.retracted
        self._pass(trace, alive, orders, payloads)
        # Where it does not count what it repeats, its outputs tell: they may be fewer than the calls, or more.
        self.in_vain += (operator.repeated - repeated) or (operator.retracted - retracted)
        if not alive:
            self._drop(trace, orders)

    def _drop(self, trace: int, orders: Orders) -> None:
        """What is of these identities is no longer outstanding: its tombstone has come."""
        gone = frozenset(orders)
        early, self._early = self._early, []
        for piece in early:
            left = [order not in gone for order in piece[2]] if piece[0] == trace else []
            if all(left):
                self._early.append(piece)
                continue
            count = len(left) - sum(left)
            self._outstanding -= count
            self.in_vain += count
            if count < len(left):
                self._early.append((trace, True, list(compress(piece[2], left)), list(compress(piece[3], left))))

    def _pass(self, trace: int, alive: bool, orders: Orders, payloads: Sequence[Any]) -> None:
        if alive:
            self._run(orders, trace, payloads)
        else:
            self._undo(orders, trace, payloads)

    def _undo(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        if self._operator.undo is not None:
            self._operator.undo(orders, trace, payloads)
            return
        for order, payload in zip(orders, payloads, strict=True):
            self._operator.step(order, trace, False, payload)


def _live(pieces: Iterable[Waiting]) -> int:
    """Return how many live items there are."""
    return sum([len(orders) for _, alive, orders, _ in pieces if alive])


def _parted(pieces: Sequence[Waiting], limit: bytes) -> tuple[list[Waiting], list[Waiting]]:
    """Return what is below an order, and the rest."""
    below: list[Waiting] = []
    rest: list[Waiting] = []
    for piece in pieces:
        trace, alive, orders, payloads = piece
        end = bisect_left(orders, limit)
        if end == len(orders):
            below.append(piece)
        elif end == 0:
            rest.append(piece)
        else:
            below.append((trace, alive, orders[:end], payloads[:end]))
            rest.append((trace, alive, orders[end:], payloads[end:]))
    return below, rest


def _merged(pieces: Sequence[Waiting]) -> Iterator[Waiting]:
    """Yield the items of pieces in the order of all, in as few pieces as there can be of one trace each.

    What is of one order stays in the sequence in which it came, but for tombstones. They go first: what they cancel is
    in already, and another version that went in before would be worked on twice.
    """
    if len(pieces) < 2:
        yield from pieces
        return
    if len({piece[:2] for piece in pieces}) == 1 and _mixed(pieces):
        found = interleaved([piece[2:] for piece in pieces])
        if found is not None:
            yield (*pieces[0][:2], *found)
            return
    pieces = sorted(pieces, key=_ALIVE)
    heads = [(orders[0], number, 0) for number, (_, _, orders, _) in enumerate(pieces)]
    heapify(heads)
    kind: tuple[int, bool] | None = None  # what follows straight, of one trace, goes in together
    places: list[Orders] = []
    parts: list[Sequence[Any]] = []
    last: tuple[list[bytes], list[Any]] | None = None  # of these, if they are lists that were cut out here
    while heads:
        _, number, start = heappop(heads)
        trace, alive, orders, payloads = pieces[number]
        end = max(bisect_left(orders, heads[0][0], start), start + 1) if heads else len(orders)
        if end < len(orders):
            if end - start < _FINE and not type(orders) is type(payloads) is list:
                orders, payloads = materialise(orders), payloads if type(payloads) is list else list(payloads)
                pieces[number] = (trace, alive, orders, payloads)
            heappush(heads, (orders[end], number, end))
        if kind is not None and (kind != (trace, alive) or places[-1][-1] >= orders[start]):
            yield (*kind, joined(places), concat(parts))
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
        yield (*kind, joined(places), concat(parts))


def _mixed(pieces: Sequence[Waiting]) -> bool:
    """Return whether some of them begin before others end."""
    ranges = sorted([(orders[0], orders[-1]) for _, _, orders, _ in pieces])
    return any(later[0] <= earlier[1] for earlier, later in pairwise(ranges))


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
