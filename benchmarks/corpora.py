"""The inputs of the benchmarks: seeded text, and pages of a dump.

The same arguments give the same text everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import accumulate, islice, product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flamestream_demo.pages import Page

VOCABULARY: Final = 50_000
"""How many different words there are; the one of rank r comes with a frequency of 1 / r."""

WORDS_A_LINE: Final = 10
SEED: Final = 20260

_PAGE_WORDS: Final = (20, 100)
_REVISED: Final = 10
_CHUNK: Final = 10_000


def vocabulary(size: int = VOCABULARY) -> list[str]:
    """Return different pronounceable words in a seeded order.

    Their length and frequency are independent.
    """
    syllables = [a + b for a, b in product("bdfghklmnprstvwz", "aeiou")]
    random = Random(SEED)
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(random.choices(syllables, k=random.choice((1, 2, 2, 3, 3, 4))))] = None
    return list(words)


def many_words(size: int) -> list[str]:
    """Return `size` different words of eight letters, in a seeded order."""
    syllables = [a + b for a, b in product("bdfghklmnprstvwz", "aeiou")]
    words = ["".join(parts) for parts in islice(product(syllables, repeat=4), size)]
    Random(SEED).shuffle(words)
    return words


def zipf_words(count: int, seed: int = SEED, words: list[str] | None = None) -> Iterator[list[str]]:
    """Yield `count` words in chunks, of a vocabulary by rank.

    Memory does not grow with the count.
    """
    random = Random(seed)
    words = vocabulary() if words is None else words
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    for start in range(0, count, _CHUNK):
        yield random.choices(words, cum_weights=weights, k=min(_CHUNK, count - start))


def zipf_lines(count: int, seed: int = SEED, words: list[str] | None = None) -> Iterator[str]:
    """Yield lines of ten words each, `count` words in all, of a vocabulary by rank."""
    for some in zipf_words(count, seed, words):
        for start in range(0, len(some), WORDS_A_LINE):
            yield " ".join(some[start : start + WORDS_A_LINE])


def synthetic_pages(count: int, seed: int = SEED) -> list[Page]:
    """Return pages of 20 to 100 words; every tenth is a new version of an earlier one."""
    from flamestream_demo.pages import Page

    random = Random(seed)
    lengths = [random.randint(*_PAGE_WORDS) for _ in range(count)]
    stream = (word for words in zipf_words(sum(lengths), seed) for word in words)
    pages: list[Page] = []
    titles = 0
    for ordinal, length in enumerate(lengths, 1):
        text = " ".join([next(stream) for _ in range(length)])
        if ordinal % _REVISED == 0:
            number = random.randint(1, titles)
        else:
            number = titles = titles + 1
        pages.append(Page(number, f"page {number}", text))
    return pages


def dump_pages(path: Path) -> list[Page]:
    """Read the pages of a Wikipedia dump by the driver that jobs use.

    Raises:
        SourceError: The dump cannot be read.
    """
    from flamecore.abc.source import EdgeContext
    from flamestream_demo.pages import Page
    from flamestream_edges.wikipedia import Wikipedia

    async def read() -> list[Page]:
        source = Wikipedia(Wikipedia.Options(path=str(path)), EdgeContext("pages", Page))
        pages: list[Page] = []
        for partition in source.partitions():
            reader = await source.open(partition)
            try:
                while (batch := await reader.read(100)) is not None:
                    pages.extend(batch.values)
            finally:
                await reader.aclose()
        return pages

    return asyncio.run(read())


def default_dump() -> Path | None:
    """Return the largest dump of the data folder; None if there is none.

    The folder is $FLAMESTREAM_DATA, or that beside the checkout.
    """
    import os

    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("FLAMESTREAM_DATA", root / ".." / "shared" / "data")) / "wikipedia"
    dumps = sorted(folder.glob("*.xml"), key=lambda path: path.stat().st_size)
    return dumps[-1].resolve() if dumps else None
