"""Tables of a catalogue: outputs have a name there, and are read by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import flamecore as fc
import flamestream_spark
from flamecore.errors import ConfigError, SinkError
from flamestream_spark.session.session import session

pytestmark = [pytest.mark.usefixtures("spark", "shelf")]


class Count(NamedTuple):
    word: str
    number: int


def made(pair: tuple[str, int]) -> Count:
    return Count(*pair)


def counting() -> fc.Flow:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count(name="count").map(made).sink("counts")
    return flow


@pytest.fixture
def shelf(spark: Any) -> Iterator[None]:
    spark.sql("CREATE DATABASE shelf")
    yield
    spark.sql("DROP DATABASE shelf CASCADE")


def run(lines: list[str], folder: Path, table: str = "shelf.counts", **options: Any) -> None:
    settings = {"sink.counts.use": "spark", "sink.counts.path": str(folder), "sink.counts.table": table}
    settings |= {f"sink.counts.{name}": value for name, value in options.items()}
    counting().run({"lines": lines}, settings=settings)


def read(spark: Any, table: str = "shelf.counts") -> list[tuple[str, int]]:
    return [(row.word, row.number) for row in spark.table(table).orderBy("number", "word").collect()]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_outputs_are_a_table_that_is_replaced_and_added_to(spark: Any, format: str, tmp_path: Path) -> None:
    run(["to be", "be"], tmp_path / "a folder", format=format)
    assert read(spark) == [("be", 1), ("to", 1), ("be", 2)]
    run(["or"], tmp_path / "a folder", format=format, mode="append")
    assert read(spark) == [("be", 1), ("or", 1), ("to", 1), ("be", 2)]
    run(["not"], tmp_path / "a folder", format=format)
    assert read(spark) == [("not", 1)]
    spark.sql("DROP TABLE shelf.counts")
    assert list((tmp_path / "a folder").glob("part-*")), "the files stay"


def test_times_and_types_of_columns_are_those_of_the_files(spark: Any, tmp_path: Path) -> None:
    run(["to be"], tmp_path / "out", times=True)
    table = spark.table("shelf.counts")
    assert table.columns == ["word", "number", *flamestream_spark.TIMES]
    assert [row.word for row in table.orderBy(*flamestream_spark.TIMES).collect()] == ["to", "be"]


def test_tables_of_others_are_left_alone(spark: Any, tmp_path: Path) -> None:
    spark.range(2).write.saveAsTable("shelf.numbers")
    with pytest.raises(SinkError, match=r"table shelf.numbers is there already, at file:.*/numbers, and the sink"):
        run(["to be"], tmp_path / "out", "shelf.numbers")
    assert spark.table("shelf.numbers").count() == 2
    run(["to be"], tmp_path / "out")
    with pytest.raises(
        SinkError, match=r"has the columns word string, number bigint, and the sink writes word .*_time"
    ):
        run(["to be"], tmp_path / "out", times=True)
    with pytest.raises(SinkError, match=r"table shelf.counts reads files of format 'parquet', and the sink .*'json'"):
        run(["to be"], tmp_path / "out", format="json")
    with pytest.raises(SinkError, match=r"there is no database nowhere for table nowhere.`a.b`"):
        run(["to be"], tmp_path / "out", "nowhere.`a.b`")
    assert read(spark) == [("be", 1), ("to", 1)], "output of the former run is as it was"


def test_a_sink_that_is_refused_leaves_no_session_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    users: list[str] = []

    @contextmanager
    def counted(*given: Any) -> Iterator[Any]:
        with session(*given) as found:
            users.append("one")
            try:
                yield found
            finally:
                users.remove("one")

    monkeypatch.setattr("flamestream_spark.sink.session", counted)
    run(["to be"], tmp_path / "out")
    assert not users
    with pytest.raises(SinkError, match="there is no database"):
        run(["to be"], tmp_path / "out", "nowhere.counts")
    assert not users


def numbers_of(settings: dict[str, Any], **options: Any) -> list[int]:
    flow = fc.Flow("numbers")
    flow.source("numbers", int).sink("out")
    chosen = {"source.numbers.use": "spark", "source.numbers.table": "shelf.numbers", **settings}
    return list(flow.run(settings=chosen, **options)["out"])


def test_a_table_is_read_by_name_in_the_order_that_is_said(spark: Any, tmp_path: Path) -> None:
    spark.range(0, 100, 1, 5).selectExpr("id * 37 % 100 as id").write.saveAsTable("shelf.numbers")
    assert numbers_of({"source.numbers.order_by": ["id"]}) == list(range(100))
    with pytest.raises(ConfigError, match="exactly_once") as caught:
        numbers_of({"job.guarantee": "exactly_once"}, state=tmp_path / "state")
    assert "order_by" in caught.value.hint


def test_outputs_of_a_program_are_saved_as_a_table(spark: Any) -> None:
    lines = spark.createDataFrame([("to be", 1), ("be", 2)], "line string, n int")
    flow = fc.Flow("words")
    words = flow.source("lines", tuple[str, int]).map(first).flat_map(str.split).key_by(lambda word: word)
    words.count().map(made).sink("counts")
    flamestream_spark.run(flow, lines=lines, order_by="n").write.saveAsTable("shelf.saved")
    assert read(spark, "shelf.saved") == [("be", 1), ("to", 1), ("be", 2)]


def first(pair: tuple[str, int]) -> str:
    return pair[0]


def test_a_managed_table_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="it would be a managed one") as caught:
        counting().run({"lines": ["a"]}, settings={"sink.counts.use": "spark", "sink.counts.table": "shelf.counts"})
    assert caught.value.path == "sink.counts.path"
    assert 'write.saveAsTable("shelf.counts")' in caught.value.hint
    with pytest.raises(ConfigError, match="no destination of the output is given"):
        counting().run({"lines": ["a"]}, settings={"sink.counts.use": "spark"})


def test_spark_writes_outputs_into_a_managed_table_and_a_job_reads_it(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"CREATE DATABASE managed LOCATION '{tmp_path}/managed'")
    try:
        lines = spark.createDataFrame([("a b",), ("b",)], "line string")
        for mode, twice in (("errorifexists", 1), ("append", 2)):
            counts = flamestream_spark.run(counting(), lines=lines, order_by="line")
            counts.select("word", "number").write.mode(mode).saveAsTable("managed.counts")
            assert read(spark, "managed.counts") == sorted(
                [("a", 1), ("b", 1), ("b", 2)] * twice, key=lambda row: row[::-1]
            )
        flow = fc.Flow("words")
        flow.source("rows", tuple[str, int]).sink("found")
        source = {"use": "spark", "table": "managed.counts", "order_by": ["number", "word"]}
        settings = {f"source.rows.{name}": value for name, value in source.items()}
        result = flow.run(settings={**settings, "deploy.on": "here"})
        assert list(result["found"])[:2] == [("a", 1), ("a", 1)]
    finally:
        spark.sql("DROP DATABASE managed CASCADE")
