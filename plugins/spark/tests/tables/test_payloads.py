"""Columns of Arrow as payloads, and what is said where they do not fit."""

from __future__ import annotations

import datetime
import decimal
import enum
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest

from flamecore.errors import SourceError
from flamestream_spark.tables.payloads import Bad, Made, Payloads


class Page(NamedTuple):
    id: int
    text: str
    note: str | None = None


@dataclass
class Score:
    name: str
    value: float
    tags: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class Row(TypedDict):
    id: int
    text: str


class Tagged(msgspec.Struct, rename="camel"):
    page_id: int
    kind: Literal["a", "b"]


class Colour(enum.Enum):
    RED = "red"


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def make(type_: Any, found: Any) -> Made:
    return Payloads(found.schema, type_, "pages").make(found)


def test_fields_are_found_by_name() -> None:
    found = batch(text=["a", "b"], more=[1.5, 2.5], id=[1, 2])
    assert make(Page, found).values == [Page(1, "a"), Page(2, "b")]
    assert make(Row, found).values == [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]
    assert make(object, found).values[0] == {"text": "a", "more": 1.5, "id": 1}
    assert make(dict, found).values[1] == {"text": "b", "more": 2.5, "id": 2}


def test_tuples_take_columns_in_order_and_single_values_the_only_one() -> None:
    assert make(tuple[str, int], batch(a=["x"], b=[7])).values == [("x", 7)]
    assert make(str, batch(value=["x", "y"])).values == ["x", "y"]
    assert make(Colour, batch(value=["red"])).values == [Colour.RED]


def test_columns_that_only_order_are_left_out_where_there_is_no_room() -> None:
    found = batch(n=[1], value=["x"])
    assert Payloads(found.schema, str, "pages", ["n"]).make(found).values == ["x"]
    assert Payloads(found.schema, tuple[int, str], "pages", ["n"]).make(found).values == [(1, "x")]


def test_whole_numbers_become_the_declared_numbers() -> None:
    made = make(Score, batch(name=["x"], value=pa.array([7], pa.int32()), tags=[["t"]]))
    assert made.values == [Score("x", 7.0, ["t"])]
    assert type(made.values[0].value) is float


def test_structs_keep_their_renaming_and_nested_values_are_looked_at() -> None:
    made = make(Tagged, batch(pageId=[1, 2], kind=["a", "c"]))
    assert made.values == [Tagged(page_id=1, kind="a")]
    assert made.bad[0].place == 1
    assert "column 'kind'" in made.bad[0].reason


class At(NamedTuple):
    place: int
    price: decimal.Decimal | None = None


class Basket(NamedTuple):
    first: At
    last: At | None
    every: list[At]
    by_name: dict[str, At | None]


def test_structs_are_named_tuples_wherever_they_stand() -> None:
    price = decimal.Decimal("1.10")
    kind = pa.struct([("price", pa.decimal128(5, 2)), ("more", pa.string()), ("place", pa.int32())])
    one = {"price": price, "more": "x", "place": 7}
    rows = [
        {"first": one, "last": one, "every": [one, one], "by_name": [("a", one), ("b", None)]},
        {"first": one, "last": None, "every": [], "by_name": []},
    ]
    kinds = {"first": kind, "last": kind, "every": pa.list_(kind), "by_name": pa.map_(pa.string(), kind)}
    made = make(Basket, pa.RecordBatch.from_pylist(rows, pa.schema(kinds)))
    at = At(7, price)
    assert made.values == [Basket(at, at, [at, at], {"a": at, "b": None}), Basket(at, None, [], {})]
    assert [type(one) for one in (made.values[0].last, made.values[0].every[0], made.values[0].by_name["a"])] == [
        At
    ] * 3
    assert made.bad == []


def test_fields_of_a_struct_are_of_their_types_and_may_be_left_out() -> None:
    made = make(At | None, pa.RecordBatch.from_pydict({"at": [{"place": 1}, {"place": None}]}))
    assert made.values == [At(1)]
    assert made.bad == [Bad(1, "column 'at': Expected `int`, got `null` - at `$[0]`")]
    made = make(At | None, pa.RecordBatch.from_pydict({"at": [{"price": decimal.Decimal(1)}]}))
    assert made.bad == [Bad(0, "column 'at': Object missing required field `place`")]


def test_timestamps_become_datetimes() -> None:
    moment = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    assert make(datetime.datetime, batch(value=pa.array([moment], pa.timestamp("us", "UTC")))).values == [moment]


def test_null_is_a_value_only_where_the_type_says_so() -> None:
    made = make(Page, batch(id=[1, None, 3], text=["a", "b", None], note=[None, "n", "m"]))
    assert made.values == [Page(1, "a", None)]
    assert made.places == [0]
    assert made.bad == [
        Bad(1, "column 'id' is null, and the flow's type does not allow that"),
        Bad(2, "column 'text' is null, and the flow's type does not allow that"),
    ]


def test_a_class_that_refuses_a_row_refuses_that_row() -> None:
    made = make(Even, batch(number=[2, 3, 4]))
    assert (made.values, list(made.places)) == ([Even(number=2), Even(number=4)], [0, 2])
    assert made.bad == [Bad(1, "ValueError: 3 is odd")]


@pytest.mark.parametrize(
    ("type_", "found", "words"),
    [
        (Page, batch(id=[1], txt=["a"]), "there is no column 'text'\n  Did you mean 'txt'"),
        (Page, batch(id=["1"], text=["a"]), "column 'id' is of type string, and the flow declares int\n  Cast it"),
        (str, batch(a=["x"], b=["y"]), "declares str, which takes 1 column, and there are 2: a, b"),
        (tuple[int, int], batch(a=[1]), "takes 2 columns, and there are 1: a"),
        (bytes, batch(value=["x"]), "column 'value' is of type string, and the flow declares bytes"),
    ],
)
def test_columns_that_cannot_fit_are_named(type_: Any, found: Any, words: str) -> None:
    with pytest.raises(SourceError) as caught:
        Payloads(found.schema, type_, "pages")
    assert words in str(caught.value)
    assert "source 'pages'" in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [[1, 2], [1, None], ["a", "ü"], ["a", None, ""], [1.5, None], [1.5, 2.5], [True, False], [True, None], []],
    ids=str,
)
def test_values_are_those_of_python(values: list[Any]) -> None:
    column = pa.array(values, None if values else pa.string())
    made = Payloads(pa.schema([("c", column.type)]), dict, "rows").make(pa.RecordBatch.from_arrays([column], ["c"]))
    assert [row["c"] for row in made.values] == values
    assert [type(row["c"]) for row in made.values] == list(map(type, values))
