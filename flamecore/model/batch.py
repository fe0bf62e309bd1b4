"""Columns of a run that are not spelled out: derived orders, and rows or lines.

A function that makes ten words of a line makes ten orders of one: the line's, each with a child id. While items are in
order, no single order is needed: an operation needs the start and end of the run, the barrier the part below a time. So
the line's order and the number of its words are enough, here and on the way to another process.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, islice, pairwise
from operator import add, eq, sub
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, SupportsIndex, TypeVar, overload

from flamecore.model.meta import child_codes, encode_child, encode_time, orders_of

T = TypeVar("T")

Orders = Sequence[bytes]
"""Orders of a run, ascending."""

Note = tuple[list[bytes], list[int] | None, int, bytes]
"""Compact form of orders: arguments of `DerivedOrders`."""

_MOST: Final = 2**32
"""Largest child id that a note may begin with."""

_FEW: Final = 32
"""Number of orders up to which they are spelled out, which takes no longer than deriving them."""

_STRETCH: Final = 16
"""Least orders in a stretch, on average, for which a merge by stretches costs less than a sort of all orders."""

_NEAR: Final = 8
"""Number of lines that are sought one by one where a guess was so near."""

_GUESSES: Final = 8
"""Most guesses where a line begins, before lines are sought one by one: texts may have any lengths."""

_SPARSE: Final = 3
"""Least ratio of times to chosen records at which the orders of these alone are spelled out."""

_LONG: Final = 128
"""Most bytes shared by derived orders: longer ones are spelled out, so that a small message does not stand for a large
one. Only rounds of a cycle make them so long."""


_SAMPLE: Final = 16
"""Number of values that are looked at first: of most columns that are not in order they are neither."""


class Ascending(list[Any]):
    """Numbers in ascending order; they must not be changed any more."""

    __slots__ = ()


def ascending(values: Sequence[Any]) -> bool:
    """Return whether a list of numbers is in ascending order.

    It takes a third of the time of a loop.
    """
    return type(in_order(values)) is Ascending


def in_order(values: Sequence[Any]) -> Sequence[Any]:
    """Return a list of numbers as `Ascending` if it is in that order, else the list itself.

    So several operations that have to know learn it once.
    """
    if type(values) is Ascending:
        return values
    head = values[:_SAMPLE]
    if sorted(head) != head:
        return values
    found = Ascending(values)
    found.sort()
    return found if found == values else values


def extremes(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return the least and the greatest of some numbers, which are mostly in order."""
    return (values[0], values[-1]) if ascending(values) else (min(values), max(values))


class AllBut(Sequence[int]):
    """The numbers from 0 on, without some.

    Args:
        gone: The numbers that are left out, ascending.
        size: The first number that is too large.
    """

    __slots__ = ("_before", "gone", "size")

    def __init__(self, gone: Sequence[int], size: int) -> None:
        self.gone, self.size = gone, size
        self._before = [*map(sub, gone, range(len(gone)))]
        """For each number that is left out, the count of those kept before it."""

    def __len__(self) -> int:
        return self.size - len(self.gone)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [*self][index]
        place = index if index >= 0 else len(self) + index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return place + bisect_right(self._before, place)

    def __iter__(self) -> Iterator[int]:
        kept = bytearray(b"\1") * self.size
        for number in self.gone:
            kept[number] = 0
        return compress(range(self.size), kept)

    def __repr__(self) -> str:
        return repr([*self])


