"""The codec: what is sent is what is received, type for type; everything else is a CodecError and nothing worse."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamecore as fc
from flamecore.errors import CodecError
from flamecore.model.failure import Cause, Failure
from flamecore.model.graph import Graph
from flamecore.model.messages import (
    Ack,
    Delivered,
    Failing,
    FrontEnded,
    Items,
    MinTimes,
    Patient,
    Reached,
    Released,
    Report,
)
from flamecore.model.meta import GlobalTime
from flamecore.runtime.codec.codec import Codec

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Tone(enum.StrEnum):
    HIGH = "high"
    LOW = "low"
    DEEP = "low"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Box(NamedTuple, Generic[T]):
    inside: T


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    at: Point
    colour: Colour = Colour.RED


@dataclass
class Counter:
    count: int
    cached: list[int] = field(default_factory=list, init=False, compare=True)

    def __post_init__(self) -> None:
        assert self.count >= 0, "made again from its fields, not by its constructor"


@dataclass
class Crate(Generic[T]):
    inside: T


class Struct(msgspec.Struct, frozen=True):
    name: str
    place: Place | None = None


class Keyword(msgspec.Struct, kw_only=True):
    a: int
    b: str = ""


class Pair(Point):
    """A class derived from a NamedTuple, with a constructor of its own."""

    def __new__(cls, text: str) -> Pair:
        return super().__new__(cls, *map(int, text.split()))


Loose = namedtuple("Loose", "a b", defaults=(5,))


class Empty(NamedTuple):
    pass


@dataclass
class Nothing:
    pass


@dataclass(kw_only=True, order=True)
class Strict:
    a: int
    b: str = field(default="x", repr=False, compare=False)
    c: InitVar[int] = 3
    D: ClassVar[int] = 4


@dataclass(slots=True)
class Slotted(Strict):
    e: float = 0.0


class Guarded:
    """A descriptor that may keep a field of a dataclass."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, owner: Any, kind: type) -> Any:
        return 1 if owner is None else getattr(owner, self.name)

    def __set__(self, owner: Any, value: Any) -> None:
        object.__setattr__(owner, self.name, value)


@dataclass
class Described:
    guarded: int = Guarded()  # type: ignore[assignment]


class Tracked(msgspec.Struct, gc=False, tag="tracked", array_like=True, rename="upper"):
    a: int
    b: list[Place] = []


@dataclass(frozen=True)
class Tree:
    value: int
    children: tuple[Tree, ...] = ()


DECLARED = (
    *(Place, Struct, Keyword, Level, Right, Counter, Tree, Box[int], Crate[str]),
    *(Tone, Pair, Loose, Empty, Nothing, Strict, Slotted, Described, Tracked),
)
CODEC = Codec(DECLARED)


