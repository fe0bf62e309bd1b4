"""Change log of where the words of pages are; a page's words are kept by the worker that is dealt the page.

The place of a key, a word on a page, is the page. So pages are sent once and words are not sent at all.
"""

from __future__ import annotations

from typing import NamedTuple

import flamecore as fc
from flamestream_demo.inverted_index import page_id
from flamestream_demo.pages import Page


class Found(NamedTuple):
    """A word on a page, and where: positions of its tokens, 0-based, ascending."""

    word: str
    page: int
    positions: tuple[int, ...]


class Change(NamedTuple):
    """A posting that is added, "+", or gone, "-"."""

    sign: str
    word: str
    page: int
    positions: tuple[int, ...]


def split(page: Page) -> list[Found]:
    """Return the words of a page in the order of their first tokens.

    Words are not reduced to their stems: the time to find a stem for the first time would be spent in each process.
    """
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(page.text.split()):
        positions.setdefault(word, []).append(position)
    return [Found(word, page.id, tuple(found)) for word, found in positions.items()]


def word_on_page(found: Found) -> tuple[str, int]:
    """Return the key."""
    return found.word, found.page


def page_of(key: tuple[str, int]) -> int:
    """Return the place of a key."""
    return key[1]


def post(last: tuple[int, ...] | None, found: Found) -> tuple[tuple[int, ...], list[Change]]:
    """Put a posting in the place of that of an earlier version of the page."""
    word, page, positions = found
    added = Change("+", word, page, positions)
    return positions, [added] if last is None else [Change("-", word, page, last), added]


flow = fc.Flow("page-words")
(
    flow.source("pages", Page)
    .place_by(page_id)
    .flat_map(split)
    .key_by(word_on_page, place=page_of)
    .stateful_map(None, post)
    .sink("index")
)