class PackedOrders(Sequence[bytes]):
    """Orders that are spelled out only when looked at.

    They are equal to any sequence of the same orders.
    """

    __slots__ = ("_materialised",)

    _materialised: list[bytes] | None

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Orders: ...

    def __getitem__(self, index: int | slice) -> bytes | Orders:
        if self._materialised is not None:
            return self._materialised[index]
        return self._part(index) if isinstance(index, slice) else self._at(index)

    @abstractmethod
    def _at(self, index: int) -> bytes:
        """Return one order."""

    @abstractmethod
    def _part(self, part: slice) -> Orders:
        """Return some orders, packed if that is possible."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.materialise())

    def materialise(self) -> list[bytes]:
        """Return all orders, spelled out and cached; do not change the list."""
        if self._materialised is None:
            self._materialised = self._spelled_out()
        return self._materialised

    @abstractmethod
    def _spelled_out(self) -> list[bytes]:
        """Return all orders in a new list."""

    def __eq__(self, other: object) -> bool:
        return self.materialise() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return repr(self.materialise())


# Not a list: most orders of a run are never looked at, and one has to be made, sent and freed for each item. Not an
# iterator that makes them on demand: the barrier cuts a run by bisection, and several operations may share one run.
class DerivedOrders(PackedOrders):
    """Orders derived from others, equal to any sequence of the same orders.

    Args:
        bases: The other orders, not derived themselves.
        counts: Number of orders derived from each base, at least one; they append ascending child ids. None: one is
            derived from each, without a child id.
        first: Child id of the first order of each base.
        tail: Bytes at the end of all orders.
    """

    __slots__ = ("_ends", "bases", "counts", "first", "tail")

    def __init__(self, bases: Orders, counts: Sequence[int] | None, first: int = 0, tail: bytes = b"") -> None:
        self._materialised = None
        self.bases, self.counts, self.first, self.tail = bases, counts, first, tail
        self._ends = None if counts is None else list(accumulate(counts))

    def __len__(self) -> int:
        return len(self.bases) if self._ends is None else self._ends[-1]

    def _at(self, index: int) -> bytes:
        if self.counts is None or self._ends is None:
            return self.bases[index] + self.tail
        length = self._ends[-1]
        place = index if index >= 0 else length + index
        if not 0 <= place < length:
            raise IndexError(index)
        at = bisect_right(self._ends, place)
        number = place - self._ends[at] + self.counts[at]
        return self.bases[at] + encode_child(self.first + number) + self.tail

    def _part(self, part: slice) -> Orders:
        """Return a slice, derived if it begins and ends between bases, else spelled out."""
        start, stop, step = part.indices(len(self))
        if step == 1 and start >= stop:
            return []
        if step == 1:
            if stop - start == len(self):
                return self
            if self._ends is None or self.counts is None:
                return DerivedOrders(self.bases[start:stop], None, self.first, self.tail)
            # A slice that begins or ends in the midst of a base is spelled out: `first` is one
            # number for all bases.
            low, high = bisect_right(self._ends, start), bisect_right(self._ends, stop - 1) + 1
            if self._ends[low] - self.counts[low] == start and self._ends[high - 1] == stop:
                return DerivedOrders(self.bases[low:high], self.counts[low:high], self.first, self.tail)
        return self.materialise()[start:stop:step]

    def _spelled_out(self) -> list[bytes]:
        if self.counts is None:
            bases, tail = self.bases, self.tail
            return bases.materialise(tail) if type(bases) is RecordOrders else [base + tail for base in bases]
        # Codes are made once for each number of children, not for each base.
        ends = {count: self._codes(count) for count in set(self.counts)}
        parts = zip(self.bases, map(ends.__getitem__, self.counts), strict=True)
        return [base + end for base, codes in parts for end in codes]

    def _codes(self, count: int) -> list[bytes]:
        return [encode_child(number) + self.tail for number in range(self.first, self.first + count)]


# Most orders of records are never looked at: an operation needs the first and the last, or selects some of them. To
# spell one out takes as long as a short function of the user's.
class RecordOrders(PackedOrders):
    """Orders of records of one front, equal to any sequence of the same orders.

    Args:
        first: A time.
        places: How much later each record is, ascending.
        suffix: The bytes after the time.
    """

    __slots__ = ("first", "places", "suffix")

    def __init__(self, first: int, places: Sequence[int], suffix: bytes) -> None:
        self._materialised = None
        self.first, self.places, self.suffix = first, places, suffix

    def __len__(self) -> int:
        return len(self.places)

    def _at(self, index: int) -> bytes:
        return encode_time(self.first + self.places[index]) + self.suffix

    def _part(self, part: slice) -> Orders:
        if part.step is not None and part.step < 0:
            return self.materialise()[part]
        return RecordOrders(self.first, self.places[part], self.suffix)

    def materialise(self, tail: bytes = b"") -> list[bytes]:
        """Return all orders, each with a tail, spelled out; do not change the list."""
        return self._spelled_out(tail) if tail else super().materialise()

    def _spelled_out(self, tail: bytes = b"") -> list[bytes]:
        first, places, suffix = self.first, self.places, self.suffix + tail
        if type(places) is range and places.step == 1:
            return orders_of(first + places.start, len(places), suffix)
        if not places or len(places) * _SPARSE < places[-1] - places[0]:
            return [encode_time(first + place) + suffix for place in places]
        start = places[0]
        every = orders_of(first + start, places[-1] - start + 1, suffix)
        return [every[place - start] for place in places]

    @property
    def times(self) -> range | None:
        """Return the times, if they follow one another."""
        places = self.places
        if type(places) is not range or places.step != 1:
            return None
        return range(self.first + places.start, self.first + places.stop)

    def selected(self, indexes: Sequence[int]) -> RecordOrders:
        """Return the orders at some indexes, which ascend."""
        places = self.places
        if type(places) is not range or places.start or places.step != 1:
            # One of these takes a search, so all are spelled out.
            each = [*places] if type(places) is AllBut else places
            indexes = [each[at] for at in indexes]
        return RecordOrders(self.first, indexes, self.suffix)


class RowOrders(PackedOrders):
    """Orders of records that several fronts give in turn, one of each time.

    They are equal to any sequence of the same orders.

    Args:
        first: A time.
        suffixes: The bytes after the time, of each front, ascending.
        places: The number of each record among those of all fronts from `first` on, ascending.
    """

    __slots__ = ("first", "places", "suffixes")

    def __init__(self, first: int, suffixes: Sequence[bytes], places: Sequence[int]) -> None:
        self._materialised = None
        self.first, self.suffixes, self.places = first, suffixes, places

    def __len__(self) -> int:
        return len(self.places)

    def _at(self, index: int) -> bytes:
        row, column = divmod(self.places[index], len(self.suffixes))
        return encode_time(self.first + row) + self.suffixes[column]

    def _part(self, part: slice) -> Orders:
        if part.step is not None and part.step < 0:
            return self.materialise()[part]
        return RowOrders(self.first, self.suffixes, self.places[part])

    def _spelled_out(self) -> list[bytes]:
        places, suffixes = self.places, self.suffixes
        if not places:
            return []
        low, high = places[0] // len(suffixes), places[-1] // len(suffixes) + 1
        times = orders_of(self.first + low, high - low, b"")
        every = [time + suffix for time in times for suffix in suffixes]
        if len(every) == len(places):
            return every
        before = low * len(suffixes)
        return [every[place - before] for place in places]

    def counted(self, first: int) -> Sequence[int]:
        """Return `places` as they are counted from another first time."""
        before = (self.first - first) * len(self.suffixes)
        places = self.places
        if not before:
            return places
        if type(places) is range:
            return range(places.start + before, places.stop + before, places.step)
        return [place + before for place in places]

    def selected(self, indexes: Sequence[int]) -> RowOrders:
        """Return the orders at some indexes, which ascend."""
        places = self.places
        if type(places) is not range or places.start or places.step != 1:
            # One of these takes a search, so all are spelled out.
            each = [*places] if type(places) is AllBut else places
            indexes = [each[at] for at in indexes]
        return RowOrders(self.first, self.suffixes, indexes)


class TailedOrders(PackedOrders):
    """Orders derived from those of records by a tail each.

    They are equal to any sequence of the same orders.

    Args:
        bases: The orders of the records.
        tails: The bytes at the end of each order.
    """

    __slots__ = ("bases", "tails")

    def __init__(self, bases: RecordOrders, tails: Sequence[bytes]) -> None:
        self._materialised = None
        self.bases, self.tails = bases, tails

    def __len__(self) -> int:
        return len(self.tails)

    def _at(self, index: int) -> bytes:
        return self.bases[index] + self.tails[index]

    def _part(self, part: slice) -> Orders:
        bases = self.bases[part]
        return TailedOrders(bases, self.tails[part]) if type(bases) is RecordOrders else self.materialise()[part]

    def _spelled_out(self) -> list[bytes]:
        return list(map(add, self.bases.materialise(), self.tails))


def stamped(first: int, records: int, suffix: bytes) -> Orders:
    """Return the orders of records with consecutive times.

    The arguments are those of `orders_of`.

    Raises:
        OverflowError: A time is not a signed 64-bit number.
    """
    if records <= _FEW:
        return orders_of(first, records, suffix)
    encode_time(first + records - 1)  # refused here, and not where somebody looks
    return RecordOrders(first, range(records), suffix)


def stamped_rows(first: int, rows: int, suffixes: Sequence[bytes]) -> Orders:
    """Return the orders of records that several fronts give in turn.

    Each front gives one for each of consecutive times.

    Args:
        first: The first time.
        rows: The number of times.
        suffixes: The bytes after the time, of each front, ascending.

    Raises:
        OverflowError: A time is not a signed 64-bit number.
    """
    orders = RowOrders(first, suffixes, range(rows * len(suffixes)))
    if len(orders) <= _FEW:
        return orders.materialise()
    encode_time(first + rows - 1)  # refused here, and not where somebody looks
    return orders


def made_of(orders: Orders, ancestors: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield (index of an ancestor, number of orders derived from it), in order.

    Derived orders are not spelled out for it.

    Args:
        orders: Ascending orders, each derived from one of the ancestors.
        ancestors: Ascending orders, none derived from another.
    """
    bases = orders.bases if type(orders) is DerivedOrders else orders
    ends = orders._ends if type(orders) is DerivedOrders else None
    at = taken = 0
    index = bisect_right(ancestors, bases[0]) - 1
    while at < len(bases):
        index += 1
        end = bisect_left(bases, ancestors[index], at) if index < len(ancestors) else len(bases)
        if end > at:
            at, last = end, taken
            taken = end if ends is None else ends[end - 1]
            yield index - 1, taken - last


