"""The packed posting and the index of one word."""

from __future__ import annotations

import doctest
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamestream_demo import postings
from flamestream_demo.postings import (
    EMPTY,
    PAGE_BITS,
    POSITION_BITS,
    RANGE_BITS,
    VERSION_BITS,
    WINDOW,
    Index,
    Posting,
    pack,
    unpack,
    update,
)

parts = st.builds(
    Posting,
    page=st.integers(0, 2**24 - 1),
    position=st.integers(0, 2**20 - 1),
    version=st.integers(0, 2**8 - 1),
    range=st.integers(0, 2**12 - 1),
)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(postings) == (0, 1)


@given(parts)
def test_packing_keeps_every_part_in_64_bits(posting: Posting) -> None:
    packed = pack(*posting)
    assert 0 <= packed < 2**64
    assert unpack(packed) == posting


@given(parts, parts)
def test_packed_postings_sort_as_their_parts(one: Posting, other: Posting) -> None:
    assert (pack(*one) < pack(*other)) == (one < other)


def test_the_layout_is_page_position_version_range() -> None:
    assert pack(1, 0, 0, 0) == 1 << 40
    assert pack(0, 1, 0, 0) == 1 << 20
    assert pack(0, 0, 1, 0) == 1 << 12
    assert pack(0, 0, 0, 1) == 1


@pytest.mark.parametrize(
    ("posting", "limit"),
    [
        (Posting(2**24, 0, 1, 1), "page 16777215"),
        (Posting(1, 2**20, 1, 1), "position 1048575"),
        (Posting(1, 0, 256, 1), "version 255"),
        (Posting(1, 0, 1, 4096), "range 4095"),
        (Posting(-1, 0, 1, 1), "page 16777215"),
    ],
)
def test_a_posting_too_large_is_refused_with_its_values_and_the_limit(posting: Posting, limit: str) -> None:
    with pytest.raises(ValueError, match="does not fit 64 bits") as caught:
        pack(*posting)
    assert repr(posting) in str(caught.value)
    assert limit in str(caught.value)


def packed_postings(index: Index) -> list[int]:
    """Return all postings, packed, by page, ascending."""
    return [int.from_bytes(window[at : at + 8], "big") for window in index for at in range(0, len(window), 8)]


def sizes(index: Index) -> list[int]:
    """Return how many postings each window holds."""
    return [len(packed_postings((window,))) for window in index]


def check(index: Index) -> list[int]:
    """Check the laws of an index; return its postings in order."""
    entries = packed_postings(index)
    assert all(1 <= size <= WINDOW for size in sizes(index))
    assert all(one < other for one, other in pairwise(entries))
    assert len({entry >> 40 for entry in entries}) == len(entries), "one posting a page"
    return entries


def test_a_hundred_thousand_shuffled_pages_are_inserted_and_updated() -> None:
    """Acceptance case 59."""
    shuffle = random.Random(59)
    pages = list(range(100_000))
    index = EMPTY
    shuffle.shuffle(pages)
    for page in pages:
        index, replaced = update(index, pack(page, page % 1000, 1, 1))
        assert replaced is None
    assert check(index) == [pack(page, page % 1000, 1, 1) for page in range(100_000)]

    shuffle.shuffle(pages)
    for page in pages:
        # Positions move both ways, so the new posting sorts now before, now after the old one.
        index, replaced = update(index, pack(page, (page * 7) % 1000, 2, 3))
        assert replaced == pack(page, page % 1000, 1, 1)
    assert check(index) == [pack(page, (page * 7) % 1000, 2, 3) for page in range(100_000)]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5), st.integers(1, 9)), max_size=600))
def test_an_index_is_a_dictionary_from_page_to_posting(updates: list[tuple[int, int, int]]) -> None:
    index = EMPTY
    model: dict[int, int] = {}
    for page, position, version in updates:
        entry = pack(page, position, version, 1)
        index, replaced = update(index, entry)
        assert replaced == model.get(page)
        model[page] = entry
    assert check(index) == sorted(model.values())


def test_a_posting_amid_a_full_window_splits_it_in_half() -> None:
    index = EMPTY
    for page in range(0, 2 * WINDOW, 2):
        index, _ = update(index, pack(page, 0, 1, 1))
    assert sizes(index) == [WINDOW]
    index, _ = update(index, pack(WINDOW + 1, 0, 1, 1))
    assert sizes(index) == [50, 51]


def test_a_posting_behind_a_full_window_begins_another() -> None:
    index = EMPTY
    for page in range(WINDOW + 1):
        index, _ = update(index, pack(page, 0, 1, 1))
    assert sizes(index) == [WINDOW, 1]
    check(index)


def test_an_index_is_sorted_up_to_the_greatest_page() -> None:
    top = 2**PAGE_BITS - 1
    greatest = pack(top, 2**POSITION_BITS - 1, 2**VERSION_BITS - 1, 2**RANGE_BITS - 1)
    index = EMPTY
    for entry in (greatest, pack(0, 0, 0, 0), pack(top - 1, 0, 1, 1)):
        index, _ = update(index, entry)
    assert check(index) == [pack(0, 0, 0, 0), pack(top - 1, 0, 1, 1), greatest]
    index, replaced = update(index, pack(top, 0, 1, 1))
    assert replaced == greatest
    assert check(index)[-1] == pack(top, 0, 1, 1)


def test_an_old_index_is_left_as_it_was_and_shares_its_windows() -> None:
    old = EMPTY
    for page in range(0, 1000, 2):
        old, _ = update(old, pack(page, 0, 1, 1))
    before = list(old)
    added, _ = update(old, pack(501, 0, 1, 1))
    changed, _ = update(old, pack(500, 9, 2, 1))
    assert list(old) == before
    for new in (added, changed):
        kept = {id(window) for window in new} & {id(window) for window in old}
        assert len(kept) == len(old) - 1
