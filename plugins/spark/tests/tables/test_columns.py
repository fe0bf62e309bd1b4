"""Columns of any type and name: they come as values and go back as they came, or are refused before the first row."""

from __future__ import annotations

import ast
import datetime
import decimal
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flamecore as fc
import flamestream_spark
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, SourceError
from flamestream_spark.sink import SparkSink
from flamestream_spark.spool.ordering import UnstableOrderWarning
from flamestream_spark.tables.arrow import Form
from flamestream_spark.tables.payloads import Payloads

pytestmark = pytest.mark.usefixtures("spark")

NOON = datetime.datetime(2024, 6, 1, 12, 0)
BERLIN_NOON = datetime.datetime(2024, 6, 1, 10, 0, tzinfo=datetime.UTC)


class Event(NamedTuple):
    n: int
    at: datetime.datetime
    local: datetime.datetime | None
    price: decimal.Decimal
    took: datetime.timedelta


class Renamed(NamedTuple):
    begun: datetime.datetime
    total: decimal.Decimal


def same(event: Any) -> Any:
    return event


def through(type_: Any, sink_type: Any = None, function: Any = same) -> fc.Flow:
    def mapped(event: type_) -> sink_type or type_:  # type: ignore[valid-type]  # of the argument
        return function(event)

    mapped.__annotations__ = {"event": type_, "return": sink_type or type_}
    flow = fc.Flow("columns")
    flow.source("events", type_).map(mapped).sink("out")
    return flow


@pytest.fixture(params=["UTC", "Europe/Berlin", "+05:30"])
def zone(spark: Any, request: Any) -> Iterator[str]:
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")


EVENTS = """
    select n, timestamp'2024-06-01 12:00:00.000001 Europe/Berlin' + make_dt_interval(n) as at,
        if(n = 1, null, timestamp_ntz'2024-06-01 12:00:00' + make_dt_interval(n)) as local,
        cast(n + 0.25 as decimal(10, 2)) as price, make_dt_interval(n, 2, 3, 4.5) as took
    from (select explode(sequence(0, 2)) as n)
"""


def test_times_decimals_and_intervals_come_back_as_they_came(
    spark: Any, zone: str, arrow_of: Callable[[Any], Any]
) -> None:
    frame = spark.sql(EVENTS)
    seen: list[Event] = []

    def look(event: Event) -> Event:
        seen.append(event)
        return event

    out = flamestream_spark.run(through(Event, function=look), events=frame, order_by="n")
    columns = frame.columns
    assert [kind for kind in out.dtypes if kind[0] in columns] == [
        ("n", "bigint"),
        *((name, kind) for name, kind in frame.dtypes if name != "n"),
    ]
    ordered = out.orderBy(*flamestream_spark.TIMES).select(columns)
    assert arrow_of(ordered).to_pylist() == arrow_of(frame).to_pylist()
    first = seen[0]
    assert first.at == BERLIN_NOON.replace(microsecond=1)
    assert first.at.tzinfo is datetime.UTC, "whatever the zone of the session"
    assert (first.local, first.price, first.took) == (
        NOON,
        decimal.Decimal("0.25"),
        datetime.timedelta(hours=2, minutes=3, seconds=4.5),
    )
    assert first.price.as_tuple().exponent == -2


def test_times_in_lists_maps_and_structs_are_in_utc(spark: Any, zone: str) -> None:
    at = "timestamp'2024-06-01 12:00:00 Europe/Berlin'"
    frame = spark.sql(f"select array({at}, null) as l, map('a', {at}) as m, struct({at} as t, 1 as n) as s")
    (found,) = flows_values(frame)
    assert found == {"l": [BERLIN_NOON, None], "m": {"a": BERLIN_NOON}, "s": {"t": BERLIN_NOON, "n": 1}}
    assert found["l"][0].tzinfo is datetime.UTC


class Sale(NamedTuple):
    price: decimal.Decimal | None
    at: datetime.datetime
    local: datetime.datetime | None = None


class Sales(NamedTuple):
    n: int
    sale: Sale | None
    every: list[Sale]
    prices: list[decimal.Decimal | None]
    by_day: dict[str, datetime.datetime]