def children(bases: Orders, counts: Sequence[int], first: int = 0, tail: bytes = b"") -> Orders:
    """Return the orders of the children of some items.

    Arguments are those of `DerivedOrders`; `bases` may be derived.
    """
    # Derived orders pay for themselves with many: for few, the object costs more than the bytes.
    if len(bases) <= _FEW and sum(counts) <= _FEW:
        parts = zip(bases, counts, strict=True)
        return [base + code + tail for base, count in parts for code in child_codes(first + count)[first:]]
    orders = DerivedOrders(_bases_of(bases), counts, first, tail)
    return orders.materialise() if _is_long(orders) else orders


def extended(orders: Orders, code: bytes) -> Orders:
    """Return the orders with a code appended to each."""
    if type(orders) is DerivedOrders and len(orders.tail) + len(code) <= _LONG:
        # The tail grows, and no order is made: a chain of maps costs a run one small object each.
        return DerivedOrders(orders.bases, orders.counts, orders.first, orders.tail + code)
    if len(orders) <= _FEW or len(code) > _LONG:
        return [order + code for order in orders]
    return DerivedOrders(_bases_of(orders), None, 0, code)


def selected(orders: Orders, indexes: Sequence[int]) -> Orders:
    """Return the orders at some indexes, which ascend."""
    if len(indexes) == len(orders):  # as mostly: derived orders stay what they are
        return orders
    # With several orders to a base, a selection may leave some of them, which counts cannot say.
    if type(orders) is DerivedOrders and orders.counts is None:
        return DerivedOrders(selected(orders.bases, indexes), None, orders.first, orders.tail)
    if type(orders) is RecordOrders or type(orders) is RowOrders:
        return orders.selected(indexes)
    every = materialise(orders)
    return [every[at] for at in indexes]


