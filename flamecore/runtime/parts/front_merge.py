"""The records of several fronts of a worker, brought into the order of their times before any of them runs.

Each front reads by itself, so one of two files is always ahead by what it has just read. If that ran at once, what the
other file brings would be late for every state behind them. It need not be: which times are still to be given on this
worker is known here. So a record waits until every other front has gone past it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple

from flamecore.model.graph import Graph
from flamecore.model.meta import decode_time, encode_time
from flamecore.runtime.parts.front import Front


class Records(NamedTuple):
    """Records of one source in the order of their times.

    Attributes:
        source: Its name.
        orders: Of each record.
        values: The records; in the place of a malformed one, its failure, and of one whose prefix has run, what that
            has made of it.
        mixed: Whether there is something in the place of a record.
    """

    source: str
    orders: list[bytes]
    values: list[Any]
    mixed: bool = False


class FrontMerge:
    """What fronts have read and nothing of which has run.

    Args:
        fronts: By number; all of them on one worker.
    """

    def __init__(self, fronts: Mapping[int, Front]) -> None:
        self._fronts = fronts
        self._waiting: dict[int, deque[Records]] = {number: deque() for number in fronts}
        self._heads: list[tuple[bytes, int]] = []  # (order of its first record, front) of each that has some waiting
        self._next: dict[int, bytes] = {}  # below it a front gives no order any more
        self._least: list[tuple[bytes, int]] = []  # the same, least first, with some that hold no longer
        self._ready: deque[Records] = deque()
        self._firsts: dict[int, bytes] = {}  # the first order of each front that has some ready
        self._moved: list[int] = []
        for number in fronts:
            self.note(number)

    def add(self, number: int, records: Records) -> None:
        """Take records of a front, the times of which it has just given."""
        waiting = self._waiting[number]
        if not waiting:
            heappush(self._heads, (records.orders[0], number))
        waiting.append(records)
        self.note(number)

    def note(self, number: int) -> None:
        """Learn which time a front gives next."""
        front = self._fronts[number]
        if front.moves_on:  # past whatever the others have given
            self._next.pop(number, None)
            return
        order = self._next[number] = encode_time(front.promise()) + front.suffix
        heappush(self._least, (order, number))

    def close(self, number: int) -> None:
        """Learn that nothing more is read of a front."""
        self._next.pop(number, None)

    def first_time(self, number: int) -> int | None:
        """The time below which nothing of a front waits; None: nothing of it does."""
        if self._ready and number in self._firsts:  # what is before them may be of other fronts
            return decode_time(max(self._ready[0].orders[0], self._firsts[number]))
        waiting = self._waiting[number]
        return decode_time(waiting[0].orders[0]) if waiting else None

    def moved(self) -> list[int]:
        """Return the fronts of which `first_time` has become another since the last call."""
        if self._ready:
            return []
        moved, self._moved = self._moved, []
        return moved

    @property
    def is_ready(self) -> bool:
        """Whether there are records that wait only because enough have been taken."""
        return bool(self._ready)

    def take(self, most: int) -> list[Records]:
        """Take out records that nothing can come before any more.

        Args:
            most: How many, at most.
        """
        ready = self._ready
        if not ready:
            ready.extend(merged(self._ripe()))
        taken: list[Records] = []
        while ready and most > 0:
            records = ready.popleft()
            if len(records.orders) > most:  # cut all of it, once: what is left would be copied again with each call
                starts = range(0, len(records.orders), most)
                pieces = [cut(records, start, start + most) for start in starts]
                ready.extendleft(reversed(pieces[1:]))
                records = pieces[0]
            taken.append(records)
            most -= len(records.orders)
        return taken

    def _limit(self) -> bytes | None:
        """The order that all fronts have gone past; None: nothing more is to come that is not after all that waits."""
        least, actual = self._least, self._next
        while least and actual.get(least[0][1]) != least[0][0]:
            heappop(least)
        return least[0][0] if least else None

    def _ripe(self) -> list[Records]:
        """Take what is below the limit, front by front."""
        limit, heads = self._limit(), self._heads
        ripe: list[Records] = []
        self._firsts.clear()
        while heads and (limit is None or heads[0][0] < limit):
            first, number = heappop(heads)
            self._firsts[number] = first
            self._moved.append(number)
            waiting = self._waiting[number]
            some: list[Records] = []
            while waiting:
                records = waiting.popleft()
                end = len(records.orders) if limit is None else bisect_left(records.orders, limit)
                if end < len(records.orders):
                    waiting.appendleft(cut(records, end, None))
                    heappush(heads, (records.orders[end], number))
                    if end:
                        some.append(cut(records, 0, end))
                    break
                some.append(records)
            ripe.append(some[0] if len(some) == 1 else together(some))
        return ripe


def cut(records: Records, start: int, stop: int | None) -> Records:
    """Return the records from one place to another; None: to the end."""
    return records._replace(orders=records.orders[start:stop], values=records.values[start:stop])


def together(pieces: Sequence[Records]) -> Records:
    """Join records that follow straight on each other."""
    return Records(
        pieces[0].source,
        list(chain.from_iterable([piece.orders for piece in pieces])),
        list(chain.from_iterable([piece.values for piece in pieces])),
        any(piece.mixed for piece in pieces),
    )


def merged(pieces: Sequence[Records]) -> list[Records]:
    """Merge records that are in order, piece by piece, into as few pieces as there can be of one source each.

    Args:
        pieces: One of each front.
    """
    if len(pieces) < 2:
        return list(pieces)
    pieces = sorted(pieces, key=lambda piece: piece.orders[0])
    mixed = any(piece.mixed for piece in pieces)
    first = pieces[0].source
    if all(piece.source == first for piece in pieces):
        if all(earlier.orders[-1] < later.orders[0] for earlier, later in pairwise(pieces)):
            return [together(pieces)]
        return [Records(first, *_in_rows(pieces), mixed)]
    orders, values, places = _sorted(pieces)
    sources = [piece.source for piece in pieces for _ in piece.orders]
    result = []
    for source, some in groupby(places, sources.__getitem__):
        run = list(some)
        result.append(Records(source, [orders[at] for at in run], [values[at] for at in run], mixed))
    return result


def _in_rows(pieces: Sequence[Records]) -> tuple[list[bytes], list[Any]]:
    """Merge pieces that are of the same times, mostly, as fronts at one pace give them: time by time.

    To sort so many pieces would cost several comparisons a record.
    """
    firsts = [decode_time(piece.orders[0]) for piece in pieces]
    lasts = [decode_time(piece.orders[-1]) for piece in pieces]
    low, high = max(firsts), min(lasts) + 1
    gaps = any(last - first >= len(piece.orders) for piece, first, last in zip(pieces, firsts, lasts, strict=True))
    if gaps or high <= low:
        return _in_order(pieces)
    rows = [cut(piece, low - first, high - first) for piece, first in zip(pieces, firsts, strict=True)]
    rows.sort(key=lambda row: row.orders[0])
    ends = zip(pieces, firsts, lasts, strict=True)
    before, after = [], []
    for piece, first, last in ends:
        if first < low:
            before.append(cut(piece, 0, low - first))
        if last >= high:
            after.append(cut(piece, high - first, None))
    orders, values = _in_order(before)
    orders.extend(chain.from_iterable(zip(*[row.orders for row in rows], strict=True)))
    values.extend(chain.from_iterable(zip(*[row.values for row in rows], strict=True)))
    late_orders, late_values = _in_order(after)
    return orders + late_orders, values + late_values


def _in_order(pieces: Sequence[Records]) -> tuple[list[bytes], list[Any]]:
    orders, values, places = _sorted(pieces)
    return [orders[at] for at in places], [values[at] for at in places]


def _sorted(pieces: Sequence[Records]) -> tuple[list[bytes], list[Any], list[int]]:
    """Return orders and values of all pieces, and their places in order."""
    orders = list(chain.from_iterable([piece.orders for piece in pieces]))
    values = list(chain.from_iterable([piece.values for piece in pieces]))
    return orders, values, sorted(range(len(orders)), key=orders.__getitem__)


def merges(graph: Graph, fronts: Mapping[int, Front]) -> dict[int, FrontMerge]:
    """Return, for each front that shares a state with another one of its worker, what merges them."""
    states = {
        source.name: frozenset(vertex for vertex in graph.reach_of(source) if vertex.stateful)
        for source in graph.sources
    }
    groups: list[tuple[set[Any], dict[int, Front]]] = []
    for number, front in fronts.items():
        reached = set(states.get(front.name.source, ()))  # nowhere: its source is in the flow no more
        if not reached:
            continue
        own = {number: front}
        for group in [group for group in groups if group[0] & reached]:
            groups.remove(group)
            reached |= group[0]
            own = group[1] | own
        groups.append((reached, own))
    return {number: merge for _, own in groups if len(own) > 1 for merge in [FrontMerge(own)] for number in own}