def test_times_and_decimals_in_lists_maps_and_structs_come_back_as_they_came(spark: Any, zone: str) -> None:
    price, at = "cast(n + 0.25 as decimal(5, 2))", "timestamp'2024-06-01 12:00:00.000001 Europe/Berlin'"
    local = "timestamp_ntz'2024-06-01 12:00:00'"
    sale = f"named_struct('price', {price}, 'at', {at}, 'local', {local})"
    frame = spark.sql(
        f"select cast(n as bigint) as n, if(n = 1, null, {sale}) as sale, array({sale}, {sale}) as every, "
        f"array({price}, null) as prices, map('a', {local}) as by_day from (select explode(sequence(0, 2)) as n)"
    )
    out = flamestream_spark.run(through(Sales), events=frame, order_by="n")
    assert out.dtypes[:5] == frame.dtypes
    assert out.orderBy(*flamestream_spark.TIMES).select(frame.columns).collect() == frame.collect()


def flows_values(frame: Any, type_: Any = dict, **options: Any) -> list[Any]:
    """Return the values that a flow sees of a DataFrame."""
    flow = fc.Flow("values")
    seen: list[Any] = []

    def look(value: Any) -> int:
        seen.append(value)
        return 0

    flow.source("rows", type_).map(look).sink("out")
    flamestream_spark.run(flow, rows=frame, **{"order_by": frame.columns[:1], "workers": 1} | options)
    return seen


def test_only_times_without_zone_give_times_without_zone(spark: Any) -> None:
    def rename(event: Event) -> Renamed:
        return Renamed(event.local or NOON, event.price * 1000)

    naive = spark.sql(EVENTS).selectExpr(
        "n", "coalesce(local, timestamp_ntz'2024-06-01') as at", "local", "price", "took"
    )
    out = flamestream_spark.run(through(Event, Renamed, rename), events=naive, order_by="n")
    assert dict(out.dtypes)["begun"] == "timestamp_ntz"
    assert dict(out.dtypes)["total"] == "decimal(38,18)"
    both = flamestream_spark.run(through(Event, Renamed, rename), events=spark.sql(EVENTS), order_by="n")
    assert dict(both.dtypes)["begun"] == "timestamp", "some have a zone: nobody knows which are meant"


def test_types_of_the_sink_are_given_where_hints_leave_them_open(spark: Any) -> None:
    def rename(event: Event) -> Renamed:
        return Renamed(event.at, event.price)

    flow = through(Event, Renamed, rename)
    types = {"begun": "timestamp", "total": "decimal(12,3)"}
    out = flamestream_spark.run(flow, events=spark.sql(EVENTS), order_by="n", settings={"sink.out.types": types})
    assert [kind for _, kind in out.dtypes[:2]] == ["timestamp", "decimal(12,3)"]
    for wrong, words in (
        ({"begun": "decimal(12,3)"}, r"column 'begun' is declared datetime.*cannot be of type 'decimal\(12,3\)'"),
        ({"total": "decimal(50,3)"}, r"column 'total' is declared Decimal"),
        ({"totl": "timestamp"}, r"there is no column 'totl'\n  Did you mean 'total'"),
    ):
        with pytest.raises(ConfigError, match=words):
            flamestream_spark.run(flow, events=spark.sql(EVENTS), order_by="n", settings={"sink.out.types": wrong})
    none = {"sink.out.types": {"begun": "timestamp_ntz"}}
    with pytest.raises(SinkError, match=r"column 'begun' is a timestamp\[us\].*it has a zone"):
        flamestream_spark.run(flow, events=spark.sql(EVENTS), order_by="n", settings=none)


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (Renamed(NOON, decimal.Decimal("12345678901234567890123.5")), {}),
        (Renamed(NOON, decimal.Decimal("-0.1234567890123456789")), {}),
        (Renamed(BERLIN_NOON, decimal.Decimal(1)), {"begun": "timestamp_ntz"}),
    ],
)
def test_the_hint_for_values_that_their_column_cannot_hold_works(
    spark: Any, made: Renamed, first: dict[str, str], arrow_of: Callable[[Any], Any]
) -> None:
    def run(types: dict[str, str]) -> Any:
        flow = through(Event, Renamed, lambda event: made)
        return flamestream_spark.run(flow, events=spark.sql(EVENTS), order_by="n", settings={"sink.out.types": types})

    with pytest.raises(SinkError) as caught:
        run(first)
    entry = re.search(r"types = \{(.*)\}\.", str(caught.value))
    assert entry is not None
    types = tomllib.loads(entry[1])
    row = arrow_of(run(first | types)).to_pylist()[0]
    assert row["total"] == made.total
    assert row["begun"].replace(tzinfo=datetime.UTC) == made.begun.replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize("total", [decimal.Decimal("1e40"), decimal.Decimal("NaN")])
