"""Payloads that are noted as columns, or as one text, against the list of the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.errors import CodecError
from flamecore.model.batch import Ascending, Beside, Lines, Rows, chosen, column_of, concat, many_of, results
from flamecore.model.messages import Items, Released
from flamecore.runtime.codec.codec import Codec

texts = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=3)
rows = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.one_of(texts, st.integers(), st.none())] * width), min_size=1)
)
lines = st.lists(texts.map(lambda text: f"{text}\n"))
noted = st.one_of(
    rows.map(lambda wanted: (Rows(list(zip(*wanted, strict=True))), wanted)),
    lines.map(lambda wanted: (Lines("".join(wanted)), wanted)),
    st.lists(st.integers(), min_size=1).map(lambda wanted: (Beside(wanted, (abs, [*map(abs, wanted)])), wanted)),
)
Both = tuple[Sequence[Any], list[Any]]


@given(noted, st.data())
def test_payloads_answer_as_a_list_does(both: Both, data: st.DataObject) -> None:
    payloads, wanted = both
    length = len(wanted)
    assert len(payloads) == length
    assert bool(payloads) == bool(wanted)
    if wanted:
        at = data.draw(st.integers(-length, length - 1))
        assert payloads[at] == wanted[at]
        assert type(payloads[at]) is type(wanted[at])
    places = st.integers(-length - 2, length + 2)
    start, stop, step = data.draw(st.tuples(places, places, st.sampled_from((1, 1, 2, -1))))
    assert list(payloads[start:stop:step]) == wanted[start:stop:step]
    assert [*payloads] == wanted
    assert [*reversed(payloads)] == wanted[::-1]
    assert payloads == wanted
    assert payloads != [*wanted, None]
    assert repr(payloads) == repr(wanted)


@given(st.lists(st.sampled_from(("\n", "a\n", "é\n", "long line\n"))), st.data())
def test_slices_of_lines_stay_lines(wanted: list[str], data: st.DataObject) -> None:
    places = st.integers(-len(wanted) - 2, len(wanted) + 2)
    start, stop = data.draw(places), data.draw(places)
    part = Lines("".join(wanted))[start:stop]
    assert isinstance(part, Lines)
    assert (part.text, len(part)) == ("".join(wanted[start:stop]), len(wanted[start:stop]))


@pytest.mark.parametrize("length", [1, 8, 40, 3000])
@given(st.randoms(use_true_random=False), st.integers(0, 400))
def test_parts_of_lines_of_any_lengths_are_those_of_a_list(length: int, random: Random, count: int) -> None:
    """Texts of one length, of a few lengths, and of very different ones: where they begin is found by guesses."""
    each = [f"{'x' * (random.randrange(length) if random.random() < 0.2 else 0)}\n" for _ in range(count)]
    places = sorted(random.randrange(count + 1) for _ in range(random.randrange(12)))
    ends = [pair for pair in pairwise(places) if random.random() < 0.8]
    found = [(part.text, len(part)) for part in Lines("".join(each), count).parts(ends)]
    assert found == [("".join(each[start:end]), end - start) for start, end in ends if start < end]


@given(noted, st.lists(st.integers(0, 50), max_size=4))
def test_slices_concatenate_to_the_same_payloads(both: Both, cuts: list[int]) -> None:
    payloads, wanted = both
    places = sorted({0, len(wanted), *[cut for cut in cuts if cut < len(wanted)]})
    assert concat([payloads[start:end] for start, end in pairwise(places)]) == wanted


@given(st.lists(st.one_of(noted, rows.map(lambda wanted: (wanted, wanted))), max_size=4))
def test_payloads_of_any_forms_are_concatenated(several: list[Both]) -> None:
    together = concat([payloads for payloads, _ in several])
    assert list(together) == [payload for _, wanted in several for payload in wanted]


def test_payloads_of_one_form_keep_it() -> None:
    together = concat([Rows(([1], ["a"])), Rows(([2, 3], ["b", "c"]))])
    assert isinstance(together, Rows)
    assert together.columns == [[1, 2, 3], ["a", "b", "c"]]
    assert type(concat([Lines("a\n"), Lines("b\n")])) is Lines
    assert concat([Rows(([1],)), Rows(([2], [3]))]) == [(1,), (2, 3)]


def test_columns_beside_payloads_go_with_them() -> None:
    payloads = Beside([-1, 2, -3, 4], (abs, [1, 2, 3, 4]), (str, ["-1", "2", "-3", "4"]))
    part = payloads[1:3]
    assert (type(part), part.columns) == (Beside, ((abs, [2, 3]), (str, ["2", "-3"])))
    together = concat([part, payloads[3:]])
    assert isinstance(together, Beside)
    assert (together, together.columns) == ([2, -3, 4], ((abs, [2, 3, 4]), (str, ["2", "-3", "4"])))
    for other in ([5], Beside([5], (repr, ["5"]))):
        assert type(concat([part, other])) is list
    some = concat([part, Beside([5], (repr, ["5"]), (str, ["5"]))])
    assert isinstance(some, Beside)
    assert (some, some.columns) == ([2, -3, 5], ((str, ["2", "-3", "5"]),)), "those that all parts have"


def test_a_column_is_found_by_its_function_alone() -> None:
    class Same:
        """A callable that equals any other, and has no hash."""

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

        def __call__(self, value: int) -> int:
            return value

    one, other = Same(), Same()
    payloads = Beside([7], (one, [1]), (abs, [2]))
    assert [column_of(payloads, by) for by in (one, abs, other, str)] == [[1], [2], None, None]
    assert column_of([7], abs) is None


def test_what_is_chosen_of_payloads_has_its_part_of_the_columns() -> None:
    some = chosen(Beside([-1, 2, -3], (abs, [1, 2, 3])), [0, 2], [-1, -3])
    assert isinstance(some, Beside)
    assert (some, some.columns) == ([-1, -3], ((abs, [1, 3]),))
    for payloads in ([-1, 2, -3], (-1, 2, -3)):
        assert type(chosen(payloads, [0, 2], [-1, -3])) is list
        assert chosen(payloads, [0, 2], [-1, -3]) == [-1, -3]


def test_a_function_of_many_is_found_beside_functions_alone() -> None:
    """An object that can be called may have any attribute of that name."""

    class Callable:
        many = [abs]

        def __call__(self, value: int) -> int:
            return value

    def one(value: int) -> int:
        return +value

    assert [many_of(function) for function in (abs, one, Callable())] == [None, None, None]
    one.many = list  # type: ignore[attr-defined]
    assert many_of(one) is list


def test_a_function_that_returns_its_argument_has_the_arguments_themselves() -> None:
    outer = 1

    def itself(value: int) -> int:
        return value

    for function in (itself, lambda n: n, lambda n, /: n, lambda n, *rest: n):
        many = many_of(function)
        assert many is not None
        assert many(values := [3, 1]) is values
        assert many((3, 1)) == [3, 1]
    others: list[Any] = [lambda n: outer, lambda n: 1, lambda n, m=2: m, lambda *n: n, lambda n, *, m: n, lambda: 1]
    assert [many_of(function) for function in others] == [None] * len(others)


def test_half_a_line_is_refused() -> None:
    with pytest.raises(ValueError, match="in the midst of one"):
        Lines("a\nb")


@given(noted)
def test_packed_payloads_are_encoded_as_they_are(both: Both) -> None:
    payloads, wanted = both
    codec, orders = Codec(), [number.to_bytes(4, "big") for number in range(len(wanted))]
    released = codec.decode(codec.encode(Released(0, 5, orders, payloads, ())))
    assert released == Released(0, 5, orders, wanted, [])
    assert type(released.payloads) is (list if type(payloads) is Beside else type(payloads))
    pieces: list[Any] = [(1, 2, True, orders, payloads), (1, 3, False, orders, wanted)]
    items = codec.decode(codec.encode(Items(pieces, ())))
    assert [list(piece[4]) for piece in items.pieces] == [wanted, wanted]
    for one in (*items.pieces[0][4], *released.payloads):
        assert type(one) is type(wanted[0])


def test_tuples_in_lists_come_back_as_lists_of_tuples() -> None:
    """Only payloads themselves may be noted: what is within them is the user's."""
    codec = Codec()
    value = [[("a", 1)] * 3, [("b", 2)]]
    (got,) = codec.decode(codec.encode(Released(0, 5, [b"o"], [value], ()))).payloads
    assert got == value
    assert [type(part) for part in got] == [list, list]
    (pairs,) = codec.decode(codec.encode(Released(0, 5, [b"o"], [(("a", 1), ("b", 2))], ()))).payloads
    assert pairs == (("a", 1), ("b", 2))
    assert type(pairs) is tuple


