"""A merge of the records of several fronts by time, before any of them runs.

Each front reads by itself, so one of two files is always ahead by the batch it has just read. If this batch ran at
once, records of the other file would be late for every state behind them. This worker knows the times that it may still
give. So a record waits until every other front has passed it.
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
        source: Name of the source.
        orders: Order of each record.
        values: The records; in place of a malformed one its failure, of one whose prefix has run what that has made.
        mixed: Whether anything stands in place of a record.
    """

    source: str
    orders: list[bytes]
    values: list[object]
    mixed: bool = False


class FrontMerge:
    """Records that fronts of one worker have read, and that have not run.

    Args:
        fronts: Fronts by number; all of them on one worker.
    """

    def __init__(self, fronts: Mapping[int, Front]) -> None:
        self._fronts = fronts
        self._waiting: dict[int, deque[Records]] = {number: deque() for number in fronts}
        # Two heaps of heads, not one of records: a batch is one entry, however many records it has.
        self._heads: list[tuple[bytes, int]] = []  # (order of its first record, front) of each with waiting records
        self._next: dict[int, bytes] = {}  # lower bound of the next order of each front
        self._least: list[tuple[bytes, int]] = []  # a heap of the same, with outdated entries
        self._ready: deque[Records] = deque()
        self._firsts: dict[int, bytes] = {}  # the first order of each front with ready records
        self._moved: list[int] = []
        for number in fronts:
            self.note(number)

    def add(self, number: int, records: Records) -> None:
        """Add records of a front that has just given their times."""
        waiting = self._waiting[number]
        if not waiting:
            heappush(self._heads, (records.orders[0], number))
        waiting.append(records)
        self.note(number)

    def note(self, number: int) -> None:
        """Update the next time of a front."""
        front = self._fronts[number]
        if front.moves_on:  # always past the times of the others
            self._next.pop(number, None)
            return
        order = self._next[number] = encode_time(front.promise()) + front.suffix
        # The former entry of the front stays in the heap, and is skipped when it comes to the top:
        # a heap cannot find it.
        heappush(self._least, (order, number))

    def close(self, number: int) -> None:
        """Note that a front reads no more records."""
        self._next.pop(number, None)

    def first_time(self, number: int) -> int | None:
        """Return a time below which no record of a front waits; None if none waits."""
        if self._ready and number in self._firsts:  # ready records before them may be of other fronts
            return decode_time(max(self._ready[0].orders[0], self._firsts[number]))
        waiting = self._waiting[number]
        return decode_time(waiting[0].orders[0]) if waiting else None

    def moved(self) -> list[int]:
        """Return the fronts whose `first_time` has changed since the last call."""
        if self._ready:
            return []
        moved, self._moved = self._moved, []
        return moved

    @property
    def is_ready(self) -> bool:
        """Return whether records wait that no other record can come before."""
        return bool(self._ready or (self._heads and self._is_ripe(self._limit())))

    def take(self, most: int) -> list[Records]:
        """Take out records that no other record can come before.

        Args:
            most: Most records to take.
        """
        ready = self._ready
        if not ready:
            ready.extend(merged(self._ripe()))
        taken: list[Records] = []
        while ready and most > 0:
            records = ready.popleft()
            if len(records.orders) > most:  # cut all pieces at once: the rest would be copied with each call
                starts = range(0, len(records.orders), most)
                pieces = [cut(records, start, start + most) for start in starts]
                ready.extendleft(reversed(pieces[1:]))
                records = pieces[0]
            taken.append(records)
            most -= len(records.orders)
        return taken

    def _limit(self) -> bytes | None:
        """Return the order that all fronts have passed; None: no front limits the rest."""
        least, actual = self._least, self._next
        while least and actual.get(least[0][1]) != least[0][0]:
            heappop(least)
        return least[0][0] if least else None

    def _is_ripe(self, limit: bytes | None) -> bool:
        return limit is None or self._heads[0][0] < limit

    def _ripe(self) -> list[Records]:
        """Take out the records below the limit, front by front."""
        limit, heads = self._limit(), self._heads
        ripe: list[Records] = []
        self._firsts.clear()
        # Front by front, and then merged at once: a heap entry for each record would cost several
        # comparisons more.
        while heads and self._is_ripe(limit):
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
    """Return the records in [start, stop); None: to the end."""
    source, orders, values, mixed = records
    return Records(source, orders[start:stop], values[start:stop], mixed)  # `_replace` costs more than the slices


def together(pieces: Sequence[Records]) -> Records:
    """Join consecutive records."""
    return Records(
        pieces[0].source,
        list(chain.from_iterable([piece.orders for piece in pieces])),
        list(chain.from_iterable([piece.values for piece in pieces])),
        any(piece.mixed for piece in pieces),
    )


def merged(pieces: Sequence[Records]) -> list[Records]:
    """Merge sorted pieces into as few pieces of one source each as possible.

    Args:
        pieces: One piece of each front.
    """
    if len(pieces) < 2:
        return list(pieces)
    pieces = sorted(pieces, key=lambda piece: piece.orders[0])
    mixed = any(piece.mixed for piece in pieces)
    first = pieces[0].source
    if all(piece.source == first for piece in pieces):
        # Fronts of the wall clock mostly follow each other straight, and need no merge at all.
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


def _in_rows(pieces: Sequence[Records]) -> tuple[list[bytes], list[object]]:
    """Merge pieces whose times mostly coincide, time by time.

    Fronts at one pace give such pieces. Sorting them would cost several comparisons per record.
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


def _in_order(pieces: Sequence[Records]) -> tuple[list[bytes], list[object]]:
    orders, values, places = _sorted(pieces)
    return [orders[at] for at in places], [values[at] for at in places]


def _sorted(pieces: Sequence[Records]) -> tuple[list[bytes], list[object], list[int]]:
    """Return orders and values of all pieces, and their places in sorted order."""
    orders = list(chain.from_iterable([piece.orders for piece in pieces]))
    values = list(chain.from_iterable([piece.values for piece in pieces]))
    return orders, values, sorted(range(len(orders)), key=orders.__getitem__)


def merges(graph: Graph, fronts: Mapping[int, Front]) -> dict[int, FrontMerge]:
    """Return the merge of each front that shares a state with others of its worker."""
    states = {
        source.name: frozenset(vertex for vertex in graph.reach_of(source) if vertex.stateful)
        for source in graph.sources
    }
    groups: list[tuple[set[Any], dict[int, Front]]] = []
    for number, front in fronts.items():
        reached = set(states.get(front.name.source, ()))  # none if its source is no longer in the flow
        if not reached:
            continue
        own = {number: front}
        for group in [group for group in groups if group[0] & reached]:
            groups.remove(group)
            reached |= group[0]
            own = group[1] | own
        groups.append((reached, own))
    return {number: merge for _, own in groups if len(own) > 1 for merge in [FrontMerge(own)] for number in own}
