"""The incremental inverted index with its state as a cycle of the flow.

    pages → number the version → one (word, positions) a distinct word → ┬→ window of two → combine ─┬→ changes
                                                                         └──── index of the word ←───┘

See paper 004, "Drifting state". The index of a word travels: it is grouped with the next posting of that word, and
combining the two makes the next index, which goes round, and the changes. `flamestream_demo.inverted_index` runs the
same as one operation (`stateful_map`), with the same output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flamecore as fc
from flamestream_demo.inverted_index import (
    Change,
    VersionedPage,
    WordPositions,
    index_word,
    number_version,
    page_id,
    split_page,
)
from flamestream_demo.pages import Page
from flamestream_demo.postings import EMPTY, Index


class WordIndex(NamedTuple):
    """The index of a word, travelling round the cycle."""

    word: str
    windows: Index


Travels = WordPositions | WordIndex


def split(page: VersionedPage) -> list[Travels]:
    """Return an item for each distinct word of a page, in order of first occurrence."""
    return [*split_page(page)]


def word_of(item: Travels) -> str:
    return item.word


def combine(window: tuple[Travels, ...]) -> list[WordIndex | Change]:
    """Combine a posting and the index before it to the next index and the changes.

    Other windows belong to an index that is still on its way to its place, and give nothing.
    """
    before, posting = window[0], window[-1]
    if not isinstance(posting, WordPositions):
        return []
    if len(window) == 1:
        index = EMPTY
    elif isinstance(before, WordIndex):
        index = before.windows
    else:
        return []
    after, changes = index_word(index, posting)
    return [WordIndex(posting.word, after), *changes]


def goes_round(item: WordIndex | Change) -> bool:
    return isinstance(item, WordIndex)


def draw(stream: fc.Stream[Travels]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Return the streams inside the cycle: the one that goes round, and the output."""
    combined = stream.key_by(word_of).group(2, name="window").flat_map(combine, name="combine")
    indexes, changes = combined.branch(goes_round, name="part")
    return indexes, changes


flow = fc.Flow("cyclic-index")
(
    flow.source("pages", Page)
    .key_by(page_id)
    .stateful_map(0, number_version, name="versions")
    .flat_map(split, name="split")
    .loop(draw, name="loop")
    .sink("index")
)
