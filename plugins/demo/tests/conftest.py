"""Real text for the tests of the demo, and an independent model of the index."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import snowballstemmer

from flamestream_demo.pages import Page

WORD = {"Lu", "Ll", "Lt", "Lm", "Lo", "Nd"}
Tokenise = Callable[[str], list[str]]
ChangeLog = Callable[[Iterable[Page]], list[tuple[object, ...]]]


def plain_tokens(content: str) -> list[str]:
    """Return the tokens by their definition, character by character."""
    found: list[str] = []
    inside = False
    for character in content:
        if unicodedata.category(character) in WORD:
            if not inside:
                found.append("")
            inside = True
        elif character not in "-_":
            inside = False
        if inside:
            found[-1] += character
    return found


def plain_stem(token: str, known: dict[str, str]) -> str:
    word = token.lower()
    if word not in known:
        if word[0] in "abcdefghijklmnopqrstuvwxyz":
            known[word] = snowballstemmer.stemmer("english").stemWord(word)
        else:
            known[word] = snowballstemmer.stemmer("russian").stemWord(word.replace("ё", "\0")).replace("\0", "ё")
    return known[word]


def plain_changes(pages: Iterable[Page]) -> list[tuple[object, ...]]:
    """Return the change log by dictionaries of plain lists.

    A change is (change, word, page, version, first, count, positions).
    """
    seen: Counter[int] = Counter()
    held: dict[tuple[str, int], tuple[int, list[int]]] = {}
    stems: dict[str, str] = {}
    changes: list[tuple[object, ...]] = []
    for page in pages:
        seen[page.id] += 1
        words = [plain_stem(token, stems) for token in plain_tokens(page.text)]
        where: dict[str, list[int]] = {}
        for position, word in enumerate(words):
            where.setdefault(word, []).append(position)
        for word, positions in where.items():
            if (word, page.id) in held:
                version, old = held[word, page.id]
                changes.append(("remove", word, page.id, version, old[0], len(old), ()))
            held[word, page.id] = seen[page.id], positions
            changes.append(("add", word, page.id, seen[page.id], positions[0], len(positions), tuple(positions)))
    return changes


@pytest.fixture(scope="session")
def tokens_by_category() -> Tokenise:
    """Return a tokeniser that looks up the category of every character."""
    return plain_tokens


@pytest.fixture(scope="session")
def changes_by_dictionary() -> ChangeLog:
    """Return a function for the change log of the index by plain dictionaries.

    It uses no packed postings, windows or regular expressions.
    """
    return plain_changes


@pytest.fixture(scope="session")
def wikipedia() -> Path:
    """Return the folder with the Wikipedia dumps."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("FLAMESTREAM_DATA", beside)) / "wikipedia"
    if not folder.is_dir():
        pytest.skip(f"no Wikipedia dumps at {folder}; set FLAMESTREAM_DATA to the folder that holds wikipedia/")
    return folder
