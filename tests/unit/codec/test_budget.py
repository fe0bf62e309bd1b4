"""Few bytes can claim to be a great deal: no message costs more than its budget, whatever it is made of."""

from __future__ import annotations

import enum
import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.errors import CodecError, TooLargeError
from flamecore.model.batch import DerivedOrders, Lines, Rows, children
from flamecore.model.messages import Ack, Items, Released
from flamecore.model.meta import encode_time
from flamecore.runtime.codec import wire as lay
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.decode import CountingCursor, SchemaCompiler
from flamecore.runtime.codec.encode import Writer
from flamecore.runtime.codec.types import TypeTable, full_name

encode = msgspec.msgpack.encode


class Pair(NamedTuple):
    one: int


@dataclass
class Grown:
    one: int
    more: list[int] = field(default_factory=list)


class Empty(NamedTuple):
    """Nothing but a type."""


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Colour(enum.Enum):
    RED = 1


class Number(enum.Enum):
    ONE = 1
    TWO = 2
    SIX = 6


CODEC = Codec([Pair, Grown, Right, Colour])


def claimed(node: Any, *columns: bytes, table: tuple[Any, ...] = ()) -> bytes:
    """Bytes of a schema and columns as given."""
    return b"\x01" + encode([encode([list(table), node]), *columns])


def array(count: int, element: bytes) -> bytes:
    """Return a column of equal values."""
    return lay.array_head(count) + element * count


def several(node: Any, count: int, *columns: bytes, table: tuple[Any, ...] = ()) -> bytes:
    """Bytes of a list of as many values of a node."""
    return claimed([lay.LIST, node], encode([count]), *columns, table=table)


def nested(kind: int, depth: int) -> Any:
    node: Any = lay.NONE
    for _ in range(depth):
        node = [kind, node]
    return node


def items(node: Any, count: int, note: list[Any], *columns: bytes) -> bytes:
    """Bytes of a hand-over of as many payloads, with one note of their orders."""
    return claimed([lay.ITEMS, node], encode([[], [[0, 0, True, note]], None]), *columns)


NILS = b"\xc0"
FORMS: dict[str, Callable[[int], bytes]] = {
    "nils": lambda n: several(lay.NONE, n, array(n, NILS)),
    "numbers": lambda n: several(lay.INT, n, array(n, b"\xcd\xff\xfe")),
    "texts": lambda n: several(lay.STR, n, array(n, b"\xa2ab")),
    "wide texts": lambda n: several(lay.STR, n, array(n, b"\xa5a\xf0\x9f\x98\x80")),
    "sets": lambda n: several([lay.SET, lay.NOTHING], n, array(n, b"\0")),
    "sets of one": lambda n: several([lay.FROZENSET, lay.INT], n, array(n, b"\1"), array(n, b"\1")),
    "dictionaries": lambda n: several([lay.DICT, 1, 1], n, array(n, b"\1"), array(n, NILS), array(n, NILS)),
    "one dictionary": lambda n: claimed([lay.DICT, lay.INT, 1], encode([n]), encode([*range(n)]), array(n, NILS)),
    "lists": lambda n: several([lay.LIST, lay.NOTHING], n, array(n, b"\0")),
    "lists in lists": lambda n: several(nested(lay.LIST, 20), n, *[array(n, b"\1")] * 20, array(n, NILS)),
    "tuples in tuples": lambda n: several(nested(lay.TUPLE, 190), n, array(n, NILS)),
    "shapes": lambda n: several([lay.SHAPE, ["a", "b"], 1, 1], n, array(n, NILS), array(n, NILS)),
    "unions": lambda n: several([lay.UNION, 1, 1], n, array(n, b"\0"), array(n, NILS), array(0, b"")),
    "named tuples": lambda n: several([lay.RECORD, 0, 1], n, array(n, NILS), table=([full_name(Pair), "one"],)),
    "defaults": lambda n: several([lay.RECORD, 0, 1], n, array(n, NILS), table=([full_name(Grown), "one"],)),
    "flags": lambda n: several([lay.FLAGS, 0, lay.INT], n, array(n, b"\3"), table=([full_name(Right)],)),
    "names of members": lambda n: several(
        [lay.ENUM, 0], 1, array(n, b"\xa3RED"), encode([0]), table=([full_name(Colour)],)
    ),
    "dates": lambda n: several([lay.CODED, 0, lay.STR], n, array(n, b"\xaa2020-01-01"), table=(["date", 1],)),
    "identifiers": lambda n: several(
        [lay.CODED, 0, lay.BYTES], n, array(n, b"\xc4\x10" + b"a" * 16), table=(["UUID", 1],)
    ),
    "a long path": lambda n: claimed([lay.CODED, 0, lay.STR], encode(["ab/" * n]), table=(["PurePosixPath", 1],)),
    "simple lists": lambda n: several(lay.SIMPLE, 1, encode([[[]] * n])),
    "simple dictionaries": lambda n: several(lay.SIMPLE, 1, encode([[{"": {"": {"": 1}}}] * n])),
    "an order of many": lambda n: items(lay.NONE, n, [[b"o"], [n], 0, b""], array(n, NILS)),
    "an order of many lines": lambda n: items(lay.LINES, n, [[b"o"], [n], 0, b""], b"\n" * n),
    "orders": lambda n: items(lay.NONE, n, [[b"oo"] * n, None, 0, b""], array(n, NILS)),
}
UNITS = 2**13
SLACK_BYTES = 2**18


