"""The incremental inverted index of the papers' evaluation.

    pages → number the version → one (word, positions) a distinct word → index of the word → changes

See paper 004, "Experiments". For every page, the change log of the index is output: the words it holds are added, and
where an earlier version of the page held the word, that posting is removed first. Changes come in order of the pages,
within a page in order of the words' first occurrence.

Only words of the *new* version are looked at, as in the paper: the posting of a word that a newer version no longer
holds stays in the index, with the version it was seen in.

Run it over any source of pages (records with `id` and `text`): `flamestream run flamestream_demo.inverted_index`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import flamecore as fc
from flamestream_demo.pages import Page
from flamestream_demo.postings import EMPTY, Index, pack, unpack, update
from flamestream_demo.text import occurrences


class VersionedPage(NamedTuple):
    """A page, and the 1-based number of times its id has been seen."""

    id: int
    version: int
    text: str


class WordPositions(NamedTuple):
    """Positions of a word in one version of a page.

    They are 0-based ordinals of its tokens, ascending, at least one.
    """

    word: str
    page: int
    version: int
    positions: tuple[int, ...]


class TokenizedPage(NamedTuple):
    """Page as its words, each with its token positions, by first occurrence."""

    id: int
    words: tuple[tuple[str, tuple[int, ...]], ...]


class Change(NamedTuple):
    """One change of the index.

    Attributes:
        change: "add": this version of the page holds the word; "remove": its earlier posting is gone.
        word: The stem.
        page: Number of the page.
        version: 1-based version of the page; of a "remove": that of the posting which is gone.
        first: 0-based ordinal of the word's first token in that version.
        count: Number of occurrences of the word in that version.
        positions: Ordinals of all of them, ascending; of a "remove": none.
    """

    change: Literal["add", "remove"]
    word: str
    page: int
    version: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    positions: tuple[int, ...]


def page_id(page: Page) -> int:
    return page.id


def word_of(item: WordPositions) -> str:
    return item.word


def number_version(seen: int, page: Page) -> tuple[int, tuple[VersionedPage]]:
    """Count how often the page has been seen."""
    version = seen + 1
    return version, (VersionedPage(page.id, version, page.text),)


def split_page(page: VersionedPage) -> list[WordPositions]:
    """Return an item for each distinct word of a page, in order of first occurrence."""
    number, version, text = page
    return [WordPositions(word, number, version, tuple(at)) for word, at in occurrences(text).items()]


def tokenize(page: Page) -> TokenizedPage:
    """Split a page before its version is known.

    No key is before this step, so the reader of a page can run it.
    """
    return TokenizedPage(page.id, tuple([(word, tuple(at)) for word, at in occurrences(page.text).items()]))


def tokenized_id(page: TokenizedPage) -> int:
    return page.id


def number_words(seen: int, page: TokenizedPage) -> tuple[int, list[WordPositions]]:
    """Count how often a page has been seen; return the items that `split_page` would."""
    version, number = seen + 1, page.id
    return version, [WordPositions(word, number, version, at) for word, at in page.words]


def index_word(index: Index, item: WordPositions) -> tuple[Index, tuple[Change, ...]]:
    """Put a posting into the word's index; remove the page's earlier posting first."""
    word, page, version, positions = item
    first, count = positions[0], len(positions)
    index, replaced = update(index, pack(page, first, version, count))
    add = Change("add", word, page, version, first, count, positions)
    if replaced is None:
        return index, (add,)
    gone = unpack(replaced)
    return index, (Change("remove", word, page, gone.version, gone.position, gone.range, ()), add)


flow = fc.Flow("inverted-index")
(
    flow.source("pages", Page)
    .key_by(page_id)
    .stateful_map(0, number_version, name="versions")
    .flat_map(split_page, name="split")
    .key_by(word_of)
    .stateful_map(EMPTY, index_word, name="indexer")
    .sink("index")
)