def joined(parts: Sequence[Orders]) -> Orders:
    """Return the orders of several runs, one after the other.

    Orders derived in the same way stay derived.
    """
    if len(parts) < 2:  # by far the most frequent case
        return parts[0] if parts else []
    alike = [part for part in parts if type(part) is DerivedOrders] if type(parts[0]) is DerivedOrders else []
    if len(alike) == len(parts):
        bases = _in_a_row([part.bases for part in alike])
        counts = [part.counts for part in alike if part.counts is not None]
        if len({(part.first, part.tail) for part in alike}) == 1 and len(counts) in (0, len(alike)):
            return DerivedOrders(
                bases, list(chain.from_iterable(counts)) if counts else None, alike[0].first, alike[0].tail
            )
    return _in_a_row(parts)


def _in_a_row(parts: Sequence[Orders]) -> Orders:
    """Return orders one after the other.

    Those of records stay packed if their times follow one another.
    """
    first = parts[0]
    if type(first) is RecordOrders and (times := first.times) is not None:
        start, follows = times.start, times.stop
        for part in parts[1:]:
            if type(part) is not RecordOrders or part.suffix != first.suffix:
                break
            if (times := part.times) is None or times.start != follows:
                break
            follows = times.stop
        else:
            return RecordOrders(start, range(follows - start), first.suffix)
    elif type(first) is RowOrders:
        rows = [part for part in parts if type(part) is RowOrders and part.suffixes == first.suffixes]
        if len(rows) == len(parts):
            return RowOrders(first.first, first.suffixes, _following([part.counted(first.first) for part in rows]))
    return _together(parts)