def test_values_that_no_type_holds_are_to_be_mapped(spark: Any, total: decimal.Decimal) -> None:
    flow = through(Event, Renamed, lambda event: Renamed(event.at, total))
    with pytest.raises(
        SinkError,
        match=r"column 'total' is a decimal.*\n    It is Renamed.*\n  Map the payload before the sink, or declare",
    ):
        flamestream_spark.run(flow, events=spark.sql(EVENTS), order_by="n")


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "delta"])
def test_a_job_file_gives_types_of_columns(format: str, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "out"), "format": format, "types": {"local": "timestamp_ntz"}}
    sink = SparkSink(SparkSink.Options(**options), EdgeContext("out", Event))
    assert sink._form.schema.field("local").type == pa.timestamp("us")
    assert pa.types.is_duration(sink._form.schema.field("took").type) == (format != "delta")


@pytest.mark.spark4
def test_variants_are_the_values_they_hold(spark: Any) -> None:
    frame = spark.sql("""select 1 as n, parse_json('{"a": [1, 2.5, null, true, "x"]}') as v,
        array(parse_json('7'), null) as l, cast(timestamp'2024-06-01 12:00:00 Europe/Berlin' as variant) as t""")
    value = {"a": [1, decimal.Decimal("2.5"), None, True, "x"]}
    assert flows_values(frame) == [{"n": 1, "v": value, "l": [7, None], "t": BERLIN_NOON}]

    class Tagged(NamedTuple):
        v: dict[str, list[Any]]

    assert flows_values(frame, Tagged) == [Tagged(value)]
    assert flows_values(frame.selectExpr("n", "l[0] as v"), int) == [7]


def test_void_within_columns_is_empty_and_void_columns_are_null(spark: Any) -> None:
    frame = spark.sql("select 1 as n, null as v, array() as a, array(null) as b, map() as m, struct(array() as x) as s")
    assert flows_values(frame) == [{"n": 1, "v": None, "a": [], "b": [None], "m": {}, "s": {"x": []}}]

    class Row(NamedTuple):
        n: int
        v: str

    with pytest.raises(SourceError, match=r"column 'v' is void, .*declares str\n.*declare str \| None"):
        flows_values(frame, Row)


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("interval '1-2' year to month as `a b`", r"(?s)'a b' has the type interval year to month.*cast\(`a b` as"),
        pytest.param(
            "make_interval(1, 2, 3, 4) as c",
            r"(?s)'c' has the type interval, .*cast\(`c` as string\)",
            marks=pytest.mark.spark4,
        ),
        ("array(struct(interval '3' month as m)) as c", r"'c' has the type interval month"),
        ("2 as c, 3 as c", r"columns 2 and 3 are both called 'c'"),
        ("struct(1 as x, 2 as x) as c", r"'c' holds a struct with two fields called 'x'"),
        ("1 as __flamestream_row", r"column '__flamestream_row' has a name that is used"),
    ],
)
def test_columns_without_a_value_are_refused_by_name(spark: Any, select: str, words: str, tmp_path: Path) -> None:
    frame = spark.sql(f"select 1 as n, {select}")
    with pytest.raises(SourceError, match=words):
        flows_values(frame, order_by="n")
    with pytest.raises(SourceError, match=words):
        flamestream_spark.Into(tmp_path / "spool")(frame, 0)
    stream = spark.readStream.format("rate").load().selectExpr("1 as n", *_split(select))
    with pytest.raises(SourceError, match=words):
        flamestream_spark.stream(through(dict), events=stream, checkpoint=tmp_path / "job")


def _split(select: str) -> list[str]:
    return ["2 as c", "3 as c"] if select == "2 as c, 3 as c" else [select]


MONTHS = "interval '1-2' year to month"
CALENDAR = "make_interval(1, 2, 3, 4)"
IN_WORDS = "1 years 2 months 25 days"


