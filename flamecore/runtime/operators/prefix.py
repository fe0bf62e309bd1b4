"""The prefix of a source, run ahead of the workers.

It computes the result of each record, which a worker takes on. A prefix needs nothing but its record: no state, no
other record, no time. So it may run wherever the records are read, by the same compiled maps, and what comes out enters
behind it, with the orders that it would have there.

Nothing is known here of failures: a record that a function fails on is left to the worker, which fails on it as it
would have without this, with the same words, at the same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, groupby
from typing import Any, Final, NamedTuple

from flamecore.abc.operator import Run
from flamecore.model.batch import Note, Orders, children, extended, joined, materialise, pack
from flamecore.model.graph import Graph
from flamecore.model.plan import Plan
from flamecore.model.vertices import Source
from flamecore.runtime.operators.map import map_run
from flamecore.runtime.operators.strict import strict_vertex

_PLACE: Final = 4
"""Bytes of a record's place in its block: the orders of what comes of it begin with them."""

_LONG: Final = 4096
"""Outputs are sent on when there are more, as maps do."""


class Ahead(NamedTuple):
    """The result of the prefix for one record.

    Attributes:
        bases: Beginnings of orders, behind the order of the record.
        counts: Number of outputs of each of them; None: one, without a child id.
        first, tail: See `flamecore.model.batch.DerivedOrders`.
        payloads: The outputs.
    """

    bases: Sequence[bytes]
    counts: Sequence[int] | None
    first: int
    tail: bytes
    payloads: Sequence[object]


_NOTHING: Final = Ahead((), None, 0, b"", ())

Block = tuple[int, list[int], Note, list[object]]
"""The result of the prefix for consecutive records: their number, the places of those that it leaves to the worker, and
the orders and payloads that come of the others."""


class PrefixRun:
    """The prefix of a source, compiled to run on its own.

    All records meet functions that check their results. A record whose result is no good is left to the worker, which
    knows whether it is one of the first, whose results are checked.

    Args:
        graph: The checked graph.
        source: One of its sources, with a prefix.
    """

    def __init__(self, graph: Graph, source: Source) -> None:
        plan = Plan(graph, ())
        self._orders: list[Orders] = []
        self._payloads: list[Sequence[object]] = []
        self._failed: set[int] = set()
        self._run: Run = self._take
        for vertex in reversed(graph.prefix_of(source)):
            strict: Any = strict_vertex(vertex, plan)
            # Ident 0: the trace of what comes out is the worker's, which knows the idents of the
            # prefix.
            self._run = map_run(strict, 0, self._run, self._fail)

    def _take(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        self._orders.append(orders)
        self._payloads.append(payloads)

    def _fail(self, order: bytes, trace: int, alive: bool, payload: object, error: Exception) -> None:
        self._failed.add(_place_of(order))

    def block(self, values: Sequence[object], places: Sequence[int], count: int) -> Block:
        """Run the prefix for records.

        Args:
            values: The records.
            places: The place of each of them in the block, ascending.
            count: Number of places; those without a record are left to the worker.
        """
        self._orders, self._payloads, self._failed = [], [], set()
        try:
            if values:
                self._run([place.to_bytes(_PLACE, "big") for place in places], 0, values)
        # Nothing else is caught: a function that fails on a record has reached `_fail`, and a
        # mistake here must not pass for one of the flow.
        except (SystemExit, KeyboardInterrupt):  # which end a job: the worker says so
            return count, list(range(count)), pack([]), []
        orders, payloads = joined(self._orders), list(chain.from_iterable(self._payloads))
        if self._failed:
            orders = materialise(orders)
            good = [_place_of(order) not in self._failed for order in orders]
            orders, payloads = list(compress(orders, good)), list(compress(payloads, good))
        left = self._failed | set(range(count)).difference(places)
        return count, sorted(left), pack(orders), payloads


def _place_of(order: bytes) -> int:
    return int.from_bytes(order[:_PLACE], "big")


def records_of(block: Block) -> list[Ahead | None]:
    """Return the result of each record of a block; None: it is left to the worker."""
    count, left, (bases, counts, first, tail), payloads = block
    found: list[Ahead | None] = [_NOTHING] * count
    ends = accumulate(counts) if counts is not None else range(1, len(bases) + 1)
    start = at = 0
    place, run = -1, 0  # of the record that is being put together, and where its bases begin
    for number, (base, end) in enumerate(zip(bases, ends, strict=True)):
        now = int.from_bytes(base[:_PLACE])
        if now != place:
            if place >= 0:
                # Without the place in the block: the worker puts the order of the record before it.
                some = [base[_PLACE:] for base in bases[run:number]]
                found[place] = Ahead(some, counts and counts[run:number], first, tail, payloads[start:at])
            place, run, start = now, number, at
        at = end
    if place >= 0:
        some = [base[_PLACE:] for base in bases[run:]]
        found[place] = Ahead(some, counts and counts[run:], first, tail, payloads[start:])
    for place in left:
        found[place] = None
    return found


def runs_of(records: Iterable[tuple[bytes, Ahead]]) -> Iterator[tuple[Orders, list[object]]]:
    """Yield the items that enter behind the prefix, in runs: orders and payloads.

    Args:
        records: The order of each record, and what has come of it; in ascending order.
    """
    # Records from which nothing comes would cut the runs of the others.
    filled = (record for record in records if record[1].payloads)
    for (counted, first, tail), some in groupby(filled, key=_form):
        bases: list[bytes] = []
        counts: list[int] = []
        payloads: list[object] = []
        for order, ahead in some:
            bases += [order + base for base in ahead.bases]
            counts += ahead.counts or ()
            payloads += ahead.payloads
            if len(payloads) > _LONG:
                yield children(bases, counts, first, tail) if counted else extended(bases, tail), payloads
                bases, counts, payloads = [], [], []
        if payloads:
            yield children(bases, counts, first, tail) if counted else extended(bases, tail), payloads


def _form(record: tuple[bytes, Ahead]) -> tuple[bool, int, bytes]:
    ahead = record[1]
    return ahead.counts is not None, ahead.first, ahead.tail