def _following(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return numbers one after the other: as a range if they follow one another."""
    start = end = parts[0][0] if parts[0] else 0
    for part in parts:
        if type(part) is not range or part.step != 1 or (part and part.start != end):
            return _together(parts)
        end += len(part)
    return range(start, end)


def interleaved(runs: Sequence[tuple[Orders, Sequence[T]]]) -> tuple[Orders, Sequence[T]] | None:
    """Merge runs with orders derived in the same way; return orders and payloads.

    The merge sorts the bases only. Orders derived from one base stay together, so nothing is spelled out: a line moves
    to its place with its words.

    Args:
        runs: Orders and payloads of each run.

    Returns:
        None if they are derived differently, two are equal, or a base begins with another: orders derived from both may
        then alternate.
    """
    notes = [orders for orders, _ in runs if type(orders) is DerivedOrders]
    if len(notes) < len(runs):
        return None
    if all(note.counts is None and type(note.bases) is RecordOrders for note in notes):
        return _by_record(notes, [payloads for _, payloads in runs])
    if len({(note.first, note.tail, note.counts is None) for note in notes}) > 1:
        return None
    bases = list(chain.from_iterable([note.bases for note in notes]))
    places = sorted(range(len(bases)), key=bases.__getitem__)
    merged = [bases[at] for at in places]
    # Neighbours show it: in sorted order all bases that begin with one stand right behind it.
    if any(map(bytes.startswith, merged[1:], merged)):
        return None
    first, tail = notes[0].first, notes[0].tail
    if notes[0].counts is None:
        values = _together([payloads for _, payloads in runs])
        return DerivedOrders(merged, None, first, tail), [values[at] for at in places]
    counts: list[int] = []
    blocks: list[Sequence[T]] = []
    for note, (_, payloads) in zip(notes, runs, strict=True):
        assert note.counts is not None
        assert note._ends is not None
        counts += note.counts
        some = payloads if type(payloads) is list else list(payloads)
        blocks += [some[end - count : end] for end, count in zip(note._ends, note.counts, strict=True)]
    values = list(chain.from_iterable(map(blocks.__getitem__, places)))
    return DerivedOrders(merged, [counts[at] for at in places], first, tail), values


def _by_record(notes: Sequence[DerivedOrders], runs: Sequence[Sequence[T]]) -> tuple[Orders, list[T]] | None:
    """Merge runs of orders derived from the records of one front, by their times.

    Each run has one order or none for each record.
    """
    bases = [note.bases for note in notes if type(note.bases) is RecordOrders]
    suffix = bases[0].suffix
    if any(base.suffix != suffix for base in bases):
        return None
    first = min([base.first for base in bases])
    times: list[int] = []
    tails: list[bytes] = []
    values: list[T] = []
    # By tail: what is derived from one record then comes in the order of the tails, as the sort is stable.
    for number in sorted(range(len(notes)), key=lambda number: notes[number].tail):
        base, later = bases[number], bases[number].first - first
        times += [place + later for place in base.places] if later else base.places
        tails += [notes[number].tail] * len(base)
        values += runs[number]
    places = sorted(range(len(times)), key=times.__getitem__)
    merged, ends = [times[at] for at in places], [tails[at] for at in places]
    found = [values[at] for at in places]
    records = RecordOrders(first, merged, suffix)
    several = len({*tails})
    if several < len(notes) and len({*zip(merged, ends, strict=True)}) < len(merged):
        return None
    return TailedOrders(records, ends) if several > 1 else DerivedOrders(records, None, 0, tails[0]), found


def sorted_together(runs: Sequence[tuple[Orders, Sequence[T]]]) -> tuple[Orders, Sequence[T]] | None:
    """Merge runs by a sort of all orders; return orders and payloads.

    Args:
        runs: Orders and payloads of each run.

    Returns:
        None if two of them have one order.
    """
    orders: list[bytes] = []
    values: list[T] = []
    for some, payloads in runs:
        orders += some
        values += payloads
    places = sorted(range(len(orders)), key=orders.__getitem__)
    merged = [orders[at] for at in places]
    if any(map(eq, merged, islice(merged, 1, None))):
        return None
    return merged, [values[at] for at in places]


def stretches(runs: Sequence[Orders]) -> list[tuple[int, int, int]] | None:
    """Return how to merge ascending orders by stretches: (run, start, end) of each.

    A run is given by its number. Items derived from one item mostly lie in one run, and no order inside a stretch is
    compared.

    Args:
        runs: The orders of each run, which has some.

    Returns:
        None if stretches are so short that the merge would cost more than a sort, or an order is in two runs, or orders
        derived from one in a run may lie around an order of another run.
    """
    bases = [materialise(orders.bases if type(orders) is DerivedOrders else orders) for orders in runs]
    found: list[tuple[int, int, int]] = []
    at = [0] * len(runs)
    taken = [0] * len(runs)
    heads = sorted([(some[0], number) for number, some in enumerate(bases)])
    while heads:
        _, number = heads.pop(0)
        some, orders, end = bases[number], runs[number], len(bases[number])
        if heads:
            limit = heads[0][0]
            end = bisect_left(some, limit, at[number])
            # An order of another run that begins with a base may lie among the orders that are
            # derived from it.
            if end == at[number] or (orders is not some and limit.startswith(some[end - 1])):
                return None
            if end < len(some):
                insort(heads, (some[end], number))
        start, at[number] = taken[number], end
        taken[number] = orders._ends[end - 1] if type(orders) is DerivedOrders and orders._ends is not None else end
        found.append((number, start, taken[number]))
        # Looked at now and then, not at the end: a merge by short stretches is given up before it
        # has cost much.
        if len(found) % _FEW == 0 and sum(taken) < _STRETCH * len(found):
            return None
    return found


def middle(orders: Orders) -> int:
    """Return an index near the middle, between two orders that are derived from one only if all are."""
    half = len(orders) // 2
    if type(orders) is DerivedOrders and orders._ends is not None:
        # A part that begins in the midst of a base is spelled out.
        at = bisect_right(orders._ends, half)
        below, above = (orders._ends[at - 1] if at else 0), orders._ends[at]
        if below or above < len(orders):
            return below or above
    return half


def materialise(orders: Orders) -> Orders:
    """Return the orders, spelled out; do not change the result."""
    if (
        type(orders) is DerivedOrders
        or type(orders) is RecordOrders
        or type(orders) is RowOrders
        or type(orders) is TailedOrders
    ):
        return orders.materialise()
    return orders


def _bases_of(orders: Orders) -> Orders:
    """Return the orders as bases of derived ones."""
    return orders.materialise() if type(orders) is DerivedOrders else orders


def pack(orders: Orders) -> Note:
    """Return orders in plain values, from which `unpack` makes them again."""
    if type(orders) is DerivedOrders:
        counts = None if orders.counts is None else list(orders.counts)
        return list(orders.bases), counts, orders.first, orders.tail
    return orders if type(orders) is list else list(orders), None, 0, b""


def unpack(note: Note) -> Orders:
    """Return the orders of a note.

    They take no more memory than the note, whatever it claims.

    Raises:
        ValueError: The note is invalid.
    """
    bases, counts, first, tail = note
    if counts is None and not tail:
        return bases
    # A note from another process may claim anything, and what follows relies on counts of at least
    # one, and on child ids that can be encoded.
    if counts is not None and (not counts or len(counts) != len(bases) or min(counts) < 1 or not 0 <= first <= _MOST):
        raise ValueError(f"{len(bases)} orders of which {counts!r:.80} are made, from child id {first} on")
    orders = DerivedOrders(bases, counts, first, tail)
    if _is_long(orders):
        raise ValueError(f"orders that are made of more than {_LONG} bytes")
    return orders


def _is_long(orders: DerivedOrders) -> bool:
    if len(orders.tail) > _LONG or orders.counts is None:
        return len(orders.tail) > _LONG
    bases = orders.bases
    even = type(bases) is RecordOrders or type(bases) is RowOrders  # all as long as the first
    return (len(bases[0]) if even else max(map(len, bases))) > _LONG


class Rows(Sequence[tuple[object, ...]]):
    """Tuples of one width, at least 1, equal to any sequence of the same tuples.

    Args:
        columns: The values at each place, equally many; they must not be changed any more.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, index: int) -> tuple[object, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: int | slice) -> tuple[object, ...] | Rows:
        found = [column[index] for column in self.columns]
        return Rows(found) if isinstance(index, slice) else tuple(found)

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return zip(*self.columns, strict=True)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))


