"""The data item, and its meta: global time, child ids, trace and tombstone.

The engine compares metas more often than it does anything else, so the part of a meta that *orders* items is kept as
one immutable byte string whose byte order is the order of the model (paper 000, "Ordering model"):

    order = time (8 bytes) | front (4 bytes) | child id | child id | …

`time` and `front` are fixed-width big-endian numbers with the sign bit flipped; a child id is a
self-delimiting code that keeps the order of numbers (`encode_child`). A shorter list of child ids is a
prefix of the longer one and therefore sorts first: an item sorts before all that is derived from it,
and these before the next item. Strings of bytes are compared by one C call and are not tracked by the
cyclic garbage collector.

Identity is (order, trace). `trace` only tells apart recomputations that travelled by different workers;
it never decides between two valid items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, count
from struct import Struct
from typing import Any, Final, NamedTuple

MIN_TIME: Final = -(2**63)
MAX_TIME: Final = 2**63 - 1
TRACE_MASK: Final = 2**64 - 1

# Not a tuple of numbers: tuples are compared element by element, and the millions that windows and barriers hold keep
# the cyclic garbage collector busy; designs with an object per item measured 5 to 10 times slower. Not one large
# integer: of two lists of child ids the longer would be the greater number, whatever it begins with.

_TIME_BIAS: Final = 2**63
_FEW: Final = 64
"""Number of records up to which each order is encoded by itself: most fronts of many read so few at a time."""
TIME_BYTES: Final = 8
GLOBAL_TIME_BYTES: Final = 12
"""Length of the global-time prefix of every order: 8 bytes of time, 4 of front."""


class FrontId(NamedTuple):
    """Name of a front: the source it reads and the partition of that source.

    Order: source name, then partition, as tuples do. A job numbers its fronts in this order (1, 2, …), so
    that the number, which is what items carry, compares as the names do. 0 is before every front, and
    `MAX_FRONT` after.
    """

    source: str
    partition: int

    def __str__(self) -> str:
        return f"{self.source}/{self.partition}"


MIN_FRONT: Final = 0
MAX_FRONT: Final = 2**32 - 1


class GlobalTime(NamedTuple):
    """The entry of an item into the system: (time, front number), a total order.

    `time` is a signed 64-bit number: a counter (`sequence` clock) or microseconds since the epoch (`wall`
    clock). Minimum times carry `MIN_FRONT`, so that `item < minimum` means "time strictly below".
    """

    time: int
    front: int = MIN_FRONT

    def encode(self) -> bytes:
        """Return the 12-byte prefix of the orders of all items of this global time.

        Raises:
            OverflowError: `time` is not a signed 64-bit number or `front` not an unsigned 32-bit one.
        """
        return encode_time(self.time) + self.front.to_bytes(4, "big")

    @classmethod
    def decode(cls, order: bytes) -> GlobalTime:
        """Decode the global time at the start of any order."""
        return cls(decode_time(order), int.from_bytes(order[8:12], "big"))


def encode_time(time: int) -> bytes:
    """Return eight bytes that sort as the signed number `time` does.

    They sort before every order of that time.

    >>> encode_time(-1) < encode_time(0) < encode_time(0) + b"anything" < encode_time(1)
    True
    """
    return (time + _TIME_BIAS).to_bytes(8, "big")


def orders_of(first: int, records: int, suffix: bytes) -> list[bytes]:
    """Return the orders of records with consecutive times.

    Args:
        first: Time of the first record.
        records: Number of records.
        suffix: The bytes after the time.

    Raises:
        OverflowError: A time is not a signed 64-bit number.

    >>> orders_of(255, 2, b"f") == [encode_time(255) + b"f", encode_time(256) + b"f"]
    True
    """
    if records < _FEW:
        return [encode_time(time) + suffix for time in range(first, first + records)]
    # Times that differ in their last byte share the other seven. To join these with one of 256 endings takes a third of
    # the time of encoding each number.
    endings = _endings(suffix)
    orders: list[bytes] = []
    at, end = first + _TIME_BIAS, first + _TIME_BIAS + records
    while at < end:
        head, start = (at >> 8).to_bytes(7, "big"), at & 0xFF
        stop = min(start + end - at, 256)
        orders += [head + ending for ending in endings[start:stop]]
        at += stop - start
    return orders


@lru_cache(maxsize=64)
def _endings(suffix: bytes) -> tuple[bytes, ...]:
    """Return the last byte of a time, from 0 to 255, each followed by a suffix."""
    return tuple(bytes((number,)) + suffix for number in range(256))


def decode_time(order: bytes) -> int:
    """Return the time at the start of an order."""
    return int.from_bytes(order[:8], "big") - _TIME_BIAS


def _encode_child(number: int) -> bytes:
    if number < 0xF8:
        return bytes((number,))
    width = (number.bit_length() + 7) // 8
    if width > 8:
        raise OverflowError(f"child id {number} does not fit 64 bits")
    # The width comes first: a code of more bytes is greater, as its number is.
    return bytes((0xF7 + width,)) + number.to_bytes(width, "big")


CHILD: Final = tuple(_encode_child(n) for n in range(0xF8))
"""The codes of the first 248 child ids, one byte each."""


def encode_child(number: int) -> bytes:
    """Return the code of one child id: self-delimiting, sorting as its number.

    One byte below 248; above, a byte that counts the following bytes.

    >>> encode_child(3) < encode_child(247) < encode_child(248) < encode_child(70_000)
    True

    Raises:
        ValueError, OverflowError: `number` is negative or wider than 64 bits.
    """
    return CHILD[number] if 0 <= number < 0xF8 else _encode_child(number)


def child_codes(count: int) -> Sequence[bytes]:
    """Return the codes of the first `count` child ids.

    >>> list(child_codes(2)) == [encode_child(0), encode_child(1)]
    True
    """
    return CHILD[:count] if count <= len(CHILD) else [*CHILD, *map(_encode_child, range(len(CHILD), count))]


MOST_LABELS: Final = 255
"""Most labels of a flow."""

_FIRST_LABEL: Final = 2**64 - 256


def label_code(number: int) -> bytes:
    """Return the code of the child id that a label appends.

    No operation behind the label appends it. It is eight equal bytes, more than the code of any smaller child id has,
    and the number: so the last one in an order is found without decoding the bytes before and behind.

    >>> label_code(3).hex()
    'ffffffffffffffff03'
    """
    return encode_child(_FIRST_LABEL + number)


def label_in(order: bytes, code: bytes) -> bytes:
    """Return the order of the labelled ancestor of an order; empty if there is none.

    An item that was labelled again is the later one.

    >>> label_in(b"time & front" + label_code(3) + encode_child(7), label_code(3)).hex()[-4:]
    'ff03'

    Args:
        order: The order.
        code: The code of the label.
    """
    start = order.rfind(code, GLOBAL_TIME_BYTES)
    return order[: start + len(code)] if start >= 0 else b""


_LEAST_PAIR: Final = 1 << 8
_BLOCK: Final = 1 << 16
_FIRST: Final = tuple(map(_encode_child, range(_LEAST_PAIR)))
_LAST_TWO: Final = Struct(">H").pack


def child_orders(order: bytes) -> Iterator[bytes]:
    """Return an iterator of the orders of the children 0, 1, 2, … of an order.

    >>> orders = child_orders(b"")
    >>> [next(orders) for _ in range(3)] == [encode_child(0), encode_child(1), encode_child(2)]
    True
    """
    # In C loops: every turn in a cycle takes one.
    return map(order.__add__, chain(_FIRST, chain.from_iterable(map(_block_of_codes, count()))))


def _block_of_codes(block: int) -> Iterator[bytes]:
    """Return the codes of one block of 65,536 child ids, without those in `_FIRST`.

    All bytes but the last two are the same.
    """
    start = max(block * _BLOCK, _LEAST_PAIR)
    return map(_encode_child(start)[:-2].__add__, map(_LAST_TWO, range(start % _BLOCK, _BLOCK)))


def decode_children(code: bytes) -> tuple[int, ...]:
    """Decode a concatenation of child codes."""
    numbers = []
    at = 0
    while at < len(code):
        head = code[at]
        width = max(head - 0xF7, 0)
        numbers.append(int.from_bytes(code[at + 1 : at + 1 + width], "big") if width else head)
        at += 1 + width
    return tuple(numbers)


class Meta(NamedTuple):
    """The decoded meta of an item, for errors, tests and people.

    The engine carries order, trace and tombstone apart. Order: global time, child ids, trace, tombstone. A tombstone
    has the identity of its victim and sorts right after it.
    """

    global_time: GlobalTime
    child_ids: tuple[int, ...] = ()
    trace: int = 0
    tombstone: bool = False

    @property
    def order(self) -> bytes:
        """Return global time and child ids as one byte string, which the engine compares."""
        return self.global_time.encode() + b"".join(map(encode_child, self.child_ids))

    @classmethod
    def decode(cls, order: bytes, trace: int = 0, *, tombstone: bool = False) -> Meta:
        """Decode the parts that the engine carries.

        >>> Meta.decode(Meta(GlobalTime(7, 1), (0, 300)).order).child_ids
        (0, 300)
        """
        return cls(GlobalTime.decode(order), decode_children(order[GLOBAL_TIME_BYTES:]), trace, tombstone)

    def __str__(self) -> str:
        children = ",".join(map(str, self.child_ids))
        mark = " tombstone" if self.tombstone else ""
        return f"{self.global_time.time}@{self.global_time.front}[{children}]{mark}"


class DataItem(NamedTuple):
    """One item on its way: (order, trace, alive, payload) (paper 004, section 2.1).

    Identity is (order, trace), without the payload. `alive` is False for a tombstone, which carries the identity
    *and* the payload of the one earlier item that it cancels, and takes the same path.

    The engine never makes one: its operations pass these four values as arguments, and its messages hold columns of
    them. Items are for observers of a run: the reference interpreter (`flamecore.testing.interpret`) returns them,
    the executable models (`flamecore.testing.models`) run on them, and the trace of a `Simulation` is made of them.
    """

    order: bytes
    trace: int
    alive: bool
    payload: Any

    @property
    def meta(self) -> Meta:
        """Return the decoded meta.

        Models with another meta have their own: `Ordering.meta`.
        """
        return Meta.decode(self.order, self.trace, tombstone=not self.alive)
