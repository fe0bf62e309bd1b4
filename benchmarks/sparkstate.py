"""A keyed running count on Spark: state in Python beside Spark's own ways, with their CPU time and latency.

Each contender has a process and a session of its own. All of them read the same five files of Parquet, and write a row
with the count so far for each row that they have read; all rows are compared with those of a plain program.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import measured, tree_cpu_s
from benchmarks.report import Spread, Table, ratios
from benchmarks.sparkfeed import counting
from benchmarks.sparkjobs import spark_of

MASTER: Final = "local[2]"
BATCHES: Final = 5
_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SCHEMA: Final = "id long, key long"
_COUNTED: Final = "id long, key long, count long"
_SQL: Final = "window function of SQL"
_THROUGH: Final = "flamestream: `through`"
_KEPT: Final = "flamestream: `run`, its files kept"
_STREAM: Final = "flamestream: `stream`"
_STATE: Final = "`transformWithState`"
_WITHIN: Final = 1.5
_TIMES: Final = 8.0


def compare(*, rows: int, keys: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure all of it, each contender in a process of its own.

    Args:
        rows: How many are counted.
        keys: Over so many keys.
        rounds: How often.
    """
    table = Table(
        f"Running count of {rows:,} rows by {keys:,} keys, Spark {version('pyspark')}, {MASTER}",
        ("contender", "CPU, s", "CPU of the first run, s", "latency, s", "latency of", "rows"),
    )
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*_WHOLE, *_STREAMED)}
    for _ in range(rounds):
        for name, found in runs.items():
            arguments = {"contender": name, "rows": rows, "keys": keys}
            found.append(measured("sparkstate", arguments, what=f"running count: {name}"))
    for name, found in runs.items():
        if wrong := next((run["wrong"] for run in found if run["wrong"]), ""):
            table.fail(name, wrong)
            continue
        cpu, first, latency = (Spread.of([run[key] for run in found]) for key in ("cpu_s", "first_cpu_s", "latency_s"))
        table.add(name, cpu, first, latency, "all rows" if name in _WHOLE else "a batch", "equal")
    table.note(f"CPU: driver, Java and Python of tasks, together; of a stream, that of {BATCHES} batches.")
    table.note("`through`: Spark reads the files that the flow has written, and writes them again.")
    if not table.failed:
        own = ratios(runs[_THROUGH], runs[_SQL], "cpu_s")
        table.target(_THROUGH, f"`through`, CPU: x {_SQL}", own, _WITHIN, at_most=True)
        table.target(_STREAM, f"{_STATE}, CPU: x `stream`", ratios(runs[_STATE], runs[_STREAM], "cpu_s"), _TIMES)
    return table, {"rows": rows, "keys": keys, "runs": runs, "targets": table.targets}


def one_run(*, contender: str, rows: int, keys: int) -> dict[str, Any]:
    """Measure one contender in this process: once to warm up, once more for the figures.

    Args:
        contender: Its name in the table.
        rows, keys: As of `compare`.

    Returns:
        CPU seconds of this process and all below it, of both runs; the seconds that all rows take, or the median of
        the batches of a stream; and the first difference from the outputs of a plain program, empty if there is none.
    """
    chance = random.Random(7)
    given = [chance.randrange(keys) for _ in range(rows)]
    counts: Counter[int] = Counter()
    wanted = []
    for number, key in enumerate(given):
        counts[key] += 1
        wanted.append((number, key, counts[key]))
    with (
        spark_of(MASTER, sql__streaming__stateStore__providerClass=_ROCKS) as spark,
        tempfile.TemporaryDirectory() as folder,
    ):
        files = _write(given, Path(folder, "files"))
        found: list[dict[str, Any]] = []
        wrong = ""
        for number in range(2):
            place = Path(folder, str(number))
            place.mkdir()
            before = tree_cpu_s(os.getpid())
            latency, outputs = (_all if contender in _WHOLE else _batches)(spark, contender, files, place)
            found.append({"cpu_s": tree_cpu_s(os.getpid()) - before, "latency_s": latency})
            rows_out = outputs().orderBy("id").toPandas().itertuples(index=False, name=None)
            wrong = wrong or _difference(list(rows_out), wanted)
        return {**found[1], "first_cpu_s": found[0]["cpu_s"], "wrong": wrong}


