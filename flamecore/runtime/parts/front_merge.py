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
from operator import attrgetter
from typing import Any, NamedTuple

from flamecore.model.batch import Orders, joined, stamped, stamped_rows
from flamecore.model.graph import Graph
from flamecore.model.meta import decode_time
from flamecore.runtime.parts.front import Front


class Span(NamedTuple):
    """Records of one front with consecutive times.

    Attributes:
        front: The front.
        first: Time of the first record.
        end: Time after the last one.
        values: The records; in place of a malformed one its failure.
        malformed: Whether there is one among them.
    """

    front: Front
    first: int
    end: int
    values: list[object]
    malformed: bool = False


class Records(NamedTuple):
    """Records of one source in the order of their times.

    Attributes:
        source: Name of the source.
        orders: Order of each record.
        values, malformed: As of a span.
    """

    source: str
    orders: Orders
    values: list[object]
    malformed: bool = False


class FrontMerge:
    """Records that fronts of one worker have read, and that have not run.

    Orders are made as records leave, for all fronts at once: few records of each of many fronts wait at a time.

    Args:
        fronts: Fronts by number; all of them on one worker.
    """

    def __init__(self, fronts: Mapping[int, Front]) -> None:
        self._fronts = fronts
        self._waiting: dict[int, list[Span]] = {number: [] for number in fronts}  # a deque would take half a KiB each
        # Two heaps of heads, not one of records: a batch is one entry, however many records it has.
        self._heads: list[tuple[int, int]] = []  # (time of its first record, front) of each with waiting records
        self._next: dict[int, int] = {}  # lower bound of the next time of each front
        self._least: list[tuple[int, int]] = []  # a heap of (the same, front), with outdated entries
        self._ready: deque[Records] = deque()
        self._taken = 0  # records of the first of these that have been taken out
        self._firsts: dict[int, int] = {}  # the first time of each front with ready records
        self._moved: list[int] = []
        for number in fronts:
            self.note(number)

    def add(self, number: int, first: int, values: list[object], *, malformed: bool = False) -> None:
        """Add records of a front that has just given their times; see `Span`."""
        waiting = self._waiting[number]
        if not waiting:
            heappush(self._heads, (first, number))
        waiting.append(Span(self._fronts[number], first, first + len(values), values, malformed))
        self.note(number)

    def note(self, number: int) -> None:
        """Update the next time of a front."""
        front = self._fronts[number]
        if front.moves_on:  # always past the times of the others
            self._next.pop(number, None)
            return
        time = self._next[number] = front.promise()
        # The former entry of the front stays in the heap, and is skipped when it comes to the top:
        # a heap cannot find it.
        heappush(self._least, (time, number))

    def close(self, number: int) -> None:
        """Note that a front reads no more records."""
        self._next.pop(number, None)

    def first_time(self, number: int) -> int | None:
        """Return a time below which no record of a front waits; None if none waits."""
        if self._ready and number in self._firsts:  # ready records before them may be of other fronts
            return max(decode_time(self._ready[0].orders[self._taken]), self._firsts[number])
        waiting = self._waiting[number]
        return waiting[0].first if waiting else None

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
            records, start = ready[0], self._taken
            end = min(start + most, len(records.orders))
            # Neither the rest is copied with each call, nor are all pieces cut at once: the first calls of a worker ask
            # for few records, and later ones would get many of these small pieces.
            self._taken = end
            if end == len(records.orders):
                ready.popleft()
                self._taken = 0
            if end - start < len(records.orders):
                source, orders, values, malformed = records
                records = Records(source, orders[start:end], values[start:end], malformed)
            taken.append(records)
            most -= end - start
        return taken

    def _limit(self) -> int | None:
        """Return the time that all fronts have passed; None: no front limits the rest."""
        least, actual = self._least, self._next
        while least and actual.get(least[0][1]) != least[0][0]:
            heappop(least)
        return least[0][0] if least else None

    # Not also records of this very time, of fronts before the one that may still give it: no minimum time passes them
    # before that one has moved on, and each turn of the event loop would cut one record off the rest of a batch.
    def _is_ripe(self, limit: int | None) -> bool:
        return limit is None or self._heads[0][0] < limit

    def _ripe(self) -> list[Span]:
        """Take out the records below the limit; consecutive ones of a front in one span."""
        limit, heads = self._limit(), self._heads
        ripe: list[Span] = []
        self._firsts.clear()
        # Front by front, and then merged at once: a heap entry for each record would cost several
        # comparisons more.
        while heads and (limit is None or heads[0][0] < limit):
            first, number = heappop(heads)
            self._firsts[number] = first
            self._moved.append(number)
            waiting = self._waiting[number]
            count = len(waiting) if limit is None else bisect_left(waiting, limit, key=attrgetter("first"))
            some, waiting[:count] = waiting[:count], ()
            if limit is not None and some[-1].end > limit:
                some[-1], late = _cut(some[-1], limit)
                waiting.insert(0, late)
            ripe += some if len(some) == 1 else _joined(some)
            if waiting:
                heappush(heads, (waiting[0].first, number))
        return ripe


