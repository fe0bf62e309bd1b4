"""The check of values against a declared type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypeVar

import msgspec
import pytest

from flamecore.model.types import TypeMatcher, type_text

T = TypeVar("T")
Word = NewType("Word", str)


class Pair(NamedTuple):
    word: str
    count: int


@dataclass(frozen=True)
class Tree:
    value: int
    left: Tree | None = None


class Struct(msgspec.Struct):
    names: list[str]


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [1, True], ["1", 1.5, None]),
        (float, [1, 1.5], ["1"]),
        (str, ["a"], [b"a", 1]),
        (None, [None], [0]),
        (int | None, [None, 3], ["3"]),
        (int | str, [1, "a"], [None, 1.5]),
        (tuple[str, int], [("a", 1)], [("a",), ("a", "b"), ["a", 1], ("a", 1, 2)]),
        (tuple[int, ...], [(), (1, 2)], [(1, "b"), [1]]),
        (list[int], [[], [1]], [(1,), ["a"]]),
        (Sequence[int], [[1], (1,)], [{1}, ["a"], 1]),
        (dict[str, int], [{"a": 1}], [{"a": "b"}, {1: 1}, []]),
        (Mapping[str, object], [{"a": None}], [{1: 1}]),
        (frozenset[str], [frozenset("ab")], [{"a"}, frozenset({1})]),
        (Literal["a", 1], ["a", 1], ["b", True]),
        (Annotated[int, "positive"], [1], ["a"]),
        (Word, ["a"], [1]),
        (Pair, [Pair("a", 1)], [("a", 1), Pair("a", "b")]),  # type: ignore[arg-type]
        (Tree, [Tree(1), Tree(1, Tree(2))], [Tree(1, Tree("b"))]),  # type: ignore[arg-type]
        (Struct, [Struct(["a"])], [Struct([1])]),  # type: ignore[list-item]
        (object, [1, None], []),
        (Any, [1, None], []),
        (T, [1, None], []),
    ],
)
def test_values_fit_their_types_or_not(hint: Any, good: list[Any], bad: list[Any]) -> None:
    test = TypeMatcher().test_of(hint)
    assert [value for value in good if not test(value)] == []
    assert [value for value in bad if test(value)] == []


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (object, ""),
        (int, "int"),
        (tuple[str, object], "tuple[str, object]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Pair | None, "Pair(word: str, count: int) | None"),
        (Tree, "Tree(value: int, left: Tree | None)"),
        (Literal["a"], "Literal['a']"),
    ],
)
def test_types_are_described(hint: Any, words: str) -> None:
    assert type_text(hint) == words
