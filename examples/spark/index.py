"""Inverted index of the papers' evaluation, for tables.

The tables are its change log, and the index that it comes to.

The operations are those of `flamestream_demo.inverted_index`. Pages are split into words before the first key, so Spark
does that on all executors as it reads. Rows say the first letter of their word, by which the tables are cut; see
job.toml beside this file.
"""

from __future__ import annotations

from typing import NamedTuple

import flamecore as fc
from flamestream_demo.inverted_index import Change, index_word, number_words, tokenize, tokenized_id, word_of
from flamestream_demo.pages import Page
from flamestream_demo.postings import EMPTY


class LetterChange(NamedTuple):
    """A change of the index; see `flamestream_demo.inverted_index.Change`."""

    letter: str
    change: str
    word: str
    page: int
    version: int
    occurrences: int
    positions: tuple[int, ...]


class Posting(NamedTuple):
    """A word on a page, in the newest version of the page that has it."""

    letter: str
    word: str
    page: int
    version: int
    positions: tuple[int, ...]


def with_letter(change: Change) -> LetterChange:
    """Put the first letter of the word in front."""
    kind, word, page, version, _, occurrences, positions = change
    return LetterChange(word[0], kind, word, page, version, occurrences, positions)


def is_added(change: LetterChange) -> bool:
    """Tell additions from removals, each of which has an addition right behind it."""
    return change.change == "add"


def posting(change: LetterChange) -> Posting:
    """Make of an addition what the index holds from then on."""
    return Posting(change.letter, change.word, change.page, change.version, change.positions)


flow = fc.Flow("spark-index")
changes = (
    flow.source("pages", Page)
    .map(tokenize)
    .key_by(tokenized_id)
    .stateful_map(0, number_words, name="versions")
    .key_by(word_of)
    .stateful_map(EMPTY, index_word, name="indexer")
    .map(with_letter)
)
changes.sink("changes")
changes.filter(is_added).map(posting).sink("index")
