"""The index of one word: packed postings in sorted, immutable windows.

A *posting* states that a page, in one version, holds the word: it is the first position of the word there and how often
it occurs. It packs into 64 bits, so that numbers sort as (page, position) do and an index of a million postings is a
million plain integers, which the cyclic garbage collector never visits:

    page 24 bits | position 20 bits | version 8 bits | range 12 bits

An index is state that travels in the stream (paper 004, "drifting state"): replay returns to old states, so an update
returns a new index and shares with the old one every window but the one it changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

PAGE_BITS: Final = 24
POSITION_BITS: Final = 20
VERSION_BITS: Final = 8
RANGE_BITS: Final = 12

WINDOW: Final = 100
"""Most postings in a window; a window that is full is split in half."""

_PAGE_SHIFT: Final = POSITION_BITS + VERSION_BITS + RANGE_BITS

Index = tuple[tuple[int, ...], ...]
"""Windows of packed postings, ascending within a window and from window to window; no window is empty. One posting
a page."""

EMPTY: Final[Index] = ()


class Posting(NamedTuple):
    """A page that holds a word.

    Attributes:
        page: Number of the page.
        position: 0-based ordinal of the word's first token in the page.
        version: 1-based version of the page.
        range: How many tokens of the page are the word.
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
    if not index:
        return ((packed,),), None
    page = packed >> _PAGE_SHIFT
    # The window is the last that starts at or below this page; tuples compare by their first number first.
    at = max(bisect_left(index, ((page + 1) << _PAGE_SHIFT,)) - 1, 0)
    window = index[at]
    place = bisect_left(window, page << _PAGE_SHIFT)
    if place < len(window) and window[place] >> _PAGE_SHIFT == page:
        replaced = window[place]
        return (*index[:at], (*window[:place], packed, *window[place + 1 :]), *index[at + 1 :]), replaced
    grown = (*window[:place], packed, *window[place:])
    if len(grown) <= WINDOW:
        return (*index[:at], grown, *index[at + 1 :]), None
    half = len(grown) // 2
    return (*index[:at], grown[:half], grown[half:], *index[at + 1 :]), None


def postings(index: Index) -> Iterator[Posting]:
    """Return all postings, by page, ascending."""
    return map(unpack, chain.from_iterable(index))