Column = tuple[Callable[[Any], Any], Sequence[Any]]
"""A function, and what it gives of each of some payloads; neither is changed any more."""


class Beside(list[Any]):
    """Payloads with columns beside them: what some functions give of each.

    A part of them has its part of the columns; what mixes payloads makes a plain list, without them. So nothing may
    rely on a column, which spares calls.

    Args:
        payloads: The payloads.
        columns: The columns, each with one entry for each payload.
    """

    __slots__ = ("columns",)

    def __init__(self, payloads: Iterable[Any], *columns: Column) -> None:
        super().__init__(payloads)
        self.columns = columns

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Beside: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        if not isinstance(index, slice):
            return found
        if index.step is not None and index.step < 0:
            return Beside(found, *[(by, column[index]) for by, column in self.columns])
        return Beside(found, *[(by, _like(column, column[index])) for by, column in self.columns])


def column_of(payloads: Sequence[Any], by: Callable[[Any], Any]) -> Sequence[Any] | None:
    """Return what a function gives of each payload, if that is beside them.

    Args:
        payloads: The payloads.
        by: The function.
    """
    if type(payloads) is Beside:
        for function, column in payloads.columns:
            # By identity: a callable of the user's need not be hashable, nor tell its equals.
            if function is by:
                return column
    return None


