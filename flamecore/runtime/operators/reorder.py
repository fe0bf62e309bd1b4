"""The buffer before a stateful operation, where items wait until they are sorted.

Each of several workers is ahead of the others by the items it has just read, so items that reach an operation by
several ways are unsorted. Once the minimum time inbound has passed a time, all items of that time have come, in their
only version: items below it go in sorted, and the operation has nothing to repair, on any number of workers.

Waiting costs a round of messages with the acker. So a few items may go in early, on an advance: they count as
outstanding until they are known to be right, and if one was not, its cost is charged for good. The advance grows by a
tenth of the final calls. If it cannot pay a repair, all outstanding items behind the late one are taken back at once
and wait like the rest; so no interleaving, and no user function, causes more wasted calls.

Waiting items are in flight: the worker reports them as a hand-over to itself. Outstanding items are not: their outputs
wait at the barrier, or at the next operation, for a minimum time beyond everything that might come before them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress, groupby, pairwise
from operator import itemgetter
from sys import maxsize
from typing import Any, Final

from flamecore.abc.operator import NEVER_OVER, Round, Run, StatefulOperator, each
from flamecore.model.batch import Orders, concat, interleaved, joined, materialise, sorted_together, stretches
from flamecore.model.meta import decode_time, encode_time

# Not a guess at how late items may be, in seconds or in items: with five such constants, seven
# states in a row over 1,000 records made 56,756 calls in place of 7,000. An account bounds the
# waste for every interleaving; other numbers in it change the cost, never an output.
_ADVANCE: Final = 32
_SHARE: Final = 10
"""Wasted calls are at most `_ADVANCE`, plus one for every `_SHARE` final calls."""

_CALLS: Final = 2
"""Wasted calls for an item that is taken back: the early one, and one to retract its outputs."""

_LITTLE: Final = 256
"""Most outstanding items: if more come within a round with the acker, waiting costs less than inserting late ones."""

_FINE: Final = 64
"""Size of parts below which a piece is spelled out first: that costs less than derived orders of many small parts."""

_IDENTITY: Final = itemgetter(0, 1)
_TRACE: Final = itemgetter(1)
_ALIVE: Final = itemgetter(1)
"""Part of a piece: whether its items are live."""
_LOWEST: Final = itemgetter(0)
_NUMBER: Final = itemgetter(1)

Waiting = tuple[int, bool, Orders, Sequence[Any]]
"""(trace, alive, orders, payloads): in ascending order."""


class Advance:
    """The account of items of an operation that went in early, and of their cost.

    Args:
        is_open: Whether items may go in early.

    Attributes:
        pieces: Pieces that went in early, and are not known to be right.
        outstanding: Number of their items.
        in_vain: Upper bound of the wasted calls so far.
    """

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.pieces: list[Waiting] = []
        self.outstanding = 0
        self.in_vain = 0
        self._final = 0  # number of items that went in and are final
        self._confirmed = b""  # the order below which nothing is outstanding

    def allows(self, items: int) -> bool:
        """Return whether the advance pays for repeating or undoing so many items."""
        return self.in_vain + _CALLS * items <= _ADVANCE + self._final // _SHARE

    def note(self, piece: Waiting, *, final: bool) -> None:
        """Note a piece that has gone in."""
        _, alive, orders, _ = piece
        if not alive:
            return
        if final:
            self._final += len(orders)
        else:
            self.pieces.append(piece)
            self.outstanding += len(orders)

    def confirm(self, known: bytes) -> None:
        """Count early items below an order as final."""
        if known <= self._confirmed:
            return
        self._confirmed = known
        for _, _, orders, _ in self.pieces:
            if orders[-1] >= known:
                break
        else:
            self._final += self.outstanding
            self.pieces, self.outstanding = [], 0
            return
        right, self.pieces = _parted(self.pieces, known)
        count = _live(right)
        self.outstanding -= count
        self._final += count

    def revoke(self, lowest: bytes) -> list[Waiting]:
        """Take out the pieces from an order on, which are taken back, and charge them."""
        self.pieces, back = _parted(self.pieces, lowest)
        count = _live(back)
        self.in_vain += _CALLS * count
        self.outstanding -= count
        return back

    def drop(self, trace: int, orders: Orders) -> None:
        """Take out items whose tombstones have come, and charge them."""
        gone = frozenset(orders)
        early, self.pieces = self.pieces, []
        for piece in early:
            left = [order not in gone for order in piece[2]] if piece[0] == trace else []
            if all(left):
                self.pieces.append(piece)
                continue
            count = len(left) - sum(left)
            self.outstanding -= count
            self.in_vain += count
            if count < len(left):
                self.pieces.append((trace, True, list(compress(piece[2], left)), list(compress(piece[3], left))))


# Not at once and repaired: a repair is a late item of the next state, so in a row of states the
# calls grow with the square of the records. Nor after a pause, which would be a guess: the minimum
# time says when all has come.
class ReorderBuffer:
    """The buffer before one operation of a worker.

    Args:
        name: Name of the operation.
        operator: The stateful operation.
        segment: Its segment: waiting items are in flight there, and wait for the minimum times inbound to it.
        advance: Whether items may go in early.
        turn: The rounds of the worker, of which one may end between two pieces.

    Attributes:
        work: The operation's processing of a run in order, which may be replaced by one that measures it.
    """

    def __init__(
        self, name: str, operator: StatefulOperator, segment: int, *, advance: bool = True, turn: Round = NEVER_OVER
    ) -> None:
        self.name = name
        self.segment = segment
        self.work: Run = operator.run or each(operator.step, turn)
        self._round = turn
        self.is_ready = False
        """Whether items wait only because `drain` has reached its number of items."""
        self._operator = operator
        self._waiting: list[tuple[bytes, int, Waiting]] = []  # a heap of (lowest order, arrival number, piece)
        self._count = 0  # number of waiting items, with tombstones
        self._arrivals = 0
        self._single: tuple[int, bool, list[bytes], list[object]] | None = None  # the last piece, if it may grow
        self._early = Advance(is_open=advance)
        self._passed = b""  # the greatest order that has gone in

    @property
    def in_vain(self) -> int:
        """Return an upper bound of the wasted calls so far."""
        return self._early.in_vain

    # -- input -------------------------------------------------------------------------------------------------------

    def step(self, order: bytes, trace: int, alive: bool, payload: object) -> None:
        """Buffer one item."""
        self._count += 1
        # Single items of one trace become one piece, and go in as a run: in cycles, and where copies meet again, items
        # come one by one.
        if self._single is not None:
            last_trace, last_alive, orders, payloads = self._single
            if last_trace == trace and last_alive is alive and orders[-1] < order:
                orders.append(order)
                payloads.append(payload)
                return
        self._arrivals += 1
        self._single = (trace, alive, [order], [payload])
        heappush(self._waiting, (order, self._arrivals, self._single))

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        """Buffer a run."""
        # Runs wait as they came, by their lowest order: most go in whole, and single orders are only looked at where
        # two of them overlap.
        self._count += len(orders)
        self._arrivals += 1
        self._single = None
        heappush(self._waiting, (orders[0], self._arrivals, (trace, True, orders, payloads)))

    # -- output ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return self._count

    @property
    def lowest(self) -> bytes | None:
        """Return the lowest waiting order, or None."""
        return self._waiting[0][0] if self._waiting else None

    def drain(self, known: bytes, most: int = maxsize) -> None:
        """Process items that are complete, and items that may go in early.

        Args:
            known: Encoded time below which nothing more is to come.
            most: Approximate number of items; items derived from one record go in together.
        """
        passed, early = known, self._early
        if self._waiting and self._waiting[0][0] < known:
            passed = self._bound(known, most) or known
            left = self._put_in(self._take(passed), final=True)
            # Not one repair after the other: each is a late item of the next state, so in a row of states the calls
            # would grow with the square of the records.
            if left and not self._round.is_over:
                left = self._put_in(self._take_back(left, passed), final=True)
            if self._round.is_over:  # what is left comes in the next round, and so does all that is behind it
                self._put_back(left)
                self.is_ready = True
                return
        if early.pieces:
            early.confirm(passed)
        if not self._waiting:
            self.is_ready = False
            return
        self.is_ready = self._waiting[0][0] < known
        # Early only while little waits: of much, some is certainly late, and to insert it costs
        # more than the round with the acker.
        if not self.is_ready and early.is_open and early.outstanding + self._count <= _LITTLE:
            bound = self._bound(None, most)
            left = self._put_in(self._take(bound), final=False)
            self._put_back(left)
            self.is_ready = bound is not None and not left

    def _bound(self, limit: bytes | None, most: int) -> bytes | None:
        """Return the time below which about `most` items wait, at most `limit`.

        The bound is a time, so that items derived from one record stay together.
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
                # At least all items of one time: a record of more items than `most` would otherwise
                # never go in.
                bound = encode_time(max(decode_time(orders[len(orders) - count + most]), decode_time(first) + 1))
                return bound if limit is None else min(limit, bound)
        return limit

    def _put_in(self, ready: Sequence[Waiting], *, final: bool) -> list[Waiting]:
        """Process ready items in order, as repairs if later ones were processed early.

        Returns:
            The pieces that the advance cannot pay for, or that the round does not come to.
        """
        early = self._early
        if early.pieces and ready and min([piece[2][0] for piece in ready]) <= self._passed:
            # The least order above `_passed`: an item of that very order is another version of the
            # last one, and no repair of what is behind it.
            late, ready = _parted(ready, self._passed + b"\0")
            repairs = list(_merged(late))
            for number, piece in enumerate(repairs):
                if self._round.is_over or not self._affords(piece, early.outstanding + (0 if final else len(piece[2]))):
                    return [*repairs[number:], *ready]
                self._repair(*piece)
                early.note(piece, final=final)
        count = 0 if final else early.outstanding + _live(ready)
        if not final and not early.allows(count):
            return [*ready]
        pieces = _merged(ready) if len(ready) > 1 else iter(ready)
        for piece in pieces:
            trace, alive, orders, payloads = piece
            if self._round.is_over:
                return [piece, *pieces]
            if orders[0] != self._passed:
                self._pass(trace, alive, orders, payloads)
            # Two workers may send versions of one item, and the tombstone of the first comes last. Were the second
            # free, taking the first back would make the operation work on it again, uncharged.
            elif final or self._affords(piece, count):  # another version of the last item, by another worker
                self._repair(*piece)
            else:
                return [piece, *pieces]
            self._passed = orders[-1]
            early.note(piece, final=final)
        return []

    def _affords(self, piece: Waiting, count: int) -> bool:
        """Return whether the advance pays for inserting a piece and undoing `count` items."""
        _, _, orders, payloads = piece
        again = self._operator.followers(orders, payloads)
        return self._early.allows(count + (self._early.outstanding if again is None else again))

    def _take_back(self, ready: Sequence[Waiting], known: bytes) -> list[Waiting]:
        """Undo outstanding items behind the lowest ready one; return all ready pieces.

        Outputs of earlier items may have left the job already: these items are known to be right, just not confirmed
        here.
        """
        lowest = min([orders[0] for _, _, orders, _ in ready])
        back = self._early.revoke(lowest)
        items = [
            (order, trace, payload)
            for trace, _, orders, payloads in back
            for order, payload in zip(orders, payloads, strict=True)
        ]
        items.sort(key=_IDENTITY, reverse=True)  # the last first, so that nothing is repeated
        for trace, some in groupby(items, _TRACE):
            # Within a run ascending, as runs are; from run to run descending.
            run = list(some)[::-1]
            self._undo([order for order, _, _ in run], trace, [payload for _, _, payload in run])
        self._passed = max([orders[-1] for _, _, orders, _ in self._early.pieces], default=b"")
        right, back = _parted(back, known)
        self._put_back(back)
        ready = [*right, *ready]
        return ready if all(alive for _, alive, _, _ in ready) else _without_cancelled(ready)

    def _put_back(self, pieces: Sequence[Waiting]) -> None:
        """Queue pieces again, before all waiting ones."""
        for piece in reversed(pieces):
            self._arrivals += 1
            self._count += len(piece[2])
            # Negative, so that it goes before all that came later and begins at the same order: an
            # item before its tombstone, say.
            heappush(self._waiting, (piece[2][0], -self._arrivals, piece))

    def _take(self, limit: bytes | None) -> list[Waiting]:
        """Take out the pieces below an order, or all, without cancelled items.

        They stay in the sequence in which they came.
        """
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
        # By arrival: pieces of one order must not pass each other, and a heap does not keep their
        # sequence.
        taken.sort(key=_NUMBER)
        ready = [piece for _, _, piece in taken]
        self._count -= sum([len(piece[2]) for piece in ready])
        return ready if all(alive for _, alive, _, _ in ready) else _without_cancelled(ready)

    def _repair(self, trace: int, alive: bool, orders: Orders, payloads: Sequence[object]) -> None:
        """Process a late piece, and charge the repeated calls that it causes."""
        operator = self._operator
        repeated, retracted = operator.repeated, operator.retracted
        self._pass(trace, alive, orders, payloads)
        # An operator that does not count repeats counts retracted outputs: there may be fewer or more of them.
        self._early.in_vain += (operator.repeated - repeated) or (operator.retracted - retracted)
        if not alive:
            self._early.drop(trace, orders)

    def _pass(self, trace: int, alive: bool, orders: Orders, payloads: Sequence[object]) -> None:
        if alive:
            self.work(orders, trace, payloads)
        else:
            self._undo(orders, trace, payloads)

    def _undo(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        if self._operator.undo is not None:
            self._operator.undo(orders, trace, payloads)
            return
        for order, payload in zip(orders, payloads, strict=True):
            self._operator.step(order, trace, False, payload)


def _live(pieces: Iterable[Waiting]) -> int:
    """Return the number of live items in pieces."""
    return sum([len(orders) for _, alive, orders, _ in pieces if alive])


def _parted(pieces: Sequence[Waiting], limit: bytes) -> tuple[list[Waiting], list[Waiting]]:
    """Split pieces into those below an order, and the rest."""
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
    """Yield the items of all pieces in order, in as few pieces as possible.

    Each piece has one trace. Items of one order keep the sequence in which they came, except tombstones. These go
    first: their victims have gone in already, and a new version that went in before them would be processed twice.
    """
    if len(pieces) < 2:
        yield from pieces
        return
    # Lines that two workers read in step interleave item by item. Spelling out their words' orders
    # for each change of the worker took a third of the CPU of a word count; runs that are derived
    # alike are interleaved by the lines.
    if len({piece[:2] for piece in pieces}) == 1 and _mixed(pieces):
        runs = [piece[2:] for piece in pieces]
        found = interleaved(runs)
        if found is None and stretches([orders for orders, _ in runs]) is None:
            found = sorted_together(runs)
        if found is not None:
            yield (*pieces[0][:2], *found)
            return
    pieces = sorted(pieces, key=_ALIVE)
    heads = [(orders[0], number, 0) for number, (_, _, orders, _) in enumerate(pieces)]
    heapify(heads)
    kind: tuple[int, bool] | None = None  # consecutive items of one trace go in together
    places: list[Orders] = []
    parts: list[Sequence[object]] = []
    last: tuple[list[bytes], list[object]] | None = None  # the last part, if it is a list sliced here
    while heads:
        _, number, start = heappop(heads)
        trace, alive, orders, payloads = pieces[number]
        # A piece goes in as far as the next one begins, not item by item: pieces overlap in long
        # stretches, where they overlap at all.
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
    """Return whether some pieces begin before others end."""
    ranges = sorted([(orders[0], orders[-1]) for _, _, orders, _ in pieces])
    return any(later[0] <= earlier[1] for earlier, later in pairwise(ranges))


def _without_cancelled(waiting: Sequence[Waiting]) -> list[Waiting]:
    """Return pieces without cancelled items and their tombstones, if both wait here.

    If one operation repairs its outputs repeatedly, all versions but the last stop here. Otherwise every stateful
    operation in a row would multiply them.
    """
    places: dict[tuple[bytes, int], tuple[int, int]] = {}  # places of live items
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
