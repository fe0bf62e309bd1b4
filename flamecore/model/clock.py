"""The clocks of a job, which a simulation replaces.

The clock `blocks` numbers the records of each front so that a block of them is contiguous in the order of all fronts:

    time = number of the block (29 bits) | front (20 bits) | place in the block (14 bits)

The widths are fixed, and not fitted to a job: the same records then have the same times in a run with more fronts. So
are the numbers of records: the first 16 blocks of a front have 4,096 records, and all others 16,384. Large blocks cost
less. Small ones share few records evenly, and end soon: snapshots and outputs wait
for the end of a block, which is at most a quarter of what its front has read before.

A job that goes on behind its end begins with new blocks in all fronts once one of them has a new record: how often it
has found nothing new before then does not show. The first of these blocks are the first 16 again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Literal

ClockName = Literal["sequence", "wall", "blocks"]

_PLACE_BITS: Final = 14
_FRONT_BITS: Final = 20
_BLOCK_BITS: Final = _FRONT_BITS + _PLACE_BITS

MOST_FRONTS: Final = 2**_FRONT_BITS - 1
"""Most fronts of a job with the clock `blocks`."""

_SMALL_BLOCKS: Final = 16
_TIMES_SMALL: Final = 4

BLOCK: Final[ContextVar[int]] = ContextVar("records of a small block", default=2**_PLACE_BITS // _TIMES_SMALL)
"""Number of records of each of a front's first 16 blocks, 4,096 at most. All others have four times as many. A
simulation sets fewer."""

LARGEST_BLOCK: Final = 2**_PLACE_BITS
"""Most records of a block."""

WALL_CLOCK: Final[ContextVar[Callable[[], int]]] = ContextVar("wall clock", default=lambda: time.time_ns() // 1000)
"""Function that returns microseconds since the epoch. A simulation sets another one."""

STOPWATCH: Final[ContextVar[Callable[[], float]]] = ContextVar("stopwatch", default=time.perf_counter)
"""Function that returns seconds, to time work. A simulation sets another one."""


def recorded_name(clock: ClockName) -> str:
    """Return the name under which state records a clock.

    The same records have the same times under the same name: it changes with the widths and sizes above.

    >>> [recorded_name(clock) for clock in ("sequence", "blocks")]
    ['sequence', 'blocks/16384']
    """
    return f"{clock}/{LARGEST_BLOCK}" if clock == "blocks" else clock


def block_start(time: int) -> int:
    """Return the start of the block that a time is in, among those of all fronts."""
    return time >> _PLACE_BITS << _PLACE_BITS


def next_blocks(time: int) -> int:
    """Return the time behind the block that a time is in, in all fronts: the next one of each begins there or later.

    >>> hex(next_blocks(BlockTimes(2).time(4096)))
    '0x800000000'
    """
    return (time >> _BLOCK_BITS) + 1 << _BLOCK_BITS


class BlockTimes:
    """The times of one front by the clock `blocks`, by the number of its record.

    Args:
        front: Number of the front.
        begun: Time at which it began; the blocks of a front are numbered from there.
    """

    __slots__ = ("_first", "_front", "_large", "_small", "_start")

    def __init__(self, front: int, begun: int = 0) -> None:
        self._front, self._small = front, BLOCK.get()
        self._first = begun >> _BLOCK_BITS  # among the blocks at all times
        self._large = self._small * _TIMES_SMALL
        self._start = self._small * _SMALL_BLOCKS  # number of the first record in a large block

    def start(self, block: int) -> int:
        """Return the number of the first record of one of its blocks.

        >>> [BlockTimes(2).start(block) for block in (0, 1, 16, 17)]
        [0, 4096, 65536, 81920]
        """
        return block * self._small if block < _SMALL_BLOCKS else self._start + (block - _SMALL_BLOCKS) * self._large

    def time(self, number: int) -> int:
        """Return the time of a record.

        >>> [hex(BlockTimes(2).time(number)) for number in (0, 1, 4095, 4096)]
        ['0x8000', '0x8001', '0x8fff', '0x400008000']
        """
        if number < self._start:
            block, place = divmod(number, self._small)
        else:
            block, place = divmod(number - self._start, self._large)
            block += _SMALL_BLOCKS
        return block + self._first << _BLOCK_BITS | self._front << _PLACE_BITS | place

    def number(self, time: int) -> int:
        """Return the number of the first record at a time or after it.

        >>> [BlockTimes(2).number(time) for time in (0, 0x8001, 0x9000, 0xC000, 0x400004000)]
        [0, 1, 4096, 4096, 4096]
        """
        block, rest = divmod(max(time - (self._first << _BLOCK_BITS), 0), 1 << _BLOCK_BITS)
        front, place = divmod(rest, 1 << _PLACE_BITS)
        if front != self._front:
            return self.start(block + (front > self._front))
        return min(self.start(block) + place, self.start(block + 1))

    def at(self, time: int) -> int:
        """Return the first time of the front at a time or after it."""
        return self.time(self.number(time))

    def left(self, time: int) -> int:
        """Return the number of records from a time of the front to the end of its block."""
        return self.start((time >> _BLOCK_BITS) + 1 - self._first) - self.number(time)
