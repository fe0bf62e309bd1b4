"""Word count that tells which line every update comes from."""

from __future__ import annotations

import flamecore as fc
from benchmarks.latency import Update, count_word, numbered_words


def word_of(item: tuple[str, int]) -> str:
    """Return the word, without the number of its line."""
    return item[0]


def update(seen: int, item: tuple[str, int]) -> tuple[int, list[Update]]:
    """Count the word once more."""
    return count_word(seen, item)


flow = fc.Flow("numbered-words")
flow.source("lines", str).flat_map(numbered_words).key_by(word_of).stateful_map(0, update).sink("counts")