def test_a_line_that_cannot_be_encoded_is_an_error() -> None:
    with pytest.raises(CodecError, match="not valid Unicode"):
        Codec().encode(Released(0, 5, [b"o"], Lines("\udcff\n"), ()))


def test_parts_of_a_column_that_ascends_do_so_too() -> None:
    payloads = Beside([*"abcd"], (ord, Ascending([1, 2, 2, 4])), (len, [1, 1, 1, 1]))
    part, some = payloads[1:3], chosen(payloads, [0, 3], ["a", "d"])
    assert isinstance(some, Beside)
    for one, column in ((part, [2, 2]), (some, [1, 4])):
        assert [(type(values), values) for _, values in one.columns] == [(Ascending, column), (list, [1, 1])]
    for parts, kind in (((payloads[:1], payloads[1:]), Ascending), ((payloads[3:], payloads[:1]), list)):
        together = concat(parts)
        assert isinstance(together, Beside)
        assert [type(values) for _, values in together.columns] == [kind, list]
    mixed = concat([payloads[:2], Beside(["d"], (ord, [3]))])
    assert isinstance(mixed, Beside)
    assert mixed.columns == ((ord, [1, 2, 3]),)
    assert type(mixed.columns[0][1]) is list, "a list that is not known to ascend"
    for step in (slice(None, None, -1), slice(None, None, 2)):
        assert [*payloads[step].columns[0][1]] == [1, 2, 2, 4][step]
    assert type(payloads[::-1].columns[0][1]) is list


@pytest.mark.parametrize("place", [0, 1, 3])
def test_results_are_of_all_values_or_of_none(place: int) -> None:
    def stops(value: int) -> int:
        if value == place:
            raise StopIteration(value)
        return -value

    assert results(stops, range(10, 14)) == [-10, -11, -12, -13]
    with pytest.raises(RuntimeError, match=f"value {place + 1} of 4"):
        results(stops, range(4))
