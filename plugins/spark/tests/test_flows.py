"""Flows over DataFrames."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import flamecore as fc
import flamestream_spark
from flamecore.errors import ConfigError, FlameError, OperationError, SourceError, UnknownKeyError
from flamecore.testing.flows import standard as standard_flows
from flamecore.testing.flows.reference import interpret
from flamecore.testing.progress import Patience
from flamestream_demo.inverted_index import flow as index
from flamestream_demo.pages import Page
from flamestream_demo.testing import plain_index
from flamestream_spark import scratch
from flamestream_spark.session.session import session
from flamestream_spark.spool.ordering import UnstableOrderWarning
from flamestream_spark.tables.arrow import Form


class Reading(NamedTuple):
    sensor: str
    value: float


@dataclass
class Mean:
    sensor: str
    mean: float
    count: int


def word_of(word: str) -> str:
    return word


def counting() -> fc.Flow:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).key_by(word_of).count().sink("counts")
    return flow


def ordered(frame: Any) -> list[tuple[Any, ...]]:
    rows = frame.orderBy(*flamestream_spark.TIMES).collect()
    return [tuple(row)[: -len(flamestream_spark.TIMES)] for row in rows]


def test_records_go_in_and_come_out(spark: Any) -> None:
    def mean(state: tuple[float, int], reading: Reading) -> tuple[tuple[float, int], list[Mean]]:
        total, count = state[0] + reading.value, state[1] + 1
        return (total, count), [Mean(reading.sensor, total / count, count)]

    def sensor(reading: Reading) -> str:
        return reading.sensor

    flow = fc.Flow("means")
    flow.source("readings", Reading).key_by(sensor).stateful_map((0.0, 0), mean).sink("means")
    frame = spark.createDataFrame([(3, "b", 1.0), (1, "a", 2.0), (2, "a", 4.0)], ["n", "sensor", "value"])
    means = flamestream_spark.run(flow, readings=frame, order_by="n")
    assert ordered(means) == [("a", 2.0, 1), ("a", 3.0, 2), ("b", 1.0, 1)]
    assert [name for name, _ in means.dtypes] == ["sensor", "mean", "count", "_time", "_front", "_place"]
    assert dict(means.dtypes)["mean"] == "double"


def test_global_times_do_not_depend_on_the_spread_of_rows(spark: Any) -> None:
    rows = [(number, f"w{number % 7} w{number % 3}") for number in range(200)]
    frame = spark.createDataFrame(rows, ["n", "line"])
    expected = counting().run({"lines": [line for _, line in rows]})["counts"]
    found = []
    for parts, workers in ((1, 1), (3, 2), (5, 4)):
        out = flamestream_spark.run(counting(), lines=frame.repartition(parts), order_by="n", workers=workers)
        assert [(key, int(count)) for key, count in ordered(out)] == expected
        found.append(out.orderBy("_time", "_front", "_place").collect())
    assert found[0] == found[1] == found[2]


def size_of(word: str) -> int:
    return len(word)


def divided(number: int) -> int:
    return 1 // (3 - number)


@pytest.mark.filterwarnings("ignore::flamestream_spark.UntypedOutputWarning")
@pytest.mark.parametrize("workers", [1, 3])
def test_the_standard_flows_equal_the_reference(spark: Any, workers: int, arrow_of: Callable[[Any], Any]) -> None:
    given = standard_flows.inputs(seed=7, size=60)
    frames = {}
    for name, values in given.items():
        rows = [(number, *(value if isinstance(value, tuple) else (value,))) for number, value in enumerate(values)]
        names = ["n", *(getattr(type(values[0]), "_fields", None) or ["value"])]
        frames[name] = spark.createDataFrame(rows, names).repartition(3)
    found = flamestream_spark.run(standard_flows.flow, frames, order_by="n", workers=workers)
    graph = standard_flows.flow.graph()
    expected = interpret(graph, given, workers=workers)
    for sink in graph.sinks:
        outputs = expected[sink.name]
        form = Form.of(sink.type, times=True)
        table = form.make([output.payload for output in outputs], [output.order for output in outputs])
        rows = arrow_of(found[sink.name].orderBy(*flamestream_spark.TIMES)).to_pylist()
        assert rows == table.to_pylist(), sink.name


def test_workers_on_spark_give_the_same(spark: Any) -> None:
    pages = [Page(number % 7, "", f"word{number % 5} and word{number % 3}") for number in range(40)]
    frame = spark.createDataFrame([(n, *page) for n, page in enumerate(pages)], ["n", *Page._fields]).repartition(3)
    changes = flamestream_spark.run(index, pages=frame, order_by="n", on_spark=True)
    assert [(*row[:-1], tuple(row[-1])) for row in ordered(changes)] == [tuple(one) for one in plain_index(pages)]


def test_a_flow_that_nobody_can_import_goes_to_the_workers_by_value(spark: Any) -> None:
    lines = spark.createDataFrame([("b a",), ("a",)], ["line"])
    by_value = flamestream_spark.run(counting(), lines=lines, order_by="line", on_spark=True)
    assert ordered(by_value) == [("a", 1), ("b", 1), ("a", 2)]


def test_transform_takes_the_named_sink(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or\nnot to be\n")
    flow = fc.Flow("two")
    words = flow.source("lines", str).flat_map(str.split)
    words.map(size_of).sink("sizes")
    words.key_by(word_of).count().sink("counts")
    lines = spark.read.text(str(tmp_path))
    counts = lines.transform(flamestream_spark.through(flow, source="lines", sink="counts"))
    assert ordered(counts)[-2:] == [("to", 2), ("be", 2)]
    both = flamestream_spark.run(flow, lines=lines)
    assert {name: frame.count() for name, frame in both.items()} == {"sizes": 6, "counts": 6}
    with pytest.raises(ConfigError, match=r"has the sinks sizes, counts"):
        flamestream_spark.through(flow)
    with pytest.raises(UnknownKeyError, match=r"no such sink"):
        flamestream_spark.through(flow, sink="count")


def test_rows_without_an_order_give_a_warning(spark: Any) -> None:
    frame = spark.createDataFrame([("a",), ("b",)], ["line"])
    with pytest.warns(UnstableOrderWarning, match=r"source 'lines'"):
        counts = flamestream_spark.run(counting(), lines=frame)
    assert sorted(ordered(counts)) == [("a", 1), ("b", 1)]


def test_dead_letters_are_a_frame(spark: Any) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, None), (3, "b")], "n int, line string")

    class Line(NamedTuple):
        n: int
        line: str

    def text(line: Line) -> str:
        return line.line

    flow = fc.Flow("lines")
    flow.source("lines", Line).map(text).sink("texts")
    found = flamestream_spark.run(flow, lines=frame, order_by="n", settings={"source.lines.on_error": "dead_letter"})
    assert ordered(found["texts"]) == [("a",), ("b",)]
    (letter,) = found["dead_letter"].collect()
    assert letter.source == "lines"
    assert letter.position == "row 2"
    assert "column 'line' is null" in letter.reason
    with pytest.raises(SourceError, match=r"column 'line' is null"):
        flamestream_spark.run(flow, lines=frame, order_by="n")


def test_errors_of_functions_keep_their_type(spark: Any) -> None:
    flow = fc.Flow("fails")
    flow.source("numbers", int).map(divided).sink("out")
    with pytest.raises(OperationError, match=r"ZeroDivisionError"):
        flamestream_spark.run(flow, numbers=spark.range(5), order_by="id")


def test_names_are_checked(spark: Any) -> None:
    with pytest.raises(UnknownKeyError, match=r"order_by.line: flow .* has no such source\n  Did you mean 'lines'"):
        flamestream_spark.run(counting(), lines=spark.range(1), order_by={"line": "id"})
    with pytest.raises(ConfigError, match=r"source.lines: an object of type list is given, and is to be a DataFrame"):
        flamestream_spark.run(counting(), lines=["a b"])
    with pytest.raises(UnknownKeyError, match=r"source.line"):
        flamestream_spark.run(counting(), line=spark.range(1))
    with pytest.raises(ConfigError, match=r"no DataFrame is given"):
        flamestream_spark.run(counting())


def test_no_rows_give_no_rows(spark: Any) -> None:
    frame = spark.createDataFrame([], "line string")
    out = flamestream_spark.run(counting(), lines=frame, order_by="line")
    assert out.count() == 0
    assert "_time" in out.columns


def slowly(seconds: float) -> Any:
    from pyspark.sql import functions

    def wait(number: int) -> int:
        time.sleep(seconds)
        return number

    return functions.udf(wait, "bigint", useArrow=False)("id").alias("id")


@pytest.mark.parametrize("on_spark", [False, True])
def test_jobs_of_a_flow_belong_to_the_group_pool_and_tags_of_the_caller(spark: Any, on_spark: bool) -> None:
    context = spark.sparkContext
    ended: list[FlameError] = []
    tags: list[str] = []

    def run() -> None:
        context.setJobGroup("cell", "a cell of a notebook", interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", "reports")
        context.addJobTag("hourly")
        with suppress(RuntimeError):  # Spark 3.5 has them over Spark Connect alone
            spark.addTag("ours")
            tags.append("-ours")
        flow = fc.Flow("grouped")
        flow.source("numbers", int).key_by(lambda number: number % 3).count().sink("out")
        rows = spark.range(100_000).select(slowly(0.01))
        try:
            flamestream_spark.run(flow, numbers=rows, order_by="id", on_spark=on_spark, workers=1)
        except FlameError as error:
            ended.append(error)

    from pyspark import InheritableThread

    thread = InheritableThread(target=run)
    thread.start()
    tracker, limit = context.statusTracker(), Patience(60)
    wanted = 2 if on_spark else 1
    while len(tracker.getActiveJobsIds()) < wanted:
        assert thread.is_alive(), ended
        assert not limit.passed()
        time.sleep(0.1)
    active = set(tracker.getActiveJobsIds())
    assert active <= set(tracker.getJobIdsForGroup("cell"))
    assert active <= set(context._jsc.sc().statusTracker().getJobIdsForTag("hourly"))
    jobs = [context._jsc.sc().dagScheduler().jobIdToActiveJob().apply(job).properties() for job in active]
    assert {job.getProperty("spark.scheduler.pool") for job in jobs} == {"reports"}
    assert all(tag in job.getProperty("spark.job.tags") for job in jobs for tag in tags)
    context.cancelJobGroup("cell")
    thread.join()
    assert "cancelled, as somebody has told Spark" in str(ended[0])
    assert not tracker.getActiveJobsIds()
    assert context.getLocalProperty("spark.jobGroup.id") is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_ctrl_c_ends_the_jobs_of_the_flow_alone_and_removes_its_files_last(
    spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark import InheritableThread

    context, before = spark.sparkContext, set(scratch._made)
    tracker, limit = context.statusTracker(), Patience(60)
    other: list[int] = []

    def count() -> None:
        context.setJobGroup("other", "work of another thread")
        other.append(spark.range(8).select(slowly(0.1)).where("id >= 0").count())

    def interrupt() -> None:
        while len(tracker.getActiveJobsIds()) < 1 and not limit.passed():
            time.sleep(0.05)
        beside = InheritableThread(target=count)
        beside.start()
        while not tracker.getJobIdsForGroup("other") and not limit.passed():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        beside.join()

    flow = fc.Flow("interrupted")
    flow.source("numbers", int).key_by(lambda number: number % 3).count().sink("out")
    rows = spark.range(100_000).select(slowly(0.01))
    thread = InheritableThread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        flamestream_spark.run(flow, numbers=rows, order_by="id")
    assert set(scratch._made) <= before
    thread.join()
    assert other == [8]
    assert not tracker.getActiveJobsIds()
    assert "Traceback" not in capfd.readouterr().err


READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "DataFrame": lambda out: out.where("value > 1").selectExpr("key as word"),
    "RDD": lambda out: out.where("value > 1").select("key").rdd,
    "RDD that Python computes": lambda out: out.rdd.filter(lambda row: row.value > 1).map(lambda row: (row.key,)),
    "checkpoint to come": lambda out: out.where("value > 1").select("key").localCheckpoint(eager=False),
}


@pytest.mark.parametrize("kind", READERS)
def test_temporary_files_go_when_nothing_reads_them(spark: Any, kind: str) -> None:
    if spark.version.startswith("4.0."):
        pytest.skip("Spark 4.0 never lets go of the session that marks who reads, so files go with the program")
    lines = spark.createDataFrame([("a b",), ("b",)], ["line"])
    before = set(scratch._held)
    out = flamestream_spark.run(counting(), lines=lines, order_by="line")
    (folder,) = set(scratch._held) - before
    reader = READERS[kind](out)
    del out
    for _ in range(3):  # Python's collector lets go first, and then Java's
        gc.collect()
        scratch.remove_unread()
    assert folder.exists(), "what was made of the output reads them still"
    assert [row[0] for row in reader.collect()] == ["b"]
    del reader
    limit = Patience(60)
    while folder.exists():
        assert not limit.passed()
        gc.collect()
        scratch.remove_unread()
        time.sleep(0.1)
    assert folder not in scratch._held


def test_a_run_that_fails_leaves_no_temporary_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    flow = fc.Flow("fails")
    flow.source("numbers", int).map(divided).sink("out")
    with pytest.raises(OperationError, match=r"ZeroDivisionError"):
        flamestream_spark.run(flow, numbers=spark.range(5), order_by="id")
    assert not list(tmp_path.glob("flamestream-*"))


def test_files_of_a_program_that_was_killed_go_with_the_next_one(tmp_path: Path) -> None:
    program = "from flamestream_spark.scratch import make_temporary; print(make_temporary(), flush=True); "
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def run(end: str) -> tuple[int, Path]:
        command = [sys.executable, "-c", program + end]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, Path(done.stdout.strip())

    code, folder = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (code, folder.is_dir()) == (-signal.SIGKILL, True)
    code, _ = run("")
    assert (code, list(tmp_path.iterdir())) == (0, [])


def test_a_session_that_is_there_is_used_and_stays(spark: Any) -> None:
    with session("local[1]") as used:
        assert used.range(3).count() == 3
    assert spark.range(3).count() == 3, "it was not stopped"


@pytest.fixture
def dump() -> Path:
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    file = Path(os.environ.get("FLAMESTREAM_DATA", beside)) / "wikipedia" / "test_index_ranking_storage_small_dump.xml"
    if not file.is_file():
        pytest.skip(f"there is no {file}; set FLAMESTREAM_DATA to the folder that holds wikipedia/")
    return file


@pytest.mark.spark4
def test_wikipedia_pages_are_indexed_as_by_a_plain_loop(spark: Any, dump: Path) -> None:
    pages = (
        spark.read.format("xml")
        .option("rowTag", "page")
        .schema("_id int, _title string, _VALUE string")
        .load(str(dump))
    ).selectExpr("_id as id", "_title as title", "coalesce(_VALUE, '') as text")
    changes = flamestream_spark.run(index, pages=pages, workers=2)
    found = [(*row[:-1], tuple(row[-1])) for row in ordered(changes)]
    assert found == [tuple(change) for change in plain_index(Page(*row) for row in pages.collect())]
    assert len(found) > 1000
