"""The clocks of a job, which a simulation replaces.

The clock `blocks` numbers the records of each front so that a block of them is contiguous in the order of all fronts:

    time = number of the block (31 bits) | front (20 bits) | place in the block (12 bits)

The widths are fixed, and not fitted to a job: the same records then have the same times in a run with more fronts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Literal

ClockName = Literal["sequence", "wall", "blocks"]

_PLACE_BITS: Final = 12
_FRONT_BITS: Final = 20
_BLOCK_BITS: Final = _FRONT_BITS + _PLACE_BITS

MOST_FRONTS: Final = 2**_FRONT_BITS - 1
"""Most fronts of a job with the clock `blocks`."""

BLOCK: Final[ContextVar[int]] = ContextVar("records of a block", default=2**_PLACE_BITS)
"""Number of records of a block, 4,096 at most. A simulation sets fewer."""

WALL_CLOCK: Final[ContextVar[Callable[[], int]]] = ContextVar("wall clock", default=lambda: time.time_ns() // 1000)
"""Function that returns microseconds since the epoch. A simulation sets another one."""

STOPWATCH: Final[ContextVar[Callable[[], float]]] = ContextVar("stopwatch", default=time.perf_counter)
"""Function that returns seconds, to time work. A simulation sets another one."""


def block_of(order: bytes) -> int:
    """Return the number of the block of an order, among those of all fronts.

    >>> from flamecore.model.meta import encode_time
    >>> [block_of(encode_time(BlockTimes(1).time(number))) & 0xFFFFFFFF for number in (4095, 4096)]
    [1, 1048577]
    """
    return int.from_bytes(order[:8], "big") >> _PLACE_BITS


def block_start(time: int) -> int:
    """Return the start of the block that a time is in, among those of all fronts."""
    return time >> _PLACE_BITS << _PLACE_BITS


class BlockTimes:
    """The times of one front by the clock `blocks`, by the number of its record.

    Args:
        front: Number of the front.

    Attributes:
        size: Number of records of a block.
    """

    __slots__ = ("_front", "size")

    def __init__(self, front: int) -> None:
        self._front, self.size = front, BLOCK.get()

    def time(self, number: int) -> int:
        """Return the time of a record.

        >>> [hex(BlockTimes(2).time(number)) for number in (0, 1, 4095, 4096)]
        ['0x2000', '0x2001', '0x2fff', '0x100002000']
        """
        block, place = divmod(number, self.size)
        return block << _BLOCK_BITS | self._front << _PLACE_BITS | place

    def number(self, time: int) -> int:
        """Return the number of the first record at a time or after it.

        >>> [BlockTimes(2).number(time) for time in (0, 0x2001, 0x3000, 0x100001000)]
        [0, 1, 4096, 4096]
        """
        block, rest = divmod(max(time, 0), 1 << _BLOCK_BITS)
        front, place = divmod(rest, 1 << _PLACE_BITS)
        if front != self._front:
            return (block + (front > self._front)) * self.size
        return block * self.size + min(place, self.size)

    def at(self, time: int) -> int:
        """Return the first time of the front at a time or after it."""
        return self.time(self.number(time))

    def left(self, time: int) -> int:
        """Return the number of records from a time of the front to the end of its block."""
        return self.size - self.number(time) % self.size
