"""For tests: the inverted index without a flow, to compare outputs with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flamestream_demo.inverted_index import Change, index_word, number_version, split_page
from flamestream_demo.pages import Page
from flamestream_demo.postings import EMPTY, Index


def plain_index(pages: Iterable[Page]) -> Iterator[Change]:
    """Yield the same changes in the same order by a plain loop.

    It is the reference for tests and benchmarks.
    """
    versions: dict[int, int] = {}
    indexes: dict[str, Index] = {}
    for page in pages:
        versions[page.id], numbered = number_version(versions.get(page.id, 0), page)
        for item in split_page(numbered[0]):
            indexes[item.word], changes = index_word(indexes.get(item.word, EMPTY), item)
            yield from changes