def alike(one: Any, other: Any) -> bool:
    """Equal, of one type, all the way down; NaN is like NaN and -0.0 is not like 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.isnan(one) == math.isnan(other) and (one == other or math.isnan(one)) and _sign(one) == _sign(other)
    if isinstance(one, complex):
        return alike(one.real, other.real) and alike(one.imag, other.imag)
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, datetime | time):
        same_zone = type(one.tzinfo) is type(other.tzinfo) and str(one.tzinfo) == str(other.tzinfo)
        return one == other and one.fold == other.fold and same_zone
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return alike(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        kinds = {(type(part), part) for part in one}
        return kinds == {(type(part), part) for part in other}
    if is_dataclass(one):
        return all(alike(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    return bool(one == other)


def _sign(value: float) -> float:
    return 0.0 if math.isnan(value) else math.copysign(1.0, value)


def returned(value: Any, codec: Codec = CODEC) -> Any:
    return codec.decode(codec.encode(value))


VALUES: list[Any] = [
    None,
    True,
    0,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    7**9000,
    -(7**9000),
    1.5,
    -0.0,
    math.inf,
    math.nan,
    "text",
    "\x00",
    b"bytes",
    bytearray(b"mutable"),
    1 + 2j,
    complex(-0.0, math.inf),
    (),
    [],
    {},
    set(),
    frozenset(),
    (1,),
    [1, (2, [3])],
    {1: "a", (2, 3): [None]},
    {1, "a", (2,)},
    frozenset({frozenset({1}), 2}),
    [[], ()],
    date(2020, 1, 2),
    datetime(2020, 1, 2, 3, 4, 5, 6),
    datetime(2020, 10, 25, 2, 30, fold=1),
    datetime(2020, 1, 2, tzinfo=UTC),
    datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
    datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    time(1, 2, 3, 4),
    time(1, 2, fold=1),
    time(1, 2, tzinfo=UTC),
    time(1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
    timedelta(days=-1, microseconds=3),
    Decimal("1.50"),
    Decimal("-0"),
    Decimal("NaN"),
    UUID(int=7),
    datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=1), "CET")),
    time(1, 2, fold=1, tzinfo=timezone(timedelta(0), "|=@")),
    Decimal("1E+999999"),
    Decimal("-sNaN12"),
    PurePosixPath("a/b"),
    PureWindowsPath("c:/d"),
    Path("here"),
    Colour.RED,
    Level.HIGH,
    Right.READ,
    Right.READ | Right.WRITE,
    Right(0),
    Point(1, 2.5),
    Box(3),
    Place("x", Point(1)),
    Struct("s", Place("y", Point(2), Colour.BLUE)),
    Keyword(a=1, b="b"),
    Crate("inside"),
    Tree(1, (Tree(2), Tree(3, (Tree(4),)))),
    Tone.DEEP,
    Pair("1 2"),
    Loose(1),
    Empty(),
    Nothing(),
    Strict(a=1, b="y", c=4),
    Slotted(a=1, e=2.5),
    Described(7),
    Tracked(1, [Place("t", Point(3))]),
    (1,) * 100,
    [(1, 2), (1, 2, 3), ()],
    {"a": 1, "b": [2]},
    {True: "true", 2: "two", "a": None, None: 1, 2.5: (), b"": 1, Tone.HIGH: 2},
    [{"a": 1}, {Tone.HIGH: 1}],
    [None, 1, "a", None, 2.5, b"", True],
    [[[[]]], [[]], []],
    {1.5, -0.0, math.inf},
    {"a", b"a", 1, None, (1, "a"), frozenset({"a"})},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert alike(returned(value), value)
    batch = [value] * 20
    assert alike(returned(batch), batch), "in a batch of its like"
    assert alike(returned([(1, value)] * 20), [(1, value)] * 20), "as a column of a batch"
    assert alike(returned([value, "other"] * 10), [value, "other"] * 10), "in a mixed batch"


def test_equal_keys_of_other_types_are_kept_apart() -> None:
    rows: list[dict[Any, Any]] = [{"high": 1, "b": 2}, {Tone.HIGH: 1, "b": 2}] * 5
    assert [[*map(type, row)] for row in returned(rows)] == [[*map(type, row)] for row in rows]
    numbers = [{1: 1}, {True: 1}, {1.0: 1}] * 5
    assert [[*map(type, row)] for row in returned(numbers)] == [[*map(type, row)] for row in numbers]


def test_the_order_of_keys_is_kept() -> None:
    rows = [{"a": 1, "b": 2}, {"b": 2, "a": 1}] * 5
    assert [list(row) for row in returned(rows)] == [list(row) for row in rows]
    assert [list(row) for row in returned(rows[:1] * 10)] == [["a", "b"]] * 10


@pytest.mark.parametrize("depth", [1, 30, 60])
def test_deeply_nested_values_come_back(depth: int) -> None:
    tree, pairs, table = Tree(0), (), {}
    for level in range(depth):
        tree, pairs, table = Tree(level, (tree,)), (level, pairs), {"level": level, "below": [table]}
    assert returned((tree, pairs, table)) == (tree, pairs, table)


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {1: inner}])
def test_values_nested_too_deeply_are_refused(make: Callable[[Any], Any]) -> None:
    value = None
    for _ in range(400):
        value = make(value)
    with pytest.raises(CodecError, match="nested"):
        CODEC.encode(value)


def test_values_that_share_too_many_parts_are_refused_before_encoding() -> None:
    value: list[Any] = [None] * 1000
    for _ in range(8):
        value = [value] * 1000
    with pytest.raises(CodecError, match="parts"):
        CODEC.encode(value)


def test_fields_are_restored_without_running_code() -> None:
    counter = Counter(3)
    counter.cached.append(5)
    counter.count = -1
    assert returned(counter) == counter


def test_an_enum_member_comes_back_as_itself() -> None:
    assert returned(Colour.RED) is Colour.RED
    assert returned([Colour.RED] * 10)[9] is Colour.RED


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**62, 2**66),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.datetimes(timezones=st.none() | st.timezones() | st.just(UTC), allow_imaginary=True),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.sampled_from([*Colour, *Level, Right.READ, Right(3)]),
    st.builds(Point, st.integers(), st.floats()),
    st.builds(Place, st.text(), st.builds(Point, st.integers()), st.sampled_from(Colour)),
    st.builds(Struct, st.text()),
    st.builds(Keyword, a=st.integers(), b=st.text()),
    st.builds(Slotted, a=st.integers(), b=st.text(), e=st.floats(allow_nan=False)),
    st.sampled_from([Empty(), Nothing(), Pair("1 2"), Loose(1), Tone.DEEP, PurePosixPath("a/b"), Path("c")]),
    st.binary().map(bytearray),
)
HASHABLE = st.recursive(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(),
        st.binary(),
        st.sampled_from(Colour),
        st.builds(Point, st.integers(), st.floats(allow_nan=False)),  # a set with NaN in it is not equal to itself
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
PAYLOADS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, min_size=8, max_size=12),
        st.lists(st.tuples(inner, st.integers()), min_size=8, max_size=10),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.sets(HASHABLE, max_size=3),
        st.frozensets(HASHABLE, max_size=3),
        st.builds(Crate, inner),
        st.builds(Box, inner),
        st.lists(st.builds(Crate, inner), min_size=8, max_size=10),
        st.lists(st.fixed_dictionaries({"a": inner, "b": st.integers()}), min_size=3, max_size=6),
    ),
    max_leaves=12,
)


@given(PAYLOADS)
def test_any_nesting_comes_back_type_for_type(value: Any) -> None:
    data = CODEC.encode(value)
    assert alike(CODEC.decode(data), value)
    assert CODEC.encode(CODEC.decode(data)) == data, "one value, one code"


@given(st.sets(HASHABLE, max_size=6))
def test_equal_sets_have_equal_codes(value: set[Any]) -> None:
    other_way = [*value][::-1]
    assert CODEC.encode(value) == CODEC.encode(set(other_way))


@pytest.mark.parametrize(
    "message",
    [
        Items(
            [(3, 2**64 - 1, True, [b"order"], [("word", 1)]), (4, 0, False, [b"o", b"p"], [None, 1.5])],
            (Ack(0, -5, 2**64 - 1),),
        ),
        Items([], ()),
        Items([], (), -(2**63)),
        Patient(True),
        Items([(1, number, True, [bytes([number])] * 9, [Point(number)] * 9) for number in range(50)], (Ack(0, 1, 2),)),
        Released(2, -7, [b"order"], [{"a": 1}], [(b"x", Failure(None, "map", "r", "k", Cause("why", ("frame",))))]),
        Released(0, 9, [b"order"], ["a"], [], -(2**63), ((3, 1), (5, 0))),
        Delivered("out", 2**63 - 1),
        Delivered("out", 5, ((3, 0.25), (5, 0.0))),
        FrontEnded(3, 10),
        Failing(Failure(None, "map", "r", "k", Cause("why", ("frame",)))),
        Reached("out", Failure("lines", None, "raw", None, Cause("bad"), position="line 3", at=GlobalTime(5, 2))),
        Report(1, 2, (Ack(0, 1, 2),), ((1, 5),), (2,)),
        MinTimes((0, 5), (1, 2)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_come_back(message: Any) -> None:
    got = returned(message)
    assert alike(got, message)


def test_an_exception_stays_in_its_process() -> None:
    failure = Failure(None, "map", "record", None, Cause("ValueError: no", error=ValueError("no")))
    alone = failure._replace(cause=Cause("ValueError: no"))
    assert returned(failure) == alone
    assert returned([failure] * 9) == [alone] * 9


# -- declared types ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (list[Place], Place("x", Point(1))),
        (dict[str, tuple[Point, ...]], Point(1)),
        (Place | None, Colour.BLUE),
        (Annotated[Place, "note"], Place("x", Point(1))),
        (Literal["a", Colour.RED], "a"),
        (Crate[Place], Crate(Place("x", Point(1)))),
        (Box[Colour], Box(Colour.RED)),
        (Callable[[Point], Place], Place("x", Point(1))),
        (Iterator[Level], Level.LOW),
        (Literal["a", Colour.RED], Colour.RED),
        (Callable[[Point], int], Point(1)),
        (NewType("Spot", Place), Place("x", Point(1))),
        (TypeVar("P", bound=Point), Point(1)),
        (TypeVar("Q", int, Point), Point(1)),
    ],
    ids=repr,
)
def test_classes_are_found_by_hints(hint: Any, value: Any) -> None:
    assert alike(returned(value, Codec([hint])), value)


def outer(name: str) -> type[Any]:
    @dataclass(frozen=True)
    class Local:
        value: int

    Local.__doc__ = name
    return Local


def test_two_classes_of_one_name_are_not_mixed_up() -> None:
    one, other, third = outer("one"), outer("other"), outer("third")
    codec = Codec([one])
    data = codec.encode(one(1))
    assert type(codec.decode(data)) is one
    for kind in (other, third):
        codec.declare(kind)
    for kind in (one, other, third):
        with pytest.raises(CodecError, match="same name") as caught:
            codec.encode(kind(1))
        assert "name=" in caught.value.hint
    with pytest.raises(CodecError, match="not declared"):
        codec.decode(data)


def test_a_codec_may_learn_another_version_of_a_graph() -> None:
    """It knows the types of that one only, and its vertices."""

    def graph(kind: type, sink: str) -> Graph:
        flow = fc.Flow("small")
        flow.source("lines", kind).sink(sink)
        return flow.graph()

    codec = Codec.of(graph(Undeclared, "first"))
    data = codec.encode(Undeclared(1))
    assert codec.decode(data) == Undeclared(1)
    codec.relearn(graph(UndeclaredTuple, "second"))
    assert codec.decode(codec.encode(UndeclaredTuple(1))) == UndeclaredTuple(1)
    for use in (lambda: codec.decode(data), lambda: codec.encode(Undeclared(1))):
        with pytest.raises(CodecError, match=r"not declared|cannot cross"):
            use()
    for vertex, name in enumerate(("lines", "second")):
        with pytest.raises(CodecError, match=f"'{name}'"):
            codec.encode(Items([(vertex, 0, True, [b"order"], [Plain()])], ()))


# -- refused at the sender --------------------------------------------------------------------


class Plain:
    pass


class Text(str):
    __slots__ = ()


class Odd(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(minutes=7)

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "odd"


@dataclass
class Undeclared:
    value: int


class UndeclaredTuple(NamedTuple):
    value: int


cyclic: list[Any] = []
cyclic.append(cyclic)

REFUSED: list[Any] = [
    Plain(),
    Plain,
    len,
    lambda: None,
    Text("x"),
    Undeclared(1),
    UndeclaredTuple(1),
    Fraction(1, 2),
    deque([1]),
    OrderedDict(),
    range(3),
    (n for n in (1, 2)),
    ValueError("x"),
    object(),
    datetime(2020, 1, 1, tzinfo=Odd()),
    "\ud800",
    cyclic,
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_values_without_a_codec_are_refused_by_name(value: Any) -> None:
    for wrapped in (value, [value], (1, (value,)), [value] * 20, Crate(value), {1: value}):
        with pytest.raises(CodecError) as caught:
            CODEC.encode(wrapped)
        assert caught.value.hint, "says what to do"
    assert caught.value.type_name in (type(value).__qualname__, "dict", "Odd")


def test_keys_without_a_codec_are_refused() -> None:
    for value in ({Fraction(1): 1}, {Fraction(1)}, frozenset({(Fraction(1),)})):
        with pytest.raises(CodecError, match="Fraction"):
            CODEC.encode(value)
