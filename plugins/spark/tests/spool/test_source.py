"""The source, held against the laws of its contract, and what is said of input that is wrong."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as Table
from deltalake import TableFeatures, write_deltalake

import flamecore as fc
import flamestream_spark
from flamecore.abc.source import EdgeContext, Rejected, Source
from flamecore.errors import ConfigError, OperationError, SourceError
from flamecore.testing.checks.edges import SourceTests
from flamecore.testing.checks.sources import check_changed, check_grown
from flamecore.testing.progress import patiently
from flamestream_demo.inverted_index import flow as index
from flamestream_spark import UnstableOrderWarning
from flamestream_spark.source import SparkSource, says_what
from flamestream_spark.spool.feeding import failed, write_batch
from flamestream_spark.spool.ordering import has_stable_order, in_order
from flamestream_spark.spool.spool import Spool, Taken
from flamestream_spark.tables.columns import sealed

pytestmark = pytest.mark.usefixtures("spark")


class Count(NamedTuple):
    word: str
    number: int


COUNTS = tuple(Count(f"word {number}", number) for number in range(10))


def source(type_: Any = Count, **options: Any) -> SparkSource:
    return SparkSource(SparkSource.Options(**options), EdgeContext("counts", type_))


def write(file: Path, counts: Any = COUNTS, **columns: Any) -> None:
    data = columns or {"word": [count[0] for count in counts], "number": [count[1] for count in counts]}
    pq.write_table(pa.table(data), file)


def read(made: Source, limit: int = 100) -> tuple[list[Any], list[Rejected], list[str]]:
    async def everything() -> tuple[list[Any], list[Rejected], list[str]]:
        values: list[Any] = []
        bad: list[Rejected] = []
        reader = await made.open("")
        try:
            while (batch := await reader.read(limit)) is not None:
                values += batch.values
                bad += batch.rejected
            return values, bad, [reader.describe(one.position) for one in bad]
        finally:
            await reader.aclose()

    return asyncio.run(everything())


class TestFiles(SourceTests):
    """Two files, one of them with a null."""

    expected = COUNTS
    rejected = 1

    def make(self, folder: Path) -> Source:
        if not (folder / "b.parquet").exists():
            write(folder / "b.parquet", COUNTS[4:])
            write(folder / "a.parquet", word=[*(f"word {n}" for n in range(4)), "bad"], number=[0, 1, 2, 3, None])
        return source(path=str(folder))


class TestDelta(SourceTests):
    """A table of several versions, one part of which was replaced, in a folder whose name has to be quoted."""

    expected = COUNTS
    rejected = 1

    def make(self, folder: Path) -> Source:
        path = folder / "a table"
        if not path.exists():
            schema = pa.schema([("word", pa.string()), ("number", pa.int64()), ("part", pa.string())])
            for part, rows in (("c", COUNTS), ("a", COUNTS[:4]), ("b/1", COUNTS[4:])):
                data = pa.table([[row.word for row in rows], [row.number for row in rows], [part] * len(rows)], schema)
                write_deltalake(path, data, mode="append", partition_by="part")
            bad = pa.table([["bad"], [None], ["c"]], schema)
            write_deltalake(path, bad, mode="overwrite", predicate="part = 'c'")
        return source(path=str(path), format="delta")


class TestOrderedQuery(SourceTests):
    expected = COUNTS

    def make(self, folder: Path) -> Source:
        query = "select concat('word ', id) as word, id as number from range(0, 10, 1, 3) order by -id"
        return source(sql=query, order_by=("number",))


class TestQueryOfFiles(SourceTests):
    """A query over the rows at a path, with braces of its own."""

    expected = COUNTS

    def make(self, folder: Path) -> Source:
        write(folder / "a.parquet", word=[f"{{word}} {n}" for n in range(10)], number=range(10))
        query = "select regexp_replace(word, r'[{}]{1}', '') as word, number from {rows} where number >= 0"
        return source(path=str(folder), sql=query, order_by=("number",))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "in", "sql": "select 1"}, "it does not say {rows}"),
        ({"sql": "select * from {rows}"}, "no path is given"),
        ({"path": "in", "table": "t"}, "path and table are given"),
        ({"path": "in", "table": "t", "sql": "select * from {rows}"}, "path and table and sql are given"),
        ({"path": "in", "sql": "select * from {rows}", "stream": True, "spool": "x"}, "a query is no stream"),
    ],
)
def test_a_query_without_its_rows_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        source(dict, **options)


def test_a_query_leaves_the_catalogue_as_it_was(tmp_path: Path, spark: Any) -> None:
    write(tmp_path / "a.parquet")
    before = spark.catalog.listTables()
    assert not source(path=str(tmp_path), sql="select * from {rows}").capabilities.replayable, "a query keeps no order"
    made = source(path=str(tmp_path), sql="select * from {rows}", order_by=("number",))
    assert read(made)[0] == list(COUNTS)
    assert spark.catalog.listTables() == before


def test_files_that_grow_are_read_on_and_files_that_change_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    make = lambda: source(path=str(tmp_path))  # noqa: E731
    asyncio.run(check_grown(make, lambda: write(tmp_path / "b.parquet", [("more", 10)]), [Count("more", 10)]))
    asyncio.run(check_changed(make, lambda: write(tmp_path / "a.parquet", [*COUNTS[:-1], ("other", 9), ("x", 11)])))
    (tmp_path / "b.parquet").unlink()
    write(tmp_path / "a.parquet")
    asyncio.run(check_changed(make, lambda: write(tmp_path / "a.parquet", COUNTS[:3])))


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ("one before the last has another value", [*COUNTS[:4], ("other", 4), *COUNTS[5:]]),
        ("a value is null", [*COUNTS[:4], (None, 4), *COUNTS[5:]]),
        ("one is left out, and another one added before the last", [*COUNTS[1:9], ("word 8", 8), COUNTS[9]]),
    ],
)
def test_rows_that_changed_before_the_last_one_that_was_read_are_refused(
    change: str, new: list[tuple[str | None, int]], tmp_path: Path
) -> None:
    for number, options in enumerate(({}, {"order_by": ("number",)})):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder / "a.parquet")
        make = partial(source, path=str(folder), **options)
        asyncio.run(check_grown(make, lambda: write(folder / "b.parquet", [("more", 10)]), [Count("more", 10)]))  # noqa: B023
        asyncio.run(check_changed(make, lambda: write(folder / "a.parquet", new)))  # noqa: B023


def test_every_difference_of_two_rows_is_one_of_their_seals(spark: Any) -> None:
    rows = (
        "null",
        "struct(null as a, 1 as b)",
        "struct(1 as a, null as b)",
        "struct(null as a, null as b)",
        "struct(1 as a, 1 as b)",
    )
    lists = ("null", "array()", "array(null)", "array(null, 1)", "array(1, null)", "array(1)", "array(1, 1)")
    maps = ("null", "map()", "map('a', 1)", "map('a', null)", "map('b', 1)", "map('a', 1, 'b', 1)")
    zeros = ("0D", "-0D", "double('nan')", "null", "1D")
    kinds = {"struct<a: int, b: int>": rows, "array<int>": lists, "map<string, int>": maps, "double": zeros}
    for kind, values in kinds.items():
        for names in ("{0} as x, null as y", "null as y, {0} as x"):
            parts = [f"select {names.format(f'cast({value} as {kind})')}" for value in values]
            frame = sealed(spark.sql(" union all ".join(parts)), ())
            assert len({row[-1] for row in frame.collect()}) == len(values), (kind, frame.collect())


@pytest.mark.parametrize(
    ("format", "text", "options"),
    [
        ("csv", "word,number\nword 0,0\nword 1,1\n", {"read": {"header": "true"}}),
        ("json", '{"number":0,"word":"word 0"}\n{"word":"word 1","number":1}\n', {}),
    ],
)
def test_formats_of_text_keep_the_order_of_lines(
    format: str, text: str, options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / f"a.{format}").write_text(text)
    made = source(path=str(tmp_path), format=format, schema="word string, number int", **options)
    assert read(made)[0] == list(COUNTS[:2])


def test_order_follows_files_for_any_sizes_and_number_of_tasks(spark: Any, tmp_path: Path) -> None:
    lines = [f"line {number} " + "x" * (number % 50) for number in range(3000)]
    sizes = (900, 100, 2000)  # Spark takes the largest first
    at = 0
    for name, size in zip("cab", sizes, strict=True):
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines[at : at + size]))
        at += size
    expected = [*lines[900:1000], *lines[1000:], *lines[:900]]
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    try:
        for most in ("7000", "1000000"):
            spark.conf.set("spark.sql.files.maxPartitionBytes", most)
            assert read(source(str, path=str(tmp_path), format="text"), 777)[0] == expected
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)


def test_rows_of_files_have_an_order_whatever_words_are_in_names(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "Sorted Exchange" / "Aggregate"
    folder.mkdir(parents=True)
    for part in range(2):
        table = pa.table({"JoinDate": [part * 2, part * 2 + 1], "Limit": [0, 1]})
        pq.write_table(table, folder / f"Window{part}.parquet")
    frame = spark.read.parquet(str(folder)).where("Limit >= 0").selectExpr("JoinDate", "'Sample' as Sort")
    assert has_stable_order(frame)
    made = source(dict, path=str(folder), columns=("JoinDate",))
    assert [row["JoinDate"] for row in read(made)[0]] == [0, 1, 2, 3]


STEPS = {
    "files": ("{0}", True),
    "explode": ("{0}.selectExpr('explode(array(value, value)) as value')", True),
    "python": ("{0}.withColumn('other', upper('value'))", True),
    "nothing": ("{0}.where('false')", True),
    "coalesce": ("{0}.coalesce(1)", True),
    "drop": ("{0}.withColumn('a', {0}.value).drop('value')", True),
    "sort": ("{0}.sort('value')", False),
    "sort within": ("{0}.sortWithinPartitions('value')", False),
    "limit": ("{0}.limit(3)", False),
    "distinct": ("{0}.distinct()", False),
    "repartition": ("{0}.repartition(2)", False),
    "union": ("{0}.union({0})", False),
    "join": ("{0}.join({0}, 'value')", False),
    "sample": ("{0}.sample(0.5, 1)", False),
    "subquery": ("{0}.where('value in (select id from range(9))')", False),
    "range": ("{0}.sparkSession.range(3)", False),
    "rows": ("{0}.sparkSession.createDataFrame([(1,)], ['a'])", False),
}


@pytest.mark.parametrize(("step", "stable"), STEPS.values(), ids=STEPS.keys())
def test_an_order_is_known_from_the_steps_of_the_plan(spark: Any, step: str, stable: bool, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    (tmp_path / "a.txt").write_text("1\n2\n")
    names = {"frame": spark.read.text(str(tmp_path)), "upper": udf(str.upper, "string")}
    assert has_stable_order(eval(step.format("frame"), names)) == stable


def test_cached_rows_are_in_the_order_of_their_files(spark: Any, tmp_path: Path) -> None:
    for name, size in (("a", 2), ("b", 900)):  # Spark takes the largest first
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{number}\n" for number in range(size)))
    frame = spark.read.text(str(tmp_path)).cache()
    try:
        assert frame.count() == 902
        assert [Path(file).name for file in in_order(frame, (), "lines").files] == ["a.txt", "b.txt"]
    finally:
        frame.unpersist()


def test_rows_that_a_step_has_mixed_are_refused(spark: Any, tmp_path: Path) -> None:
    for part in range(2):
        (tmp_path / f"{part}.txt").write_text("a\nb\nc\nd\n")
    ordered = in_order(spark.read.text(str(tmp_path)), (), "lines")
    spool = Spool(tmp_path / "spool", "lines")
    spool.open()
    with pytest.raises(SourceError, match=r"do not lie as they do in their files.*\n  Say what orders them: order_by"):
        write_batch(spool, 0, ordered.frame.repartition(4), files=True, drop=ordered.extra)


@pytest.mark.parametrize("on_spark", [False, True])
def test_exactly_once_needs_an_order(spark: Any, on_spark: bool, tmp_path: Path) -> None:
    settings = {
        "job.guarantee": "exactly_once",
        "sink.index.use": "spark",
        "sink.index.path": str(tmp_path / "out"),
    }
    query = "select 1 as id, 'a' as title, 'x y' as text"
    words = r'exactly_once", but .*\n  Say what orders them: order_by = "COLUMN".*; or set job.guarantee'
    with pytest.raises(ConfigError, match=words):
        flamestream_spark.run(index, pages=spark.sql(query), settings=settings, on_spark=on_spark)
    with pytest.raises(ConfigError, match=words):
        index.run(settings=settings | {"source.pages.use": "spark", "source.pages.sql": query})
    if not on_spark:
        pq.write_table(pa.table({"id": [1], "title": ["a"], "text": ["x y"]}), tmp_path / "in.parquet")
        flamestream_spark.run(index, pages=spark.read.parquet(str(tmp_path / "in.parquet")), settings=settings)
        assert spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_a_job_that_relies_on_an_order_refuses_rows_without_one(spark: Any) -> None:
    frame = spark.range(3)
    with pytest.raises(SourceError, match=r"no stable order, and the job relies on one: they do not come straight"):
        in_order(frame, (), "rows", stable=True)
    assert in_order(frame.where("id > 5"), (), "rows", stable=True).stable, "nothing is in order"


def test_a_query_without_an_order_gives_a_warning(tmp_path: Path) -> None:
    made = source(dict, sql="select id from range(5)")
    assert not made.capabilities.replayable
    with pytest.warns(UnstableOrderWarning, match=r"say what orders them: order_by"):
        values, _, _ = read(made)
    assert sorted(value["id"] for value in values) == [0, 1, 2, 3, 4]


def test_a_null_is_named_with_column_file_and_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    write(tmp_path / "b c.parquet", word=["x", None], number=[1, 2])
    values, bad, places = read(source(path=str(tmp_path)))
    assert len(values) == 11
    assert bad[0].reason == "column 'word' is null, and the flow's type does not allow that"
    assert bad[0].raw == "{'word': None, 'number': 2}"
    assert places == [f"{tmp_path}/b c.parquet row 2"]


def test_a_missing_column_and_a_wrong_type_are_known_before_the_first_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", word=["x"], num=[1])
    with pytest.raises(SourceError, match=r"there is no column 'number'\n  Did you mean 'num'"):
        asyncio.run(source(path=str(tmp_path)).open(""))
    write(tmp_path / "a.parquet", word=["x"], number=["1"])
    with pytest.raises(SourceError, match=r"column 'number' is of type string, and the flow declares int"):
        asyncio.run(source(path=str(tmp_path)).open(""))
    with pytest.raises(SourceError, match=r"there is no column 'wrd'\n  Did you mean 'word'"):
        asyncio.run(source(path=str(tmp_path), columns=("wrd",)).open(""))
    with pytest.raises(SourceError, match=r"there is no column 'size' to order by"):
        asyncio.run(source(path=str(tmp_path), order_by=("size",)).open(""))


def test_a_delta_table_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with pytest.raises(SourceError, match=r"Delta table .*table cannot be read.*\n  Is it a table"):
        asyncio.run(source(path=str(path), format="delta").open(""))
    for count in COUNTS[:2]:
        write_deltalake(path, pa.table({"word": [count.word], "number": [count.number]}), mode="append")
    assert read(source(path=str(path), format="delta", read={"versionAsOf": "0"}))[0] == list(COUNTS[:1])
    with pytest.raises(SourceError, match=r"cannot be read: .*version"):
        asyncio.run(source(path=str(path), format="delta", read={"versionAsOf": "7"}).open(""))
    with pytest.raises(SourceError, match=r"there is no option 'mergeSchema'"):
        asyncio.run(source(path=str(path), format="delta", read={"mergeSchema": "true"}).open(""))
    Table(path).alter.add_feature([TableFeatures.DeletionVectors], allow_protocol_versions_increase=True)
    with pytest.raises(SourceError, match=r"has deletionVectors, which only Delta Lake itself reads"):
        asyncio.run(source(path=str(path), format="delta").open(""))


def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError) as caught:
        read(source(path=str(tmp_path), schema="word string, number bigint"))
    assert str(tmp_path / "b.parquet") in str(caught.value)
    assert len(str(caught.value)) < 1500
    with pytest.raises(SourceError, match=r"PATH_NOT_FOUND.*nowhere.*\n  Is that the path"):
        asyncio.run(source(path=str(tmp_path / "nowhere")).open(""))
    with pytest.raises(SourceError, match=r"DATA_SOURCE_NOT_FOUND.*parqet.*\n  Is that the format"):
        asyncio.run(source(path=str(tmp_path), format="parqet").open(""))


def test_spark_ends_jobs_that_are_no_longer_read(spark: Any) -> None:
    """Closing a source does not wait for the query: that would take ten minutes here."""

    def slow(number: int) -> int:
        time.sleep(0.6)
        return number

    spark.udf.register("flamestream_slow", slow, "long")

    async def close_early() -> None:
        made = source(dict, sql="select flamestream_slow(id) as id from range(2000)", order_by=("id",))
        reader = await made.open("")
        reading = asyncio.ensure_future(reader.read(10))
        for _ in range(1000):
            if spark.sparkContext.statusTracker().getActiveJobsIds():
                break
            await asyncio.sleep(0.02)
        reading.cancel()
        await asyncio.wait([reading])
        await reader.aclose()

    asyncio.run(close_early())
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_a_module_an_executor_lacks_is_named() -> None:
    said = "Job aborted\n  File x\nModuleNotFoundError: No module named 'pyarrow'\n\tat org.apache.spark"
    assert "an executor has no module pyarrow" in str(failed("pages", RuntimeError(said)))


def test_exactly_one_input_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no input is given"):
        source()
    with pytest.raises(ConfigError, match=r"path and table are given"):
        source(path="x", table="y")


def test_formats_that_are_none_of_files_say_themselves_what_is_read(spark: Any, tmp_path: Path) -> None:
    options = {"format": "rate-micro-batch", "read": {"rowsPerBatch": "5"}, "stream": True, "columns": ("value",)}
    assert says_what(options)
    assert not says_what({"spool": "spool"})
    assert not says_what({"spool": "spool", "format": "csv"})
    stream = SparkSource(SparkSource.Options(**options, spool=str(tmp_path / "spool")), EdgeContext("numbers", int))
    assert not stream.capabilities.bounded
    assert stream.capabilities.host, "Spark reads it, and nobody else"

    async def first() -> list[int]:
        reader = await stream.open("", None)
        found: list[int] = []
        try:
            while len(found) < 10:
                batch = await patiently(reader.read(5), 120)
                assert batch is not None
                found += batch.values
        finally:
            await reader.aclose()
        return found

    assert sorted(asyncio.run(first())[:10]) == list(range(10))


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_a_failed_job_resumes(format: str, tmp_path: Path) -> None:
    """State, source and sink: what two runs write is what one would have written."""
    (tmp_path / "in").mkdir()
    for part in range(3):
        write(tmp_path / "in" / f"{part}.parquet", [(f"w{n % 5}", n) for n in range(part * 100, part * 100 + 100)])
    broken = [True]

    def number_of(count: Count) -> int:
        if broken and count.number == 217:
            raise ValueError("not yet")
        return count.number

    flow = fc.Flow("goes-on")
    flow.source("counts", Count).map(number_of).key_by(lambda n: n % 3).fold(0, lambda a, b: a + b).sink("sums")
    settings = {
        "job.guarantee": "exactly_once",
        "job.max_in_flight": 8,
        "state.interval_s": 0.01,
        "source.counts.use": "spark",
        "source.counts.path": str(tmp_path / "in"),
        "sink.sums.use": "spark",
        "sink.sums.path": str(tmp_path / "out"),
        "sink.sums.format": format,
    }
    with pytest.raises(OperationError, match=r"2.parquet row 18"):
        flow.run(settings=settings, state=tmp_path / "state.db")
    written = sorted(path.name for path in (tmp_path / "out").glob("part-*"))
    assert len(written) > 1
    broken.clear()
    outputs = flow.run(settings=settings, state=tmp_path / "state.db")
    assert outputs.stats.items_in < 300, "it did not begin anew"
    files = sorted((tmp_path / "out").glob("part-*"), key=lambda file: file.stem.split("-", 2)[2])
    assert set(written) < {file.name for file in files}
    found = [(row["key"], row["value"]) for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    sums = [0, 0, 0]
    expected: list[tuple[str, int]] = []
    for n in range(300):
        sums[n % 3] += n
        expected.append((str(n % 3), sums[n % 3]))  # nothing says what type the key is of
    assert found == expected


def test_a_run_after_a_finished_one_reads_what_has_come_though_the_spool_is_kept(spark: Any, tmp_path: Path) -> None:
    flow = fc.Flow("numbers")
    flow.source("numbers", int).map(str).sink("texts")
    settings = {
        "source.numbers.use": "spark",
        "source.numbers.sql": "select n from numbers",
        "source.numbers.order_by": ["n"],
        "source.numbers.spool": str(tmp_path / "spool"),
        "source.numbers.keep": True,
    }
    for rows, new in ((3, ["0", "1", "2"]), (5, ["3", "4"]), (5, [])):
        spark.range(rows).withColumnRenamed("id", "n").createOrReplaceTempView("numbers")
        assert flow.run(settings=settings, state=tmp_path / "state.db")["texts"] == new


def test_the_end_of_a_run_is_kept_while_it_has_not_finished(spark: Any, tmp_path: Path) -> None:
    options = {"sql": "select n from numbers", "order_by": ("n",), "spool": str(tmp_path / "spool"), "keep": True}

    async def rows(after: Any, end: Any) -> tuple[list[Any], Any]:
        reader = await source(int, **options).open_until("", after, end)
        try:
            values: list[Any] = []
            last: Any = None
            for _ in range(2):
                batch = await reader.read(1)
                assert batch is not None
                values += batch.values
                last = batch.positions[-1]
            while (batch := await reader.read(100)) is not None:
                values += batch.values
            return values, last
        finally:
            await reader.aclose()

    async def runs() -> None:
        made = source(int, **options)
        first, second = await made.find_end(""), await made.find_end("")
        spark.range(4).withColumnRenamed("id", "n").createOrReplaceTempView("numbers")
        found, position = await rows(None, first)
        assert found == [0, 1, 2, 3]
        spark.range(6).withColumnRenamed("id", "n").createOrReplaceTempView("numbers")
        assert (await rows(position, first))[0] == [2, 3], "the same run, after a crash"
        assert (await rows(position, second))[0] == [2, 3, 4, 5], "a run after it"

    asyncio.run(runs())


def test_a_source_that_cannot_begin_is_refused_before_output_is_replaced(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", "counts")
    spool.open()
    spool.forget(Taken(5, 1))
    (tmp_path / "out.jsonl").write_text('{"delivered": true}\n')
    flow = fc.Flow("counts")
    flow.source("counts", dict).sink("out")
    settings = {
        "source.counts.use": "spark",
        "source.counts.spool": str(tmp_path / "spool"),
        "source.counts.ends": True,
        "sink.out.use": "jsonl",
        "sink.out.path": str(tmp_path / "out.jsonl"),
    }
    with pytest.raises(SourceError, match="rows from 0 on are wanted, and those below 5 have been taken away"):
        flow.run(settings=settings)
    assert (tmp_path / "out.jsonl").read_text() == '{"delivered": true}\n'


def test_a_job_reads_with_a_session_of_its_own_and_ends_it(tmp_path: Path) -> None:
    """Source and sink in a job file, in a process that has no session."""
    write(tmp_path / "in.parquet")
    (tmp_path / "flow.py").write_text(
        "import flamecore as fc\nflow = fc.Flow('f')\nflow.source('counts', dict).map(len).sink('sizes')\n"
    )
    (tmp_path / "job.toml").write_text(
        "schema = 1\n[job]\nflow = 'flow.py:flow'\nguarantee = 'exactly_once'\n"
        "[source.counts]\nuse = 'spark'\npath = 'in.parquet'\nmaster = 'local[1]'\n"
        "[sink.sizes]\nuse = 'spark'\npath = 'out'\nformat = 'json'\n"
    )
    command = [sys.executable, "-c", "from flamecore.cli import main; main()", "run", "job.toml", "--on", "here"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = "".join(file.read_text() for file in (tmp_path / "out").glob("part-*.json"))
    assert rows.splitlines() == ['{"value":"2"}'] * 10
