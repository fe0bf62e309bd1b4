"""Order of the rows of a DataFrame."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from flamecore.errors import SourceError
from flamestream_spark.spool.ordering import in_order

COLUMNS = {
    "map": "map('a', id, 'b', 1)",
    "map of maps": "map(id % 3, map('x', cast(id as string) collate UTF8_LCASE))",
    "variant": "parse_json(if(id % 2 = 0, '{\"a\": ' || id || '}', '\"' || id || '\"'))",
    "collated": "if(id % 2 = 0, 'a', 'A') collate UTF8_LCASE",
    "zeros": "0D / (1 - 2 * (id % 2))",
    "array of zeros": "array(1f, float(0D / (1 - 2 * (id % 2))))",
    "struct": "named_struct('a', null, 'the b', array(map('k', id)))",
    "nullable struct": "if(id % 3 = 0, null, named_struct('f', map('k', id), 'g', id))",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.spark4 if "collate" in words or "json" in words else ())
        for kind, words in COLUMNS.items()
    ],
)
def test_rows_that_spark_takes_as_equal_have_an_order(spark: Any, kind: str) -> None:
    frame = spark.range(40).selectExpr("1 as o", f"{COLUMNS[kind]} as m")
    spread = [frame.repartition(parts) for parts in (1, 7, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        orders = [in_order(each, ["o"], "rows", stable=True) for each in spread]
    rows = [[str(row.m) for row in each.frame.collect()] for each in orders]
    assert rows[0] == rows[1] == rows[2]
    assert len(set(rows[0])) > 1
    assert all(each.stable and each.frame.columns == ["o", "m"] for each in orders)


@pytest.mark.spark4
def test_ties_of_the_ordering_column_itself_have_an_order(spark: Any) -> None:
    frame = spark.range(40).selectExpr(f"{COLUMNS['collated']} as m")
    rows = [[row.m for row in in_order(frame.repartition(n), ["m"], "rows").frame.collect()] for n in (1, 5)]
    assert rows[0] == rows[1] == ["A"] * 20 + ["a"] * 20


def test_columns_order_rows_upwards_and_downwards(spark: Any) -> None:
    frame = spark.sql("select * from values (1, 'x'), (2, 'y'), (1, 'z'), (null, 'n') as t(at, `to desc`)")

    def texts(*order_by: str) -> list[str]:
        return [row[1] for row in in_order(frame, order_by, "rows").frame.collect()]

    assert texts("at desc", "to desc") == ["y", "x", "z", "n"], "a column of that name comes first"
    assert texts("at ASC", "to desc DESC") == ["n", "z", "x", "y"]
    with pytest.raises(SourceError, match=r"there is no column 'att' to order by\n  Did you mean 'at'"):
        texts("att desc")
