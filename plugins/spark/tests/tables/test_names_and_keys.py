"""Names of columns by `spark.sql.caseSensitive`, keys of maps, and outputs that nothing declares."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import flamecore as fc
import flamestream_spark
from flamecore.errors import ConfigError, SourceError
from flamestream_spark import UntypedOutputWarning

pytestmark = [pytest.mark.usefixtures("spark")]


class Sale(NamedTuple):
    shop: str
    price: int


class Point(NamedTuple):
    x: int
    y: int


class Entry(NamedTuple):
    key: Point
    value: int


def sale(one: Sale) -> Sale:
    return one


def sales() -> fc.Flow:
    flow = fc.Flow("sales")
    flow.source("sales", Sale).map(sale).sink("out")
    return flow


@pytest.fixture
def sensitive(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("on_spark", [False, True])
def test_names_of_columns_may_differ_by_case(on_spark: bool, spark: Any) -> None:
    frame = spark.createDataFrame([("b", 2), ("a", 1)], "SHOP string, Price int")
    out = flamestream_spark.run(sales(), sales=frame, order_by="PRICE desc", on_spark=on_spark, workers=1)
    assert [tuple(row)[:2] for row in out.orderBy(*flamestream_spark.TIMES).collect()] == [("b", 2), ("a", 1)]


def test_names_of_columns_of_a_stream_may_differ_by_case(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"SHOP": "a", "Price": 1}\n')
    frame = spark.readStream.schema("SHOP string, Price int").json(str(tmp_path / "in"))
    with flamestream_spark.stream(sales(), sales=frame, checkpoint=tmp_path / "job") as running:
        running.processAllAvailable()
        assert [tuple(row)[:2] for row in running.output().collect()] == [("a", 1)]


@pytest.mark.usefixtures("sensitive")
def test_names_of_columns_are_exact_where_spark_distinguishes_case(spark: Any) -> None:
    frame = spark.createDataFrame([("b", 2)], "SHOP string, price int")
    with pytest.raises(SourceError, match="there is no column 'shop'"):
        flamestream_spark.run(sales(), sales=frame, order_by="price")
    with pytest.raises(SourceError, match="there is no column 'PRICE' to order by"):
        flamestream_spark.run(sales(), sales=frame, order_by="PRICE")


def test_a_name_that_may_be_of_two_columns_is_refused_and_an_exact_one_is_not(spark: Any) -> None:
    two = spark.createDataFrame([("a", "b", 2)], "Shop string, SHOP string, price int")
    with pytest.raises(SourceError, match="column 'shop' may be 'Shop' or 'SHOP'"):
        flamestream_spark.run(sales(), sales=two, order_by="price")
    exact = spark.createDataFrame([("a", "b", 2)], "shop string, SHOP string, price int")
    out = flamestream_spark.run(sales(), sales=exact, order_by="price")
    assert [tuple(row)[:2] for row in out.collect()] == [("a", 2)]


def test_columns_of_a_job_file_may_differ_by_case(spark: Any, tmp_path: Path) -> None:
    spark.createDataFrame([("a", 1, 9)], "SHOP string, Price int, more int").write.parquet(str(tmp_path / "in"))
    options = {"use": "spark", "path": str(tmp_path / "in"), "columns": ["shop", "PRICE"], "order_by": ["MORE"]}
    out = sales().run(settings={f"source.sales.{key}": value for key, value in options.items()})
    assert out["out"] == [Sale("a", 1)]


def mapped(spark: Any, words: str) -> Any:
    return spark.sql(f"select {words} as m")


@pytest.mark.parametrize(
    "words",
    [
        "map(named_struct('x', 1L, 'y', 2L), 3L)",
        "map(array(1L), 3L)",
        "array(map(named_struct('x', 1L, 'y', 2L), 3L))",
        "map('a', map(named_struct('x', 1L, 'y', 2L), interval 3 months))",
    ],
)
def test_a_map_whose_keys_no_dict_takes_is_refused_with_an_expression_that_works(words: str, spark: Any) -> None:
    flow = fc.Flow("maps")
    flow.source("rows", dict).map(str).sink("out")
    frame = mapped(spark, words)
    with pytest.raises(SourceError, match=r"column 'm' holds a map<.*whose keys no dict of Python takes") as caught:
        flamestream_spark.run(flow, rows=frame, order_by=())
    expression = re.search(r"expr\((['\"])(.*)\1\)", caught.value.hint)
    assert expression is not None
    entries = frame.selectExpr(f"{expression[2]} as m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", flamestream_spark.UnstableOrderWarning)
        (row,) = flamestream_spark.run(flow, rows=entries).collect()
    assert "3" in row[0]


def test_entries_of_a_map_with_struct_keys_are_records(spark: Any) -> None:
    flow = fc.Flow("maps")
    flow.source("rows", list[Entry]).map(first).sink("out")
    entries = mapped(spark, "map_entries(map(named_struct('x', 1L, 'y', 2L), 3L))").withColumn("n", mapped_n())
    out = flamestream_spark.run(flow, rows=entries, order_by="n")
    assert [tuple(row)[:2] for row in out.collect()] == [((1, 2), 3)]


def first(entries: list[Entry]) -> Entry:
    return entries[0]


def mapped_n() -> Any:
    from pyspark.sql.functions import lit

    return lit(1)


class Counts(NamedTuple):
    at: dict[Point, int]


class Deep(NamedTuple):
    rows: list[dict[tuple[int, int], str]]


def counts(number: int) -> Counts:
    return Counts({Point(number, 1): 2})


def deep(number: int) -> Deep:
    return Deep([{(number, 1): "a"}])


@pytest.mark.parametrize("on_spark", [False, True])
@pytest.mark.parametrize("function", [counts, deep])
def test_an_output_with_a_mapping_by_records_is_refused_at_the_start(function: Any, on_spark: bool, spark: Any) -> None:
    flow = fc.Flow("mappings")
    flow.source("numbers", int).map(function).sink("out")
    with pytest.raises(ConfigError, match="nothing is written of a mapping whose keys are") as caught:
        flamestream_spark.run(flow, numbers=spark.range(3), order_by="id", on_spark=on_spark)
    assert "list(mapping.items())" in caught.value.hint


@pytest.mark.parametrize("on_spark", [False, True])
def test_an_output_that_nothing_declares_gives_one_warning_with_the_remedy(on_spark: bool, spark: Any) -> None:
    flow = fc.Flow("untyped")
    flow.source("numbers", int).map(lambda number: {"n": number}).sink("out")
    with pytest.warns(UntypedOutputWarning, match=r"sink 'out': .*text or JSON in column 'value'; annotate") as said:
        out = flamestream_spark.run(flow, numbers=spark.range(2), order_by="id", on_spark=on_spark, workers=1)
    assert [one.category for one in said].count(UntypedOutputWarning) == 1
    assert [row.value for row in out.orderBy(*flamestream_spark.TIMES).collect()] == ['{"n":0}', '{"n":1}']
