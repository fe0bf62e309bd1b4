"""Wrong arguments of verbs: the error names the verb, the argument, and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import GraphError


def numbers() -> fc.Stream[int]:
    return fc.Flow("arguments").source("numbers", int)


def keyed() -> Any:
    return numbers().key_by(lambda n: n)


def untyped(stream: object) -> Any:
    """Return a stream of which a type checker knows nothing."""
    return stream


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "an argument is missing": (
        lambda: untyped(numbers()).map(),
        r"^map takes \(function: .*\): missing 1 required positional argument: 'function'",
    ),
    "an argument is too many": (lambda: untyped(numbers()).rebalance(3), r"^rebalance takes \("),
    "an unknown keyword": (
        lambda: untyped(numbers()).map(abs, nam="x"),
        r"^map takes \(function: .*name: .*\): got an unexpected keyword argument 'nam'",
    ),
    "of a keyed stream": (lambda: keyed().fold(0), r"^fold takes \(initial: .*missing .*'function'"),
    "of the flow": (lambda: untyped(fc.Flow("f")).source(), r"^source takes \(name: str, .*missing .*'name'"),
    "broadcast": (lambda: untyped(numbers()).broadcast("2"), r"broadcast after 'numbers': count is '2', and has to be"),
    "merge": (lambda: untyped(numbers()).merge(5), "merge after 'numbers': a stream is 5, and has to be a stream"),
    "merge of keys": (lambda: numbers().merge(keyed()), "has to be a stream, and before any key_by"),
    "apply": (lambda: untyped(numbers()).apply(5), "apply after 'numbers': kind is 5, and has to be a class"),
    "group": (lambda: keyed().group("2"), "group after 'numbers': window is '2', and has to be a whole number"),
    "flow": (lambda: untyped(fc.Flow)(""), "Flow: its name is '', and has to be a text"),
    "half a letter": (lambda: numbers().sink("x\udce1"), r"sink: its name is 'x\\udce1', which no encoding can write"),
    "sink": (lambda: untyped(numbers()).sink(5), "sink: its name is 5, and has to be a text"),
    "source": (lambda: untyped(fc.Flow("f")).source(5), "source: its name is 5, and has to be a text"),
    "label": (lambda: untyped(numbers()).label(5), "label: its name is 5, and has to be a text"),
    "a name": (lambda: untyped(numbers()).map(abs, name=5), "map: its name is 5, and has to be a text"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_argument_is_named_with_what_is_expected(case: str) -> None:
    call, text = CALLS[case]
    with pytest.raises(GraphError, match=text):
        call()


def test_a_type_error_of_the_users_own_stays_as_it_is() -> None:
    def body(_: fc.Stream[int]) -> Any:
        return untyped(len)(1, 2)

    with pytest.raises(TypeError, match="len"):
        numbers().loop(body)
