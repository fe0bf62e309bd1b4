"""Counts of words, one a line, between functions of the user's that cost much.

Their costs are in turns of an empty loop, by environment variables: PARSE_TURNS for each line, COUNT_TURNS for each
count, and SHOW_TURNS for the output of a word that ends with "!".
"""

from __future__ import annotations

import os

import flamecore as fc

PARSE_TURNS, COUNT_TURNS, SHOW_TURNS = (int(os.environ.get(f"{of}_TURNS", "0")) for of in ("PARSE", "COUNT", "SHOW"))


def parse(line: str) -> str:
    """Return the word of a line, after a while."""
    for _ in range(PARSE_TURNS):
        pass
    return line


def count(before: int, word: str) -> tuple[int, list[tuple[str, int]]]:
    """Count a word, after a while."""
    for _ in range(COUNT_TURNS):
        pass
    return before + 1, [(word, before + 1)]


def show(counted: tuple[str, int]) -> str:
    """Return the text of a count; some words take a while."""
    word, number = counted
    for _ in range(SHOW_TURNS if word.endswith("!") else 0):
        pass
    return f"{word} {number}"


flow = fc.Flow("skewed-words")
words = flow.source("lines", str).map(parse).key_by(lambda word: word)
words.stateful_map(0, count).map(show).sink("counts")