def most(form: Callable[[int], bytes], limits: lay.Limits) -> bytes:
    """Return the bytes of the most values of a form that are within limits."""
    low, high = 0, 2 * limits.units
    while high - low > 1:
        middle = (low + high) // 2
        try:
            CODEC.decode(form(middle), limits)
        except CodecError:
            high = middle
        else:
            low = middle
    assert low, "not one is accepted"
    return form(low)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_more_is_made_of_bytes_than_their_budget_allows(form: Callable[[int], bytes]) -> None:
    limits = lay.Limits(UNITS, 2**18)
    data = most(form, limits)
    tracemalloc.start()
    try:
        value = CODEC.decode(data, limits)
        if type(value) is Items:
            spelled = [list(value.pieces[0][3]), list(value.pieces[0][4])]
            assert all(spelled)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < UNITS * lay.UNIT_BYTES * 4 // 3 + SLACK_BYTES, f"{len(data)} bytes made {peak} bytes"


@pytest.mark.parametrize(
    "data",
    [
        several(lay.NONE, 33_000_000, array(33_000_000, NILS)),
        several([lay.SET, lay.NOTHING], 33_000_000, array(33_000_000, b"\0")),
        items(lay.NONE, 33_000_000, [[b"o"], [33_000_000], 0, b""], array(33_000_000, NILS)),
        claimed(lay.SIMPLE, b"\x91" + array(16_000_000, b"\x90")),
        claimed([lay.TOLD, "Report"], encode([0, 0, [], [[1, 1]] * 2_000_000, []])),
        claimed([lay.TUPLE, *[[lay.LIST, lay.NOTHING]] * 200_000], *[b"\x91\0"] * 200_000),
    ],
    ids=["nils", "sets", "an order of many", "simple lists", "a report", "a schema"],
)
def test_what_costs_too_much_is_refused_before_it_is_made(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            CODEC.decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(data) + 2**24


ALIKE = [2**70 * (2**61 - 1) * number for number in range(10_000)]
"""Integers of one hash."""


@pytest.mark.parametrize("form", [lay.SET, lay.FROZENSET, lay.DICT])
@pytest.mark.parametrize("wrapped", [False, True])
def test_elements_that_were_chosen_for_their_hashes_are_refused(form: int, wrapped: bool) -> None:
    """To look one of them up takes as long as there are others."""
    assert len(set(map(hash, ALIKE))) == 1
    count = len(ALIKE)
    integers = encode([number.to_bytes(20, "big") for number in ALIKE])
    node: Any = [lay.CODED, 0, lay.BYTES]
    node = [lay.TUPLE, node] if wrapped else node
    columns = [encode([count]), integers]
    if form == lay.DICT:
        columns.append(array(count, NILS))
    data = claimed([form, node, *[lay.NONE] * (form == lay.DICT)], *columns, table=(["int", 1],))
    with pytest.raises(CodecError, match="10000 elements or keys of 1 hashes"):
        CODEC.decode(data)


@pytest.mark.parametrize(("hashes", "most"), [(1, 256), (10, 640)])
def test_a_set_may_have_some_elements_of_one_hash(hashes: int, most: int) -> None:
    elements = [place % hashes + ALIKE[place // hashes + 1] for place in range(most + 1)]
    assert len(set(map(hash, elements))) == hashes

    def forged(count: int) -> bytes:
        integers = encode([number.to_bytes(20, "big") for number in elements[:count]])
        return claimed([lay.SET, [lay.CODED, 0, lay.BYTES]], encode([count]), integers, table=(["int", 1],))

    assert CODEC.decode(forged(most)) == {*elements[:most]}
    with pytest.raises(CodecError, match=f"{most + 1} elements or keys of {hashes} hashes"):
        CODEC.decode(forged(most + 1))


@pytest.mark.parametrize("form", [lay.SET, lay.DICT])
@pytest.mark.parametrize("chosen", [False, True])
def test_the_hashes_of_each_large_set_are_looked_at_by_themselves(form: int, chosen: bool) -> None:
    """Beside small sets, too, however often their elements repeat."""
    large = ALIKE if chosen else [2**70 * number for number in range(1, len(ALIKE) + 1)]
    small = [[2**70 * number for number in range(256)], [2**80], ALIKE[:256]] * 30
    elements = [number for one in (*small, large) for number in one]
    integers = encode([number.to_bytes(20, "big") for number in elements])
    lengths = [len(one) for one in (*small, large)]
    nones = [[lay.NONE], [array(len(elements), NILS)]] if form == lay.DICT else [[], []]
    node: Any = [lay.LIST, [form, [lay.CODED, 0, lay.BYTES], *nones[0]]]
    data = claimed(node, encode([len(lengths)]), encode(lengths), integers, *nones[1], table=(["int", 1],))
    if chosen:
        with pytest.raises(CodecError, match="10000 elements or keys of 1 hashes"):
            CODEC.decode(data)
    else:
        assert [*map(set, CODEC.decode(data))] == [*map(set, small), set(large)]


@pytest.mark.parametrize(
    "value",
    [
        {(number, str(number)) for number in range(10_000)},
        {(number,): None for number in range(10_000)},
        [{(0, place) for place in range(3)} for _ in range(10_000)],
        frozenset(2**70 * number for number in range(5_000)),
    ],
    ids=["pairs", "keys", "small sets", "large integers"],
)
def test_elements_of_any_other_hashes_are_read(value: Any) -> None:
    assert CODEC.decode(CODEC.encode(value)) == value


def sent_one_by_one(value: Any) -> Iterator[Items]:
    yield Items([(0, 0, True, [encode_time(7)], [value])], (Ack(0, 7, 1),))
    yield Items([(0, 0, True, [encode_time(7)], Rows([[value]]))], (Ack(0, 7, 1),))


PAYLOADS: dict[str, Callable[[int], Any]] = {
    "numbers": lambda n: [*range(n)],
    "mixed": lambda n: [number if number % 2 else str(number) for number in range(n)],
    "sets": lambda n: [{number} for number in range(n)],
    "pairs": lambda n: [(number, "x") for number in range(n)],
    "dictionaries": lambda n: [{"a": number, (1, 2): None} for number in range(n)],
    "trees": lambda n: [{"a": [number, {"b": "x"}]} for number in range(n)],
    "classes": lambda n: [Grown(number) for number in range(n)],
    "flags": lambda n: [Right.READ] * n,
    "dates": lambda n: [date(2020, 1, 1)] * n,
    "identifiers": lambda n: [UUID(int=number) for number in range(n)],
    "paths": lambda n: [PurePosixPath("a/b")] * n,
    "wide texts": lambda n: ["\N{SNOWMAN}" * 100] * n,
    "one wide text": lambda n: "\U0001f600" * 4 * n,
    "bytes": lambda n: [b"x" * 100] * n,
}


@pytest.mark.parametrize("make", PAYLOADS.values(), ids=PAYLOADS)
def test_whatever_the_writer_accepts_the_reader_accepts(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With budgets so small that both refuse, at nearly the same size; also as several payloads of one message."""
    small = lay.Limits(2**12, 2**18)
    monkeypatch.setattr("flamecore.runtime.codec.encode._LARGE_BYTES", 0)
    monkeypatch.setattr("flamecore.runtime.codec.codec._SPELLED_OUT", 0)
    monkeypatch.setattr("flamecore.runtime.codec.encode.Writer.limits", small)
    monkeypatch.setattr("flamecore.runtime.codec.encode.Writer._room", small.units)
    monkeypatch.setattr("flamecore.runtime.codec.encode.BatchWriter._room", small.units)
    accepted = refused = 0
    for size in (*range(1, 1200, 37), 5_000, 10_000):
        payload = make(size)
        several_orders = [encode_time(place) for place in range(size)]
        messages = [*sent_one_by_one(payload)]
        if type(payload) is list:
            messages.append(Items([(0, 0, True, several_orders, payload)], ()))
        for message in messages:
            try:
                data = CODEC.encode(message)
            except TooLargeError:
                refused += 1
            else:
                assert CODEC.decode(data, small) == message
                accepted += 1
    assert accepted
    assert refused


class Price(NamedTuple):
    """Values of a form, and their price in units.

    Attributes:
        make: Maker of `SOME` of them.
        each: Units of each.
        more: Units that the writer alone counts for each: it counts a value before it knows the form.
        once: Units of all of them together, besides.
    """

    make: Callable[[], Sequence[Any]]
    each: int
    more: int = 0
    once: int = 0


SOME, TEN = 9, 10
PRICES = {
    "numbers": Price(lambda: [*range(SOME)], 1),
    "texts": Price(lambda: ["x" * TEN] * SOME, 1),
    "lines": Price(lambda: Lines("x\n" * SOME), 2),
    "simple lists": Price(lambda: [[[number]] for number in range(SOME)], 3 * lay.SIMPLE_UNITS, 1, lay.SIMPLE_UNITS),
    "lists": Price(lambda: [[(number,)] for number in range(SOME)], lay.CONTAINER_UNITS + 2, 1),
    "pairs": Price(lambda: [(number, "x") for number in range(SOME)], 3),
    "pairs as rows": Price(lambda: Rows([[*range(SOME)], ["x"] * SOME]), 3),
    "pairs in tuples": Price(lambda: [((number, "x"),) for number in range(SOME)], 4),
    "wide tuples": Price(lambda: [(0,) * TEN] * SOME, lay.CONTAINER_UNITS + TEN, 1),
    "sets": Price(lambda: [{*range(TEN)}] * SOME, lay.CONTAINER_UNITS + (1 + TEN) * lay.ELEMENT_UNITS + TEN, 1),
    "frozensets": Price(lambda: [frozenset()] * SOME, lay.CONTAINER_UNITS + lay.ELEMENT_UNITS, 1),
    "dictionaries": Price(
        lambda: [dict.fromkeys(range(TEN), (1,))] * SOME,
        lay.CONTAINER_UNITS + (1 + TEN) * lay.ELEMENT_UNITS + TEN + 2 * TEN,
        1,
    ),
    "shapes": Price(lambda: [{"a": (1,), "b": (2,)}] * SOME, lay.CONTAINER_UNITS + 2 * (lay.ELEMENT_UNITS + 2), 1),
    "unions": Price(lambda: [1, "x", None] * (SOME // 3), lay.UNION_UNITS + 1, 1),
    "tuples with names": Price(lambda: [Pair(1)] * SOME, lay.RECORD_UNITS + 2, 1),
    "no fields": Price(lambda: [Empty()] * SOME, lay.RECORD_UNITS, 1),
    "fields": Price(lambda: [Grown(1, [])] * SOME, lay.RECORD_UNITS + 3 + lay.SIMPLE_UNITS, 2, lay.SIMPLE_UNITS),
    "flags": Price(lambda: [Right.READ] * SOME, lay.MADE_UNITS + 1, 1),
    "members": Price(lambda: [*Number] * (SOME // 3), 1, once=len(encode(["ONE", "TWO", "SIX"]))),
    "dates": Price(lambda: [date(2020, 1, 1)] * SOME, lay.MADE_UNITS + 1 + TEN // 2, 1),
    "identifiers": Price(lambda: [UUID(int=7)] * SOME, lay.MADE_UNITS + 1, 1),
}


def spent(values: Sequence[Any], types: TypeTable) -> tuple[int, int]:
    """Return the units that the writer and the reader of values deduct."""
    writer = Writer(types)
    node = writer.column(values)
    compiler = SchemaCompiler(types, encode([writer.table, node]))
    cursor = CountingCursor(iter(writer.columns), lay.MESSAGE.units)
    assert [*compiler.payloads(compiler.root)(cursor, len(values))] == [*values]
    return lay.MESSAGE.units - writer._room, lay.MESSAGE.units - cursor._units


@pytest.mark.parametrize("price", PRICES.values(), ids=PRICES)
def test_each_form_has_its_price_at_both_ends(price: Price) -> None:
    types = TypeTable()
    for kind in (Pair, Grown, Empty, Right, Number):
        types.declare(kind)
    read = SOME * price.each + price.once
    assert spent(price.make(), types) == (read + SOME * price.more, read)


def test_scalars_have_their_price_at_both_ends() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    read = SOME * lay.PACKED_UNITS
    assert spent([np.int32(number) for number in range(SOME)], TypeTable()) == (read + SOME, read)


class LongNames(enum.Enum):
    RED = 1
    ANY_COLOUR_WITH_QUITE_A_NUMBER_OF_WORDS_IN_ITS_NAME = 2


@pytest.mark.parametrize(
    "payload",
    [[None] * 500, [(1, 2)] * 300, ["\N{SNOWMAN}"] * 300, [*LongNames] * 200, [date(2020, 1, 1)] * 40],
    ids=["numbers", "pairs", "texts", "members", "dates"],
)
@pytest.mark.parametrize(
    "message",
    [
        lambda payload: Items([(0, 0, True, [encode_time(7)], [payload])], tuple(Ack(0, time, 1) for time in range(9))),
        lambda payload: Released(0, 9, [encode_time(7)], [payload], []),
        lambda payload: payload,
    ],
    ids=["items", "released", "value"],
)
def test_the_reader_accepts_what_just_fits_for_the_writer(
    payload: list[Any], message: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = Codec([LongNames])
    monkeypatch.setattr("flamecore.runtime.codec.encode._LARGE_BYTES", 0)
    value, least, most = message(payload), 0, 2**16
    while most - least > 1:
        middle = (least + most) // 2
        monkeypatch.setattr("flamecore.runtime.codec.encode.Writer._room", middle)
        try:
            data = codec.encode(value)
        except TooLargeError:
            least = middle
        else:
            most, written = middle, data
    assert least
    assert codec.decode(written, lay.Limits(most, 2**18)) == value


def test_plain_lists_that_cost_too_much_as_they_are_take_another_form() -> None:
    """Each of their bytes could be an empty list there. Several payloads are sent in smaller numbers instead."""
    value = ["x" * 100] * (lay.MESSAGE.units // lay.SIMPLE_UNITS // 100 + 1)
    assert CODEC.decode(CODEC.encode(value)) == value
    with pytest.raises(TooLargeError):
        CODEC.encode(Items([(0, 0, True, [b"a", b"b"], [value, value[:1]])], ()))


def derived(count: int) -> DerivedOrders:
    return DerivedOrders([encode_time(place) for place in range(count)], None, tail=b"t")


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Items([(0, 0, True, derived(n), [None] * n)], ()),
        lambda n: Released(0, 7, derived(n), [None] * n, []),
    ],
    ids=["items", "released"],
)
def test_derived_orders_are_charged_from_a_number_on_by_writer_and_reader_alike(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 100
    monkeypatch.setattr("flamecore.runtime.codec.codec._SPELLED_OUT", most)
    few, many = CODEC.encode(make(most)), CODEC.encode(make(most + 1))
    small = lay.Limits(14 * most, 2**18)
    assert CODEC.decode(few, small) == make(most)
    with pytest.raises(CodecError):
        CODEC.decode(many, small)
    monkeypatch.setattr("flamecore.runtime.codec.encode.BatchWriter._room", small.units)
    assert CODEC.encode(make(most)) == few
    with pytest.raises(TooLargeError):
        CODEC.encode(make(most + 1))


def test_a_payload_that_alone_is_too_large_is_told_with_its_way() -> None:
    codec = Codec()
    message = Items([(3, 0, True, [encode_time(17)], [[None] * (lay.MESSAGE.units + 1)])], ())
    with pytest.raises(TooLargeError) as caught:
        codec.encode(message)
    assert caught.value.vertex == "3"
    assert caught.value.hint


@pytest.mark.parametrize(
    "message",
    [
        Items([(0, 0, True, [encode_time(time) for time in range(9)], [[None] * (lay.TOGETHER.units // 8)] * 9)], ()),
        Released(0, 9, [encode_time(time) for time in range(9)], [b"x" * 2**20] * 9, []),
        Items([(0, 0, True, children([encode_time(1)], [10**6]), Lines("x\n" * 10**6))], ()),
    ],
    ids=["values", "bytes", "orders"],
)
def test_several_payloads_cost_less_than_one_may(message: Any) -> None:
    with pytest.raises(TooLargeError):
        CODEC.encode(message)


def test_state_may_be_larger_than_messages() -> None:
    value = [None] * (lay.MESSAGE.units + 1)
    data = CODEC.encode(value, lay.STORED)
    assert CODEC.decode(data, lay.STORED) == value
    with pytest.raises(CodecError):
        CODEC.decode(data)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), max_size=40), st.booleans())
def test_texts_are_charged_by_their_widest_character(texts: list[str], as_lines: bool) -> None:
    """Also a text's head counts if its bytes look like a wide character's, except that of the first text."""
    column = "".join(texts).encode() if as_lines else encode(texts)
    skipped = 0
    if lay.array_length(column) >= 0:
        skipped = {0xDC: 3, 0xDD: 5}.get(column[0], 1)
        skipped += {b"\xd9": 2, b"\xda": 3, b"\xdb": 5}.get(column[skipped : skipped + 1], 1)
    extra = 0
    if re.search(rb"[\xf0-\xf4]", column[skipped:]):
        extra = 3
    elif re.search(rb"[\xc4-\xef]", column[skipped:]):
        extra = 1
    assert lay.text_units(column) == extra * len(column) // lay.UNIT_BYTES
