"""Lines of JSON: the source reads what the sink has written, to equal values of the declared type."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.source import EdgeContext
from flamecore.toolkit.records.parse import json_decoder
from flamecore.toolkit.records.plain import encode


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: float = 0.5
    seen: date = date(2020, 1, 2)


class Line(NamedTuple):
    start: Point
    end: Point = Point(0)
    through: list[Point] = []


class Tree(NamedTuple):
    name: str
    below: list["Tree"]  # noqa: UP037 - resolved later


@dataclass
class Node:
    at: Point
    below: list["Node"] = field(default_factory=list)  # noqa: UP037 - resolved later


@dataclass(frozen=True)
class Plan:
    name: str
    places: Mapping[str, Sequence[Point]]
    corner: Point | None = None
    seen: frozenset[Point] = frozenset()


class Row(TypedDict):
    number: int
    point: NotRequired[Point]


class Record(msgspec.Struct):
    point: Point


Place = NewType("Place", Point)


def read(type_: Any, line: bytes) -> Any:
    return json_decoder(EdgeContext("lines", type_))(line)


class Typed(NamedTuple):
    """A type, and values of it."""

    type: Any
    values: st.SearchStrategy[Any]


ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-3))])
LEAVES = [
    Typed(int, st.integers()),
    Typed(float, st.floats(allow_nan=False, allow_infinity=False)),
    Typed(bool, st.booleans()),
    Typed(str, st.text()),
    Typed(bytes, st.binary()),
    Typed(date, st.dates()),
    Typed(time, st.times()),
    Typed(datetime, st.datetimes(timezones=ZONES)),
    Typed(timedelta, st.timedeltas(timedelta(-(10**6)), timedelta(10**6))),
    Typed(Decimal, st.decimals(allow_nan=False)),
    Typed(UUID, st.uuids()),
    Typed(Colour, st.sampled_from(Colour)),
    Typed(Level, st.just(Level.LOW)),
    Typed(Point, st.builds(Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.dates())),
]


def several(one: Typed) -> st.SearchStrategy[Typed]:
    return st.sampled_from(
        [
            Typed(list[one.type], st.lists(one.values, max_size=3)),  # type: ignore[name-defined]
            Typed(tuple[one.type, ...], st.lists(one.values, max_size=3).map(tuple)),  # type: ignore[name-defined]
            Typed(dict[str, one.type], st.dictionaries(st.text(), one.values, max_size=3)),  # type: ignore[name-defined]
            Typed(one.type | None, st.none() | one.values),
        ]
    )


def record(parts: Sequence[Typed]) -> st.SearchStrategy[Typed]:
    hints = [(f"f{number}", part.type) for number, part in enumerate(parts)]
    values = st.tuples(*(part.values for part in parts))
    named: Callable[..., Any] = NamedTuple("Made", hints)  # type: ignore[misc]
    data = dataclasses.make_dataclass("Data", hints)
    typed_dict: Any = TypedDict
    return st.sampled_from(
        [
            Typed(tuple[tuple(part.type for part in parts)], values),  # type: ignore[misc]
            Typed(named, values.map(lambda found: named(*found))),
            Typed(data, values.map(lambda found: data(*found))),
            Typed(
                typed_dict("Dict", dict(hints)),
                values.map(lambda found: {name: value for (name, _), value in zip(hints, found, strict=True)}),
            ),
        ]
    )


SETS = st.sampled_from(LEAVES).flatmap(
    lambda one: st.sampled_from(
        [
            Typed(set[one.type], st.sets(one.values, max_size=3)),  # type: ignore[name-defined]
            Typed(frozenset[one.type], st.frozensets(one.values, max_size=3)),  # type: ignore[name-defined]
        ]
    )
)
TYPED = st.recursive(
    st.sampled_from(LEAVES) | SETS,
    lambda inner: inner.flatmap(several) | st.lists(inner, min_size=1, max_size=3).flatmap(record),
    max_leaves=6,
)


@given(st.data())
def test_each_value_of_any_declared_type_comes_back(data: st.DataObject) -> None:
    typed = data.draw(TYPED)
    value = data.draw(typed.values)
    found = read(typed.type, encode(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Line, Line(Point(1), Point(2), [Point(3)])),
        (Tree, Tree("a", [Tree("b", [Tree("c", [])])])),
        (Node, Node(Point(1), [Node(Point(2))])),
        (Plan, Plan("p", {"a": [Point(1)]}, Point(2), frozenset({Point(3), Point(4)}))),
        (Row, {"number": 1, "point": Point(1)}),
        (Row, {"number": 1}),
        (Record, Record(Point(1))),
        (Place, Point(1)),
        (list[Annotated[Point, msgspec.Meta(description="a point")]], [Point(1)]),
        (Point | dict[str, int], Point(1)),
        (Point | dict[str, int], {"x": 1, "y": 2, "z": 3}),
        (dict[str, Point | None], {"a": None, "b": Point(1)}),
        (tuple[int, Point], (1, Point(2))),
    ],
)
def test_records_within_records_come_back(type_: Any, value: Any) -> None:
    found = read(type_, encode(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("type_", "line", "value"),
    [
        (Line, b'{"start": {"x": 1}, "more": 0}', Line(Point(1))),
        (Line, b"[[1], [2, 3.0]]", Line(Point(1), Point(2, 3.0))),
        (Line, b'[{"x": 1}]', Line(Point(1))),
        (Line, b'{"start": [1], "through": [[2], {"x": 3}]}', Line(Point(1), Point(0), [Point(2), Point(3)])),
    ],
)
def test_records_are_read_from_objects_and_arrays_with_their_defaults(type_: Any, line: bytes, value: Any) -> None:
    assert read(type_, line) == value


@pytest.mark.parametrize(
    ("type_", "line", "why"),
    [
        (Line, b'{"end": {"x": 1}}', r"Object missing required field `start`$"),
        (Line, b'{"start": {"y": 1}}', r"Object missing required field `x` - at `\$\.start`"),
        (Line, b'{"start": {"x": 1}, "through": [{"x": 1}, {}]}', r"field `x` - at `\$\.through\[1\]`"),
        (dict[str, Point], b'{"a": {}}', r"field `x` - at `\$\['a'\]`"),
        (list[Point], b'[{"x": "one"}]', r"Expected `int`, got `str` - at `\$\[0\]\[0\]`"),
        (list[Point], b"[7]", r"Expected `array`, got `int` - at `\$\[0\]`"),
    ],
)
def test_a_malformed_record_is_named_by_its_field(type_: Any, line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(type_, line)
