"""The index as its change log gives it, for a consumer of the job."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import NamedTuple

from flamecore.errors import ConsistencyError
from flamestream_demo.inverted_index import Change


class Held(NamedTuple):
    """Posting of a word in a page: the version, and the ordinals of its tokens.

    Ordinals are 0-based, ascending.
    """

    version: int
    positions: tuple[int, ...]


class IndexView:
    """Words with the pages that hold them, made by applying the changes in order.

    Attributes:
        postings: Word → page number → posting.
        changes: Number of changes applied.
        tokens: Number of tokens in the pages, all versions together.
    """

    def __init__(self) -> None:
        self.postings: dict[str, dict[int, Held]] = {}
        self.changes = 0
        self.tokens = 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes, in order.

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
        """Return the words on most pages, with the number of pages.

        The words on most pages come first, then the alphabet decides.
        """
        found = ((word, len(pages)) for word, pages in self.postings.items())
        return nsmallest(count, found, key=lambda entry: (-entry[1], entry[0]))

    def nearest(self, word: str) -> list[str]:
        """Return up to five similar words of the index, the most similar first."""
        from difflib import get_close_matches  # needed for a failed query only

        return get_close_matches(word, self.postings, 5)
