"""From Parquet, through a running count, to Parquet.

The contenders are flamestream, fed by Spark, and Spark's own stateful streaming.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import flamecore as fc
from benchmarks.processes import measured
from benchmarks.report import Spread, Table, ratios

KEYS: Final = 1000
_BATCHES: Final = 5
_FED: Final = "fed to 2 workers"
_FOLDER: Final = "to Parquet, exactly once"
_FRAME: Final = "DataFrame to DataFrame"
_SPARK: Final = "transformWithStateInPandas, 5 batches"
_ONCE: Final = "transformWithStateInPandas, 1 batch"
_READ: Final = "Spark reads, and hands over to Python"


def compare(*, rows: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure all of it in one process.

    A session of Spark takes longer to start than the rest.

    Args:
        rows: How many are counted, over 1,000 keys.
        rounds: How often, after once to warm up.
    """
    found = measured("sparkfeed", {"rows": rows, "rounds": rounds}, what="Spark feeds a running count")
    runs: list[dict[str, float]] = found["runs"]
    table = Table(
        f"Running count of {rows:,} rows from Parquet, Spark on 2 cores",
        ("contender", "rows/s", "x transformWithState, 5 batches"),
    )
    rates = [{name: {"rate": rows / seconds} for name, seconds in run.items()} for run in runs]
    for name in runs[0]:
        own = ratios([rate[name] for rate in rates], [rate[_SPARK] for rate in rates], "rate")
        table.add(name, Spread.of([rate[name]["rate"] for rate in rates]), own)
    table.target(_FED, f"{_FED}: rows/s", Spread.of([rate[_FED]["rate"] for rate in rates]), 300_000)
    for name in (_FOLDER, _FRAME):
        table.target(name, f"{name}: rows/s", Spread.of([rate[name]["rate"] for rate in rates]), 100_000)
    own = ratios([rate[_FOLDER] for rate in rates], [rate[_SPARK] for rate in rates], "rate")
    table.target(_FOLDER, f"{_FOLDER}: x {_SPARK}", own, 4)
    once = ratios([rate[_FOLDER] for rate in rates], [rate[_ONCE] for rate in rates], "rate")
    table.target(_FOLDER, f"{_FOLDER}: x {_ONCE}", once, 2)
    table.note(
        "Spark makes outputs durable batch by batch; flamestream takes a snapshot every 500 ms, and outputs never wait."
    )
    return table, {"rows": rows, "runs": runs}


def key_of(number: int) -> int:
    """Return the key of a row, which is all that is read of it."""
    return number


def is_seldom(pair: tuple[int, int]) -> bool:
    """Return whether the count is a multiple of 1,000."""
    return pair[1] % 1000 == 0


def counting(*, all_outputs: bool) -> fc.Flow:
    """Return a flow that counts rows by key.

    Its outputs are those of every row, or of every thousandth of a key.
    """
    flow = fc.Flow("counts")
    counts = flow.source("rows", int).key_by(key_of).count(name="count")
    (counts if all_outputs else counts.filter(is_seldom)).sink("counts")
    return flow


def run(*, rows: int, rounds: int) -> dict[str, Any]:
    """Measure in this process."""
    from flamestream_spark.session.session import session

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
        "RocksDBStateStoreProvider",
    }
    with session("local[2]", conf) as spark, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        made = spark.range(0, rows, 1, 2 * _BATCHES).selectExpr(
            "id", f"pmod(id * 7919, {KEYS}) AS key", "repeat('x', 90) AS payload", "id * 0.5 AS value"
        )
        made.write.parquet(str(place / "in"))
        contenders: dict[str, Callable[[], int]] = {
            _READ: lambda: _read(spark, place),
            _FED: lambda: _fed(spark, place),
            _FOLDER: lambda: _to_folder(spark, place),
            _FRAME: lambda: _to_frame(spark, place),
            _SPARK: lambda: _by_spark(spark, place, 2),
            _ONCE: lambda: _by_spark(spark, place, 2 * _BATCHES),
        }
        runs = []
        for number in range(rounds + 1):
            seconds = {}
            for name, contender in contenders.items():
                shutil.rmtree(place / "out", ignore_errors=True)
                begin = time.perf_counter()
                count = contender()
                seconds[name] = time.perf_counter() - begin
                _check(spark, place, name, count, rows)
            if number:
                runs.append(seconds)
        return {"runs": runs}


def _check(spark: Any, place: Path, name: str, count: int, rows: int) -> None:
    """Check that outputs are those of a count."""
    wanted = rows if name != _FED else rows // KEYS // 1000 * KEYS
    assert count in (-1, wanted), f"{name}: {count:,} outputs, and there should be {wanted:,}"
    if (place / "out").exists():
        each = rows // KEYS
        found = spark.read.parquet(str(place / "out")).selectExpr("count(*)", "sum(value)").first()
        assert tuple(found) == (rows, KEYS * each * (each + 1) // 2), f"{name}: wrong counts: {found}"


def _read(spark: Any, place: Path) -> int:
    def through(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    read = spark.read.parquet(str(place / "in")).select("key")
    return int(read.mapInArrow(through, "key long").count())


def _fed(spark: Any, place: Path) -> int:
    outputs = counting(all_outputs=False).run(settings=_source(place), workers=2)
    return len(outputs["counts"])


def counting_job(place: Path) -> dict[str, Any]:
    """Return the settings of a job that counts from Parquet to Parquet.

    The job delivers exactly once, in a folder.
    """
    sink = {"sink.counts.use": "spark", "sink.counts.path": str(place / "out"), "sink.counts.times": True}
    # A file holds what was delivered together, and nothing is while one is forced to the disk.
    kept = {"job.guarantee": "exactly_once", "job.max_in_flight": 65_536, "state.use": "sqlite"}
    return _source(place) | sink | kept | {"state.path": str(place / "state")}


def _to_folder(spark: Any, place: Path) -> int:
    shutil.rmtree(place / "state", ignore_errors=True)
    outputs = counting(all_outputs=True).run(settings=counting_job(place), workers=2)
    assert outputs.stats is not None
    return -1


def _to_frame(spark: Any, place: Path) -> int:
    import flamestream_spark

    read = spark.read.parquet(str(place / "in")).select("key")
    return int(flamestream_spark.run(counting(all_outputs=True), rows=read, workers=2).count())


def _source(place: Path) -> dict[str, Any]:
    return {"source.rows.use": "spark", "source.rows.path": str(place / "in"), "source.rows.columns": ["key"]}


def _by_spark(spark: Any, place: Path, files: int) -> int:
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Counts(StatefulProcessor):  # type: ignore[misc]  # without PySpark it is Any
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "value long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:  # noqa: N802 - its name
            held = self.count.get()
            count = held[0] if held is not None else 0
            for frame in rows:
                size = len(frame)
                yield pd.DataFrame({"key": [key[0]] * size, "value": range(count + 1, count + size + 1)})
                count += size
            self.count.update((count,))

        def close(self) -> None:
            return

    schema = "id long, key long, payload string, value double"
    read = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(place / "in")).select("key")
    counted = read.groupBy("key").transformWithStateInPandas(
        Counts(), outputStructType="key long, value long", outputMode="Append", timeMode="None"
    )
    shutil.rmtree(place / "query", ignore_errors=True)
    writer = counted.writeStream.format("parquet").option("checkpointLocation", str(place / "query"))
    query = writer.trigger(availableNow=True).start(str(place / "out"))
    query.awaitTermination()
    return -1