def chosen(payloads: Sequence[Any], indexes: Sequence[int], found: list[Any]) -> list[Any]:
    """Return some of the payloads, with the columns beside them if there are any.

    Args:
        payloads: All payloads.
        indexes: The index of each chosen one.
        found: The chosen ones.
    """
    if type(payloads) is not Beside:
        return found
    columns = [(by, _like(column, [column[at] for at in indexes])) for by, column in payloads.columns]
    return Beside(found, *columns)


def _like(column: Sequence[Any], part: Sequence[Any]) -> Sequence[Any]:
    """Return a part of a column, whose entries are in their order there, as a column of the same kind."""
    return Ascending(part) if type(column) is Ascending else part


def many_of(function: Callable[..., Any]) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """Return the function of several arguments that a function has as `many`, or None.

    It returns what the function returns for each of them, or raises if the function does for one. A function that only
    returns its argument, as keys of texts and numbers often do, has the arguments themselves.
    """
    if type(function) is not FunctionType:
        return None
    found: Callable[[Sequence[Any]], Sequence[Any]] | None = function.__dict__.get("many")
    return _themselves if found is None and _is_identity(function.__code__) else found


Put = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None


class Within(NamedTuple):
    """A function that calls another on a part of its argument.

    Operators call that one themselves: a call less for each item.

    Attributes:
        view: Returns the parts of several arguments; it may raise if there are none.
        function: The function of a part.
        put: Takes arguments and the results for their parts, and returns those of the whole function; None: the results
            are these.
    """

    view: Callable[[Sequence[Any]], Sequence[Any]]
    function: Callable[[Any], Any]
    put: Put = None


def within(function: Callable[..., Any], payloads: Sequence[Any]) -> tuple[Sequence[Any], Callable[..., Any], Put]:
    """Return the values for payloads, what is to be called on each, and `Within.put`.

    Args:
        function: A function, which may have a `Within` as `within`; else it is called on the payloads themselves.
        payloads: The payloads.
    """
    found: Within | None = function.__dict__.get("within") if type(function) is FunctionType else None
    if found is not None:
        try:
            values = found.view(payloads)
            if len(values) == len(payloads):
                return values, found.function, found.put
        except Exception:  # noqa: BLE001 - the function fails on one of them, too
            pass
    return payloads, function, None


