"""Bytes that are not the codec's, or not quite: a value or a CodecError comes of them, and never much else.

Made-up bytes are of four kinds: random ones, damaged ones, well-formed ones that make no sense, and claims of more than
there is.
"""

from __future__ import annotations

import enum
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flamecore.errors import CodecError, TooLargeError
from flamecore.model.batch import Lines, Rows, children, extended
from flamecore.model.failure import Cause, Failure
from flamecore.model.messages import Ack, Delivered, Items, MinTimes, Released, Report
from flamecore.model.type_codec import TypeCodec
from flamecore.runtime.codec import wire as lay
from flamecore.runtime.codec.codec import Codec

encode = msgspec.msgpack.encode


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Place:
    name: str
    at: Point
    tags: list[str] = field(default_factory=list)


@dataclass
class Wrapped:
    inner: Any


class Struct(msgspec.Struct):
    a: int
    b: str = ""


class Money:
    """A type with a codec."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


CODEC = Codec([Colour, Right, Place, Struct], [TypeCodec(Money, "money", lambda m: m.cents, Money, version=2)])

SENT: list[Any] = [
    None,
    [1, 2.5, "text", b"bytes", True, None, 2**70],
    [(number, str(number)) for number in range(20)],
    [(1,) * number for number in range(9)],
    {"a": [{"b": 1}] * 5, "c": {1, 2, 3}, "d": frozenset({("x", 1)})},
    [Place("p", Point(number), ["t"] * number) for number in range(5)],
    [Colour.RED, Colour.BLUE, Right.READ, Right.READ | Right.WRITE],
    [Struct(1, "b"), Money(5), Money(7)],
    [datetime(2020, 1, 2, fold=1), timedelta(1), Decimal("1.5"), UUID(int=3), 1 + 2j, bytearray(b"x")],
    Items([(3, 5, True, [b"o", b"p"], ["word", ("pair", 1)]), (1, 0, False, [b"q"], [None])], (Ack(0, 1, 2),)),
    Items([(3, 5, True, children([b"o", b"p"] * 20, [2] * 40, 1, b"t"), Rows((["a"] * 80, [1] * 80)))], ()),
    Released(1, 5, extended([b"o"] * 40, b"t"), Lines("x\n" * 40), []),
    Released(1, 5, [b"o"], [("word", 1)], [(b"x", Failure(None, "map", "r", "k", Cause("why", ("frame",))))]),
    Report(1, 2, (Ack(0, 1, 2),), ((1, 5),), (2,)),
    MinTimes((0, 5), (1, 2)),
    Delivered("out", 5),
]


def decoded_or_refused(data: bytes, codec: Codec = CODEC) -> None:
    try:
        codec.decode(data)
    except CodecError:
        return


@given(st.binary(max_size=80))
def test_random_bytes_are_decoded_or_refused(data: bytes) -> None:
    decoded_or_refused(data)
    decoded_or_refused(bytes((lay.VERSION,)) + data)


@given(st.sampled_from(SENT), st.data())
def test_damaged_bytes_are_decoded_or_refused(value: Any, draw: st.DataObject) -> None:
    data = bytearray(CODEC.encode(value))
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, len(data) - 1))
        match draw.draw(st.integers(0, 2)):
            case 0:
                data[place] = draw.draw(st.integers(0, 255))
            case 1:
                data[place] ^= 1 << draw.draw(st.integers(0, 7))
            case 2:
                data[place:place] = draw.draw(st.binary(min_size=1, max_size=5))
    decoded_or_refused(bytes(data))
    decoded_or_refused(bytes(data[: draw.draw(st.integers(0, len(data)))]))


def test_any_damaged_byte_is_decoded_or_refused() -> None:
    for value in SENT:
        data = CODEC.encode(value)
        for place in range(len(data)):
            for changed in {0, data[place] ^ 1, data[place] ^ 128, (data[place] + 1) % 256, 255, 0x90, 0xDD} - {
                data[place]
            }:
                decoded_or_refused(data[:place] + bytes((changed,)) + data[place + 1 :])
            decoded_or_refused(data[:place])


NAMES = [*CODEC._types._by_name, "numpy.ndarray", "numpy.str_", "nobody:Knows"]
NUMBERS = st.integers(-2, 6) | st.sampled_from([2**31, 2**63, -(2**63)])
NODES = st.recursive(
    st.integers(-1, 7),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: [lay.TUPLE, *nodes]),
        st.tuples(st.sampled_from([lay.LIST, lay.TUPLES, lay.SET, lay.FROZENSET]), inner).map(list),
        st.tuples(st.just(lay.DICT), inner, inner).map(list),
        st.tuples(st.just(lay.SHAPE), st.lists(st.sampled_from(["a", "b", 1, None]), max_size=2), inner).map(list),
        st.lists(inner, max_size=3).map(lambda nodes: [lay.UNION, *nodes]),
        st.tuples(st.sampled_from([lay.RECORD, lay.ENUM, lay.FLAGS, lay.CODED]), NUMBERS, inner, inner).map(
            lambda parts: list(parts[: 2 + parts[1] % 3])
        ),
        st.tuples(st.just(lay.PACKED), st.sampled_from(["<f8", ">i4", "O", "U", 5])).map(list),
        st.tuples(st.sampled_from([lay.ITEMS, lay.RELEASED]), inner, inner).map(list),
        st.tuples(st.just(lay.TOLD), st.sampled_from(["Report", "MinTimes", "Delivered", "Items", 5])).map(list),
        st.lists(st.integers(-1, 30) | inner, max_size=4),
    ),
    max_leaves=6,
)
TABLES = st.lists(
    st.lists(st.sampled_from([*NAMES, "name", "at", "tags", "x", "y", "a", "b", "value", 1, 2, None]), max_size=4),
    max_size=4,
)
COLUMNS = st.lists(
    st.lists(NUMBERS, max_size=4).map(encode)
    | st.lists(st.sampled_from(["RED", "x", b"y", 1.5, None, True]), max_size=4).map(encode)
    | st.binary(max_size=9),
    max_size=8,
)


@given(TABLES, NODES, COLUMNS)
@example([["Decimal", 1]], [lay.CODED, 0, lay.STR], [encode(["x"])])
@example([["bytearray", 1]], [lay.CODED, 0, lay.INT], [encode([2**40])])
@example([["int", 1]], [lay.CODED, 0, lay.INT], [encode([2**40])])
@example([], [lay.UNION, lay.INT], [encode([-1])])
def test_well_formed_nonsense_is_decoded_or_refused(table: list[Any], node: Any, columns: list[bytes]) -> None:
    decoded_or_refused(bytes((lay.VERSION,)) + encode([encode([table, node]), *columns]))


@pytest.mark.parametrize(
    "schema",
    [b"", b"\xc0", encode([]), encode([[], 1, 2]), encode({}), encode(["x", 1]), encode([[1], 1]), b"\x91" * 5000],
    ids=lambda schema: schema[:9].hex(),
)
def test_a_value_that_is_no_schema_is_refused(schema: bytes) -> None:
    for columns in ([], [b"\x91\x01"]):
        with pytest.raises(CodecError):
            CODEC.decode(bytes((lay.VERSION,)) + encode([schema, *columns]))


@pytest.fixture(scope="module", autouse=True)
def _numpy_is_there() -> None:
    """Import numpy if it is installed, which takes a while, before any test runs."""
    decoded_or_refused(claimed([lay.PACKED, "<f8"], b""))


def claimed(node: Any, *columns: bytes, table: Any = ()) -> bytes:
    return bytes((lay.VERSION,)) + encode([encode([table, node]), *columns])


MANY = 2**32 - 1
ARRAY = b"\xdd\xff\xff\xff\xff"
NESTED_LIST: Any = lay.INT
NESTED_TUPLE: Any = lay.NONE
for _ in range(300):
    NESTED_LIST, NESTED_TUPLE = [lay.LIST, NESTED_LIST], [lay.TUPLE, NESTED_TUPLE]
DEEP_ENOUGH: Any = lay.NONE
for _ in range(150):
    DEEP_ENOUGH = [lay.TUPLE, DEEP_ENOUGH]

CLAIMS = {
    "nothing": b"",
    "another version": bytes((lay.VERSION + 1,)) + encode([encode([[], 1]), b"\x91\xc0"]),
    "many columns": bytes((lay.VERSION,)) + ARRAY,
    "a long schema": bytes((lay.VERSION,)) + b"\x91\xc6\xff\xff\xff\xff",
    "many numbers": claimed([lay.LIST, lay.INT], encode([MANY]), ARRAY),
    "many numbers, told": claimed([lay.LIST, lay.INT], encode([2**62]), ARRAY),
    "lengths that go back": claimed([lay.LIST, lay.INT], encode([-1]), encode([])),
    "lengths that add up": claimed([lay.LIST, [lay.LIST, lay.INT]], encode([2]), encode([5, -4]), encode([1])),
    "many nothings": claimed([lay.LIST, lay.NOTHING], encode([MANY])),
    "many tuples of nothing": claimed([lay.LIST, [lay.TUPLE]], encode([2**25])),
    "many empty records": claimed([lay.LIST, [lay.RECORD, 0]], encode([2**20]), table=[["!Begin"]]),
    "many members": claimed([lay.LIST, [lay.ENUM, 0]], encode([MANY]), encode(["RED"]), ARRAY, table=[[NAMES[0]]]),
    "many of a kind": claimed([lay.UNION, lay.NONE], encode([0] * 5), ARRAY),
    "an array of a trillion": claimed(
        [lay.CODED, 0, [lay.TUPLE, lay.STR, [lay.TUPLE, lay.INT, lay.INT], lay.STR, lay.BYTES]],
        *(encode([part]) for part in ("<f8", 2**40, 1, "Cw", b"")),
        table=[["numpy.ndarray", 1]],
    ),
    "an array of many dimensions": claimed(
        [lay.CODED, 0, [lay.TUPLE, lay.STR, [lay.TUPLES, lay.INT], lay.STR, lay.BYTES]],
        *(encode(part) for part in (["<f8"], [10_000], [2**62] * 10_000, ["Cw"], [b""])),
        table=[["numpy.ndarray", 1]],
    ),
    "numbers of scalars": claimed([lay.LIST, [lay.PACKED, "<f8"]], encode([2**24]), b""),
    "a bytearray of a terabyte": claimed([lay.CODED, 0, lay.INT], encode([2**40]), table=[["bytearray", 1]]),
    "lists in lists": claimed(NESTED_LIST, *[encode([1])] * 300),
    "tuples in tuples": claimed(NESTED_TUPLE, encode([None])),
    "arrays in arrays": b"\x01" + b"\x91" * 100_000,
    "many pieces": claimed([lay.ITEMS, lay.NOTHING], b"\x92\x90" + ARRAY),
    "many orders": claimed([lay.RELEASED, 0, 0], b"\x94\x00\x00\x94" + ARRAY),
    "many made of one": claimed([lay.RELEASED, 1, 0], encode([0, 0, [[b"o"], [2**60], 0, b""], []]), ARRAY),
    "many made of two": claimed([lay.RELEASED, 1, 0], encode([0, 0, [[b"o"] * 2, [2**62] * 2, 0, b""], []]), ARRAY),
    "long ones": claimed([lay.RELEASED, 1, 0], encode([0, 0, [[b"o" * 999], [9], 0, b""], []]), encode([None] * 9)),
    "fewer lines": claimed([lay.RELEASED, lay.LINES, 0], encode([0, 0, [[b"o"] * 2, None, 0, b""], []]), b"x\n"),
    "half a line": claimed([lay.RELEASED, lay.LINES, 0], encode([0, 0, [[b"o"], None, 0, b""], []]), b"x\ny"),
    "lines of what is no text": claimed(
        [lay.RELEASED, lay.LINES, 0], encode([0, 0, [[b"o"], None, 0, b""], []]), b"\xff\n"
    ),
    "lines where none belong": claimed([lay.LIST, lay.LINES], encode([1]), b"x\n"),
    "rows of two lengths": claimed(
        [lay.ITEMS, [lay.TUPLE, lay.INT, [lay.TUPLE, lay.LINES]]], encode([[], []]), encode([]), encode([1])
    ),
    "many acks": claimed([lay.TOLD, "Report"], b"\x93\x00\x00" + ARRAY),
    "a text of gigabytes": claimed(lay.STR, b"\x91\xdb\xff\xff\xff\xff"),
    "a dictionary of gigabytes": claimed([lay.DICT, 1, 1], encode([MANY]), ARRAY, ARRAY),
    "a key twice": claimed([lay.DICT, lay.INT, lay.INT], encode([2]), encode([1, 1]), encode([1, 2])),
    "an element twice": claimed([lay.SET, lay.INT], encode([2]), encode([1, 1])),
    "a list as key": claimed([lay.DICT, [lay.LIST, 0], 1], encode([1]), encode([0]), encode([None])),
    "a column too few": claimed([lay.TUPLE, lay.INT, lay.INT], encode([1])),
    "a column too many": claimed(lay.INT, encode([1]), encode([2])),
    "values too many": claimed(lay.INT, encode([1, 2])),
    "values too few": claimed(lay.INT, encode([])),
    "something behind": claimed(lay.INT, encode([1])) + b"\x00",
    "a name that is a number": claimed([lay.RECORD, 0], table=[[5]]),
    "no such class": claimed([lay.RECORD, 7]),
    "the last class": claimed([lay.ENUM, -1], encode(["RED"]), encode([0]), table=[[NAMES[0]]]),
    "the last member": claimed([lay.ENUM, 0], encode(["READ"]), encode([-1]), table=[["x"]]),
    "a field twice": claimed([lay.RECORD, 0, 2, 2], encode([1]), encode([1]), table=[["!Ready", "node", "node"]]),
    "another version of a codec": claimed([lay.CODED, 0, lay.INT], encode([1]), table=[["money", 1]]),
    "a version that is a list": claimed([lay.CODED, 0, lay.INT], encode([1]), table=[["money", []]]),
}


@pytest.mark.parametrize("data", CLAIMS.values(), ids=CLAIMS)
def test_claimed_sizes_are_checked_before_memory_is_allocated(data: bytes) -> None:
    CODEC.encode(0)
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            CODEC.decode(data)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**22, f"{len(data)} bytes made {most} bytes"


def test_small_bytes_make_no_large_values() -> None:
    """Decoded values are in proportion to the bytes, and to the depth of their nesting."""
    data = claimed([lay.LIST, DEEP_ENOUGH], encode([1000]), encode([None] * 1000))
    tracemalloc.start()
    try:
        value = CODEC.decode(data)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(value) == 1000
    assert most < 150 * 1000 * 200


def test_the_encoder_writes_only_bytes_that_the_decoder_accepts() -> None:
    """The limits of both are one, also at their edges."""
    for depth in (lay.MAX_DEPTH - 1, lay.MAX_DEPTH, lay.MAX_DEPTH + 1):
        value: Any = 1
        for _ in range(depth):
            value = (value,)
        try:
            data = CODEC.encode(value)
        except CodecError:
            assert depth > lay.MAX_DEPTH
        else:
            assert depth <= lay.MAX_DEPTH
            assert CODEC.decode(data) == value


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("wrap", "depth", "whole", "more"),
    [
        (lambda value: [value], 1, same, 0),
        (lambda value: (value,), 1, same, 0),
        (lambda value: {1: value}, 1, same, 0),
        (lambda value: (value,), 1, lambda value: {value: 1}, 1),
        (lambda value: {"key": value}, 1, lambda value: [value] * 100, 1),
        (lambda value: frozenset([value]), 1, same, 0),
        (lambda value: frozenset([value]), 1, lambda value: {value}, 1),
        (Wrapped, 1, same, 0),
        (lambda value: [value, "x"], 2, same, 0),
    ],
    ids=["list", "tuple", "dictionary", "key", "shape", "frozenset", "set", "class", "union"],
)
def test_each_kind_of_nesting_counts_once_at_both_ends(
    wrap: Callable[[Any], Any], depth: int, whole: Callable[[Any], Any], more: int
) -> None:
    codec = Codec([Wrapped])
    value: Any = 2**70  # bytes within a node of its own
    for _ in range((lay.MAX_DEPTH - 1 - more) // depth):
        value = wrap(value)
    assert codec.decode(codec.encode(whole(value))) == whole(value)
    with pytest.raises(CodecError, match="nested more than 200 deep"):
        codec.encode(whole(wrap(value)))


def test_payloads_over_a_limit_are_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    parted: Any = 1
    for _ in range(5):
        parted = (parted,) * 4
    longest = "k" * (lay.MESSAGE.schema_bytes // 60)
    shaped = [{f"{longest}{place}": (1,) for place in range(64)}] * 4
    stored = CODEC.encode(parted), CODEC.encode(shaped, lay.STORED)
    assert CODEC.decode(stored[1], lay.STORED) == shaped
    monkeypatch.setattr(lay, "MAX_COLUMNS", 300)
    for payload, data in zip((parted, shaped), stored, strict=True):
        with pytest.raises(TooLargeError) as caught:
            CODEC.encode(payload)
        assert caught.value.hint
        with pytest.raises(CodecError):
            Codec().decode(data)


def test_a_kind_that_counts_from_the_end_is_refused() -> None:
    schema, columns = lay.split(CODEC.encode([{1}, "a", {2}]))
    kinds = columns.index(encode([0, 1, 0]))
    columns[kinds] = encode([0, 1, -2])
    with pytest.raises(CodecError, match="values of an unknown kind"):
        CODEC.decode(lay.frame(schema, columns))


def test_classes_that_were_not_declared_are_not_made() -> None:
    data = CODEC.encode([Place("x", Point(1))] * 3)
    with pytest.raises(CodecError, match="not declared") as caught:
        Codec([Point, Colour]).decode(data)
    assert caught.value.type_name.endswith(":Place")
    assert "Point" in caught.value.hint, "tells what is known"


def test_names_in_bytes_import_nothing() -> None:
    import sys

    for name in ("antigravity:Fly", "os:system", "builtins:eval", "subprocess:Popen", "numpy.object_", "numpy.load"):
        for kind in (lay.RECORD, lay.ENUM, lay.FLAGS, lay.CODED):
            with pytest.raises(CodecError, match=r"not declared|cannot be decoded"):
                CODEC.decode(claimed([kind, 0, lay.NONE], encode([None]), table=[[name, 1]]))
    assert "antigravity" not in sys.modules


def test_a_pickle_is_not_loaded() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("code was run",))

    for data in (pickle.dumps(Trap()), pickle.dumps(Trap(), protocol=0)):
        with pytest.raises(CodecError, match="version"):
            CODEC.decode(data)


def test_kept_schemas_do_not_change_later_payloads() -> None:
    """Schemas are kept: what is kept must not change what is read, and must not grow without end."""
    good = [CODEC.encode(value) for value in SENT[:4]]
    for number in range(2000):
        decoded_or_refused(claimed([lay.SHAPE, [f"key {number}"], lay.INT], encode([number])))
    for data, value in zip(good, SENT, strict=False):
        assert CODEC.decode(data) == value
    assert len(CODEC._readers) < 1000


@pytest.mark.parametrize(("most", "most_bytes"), [(5, 2**18), (2**10, 700)])
def test_schemas_that_a_peer_makes_up_do_not_fill_the_memory(
    most: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flamecore.runtime.codec.codec._MOST_SCHEMAS", most)
    monkeypatch.setattr("flamecore.runtime.codec.codec._MOST_SCHEMA_BYTES_KEPT", most_bytes)
    monkeypatch.setattr("flamecore.runtime.codec.codec._LONGEST_SCHEMA_KEPT", 100)
    codec = Codec()
    kept = []
    for width in range(1, 200):
        for _ in range(2):
            assert codec.decode(claimed([lay.TUPLE, *[lay.INT] * width], *[encode([7])] * width)) == (7,) * width
        kept.append(len(codec._readers))
        assert len(codec._readers) <= most
        assert sum(map(len, codec._readers)) <= most_bytes
    assert kept.count(1) < len(kept) / 2, "all are dropped rarely"
    assert max(map(len, codec._readers)) <= 100


def test_numbers_keep_their_bits() -> None:
    for bits in (0, 1 << 63, 0x7FF0 << 48, 0x7FF8 << 48, 0xFFF8000000000001, 1, 0x7FF0000000000001):
        (number,) = struct.unpack(">d", bits.to_bytes(8, "big"))
        assert struct.pack(">d", CODEC.decode(CODEC.encode(number))) == struct.pack(">d", number)
