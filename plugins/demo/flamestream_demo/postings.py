"""The index of one word: packed postings in sorted, immutable windows.

A *posting* states that a page, in one version, holds the word: it is the first position of the word there and how often
it occurs. It packs into 64 bits, so that numbers sort as (page, position) do:

    page 24 bits | position 20 bits | version 8 bits | range 12 bits

An index is state that travels in the stream (paper 004, "drifting state"): replay returns to old states, so an update
returns a new index and shares with the old one every window but the one it changes. A window is bytes: a copy is one
move of memory, where a copy of numbers would touch each of them, and the cyclic garbage collector visits none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

PAGE_BITS: Final = 24
POSITION_BITS: Final = 20
VERSION_BITS: Final = 8
RANGE_BITS: Final = 12

WINDOW: Final = 100
"""Most postings in a window; a posting amid a full one splits it in half, one behind the last begins another."""

_PAGE_SHIFT: Final = POSITION_BITS + VERSION_BITS + RANGE_BITS

_SIZE: Final = 8
_PAGE_SIZE: Final = PAGE_BITS // 8
"""Bytes of a posting, and of the page in front of it."""

Index = tuple[bytes, ...]
"""Windows of packed postings, big-endian, ascending within a window and from window to window; no window is empty. One
posting a page."""

EMPTY: Final[Index] = ()


class Posting(NamedTuple):
    """A page that holds a word.

    Attributes:
        page: Number of the page.
        position: 0-based ordinal of the word's first token in the page.
        version: 1-based version of the page.
        range: Number of occurrences of the word in the page.
    """

    page: int
    position: int
    version: int
    range: int


def pack(page: int, position: int, version: int, range: int) -> int:
    """Pack a posting into one unsigned 64-bit number.

    Arguments are the attributes of `Posting`.

    >>> unpack(pack(7, 120, 2, 3))
    Posting(page=7, position=120, version=2, range=3)

    Raises:
        ValueError: A part is negative or too large for its bits.
    """
    if page >> PAGE_BITS or position >> POSITION_BITS or version >> VERSION_BITS or range >> RANGE_BITS:
        raise ValueError(
            f"{Posting(page, position, version, range)} does not fit 64 bits; the most it can hold is "
            f"page {(1 << PAGE_BITS) - 1}, position {(1 << POSITION_BITS) - 1}, version {(1 << VERSION_BITS) - 1}, "
            f"range {(1 << RANGE_BITS) - 1}. Number the pages from 1, split long pages, or skip them with on_error."
        )
    return page << _PAGE_SHIFT | position << (VERSION_BITS + RANGE_BITS) | version << RANGE_BITS | range


def unpack(packed: int) -> Posting:
    """Unpack a posting that `pack` has packed."""
    return Posting(
        packed >> _PAGE_SHIFT,
        packed >> (VERSION_BITS + RANGE_BITS) & ((1 << POSITION_BITS) - 1),
        packed >> RANGE_BITS & ((1 << VERSION_BITS) - 1),
        packed & ((1 << RANGE_BITS) - 1),
    )


def update(index: Index, packed: int) -> tuple[Index, int | None]:
    """Put in a posting; it replaces an earlier posting of the same page.

    Returns:
        The new index, and the packed posting it replaced or None.
    """
    entry = packed.to_bytes(_SIZE, "big")
    if not index:
        return (entry,), None
    page, last = entry[:_PAGE_SIZE], index[-1]
    if page > last[-_SIZE : _PAGE_SIZE - _SIZE]:  # mostly so: pages come in order
        return ((*index[:-1], last + entry) if len(last) < WINDOW * _SIZE else (*index, entry)), None
    at = max(bisect_right(index, page, key=_first_page) - 1, 0)
    window = index[at]
    place = _SIZE * bisect_left(range(len(window) // _SIZE), page, key=lambda number: _page_at(window, number))
    replaced = window[place : place + _SIZE]
    if replaced.startswith(page):
        changed = window[:place] + entry + window[place + _SIZE :]
        return (*index[:at], changed, *index[at + 1 :]), int.from_bytes(replaced, "big")
    grown = window[:place] + entry + window[place:]
    if len(grown) <= WINDOW * _SIZE:
        return (*index[:at], grown, *index[at + 1 :]), None
    half = len(grown) // _SIZE // 2 * _SIZE
    return (*index[:at], grown[:half], grown[half:], *index[at + 1 :]), None


def _first_page(window: bytes) -> bytes:
    return window[:_PAGE_SIZE]


def _page_at(window: bytes, number: int) -> bytes:
    return window[_SIZE * number : _SIZE * number + _PAGE_SIZE]
