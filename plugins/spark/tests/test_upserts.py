"""Aggregations of streams in update mode: each change of a key is an item, exactly once, or it is said why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sql

import flamecore as fc
import flamestream_spark
from flamecore.errors import ConfigError, SourceError
from flamestream_spark.spool.upserts import keys_of

pytestmark = [pytest.mark.usefixtures("spark")]


def word_of(change: tuple[str, int]) -> str:
    return change[0]


def newer(_: tuple[str, int], now: tuple[str, int]) -> tuple[str, int]:
    return now


def upserting() -> fc.Flow:
    flow = fc.Flow("totals")
    changes = flow.source("totals", tuple[str, int])
    changes.sink("changes")
    changes.key_by(word_of).reduce(newer, name="latest").sink("latest")
    return flow


def add(folder: Path, name: str, *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    aside = folder / f".{name}"
    aside.write_text("".join(f"{line}\n" for line in lines))
    aside.rename(folder / name)


def words(spark: Any, folder: Path) -> Any:
    lines = spark.readStream.text(str(folder))
    return lines.select(sql.explode(sql.split("value", " ")).alias("word"))


def rows(running: Any, sink: str) -> list[tuple[str, int]]:
    found = running.output(sink).orderBy(*flamestream_spark.TIMES).collect()
    return [(row[0], row[1]) for row in found]


def test_the_changes_of_an_aggregation_are_items_and_go_on(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "to be or not to be")
    totals = words(spark, tmp_path / "in").groupBy("word").count()
    with flamestream_spark.stream(
        upserting(), totals=totals, checkpoint=tmp_path / "job", output_mode="update"
    ) as running:
        running.processAllAvailable()
        assert sorted(rows(running, "changes")) == [("be", 2), ("not", 1), ("or", 1), ("to", 2)]
        add(tmp_path / "in", "b.txt", "be be")
        running.processAllAvailable()
        assert rows(running, "changes")[4:] == [("be", 4)], "only keys that have changed come"
    add(tmp_path / "in", "c.txt", "or is it")
    totals = words(spark, tmp_path / "in").groupBy("word").count()
    with flamestream_spark.stream(
        upserting(), totals=totals, checkpoint=tmp_path / "job", output_mode={"totals": "update"}
    ) as running:
        running.processAllAvailable()
        assert sorted(rows(running, "changes")[5:]) == [("is", 1), ("it", 1), ("or", 2)]
        latest = [(row.key, row.value[1]) for row in _latest(running)]
    assert dict(latest) == {"be": 4, "is": 1, "it": 1, "not": 1, "or": 2, "to": 2}


def _latest(running: Any) -> list[Any]:
    return list(running.output("latest").orderBy(*flamestream_spark.TIMES).collect())


def test_the_same_batches_give_the_same_order(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", " ".join(f"w{number % 97}" for number in range(500)))
    runs = []
    for run in ("one", "two"):
        lines = words(spark, tmp_path / "in").repartition(1 if run == "one" else 3)
        totals = lines.groupBy("word").count()
        running = flamestream_spark.stream(
            upserting(),
            totals=totals,
            checkpoint=tmp_path / run,
            trigger={"availableNow": True},
            output_mode="update",
        )
        assert running.awaitTermination(120)
        runs.append(rows(running, "changes"))
    assert len(runs[0]) == 97
    assert runs[0] == runs[1]


def test_a_query_whose_rows_are_never_final_is_refused_in_append_mode(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", "to be")
    totals = words(spark, tmp_path / "in").groupBy("word").count()
    with pytest.raises(SourceError, match=r"source 'totals': rows of its aggregation change") as caught:
        flamestream_spark.stream(upserting(), totals=totals, checkpoint=tmp_path / "job")
    assert 'output_mode="update"' in caught.value.hint


@pytest.mark.parametrize(("mode", "word"), [("complete", "all rows again"), ("upsert", "append")])
def test_other_modes_are_refused(spark: Any, mode: Any, word: str, tmp_path: Path) -> None:
    totals = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match=f"output_mode of source 'totals' is '{mode}'") as caught:
        flamestream_spark.stream(upserting(), totals=totals, checkpoint=tmp_path / "job", output_mode=mode)
    assert word in caught.value.hint


KEYS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a column": (lambda rate: rate.groupBy("value").count(), ("value",)),
    "a name that changes": (
        lambda rate: rate.groupBy("value").count().withColumnRenamed("value", "a.b").select("count", "`a.b`"),
        ("a.b",),
    ),
    "an expression": (
        lambda rate: rate.groupBy((rate.value % 3).alias("k"), "value").agg(sql.count("*").alias("n")),
        ("k", "value"),
    ),
    "a window": (lambda rate: rate.groupBy(sql.window("timestamp", "1 hour"), "value").count(), ("window", "value")),
    "one end of a window": (
        lambda rate: (
            rate.groupBy(sql.window("timestamp", "1 hour", "10 minutes")).count().select("window.end", "count")
        ),
        ("end",),
    ),
    "a condition on the key": (lambda rate: rate.groupBy("value").count().where("value > 3"), ("value",)),
    "a query of SQL": (
        lambda rate: rate.sparkSession.sql(
            "select k + 0 as other, k, n from (select value % 3 as k, count(*) as n from {rate} group by 1)", rate=rate
        ),
        ("k",),
    ),
    "everything": (lambda rate: rate.agg(sql.sum("value")), ()),
    "no aggregation": (lambda rate: rate.where("value > 3"), ()),
    "an aggregation of what stands still": (
        lambda rate: rate.join(rate.sparkSession.range(9).groupBy("id").count(), rate.value == sql.col("id")),
        (),
    ),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_are_known_from_the_plan(spark: Any, case: str) -> None:
    make, keys = KEYS[case]
    assert keys_of(make(spark.readStream.format("rate").load()), "totals") == keys


REFUSED: dict[str, tuple[Any, str]] = {
    "a key that is left out": (lambda rate: rate.groupBy("value").count().select("count"), "rows lack value"),
    "a key that is changed": (
        lambda rate: rate.groupBy("value").count().selectExpr("value div 2 as value", "count"),
        "rows lack value",
    ),
    "an expression that is left out": (
        lambda rate: rate.sparkSession.sql("select count(*) as n from {rate} group by value % 3", rate=rate),
        r"rows lack \(.*value % .*3",
    ),
    "groups of groups": (lambda rate: rate.rollup("value").count(), "rows lack spark_grouping_id"),
    "a condition on what changes": (
        lambda rate: rate.groupBy("value").count().where("count > 2"),
        "a condition on count: when a key no longer fulfils it",
    ),
    "a condition in SQL": (
        lambda rate: rate.sparkSession.sql(
            "select value from {rate} group by 1 having max(timestamp) > now()", rate=rate
        ),
        "a condition on",
    ),
    "a step that multiplies rows": (
        lambda rate: rate.groupBy("value").count().selectExpr("value", "explode(array(1, 2)) as n"),
        "behind the aggregation comes a Generate",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_do_not_tell_their_key_are_refused(spark: Any, case: str, tmp_path: Path) -> None:
    make, reason = REFUSED[case]
    totals = make(spark.readStream.format("rate").load())
    with pytest.raises(SourceError, match=f"source 'totals', in mode \"update\": .*{reason}"):
        flamestream_spark.stream(upserting(), totals=totals, checkpoint=tmp_path / "job", output_mode="update")


def test_over_spark_connect_keys_are_not_known() -> None:
    with pytest.raises(SourceError, match=r"over Spark Connect the plan is not known") as caught:
        keys_of(object(), "totals")
    assert "fold" in caught.value.hint