def _cut(span: Span, time: int) -> tuple[Span, Span]:
    """Split a span into its records below a time, and the others."""
    front, first, end, values, malformed = span
    count = time - first
    return Span(front, first, time, values[:count], malformed), Span(front, time, end, values[count:], malformed)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of one front, contiguous ones joined."""
    breaks = [place for place in range(1, len(spans)) if spans[place - 1].end != spans[place].first]
    groups = [spans[start:stop] for start, stop in pairwise([0, *breaks, len(spans)])]
    return [_one(group) for group in groups]


def _one(spans: Sequence[Span]) -> Span:
    """Return consecutive spans of one front as one."""
    values = list(chain.from_iterable([span.values for span in spans]))
    return spans[0]._replace(end=spans[-1].end, values=values, malformed=any(span.malformed for span in spans))


def merged(spans: Sequence[Span]) -> list[Records]:
    """Merge spans into as few pieces of one source each as possible.

    Between two times at which any span begins or ends the same fronts give one record of each time. So records are
    merged by columns, and no two of them are compared: there are at most as many slices as records.
    """
    pieces: list[Records] = []
    coming = sorted(spans, key=attrgetter("first"), reverse=True)
    times = sorted({time for span in spans for time in (span.first, span.end)})
    active: list[Span] = []
    for start, stop in pairwise(times):
        active = [span for span in active if span.end > start]
        while coming and coming[-1].first == start:
            active.append(coming.pop())
        if active:
            active.sort(key=_number)
            _append(pieces, active, start, stop)
    return [_piece(source, list(some)) for source, some in groupby(pieces, attrgetter("source"))]


def _number(span: Span) -> int:
    return span.front.number


def _append(pieces: list[Records], spans: Sequence[Span], start: int, stop: int) -> None:
    """Append the records of the times in [start, stop); each span has one of each."""
    groups = [_in_rows(list(some), start, stop) for _, some in groupby(spans, _source)]
    if len(groups) == 1:
        pieces += groups
        return
    rows = stop - start
    for row in range(rows):  # sources take turns within each time
        for source, orders, values, malformed in groups:
            width = len(orders) // rows
            at = row * width
            pieces.append(Records(source, orders[at : at + width], values[at : at + width], malformed))


def _source(span: Span) -> str:
    return span.front.name.source


def _in_rows(spans: Sequence[Span], start: int, stop: int) -> Records:
    """Return records as `_append` takes them, of spans of one source."""
    columns = [span.values[start - span.first : stop - span.first] for span in spans]
    if len(spans) == 1:
        orders, values = stamped(start, stop - start, spans[0].front.suffix), columns[0]
    else:
        orders = stamped_rows(start, stop - start, [span.front.suffix for span in spans])
        values = list(chain.from_iterable(zip(*columns, strict=True)))
    return Records(_source(spans[0]), orders, values, any(span.malformed for span in spans))


def _piece(source: str, parts: Sequence[Records]) -> Records:
    """Return consecutive records of one source as one piece."""
    if len(parts) == 1:
        return parts[0]
    values = list(chain.from_iterable([part.values for part in parts]))
    return Records(source, joined([part.orders for part in parts]), values, any(part.malformed for part in parts))


def merges(graph: Graph, fronts: Mapping[int, Front]) -> dict[int, FrontMerge]:
    """Return the merge of each front that shares a state with others of its worker."""
    states = {
        source.name: frozenset(vertex for vertex in graph.reach_of(source) if vertex.stateful)
        for source in graph.sources
    }
    # By source, of which there are few: all fronts of one reach the same. The group of the last front comes last.
    fronts_of: dict[str, dict[int, Front]] = {}
    for number, front in fronts.items():
        fronts_of.setdefault(front.name.source, {})[number] = front
    groups: list[tuple[set[Any], dict[int, Front]]] = []
    for source, own in fronts_of.items():
        reached = set(states.get(source, ()))  # none if its source is no longer in the flow
        if not reached:
            continue
        for group in [group for group in groups if group[0] & reached]:
            groups.remove(group)
            reached |= group[0]
            own = group[1] | own
        groups.append((reached, own))
    places = {number: place for place, number in enumerate(fronts)}
    groups.sort(key=lambda group: max(map(places.__getitem__, group[1])))
    return {number: merge for _, own in groups if len(own) > 1 for merge in [FrontMerge(own)] for number in own}