def results(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return what a function gives of each value.

    Raises:
        RuntimeError: It raised `StopIteration`, which alone would end the calls without a word.
    """
    found = [*map(function, values)]
    if len(found) < len(values):
        raise RuntimeError(f"a function raised StopIteration for value {len(found) + 1} of {len(values)}")
    return found


_IDENTITY: Final = (lambda value: value).__code__.co_code


def _is_identity(code: CodeType) -> bool:
    """Return whether a function that is called with one argument only returns it."""
    return code.co_code == _IDENTITY and code.co_argcount == 1 and not code.co_kwonlyargcount


def _themselves(values: Sequence[Any]) -> Sequence[Any]:
    return values if type(values) is list else list(values)


class Lines(Sequence[str]):
    """Texts that each end with their only newline; equal to any sequence of the same.

    Args:
        text: All texts, one after the other.
        count: Their number, if it is known.

    Raises:
        ValueError: The text does not end with a newline.
    """

    __slots__ = ("_count", "_each", "text")

    def __init__(self, text: str, count: int | None = None) -> None:
        if text and text[-1] != "\n":
            raise ValueError(f"lines that end in the midst of one: {text[-80:]!r}")
        self.text = text
        self._count = text.count("\n") if count is None else count
        self._each: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if not isinstance(index, slice) or index.step not in (None, 1):
            return self._apart()[index]
        start, stop, _ = index.indices(self._count)
        if start >= stop:
            return Lines("", 0)
        first = self._start_of(start, 0, 0)
        end = self._start_of(stop, start, first)
        return Lines(self.text[first:end], stop - start)

    def __iter__(self) -> Iterator[str]:
        return iter(self._apart())

    def parts(self, ends: Iterable[tuple[int, int]]) -> Iterator[Lines]:
        """Return slices, given where each starts and ends, in ascending order; empty ones are left out."""
        before = at = 0
        for start, end in ends:
            if start < end:
                first = self._start_of(start, before, at)
                before, at = end, self._start_of(end, start, first)
                yield Lines(self.text[first:at], end - start)

    def _start_of(self, index: int, before: int, low: int) -> int:
        """Return where a text starts that is not before another one; the end, for the number behind the last.

        Args:
            index: Number of the text.
            before: Number of the other one.
            low: Where the other one starts.
        """
        # Where it is, is guessed from the lengths on average, and newlines are counted up to there: that takes a third
        # to all of the time in which the texts would be split apart and joined. No text is made.
        text, left, high, lines = self.text, index - before, len(self.text), self._count - before
        if not left:
            return low
        guess, found = high, lines
        for _ in range(_GUESSES):
            if 0 <= found - left <= _NEAR:
                for _ in range(found - left + 1):
                    guess = text.rfind("\n", low, guess)
                return guess + 1
            if found > left:
                high, lines = guess, found
            else:
                low, left, lines = guess, left - found, lines - found
            if left <= _NEAR:
                break
            guess = low + (high - low) * left // lines
            found = text.count("\n", low, guess)
        for _ in range(left):
            low = text.find("\n", low) + 1
        return low

    def _apart(self) -> list[str]:
        if self._each is None:
            self._each = [f"{line}\n" for line in self.text.split("\n")[:-1]]
        return self._each

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))


def concat(parts: Sequence[Sequence[object]]) -> Sequence[object]:
    """Return the payloads of several runs, one after the other.

    Parts that are all rows of one width, or all lines, stay so, and columns that all have beside them are kept.
    """
    if len(parts) < 2:  # by far the most frequent
        return parts[0] if parts else []
    kind = type(parts[0])
    if kind is Rows:
        rows = [part.columns for part in parts if type(part) is Rows]
        if len(rows) == len(parts) and len(set(map(len, rows))) == 1:
            return Rows([_together(columns) for columns in zip(*rows, strict=True)])
    elif kind is Beside:
        assert isinstance(parts[0], Beside)
        columns: list[Column] = []
        for by, _ in parts[0].columns:
            found = [column for part in parts if (column := column_of(part, by)) is not None]
            if len(found) == len(parts):
                together = _together(found)
                are_ascending = {*map(type, found)} == {Ascending}
                if are_ascending and all(one[-1] <= other[0] for one, other in pairwise(found) if one and other):
                    together = Ascending(together)
                columns.append((by, together))
        if columns:
            return Beside(_together(parts), *columns)
    elif kind is Lines:
        texts = [part.text for part in parts if type(part) is Lines]
        if len(texts) == len(parts):
            return Lines("".join(texts), sum(map(len, parts)))
    return _together(parts)


def woven(runs: Sequence[Sequence[object]], by: Sequence[tuple[int, int, int]]) -> Sequence[object]:
    """Return the payloads of several runs, merged by the `stretches` of their orders."""
    if all(type(run) is Lines for run in runs):
        cuts: list[list[tuple[int, int]]] = [[] for _ in runs]
        for number, start, end in by:
            cuts[number].append((start, end))
        slices = [run.parts(some) for run, some in zip(runs, cuts, strict=True) if type(run) is Lines]
        return concat([next(slices[number]) for number, _, _ in by])
    return concat([runs[number][start:end] for number, start, end in by])


def _together(parts: Sequence[Sequence[T]]) -> list[T]:
    together: list[T] = []
    for part in parts:  # lists are copied as they lie there
        together += part
    return together