@pytest.mark.parametrize(
    ("select", "wanted"),
    [
        (MONTHS, 14),
        (f"array({MONTHS}, null)", [14, None]),
        (f"array(struct({MONTHS} as `a b`, 1 as x))", [{"a b": 14, "x": 1}]),
        (f"struct(array({MONTHS}) as `m\"'`, 1 as x)", {"m\"'": [14], "x": 1}),
        (f"if(false, struct({MONTHS} as m), null)", None),
        (f"map('k', map({MONTHS}, array({MONTHS})))", {"k": {14: [14]}}),
        pytest.param(CALENDAR, IN_WORDS, marks=pytest.mark.spark4),
        pytest.param(f"array(array({CALENDAR}))", [[IN_WORDS]], marks=pytest.mark.spark4),
        pytest.param(f"struct({CALENDAR} as c, {MONTHS} as m)", {"c": IN_WORDS, "m": 14}, marks=pytest.mark.spark4),
    ],
)
def test_the_hint_for_intervals_works(spark: Any, select: str, wanted: object) -> None:
    from pyspark.sql.functions import expr

    frame = spark.sql(f"select 1 as n, {select} as `a b`")
    with pytest.raises(SourceError) as caught:
        flows_values(frame)
    call = re.search(r"withColumn\((.*), expr\((.*)\)\)\.", str(caught.value))
    assert call is not None
    name, expression = map(ast.literal_eval, call.groups())
    assert flows_values(frame.withColumn(name, expr(expression))) == [{"n": 1, "a b": wanted}]


NAMES = ("a.b", "c`d", "e f", " ", "n", "N", "_metadata", "ü,(x)", "`q`", "*")


@pytest.mark.parametrize("order_by", [NAMES[:1], NAMES[3:2:-1], ("N",), ()])
def test_any_characters_may_stand_in_names(spark: Any, order_by: tuple[str, ...], tmp_path: Path) -> None:
    frame = spark.createDataFrame([tuple(range(len(NAMES)))], list(NAMES))
    wanted = dict(zip(NAMES, range(len(NAMES)), strict=True))
    with pytest.warns(UnstableOrderWarning) if not order_by else nullcontext():
        assert flows_values(frame, order_by=order_by) == [wanted]
    if not order_by:
        return
    frame.createOrReplaceTempView("odd_names")
    options = {"sql": "select * from odd_names", "order_by": order_by, "columns": NAMES[::-1]}
    flow = fc.Flow("odd")
    seen: list[Any] = []

    def look(row: Any) -> int:
        seen.append(row)
        return 0

    flow.source("rows", dict).map(look).sink("out")
    settings = {f"source.rows.{key}": value for key, value in {"use": "spark", **options}.items()}
    flow.run(settings=settings)
    assert [list(row.items()) for row in seen] == [list(wanted.items())[::-1]]


def test_files_keep_their_order_with_any_names(spark: Any, tmp_path: Path) -> None:
    names = [name for name in NAMES if name != "N"]
    table = pa.table({name: list(range(place, 100, 7))[:10] for place, name in enumerate(names)})
    for part in range(3):
        pq.write_table(table.slice(part * 3, 3), tmp_path / f"{part}.parquet")
    flow = fc.Flow("odd")
    seen: list[Any] = []

    def look(row: Any) -> int:
        seen.append(row)
        return 0

    flow.source("rows", dict).map(look).sink("out")
    flow.run(settings={"source.rows.use": "spark", "source.rows.path": str(tmp_path)})
    assert seen == table.slice(0, 9).to_pylist()


def test_values_beyond_those_of_python_are_malformed_rows() -> None:
    beyond = pa.array([0, 2**62, None], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), beyond], ["n", "at"])
    made = Payloads(batch.schema, dict, "rows").make(batch)
    assert [value["n"] for value in made.values] == [1, 3]
    assert made.bad[0].place == 1
    assert "column 'at' holds a value of type timestamp[us, tz=UTC] beyond Python's" in made.bad[0].reason


def test_intervals_are_text_where_a_format_has_none() -> None:
    form = Form.of(Event, times=False, intervals=False)
    row = Event(1, BERLIN_NOON, NOON, decimal.Decimal(1), datetime.timedelta(days=1, seconds=1.5))
    assert form.make([row]).to_pylist()[0]["took"] == "P1DT1.5S"
