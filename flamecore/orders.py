"""Orders of a run that were made of others: noted as these, and spelled out only where somebody looks at each.

A function that makes ten words of a line makes ten orders of one: the line's, and a child id behind it. While items go
in order nobody asks for a single one of them: an operation wants to know where the run begins and ends, the barrier
what of it is below a time. So the line's order and the number of its words say it all, here and on the way to another
process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, compress
from typing import Final, overload

from flamecore.meta import child_codes, encode_child

Orders = Sequence[bytes]
"""Those of a run, ascending."""

Note = tuple[list[bytes], list[int] | None, int, bytes]
"""What orders are noted as: arguments of `Derived`."""

_MOST: Final = 2**32
"""Largest child id that a note may begin with."""

_FEW: Final = 32
"""So many are spelled out at once: that takes no longer than to note them."""

_LONG: Final = 128
"""Bytes of what is noted once and stands in many: of more, orders are spelled out, so that a small message does not
stand for a great deal. Only going round a cycle makes them so long."""


class Derived(Sequence[bytes]):
    """Orders made of others. Equal to any sequence of the same ones.

    Args:
        bases: The others, spelled out.
        counts: How many are made of each of them, at least one: to each a child id is appended, in their order. None:
            one is made of each, without a child id.
        first: The child id of the first.
        tail: What follows in all of them.
    """

    __slots__ = ("_ends", "_spelled", "bases", "counts", "first", "tail")

    def __init__(self, bases: Orders, counts: Sequence[int] | None, first: int = 0, tail: bytes = b"") -> None:
        self.bases, self.counts, self.first, self.tail = bases, counts, first, tail
        self._ends = None if counts is None else list(accumulate(counts))
        self._spelled: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.bases) if self._ends is None else self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Orders: ...

    def __getitem__(self, index: int | slice) -> bytes | Orders:
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        if self._spelled is not None:
            return self._spelled[index]
        if self.counts is None or self._ends is None:
            return self.bases[index] + self.tail
        length = self._ends[-1]
        place = index if index >= 0 else length + index
        if not 0 <= place < length:
            raise IndexError(index)
        at = bisect_right(self._ends, place)
        number = place - self._ends[at] + self.counts[at]
        return self.bases[at] + encode_child(self.first + number) + self.tail

    def _part(self, start: int, stop: int, step: int) -> Orders:
        """A part that begins and ends between two of the others is noted as these, any other one is spelled out."""
        if step == 1 and start >= stop:
            return []
        if step == 1 and self._spelled is None:
            if stop - start == len(self):
                return self
            if self._ends is None or self.counts is None:
                return Derived(self.bases[start:stop], None, self.first, self.tail)
            low, high = bisect_right(self._ends, start), bisect_right(self._ends, stop - 1) + 1
            if self._ends[low] - self.counts[low] == start and self._ends[high - 1] == stop:
                return Derived(self.bases[low:high], self.counts[low:high], self.first, self.tail)
        return self.spelled()[start:stop:step]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.spelled())

    def spelled(self) -> list[bytes]:
        """Each of them. They are kept: who has looked once may look again. Not to be changed."""
        if self._spelled is None:
            if self.counts is None:
                tail = self.tail
                self._spelled = [base + tail for base in self.bases]
            else:
                ends = {count: self._codes(count) for count in set(self.counts)}
                parts = zip(self.bases, map(ends.__getitem__, self.counts), strict=True)
                self._spelled = [base + end for base, codes in parts for end in codes]
        return self._spelled

    def _codes(self, count: int) -> list[bytes]:
        return [encode_child(number) + self.tail for number in range(self.first, self.first + count)]

    def __eq__(self, other: object) -> bool:
        return self.spelled() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(self.spelled())


def children(bases: Orders, counts: Sequence[int], first: int = 0, tail: bytes = b"") -> Orders:
    """The orders of what comes of some items. Arguments as for `Derived`; the others may be derived themselves."""
    if len(bases) <= _FEW and sum(counts) <= _FEW:
        parts = zip(bases, counts, strict=True)
        return [base + code + tail for base, count in parts for code in child_codes(first + count)[first:]]
    orders = Derived(spelled(bases), counts, first, tail)
    return orders.spelled() if _is_long(orders) else orders


def extended(orders: Orders, code: bytes) -> Orders:
    """The same orders, each with a code behind it."""
    if type(orders) is Derived and len(orders.tail) + len(code) <= _LONG:
        return Derived(orders.bases, orders.counts, orders.first, orders.tail + code)
    if len(orders) <= _FEW or len(code) > _LONG:
        return [order + code for order in orders]
    return Derived(spelled(orders), None, 0, code)


def selected(orders: Orders, selectors: Sequence[object]) -> Orders:
    """Those of which the selector holds."""
    if type(orders) is Derived and orders.counts is None:
        return Derived(list(compress(orders.bases, selectors)), None, orders.first, orders.tail)
    return list(compress(orders, selectors))


def joined(parts: Sequence[Orders]) -> Orders:
    """The orders of several runs, one after the other. Those that were made alike of others stay noted as these."""
    if len(parts) < 2:  # by far the most frequent
        return parts[0] if parts else []
    alike = [part for part in parts if type(part) is Derived] if type(parts[0]) is Derived else []
    if len(alike) == len(parts):
        bases = list(chain.from_iterable([part.bases for part in alike]))
        counts = [part.counts for part in alike if part.counts is not None]
        if len({(part.first, part.tail) for part in alike}) == 1 and len(counts) in (0, len(alike)):
            return Derived(bases, list(chain.from_iterable(counts)) if counts else None, alike[0].first, alike[0].tail)
    together: list[bytes] = []
    for part in parts:  # lists are copied as they lie there
        together += part
    return together


def spelled(orders: Orders) -> Orders:
    """The same orders, each of them spelled out. Not to be changed."""
    return orders.spelled() if type(orders) is Derived else orders


def noted(orders: Orders) -> Note:
    """What is to be written down of orders: plain values, that `made` makes them of again."""
    if type(orders) is Derived:
        counts = None if orders.counts is None else list(orders.counts)
        return list(orders.bases), counts, orders.first, orders.tail
    return orders if type(orders) is list else list(orders), None, 0, b""


def made(note: Note) -> Orders:
    """The orders that a note is of. Takes no more room than the note, whatever that claims.

    Raises:
        ValueError: There are none such.
    """
    bases, counts, first, tail = note
    if counts is None and not tail:
        return bases
    if counts is not None and (not counts or len(counts) != len(bases) or min(counts) < 1 or not 0 <= first <= _MOST):
        raise ValueError(f"{len(bases)} orders of which {counts!r:.80} are made, from child id {first} on")
    orders = Derived(bases, counts, first, tail)
    if _is_long(orders):
        raise ValueError(f"orders that are made of more than {_LONG} bytes")
    return orders


def _is_long(orders: Derived) -> bool:
    return len(orders.tail) > _LONG or (orders.counts is not None and max(map(len, orders.bases)) > _LONG)
