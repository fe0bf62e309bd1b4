"""The index as its change log tells it: what a consumer of the job holds."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import NamedTuple

from flamecore.errors import ConsistencyError
from flamestream_demo.inverted_index import Change


class Held(NamedTuple):
    """That a page holds a word: the version it was seen in, and the 0-based ordinals of its tokens, ascending."""

    version: int
    positions: tuple[int, ...]


class IndexView:
    """Words, and for each the pages that hold it. Applying the changes in order is all it takes.

    Attributes:
        postings: Word → number of a page → what it holds.
        changes: How many changes have been applied.
        tokens: How many tokens the pages had, all versions together.
    """

    def __init__(self) -> None:
        self.postings: dict[str, dict[int, Held]] = {}
        self.changes = 0
        self.tokens = 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Take changes, in order.

        Raises:
            ConsistencyError: A posting is removed that is not there, or added where one is.
        """
        for change in changes:
            pages = self.postings.setdefault(change.word, {})
            held = pages.pop(change.page, None)
            if (held.version if held else None) != (change.version if change.change == "remove" else None):
                raise ConsistencyError(f"{change} does not fit what the changes before it have left: {held}")
            if change.change == "add":
                pages[change.page] = Held(change.version, change.positions)
                self.tokens += change.count
            self.changes += 1

    def busiest(self, count: int) -> list[tuple[str, int]]:
        """The words that most pages hold, each with the number of these pages; most first, then by the alphabet."""
        found = ((word, len(pages)) for word, pages in self.postings.items())
        return nsmallest(count, found, key=lambda entry: (-entry[1], entry[0]))

    def nearest(self, word: str, count: int = 5) -> list[str]:
        """Words of the index that are written much like this one, the most alike first."""
        from difflib import get_close_matches  # needed for a failed query only

        return get_close_matches(word, self.postings, count)
