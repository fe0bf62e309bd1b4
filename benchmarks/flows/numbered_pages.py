"""Inverted index of the demo over lines, each a page with its number, that tells which line a change is of."""

from __future__ import annotations

import flamecore as fc
from flamestream_demo.inverted_index import (
    Change,
    index_word,
    number_words,
    tokenize,
    tokenized_id,
    word_of,
)
from flamestream_demo.pages import Page
from flamestream_demo.postings import EMPTY


def page_of(line: str) -> Page:
    """Return the page of a line, numbered from 0 where lines are numbered from -1."""
    number, _, text = line.partition(" ")
    return Page(int(number) + 1, "", text)


def told(change: Change) -> tuple[str, int, int]:
    """Return a change as its word, the number of occurrences, and the number of the line."""
    return change.word, change.count, change.page - 1


flow = fc.Flow("numbered-pages")
(
    flow.source("lines", str)
    .map(page_of)
    .map(tokenize)
    .key_by(tokenized_id)
    .stateful_map(0, number_words, name="versions")
    .key_by(word_of)
    .stateful_map(EMPTY, index_word, name="indexer")
    .map(told)
    .sink("counts")
)
