"""Inverted index with light functions over lines, each a page with its number, that tells which line a change is of."""

from __future__ import annotations

import flamecore as fc

Posting = tuple[str, int]


def postings(line: str) -> list[Posting]:
    """Return the words of a page, each with the number of the line."""
    number, _, text = line.partition(" ")
    page = int(number)
    return [(word, page) for word in text.split()]


def word_of(posting: Posting) -> str:
    """Return the word."""
    return posting[0]


def put(postings: int, posting: Posting) -> tuple[int, tuple[tuple[str, int, int]]]:
    """Count the word's postings; return it with their number, and the number of the line."""
    word, page = posting
    return postings + 1, ((word, postings + 1, page),)


flow = fc.Flow("numbered-postings")
flow.source("lines", str).flat_map(postings).key_by(word_of).stateful_map(0, put, name="index").sink("counts")