def _write(given: list[int], folder: Path) -> list[str]:
    """Write the keys of rows, numbered, as files of the same size; return their paths."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    each = -(-len(given) // BATCHES)
    files: list[str] = []
    for first in range(0, len(given), each):
        keys = given[first : first + each]
        ids = pa.array(range(first, first + len(keys)), pa.int64())
        files.append(str(folder / f"{len(files)}.parquet"))
        pq.write_table(pa.table({"id": ids, "key": pa.array(keys, pa.int64())}), files[-1])
    return files


def _difference(found: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]]) -> str:
    if len(found) != len(wanted):
        return f"{len(found):,} rows"
    return next((f"row {row}, {other} wanted" for row, other in zip(found, wanted, strict=True) if row != other), "")


def _all(spark: Any, contender: str, files: list[str], place: Path) -> tuple[float, Callable[[], Any]]:
    """Send all files through at once; return the seconds it takes, and the outputs."""
    out = str(place / "out")
    began = time.perf_counter()
    counted = _WHOLE[contender](spark.read.schema(_SCHEMA).parquet(*files), out)
    if contender == _KEPT:
        return time.perf_counter() - began, lambda: _numbered(counted)
    counted.write.parquet(out)
    return time.perf_counter() - began, lambda: spark.read.parquet(out)


def _batches(spark: Any, contender: str, files: list[str], place: Path) -> tuple[float, Callable[[], Any]]:
    """Hand a stream one file when all rows before it are out; return the median of the seconds, and the outputs."""
    inbox = place / "in"
    inbox.mkdir()
    running = _STREAMED[contender](spark.readStream.schema(_SCHEMA).parquet(str(inbox)), place)
    took = []
    try:
        for file in files:
            hidden = Path(shutil.copy(file, inbox / f".{Path(file).name}"))
            began = time.perf_counter()
            hidden.rename(inbox / Path(file).name)
            running.processAllAvailable()
            took.append(time.perf_counter() - began)
    finally:
        running.stop()
    if contender == _STREAM:
        return Spread.of(took).median, lambda: _numbered(running.output())
    return Spread.of(took).median, lambda: spark.read.parquet(str(place / "out"))


def _numbered(outputs: Any) -> Any:
    """Return outputs of a flow with the columns of the others: its times are the numbers of the rows."""
    return outputs.selectExpr("_time AS id", "key", "value AS count")


def _through(rows: Any, _: str) -> Any:
    from flamestream_spark import through

    return _numbered(rows.select("key").transform(through(counting(all_outputs=True))))


def _kept(rows: Any, out: str) -> Any:
    from flamestream_spark import run

    return run(counting(all_outputs=True), rows=rows.select("key"), scratch=out)


def _window(rows: Any, _: str) -> Any:
    return rows.selectExpr("id", "key", "CAST(row_number() OVER (PARTITION BY key ORDER BY id) AS long) AS count")


def _grouped(rows: Any, _: str) -> Any:
    def count(frame: Any) -> Any:
        ordered = frame.sort_values("id")
        return ordered.assign(count=range(1, len(ordered) + 1))

    return rows.groupBy("key").applyInPandas(count, _COUNTED)


def _stream(rows: Any, place: Path) -> Any:
    from flamestream_spark import stream

    return stream(counting(all_outputs=True), rows=rows.select("key"), checkpoint=place / "checkpoint")


def _started(counted: Any, place: Path) -> Any:
    """Start a query of Spark that writes files."""
    return (
        counted.writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .start(str(place / "out"))
    )


def _grouped_with_state(rows: Any, place: Path) -> Any:
    import pandas as pd

    def count(_: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        (before,) = state.get if state.exists else (0,)
        ordered = pd.concat(frames).sort_values("id")
        state.update((before + len(ordered),))
        yield ordered.assign(count=range(before + 1, before + len(ordered) + 1))

    counted = rows.groupBy("key").applyInPandasWithState(count, _COUNTED, "count long", "append", "NoTimeout")
    return _started(counted, place)


def _with_state(rows: Any, place: Path) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counts(StatefulProcessor):  # type: ignore[misc]  # without PySpark it is Any
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "value long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:  # noqa: N802 - its name
            held = self.count.get()
            count = held[0] if held is not None else 0
            for row in sorted(rows, key=lambda row: row.id):
                count += 1
                yield Row(id=row.id, key=row.key, count=count)
            self.count.update((count,))

        def close(self) -> None:
            return

    counted = rows.groupBy("key").transformWithState(
        Counts(), outputStructType=_COUNTED, outputMode="Append", timeMode="None"
    )
    return _started(counted, place)


_WHOLE: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    _SQL: _window,
    _THROUGH: _through,
    _KEPT: _kept,
    "`applyInPandas`": _grouped,
}
_STREAMED: Final[Mapping[str, Callable[[Any, Path], Any]]] = {
    _STREAM: _stream,
    "`applyInPandasWithState`": _grouped_with_state,
    _STATE: _with_state,
}
