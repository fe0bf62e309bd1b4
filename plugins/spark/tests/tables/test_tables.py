"""Payloads as tables of Arrow."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from flamecore.errors import ConfigError
from flamecore.model.meta import GlobalTime, Meta
from flamecore.toolkit.records.plain import Unencodable
from flamestream_spark.tables.arrow import Form


class Posting(NamedTuple):
    page: int
    at: tuple[int, ...]


@dataclass
class Entry:
    word: str
    kind: Literal["add", "remove"]
    postings: list[Posting]
    seen: dict[str, int]
    rest: object
    day: datetime.date | None = None


def rows(type_: Any, payloads: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Form.of(type_, times=False).make(payloads).to_pylist(maps_as_pydicts="strict")
    return found


def test_records_within_records_keep_their_types() -> None:
    day = datetime.date(2024, 2, 29)
    found = rows(Entry, [Entry("a", "add", [Posting(1, (2, 3))], {"x": 1}, (1, "b"), day)])
    assert found == [
        {
            "word": "a",
            "kind": "add",
            "postings": [{"page": 1, "at": [2, 3]}],
            "seen": {"x": 1},
            "rest": '[1,"b"]',
            "day": day,
        }
    ]
    schema = Form.of(Entry, times=False).schema
    assert schema.field("postings").type == pa.list_(pa.struct([("page", pa.int64()), ("at", pa.list_(pa.int64()))]))


def test_tuples_have_a_column_a_place_and_other_values_one_column() -> None:
    assert rows(tuple[str, int], [("a", 1)]) == [{"key": "a", "value": 1}]
    assert rows(tuple[str, int, float], [("a", 1, 0.5)]) == [{"c0": "a", "c1": 1, "c2": 0.5}]
    assert rows(int, [1, 2]) == [{"value": 1}, {"value": 2}]
    assert rows(object, ["a", 1, None, {"x": [1]}]) == [
        {"value": "a"}, {"value": "1"}, {"value": None}, {"value": '{"x":[1]}'}
    ]  # fmt: skip
    assert rows(set[int], [{3, 1, 2}]) == [{"value": [1, 2, 3]}]


class Priced(NamedTuple):
    pairs: list[tuple[int, decimal.Decimal]]
    times: dict[str, list[datetime.datetime]]
    number: int


@pytest.mark.parametrize(
    ("types", "pair", "time"),
    [
        ({}, "decimal128(38, 18)", "timestamp[us, tz=UTC]"),
        ({"pairs": "decimal(5,2)", "times": "timestamp_ntz"}, "decimal128(5, 2)", "timestamp[us]"),
        (
            {"pairs": "array<struct<a:int,b:decimal(7,3)>>", "times": "map<string,array<timestamp_ntz>>"},
            "decimal128(7, 3)",
            "timestamp[us]",
        ),
    ],
)
def test_types_within_a_column_are_those_that_are_named(types: dict[str, str], pair: str, time: str) -> None:
    schema = Form.of(Priced, times=False, types=types).schema
    assert str(schema.field("pairs").type.value_type.field("value").type) == pair
    assert str(schema.field("times").type.item_type.value_type) == time


@pytest.mark.parametrize(
    "types",
    [
        {"number": "decimal(5,2)"},
        {"pairs": "timestamp_ntz"},
        {"pairs": "array<decimal(50,2)>"},
        {"times": "array<timestamp>"},
        {"times": "map<string,timestamp"},
    ],
    ids=str,
)
def test_a_type_that_says_nothing_of_a_column_is_refused(types: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot be of type"):
        Form.of(Priced, times=False, types=types)


def test_times_order_the_rows() -> None:
    orders = [Meta(GlobalTime(4, 1), (0,)).order, Meta(GlobalTime(4, 1), (1,)).order, Meta(GlobalTime(4, 2)).order]
    table = Form.of(str, times=True).make(["a", "b", "c"], orders)
    assert table.select(["_time", "_front", "_place"]).to_pylist() == [
        {"_time": 4, "_front": 1, "_place": 0},
        {"_time": 4, "_front": 1, "_place": 1},
        {"_time": 4, "_front": 2, "_place": 0},
    ]


@pytest.mark.parametrize(
    ("type_", "payloads", "words"),
    [
        (int, [1, 2**70], r"column 'value' is a int64, and the value 1180591620717411303424"),
        (int, [1, "x"], r"column 'value' is a int64, and the value 'x'"),
        (object, ["x", object()], r"a payload of type object cannot be written|column 'value'"),
        (Posting, [(1, (2,))], r"the flow declares Posting"),
        (tuple[str, int], [("a", 1, 2)], r"3 places, and the flow declares 2"),
    ],
)
def test_a_value_that_fits_no_column_is_named(type_: Any, payloads: list[Any], words: str) -> None:
    with pytest.raises(Unencodable, match=words):
        Form.of(type_, times=False).make(payloads)


class Inner(NamedTuple):
    id: int
    Id: str


@pytest.mark.parametrize(
    ("fields", "times", "two"),
    [
        ({"name": str, "n": int, "NAME": str}, False, "'name' and 'NAME'"),
        ({"n": int, "within": list[Inner]}, False, "'id' and 'Id'"),
        ({"n": int, "_TIME": int}, True, "'_TIME' and '_time'"),
    ],
    ids=["columns", "within", "times"],
)
def test_columns_that_differ_by_case_alone_are_refused(fields: dict[str, Any], times: bool, two: str) -> None:
    type_ = make_dataclass("Row", fields.items())
    with pytest.raises(ConfigError, match=f"sink.out: there are columns {two}"):
        Form.of(type_, times=times, where="sink.out.types")


@pytest.mark.parametrize(
    ("type_", "value", "wanted"),
    [
        (int, np.int32(3), 3),
        (int, np.float64(3.0), 3),
        (int, 3.0, 3),
        (float, np.float32(0.5), 0.5),
        (bool, np.bool_(True), True),
        (str, np.str_("x"), "x"),
        (bytes, np.bytes_(b"x"), b"x"),
        (datetime.date, np.datetime64("2024-02-29"), datetime.date(2024, 2, 29)),
        (datetime.timedelta, np.timedelta64(5, "s"), datetime.timedelta(seconds=5)),
    ],
)
def test_scalars_of_arrays_are_values_like_those_of_python(type_: Any, value: Any, wanted: Any) -> None:
    payload = (value, [value], {"a": value}, ("b", value))
    found = rows(tuple[type_, list[type_], dict[str, type_], tuple[str, type_]], [payload])
    assert found == [{"c0": wanted, "c1": [wanted], "c2": {"a": wanted}, "c3": {"key": "b", "value": wanted}}]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (int, 1.5),
        (int, float("inf")),
        (int, np.float64(1.5)),
        (int, decimal.Decimal("1.5")),
        (int, decimal.Decimal("1E+40")),
        (datetime.date, datetime.datetime(2024, 2, 29, 12)),
        (datetime.date, 1),
        (datetime.datetime, 1.0),
        (datetime.datetime, np.datetime64("2024-01-01T00:00:01", "ns")),
        (datetime.timedelta, 1),
        (datetime.timedelta, np.timedelta64("NaT")),
    ],
)
def test_a_value_that_would_become_another_one_is_refused(type_: Any, value: Any, nested: bool) -> None:
    declared: Any = list[type_] if nested else type_
    form = Form.of(tuple[str, declared], times=False)
    with pytest.raises(Unencodable, match="column 'value' is a ") as caught:
        form.make([("a", [value, None] if nested else value), ("b", None)])
    assert repr(value) in str(caught.value)
