"""Tokeniser and stemmer of the inverted index, against the plain tokeniser."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamestream_demo import text
from flamestream_demo.text import occurrences, stem, stems, tokens

Tokenise = Callable[[str], list[str]]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(text) == (0, 3)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        ("one two", ["one", "two"]),
        ("a-b a- -a --a_-", ["a-b", "a-", "a", "a_-"]),
        ("_private __init__ x_1", ["private", "init__", "x_1"]),
        ("3 3.14 ٣٤ ७", ["3", "3", "14", "٣٤", "७"]),
        ("м² ½ x²y Ⅳ ①а", ["м", "x", "y", "а"]),
        ("²-b ²_c 1²-2", ["b", "c", "1", "2"]),
        ("Сбо\u0301рная e\u0301te", ["Сбо", "рная", "e", "te"]),
        ("don't naïve «ёлка»", ["don", "t", "naïve", "ёлка"]),
        ("ǅ ʰ 字 ﬁ", ["ǅ", "ʰ", "字", "ﬁ"]),
        ("\ufefffirst\u00a0second\u200bthird", ["first", "second", "third"]),
    ],
)
def test_tokens_start_and_end_at_their_characters(
    content: str, expected: list[str], tokens_by_category: Tokenise
) -> None:
    assert tokens_by_category(content) == expected, "the definition itself"
    assert tokens(content) == expected
    assert stems(content) == [stem(token) for token in expected]


def test_every_character_is_in_or_out_as_its_category_says(tokens_by_category: Tokenise) -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    alone = " ".join(characters)
    assert tokens(alone) == tokens_by_category(alone)
    # Behind a letter they must go on or end the token alike.
    for start in range(0, len(characters), 4096):
        content = " ".join("a" + character + "b" for character in characters[start : start + 4096])
        assert tokens(content) == tokens_by_category(content)


numbers = st.characters(categories=["No", "Nl", "Nd"])
marks = st.characters(categories=["Mn", "Mc", "Pc", "Pd", "Zs", "Cf"])
letters = st.characters(categories=["Lu", "Ll", "Lt", "Lm", "Lo"])


@given(st.text(st.one_of(letters, numbers, marks, st.sampled_from("ab-_ё ²")), max_size=60))
def test_tokens_of_any_text_agree_with_the_definition(tokens_by_category: Tokenise, content: str) -> None:
    expected = tokens_by_category(content)
    assert tokens(content) == expected
    words = stems(content)
    assert words == [stem(token) for token in expected]
    found = occurrences(content)
    assert list(found) == list(dict.fromkeys(words))
    assert found == {word: [n for n, other in enumerate(words) if other == word] for word in words}


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        # porter2 where it differs from the first Porter stemmer: dying, skies, news, generously
        ("Dying", "die"),
        ("skies", "sky"),
        ("news", "news"),
        ("GENEROUSLY", "generous"),
        ("x_1", "x_1"),
        ("\u212aelvins", "kelvin"),  # the Kelvin sign: a letter whose lower case is k
        ("Команды", "команд"),
        ("представляющая", "представля"),
        # Cyrillic after an English first letter, and the other way round
        ("xкоманды", "xкоманды"),
        ("вrunning", "вrunning"),
        # ё is a separate letter and no vowel: only the а of ёлка is cut, and its ё stays
        ("ёлка", "ёлка"),
        ("Ещё", "ещё"),
        ("её", "её"),
        ("зелёного", "зелён"),
        ("ёж", "ёж"),
        ("1990-х", "1990-х"),
        ("2018", "2018"),
        ("Übung", "übung"),
    ],
)
def test_words_have_stems(token: str, expected: str) -> None:
    assert stem(token) == expected


def test_a_word_with_and_without_the_dots_is_two_words() -> None:
    assert list(occurrences("всё все Всё")) == ["всё", "все"]
    assert list(occurrences("зелёного зеленого")) == ["зелён", "зелен"]


def test_positions_count_all_tokens_of_the_page() -> None:
    assert occurrences("b a² 1½b\nB") == {"b": [0, 3, 4], "a": [1], "1": [2]}
