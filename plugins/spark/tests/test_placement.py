"""The place of a flow of a program: the driver, or Spark's workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

import flamecore as fc
import flamestream_spark
from flamestream_spark.placement import host_of

pytestmark = [pytest.mark.usefixtures("spark")]


def pid_of(number: int) -> tuple[int, int]:
    import os

    return number, os.getpid()


def third(one: tuple[int, int]) -> int:
    return one[0] % 3


flow = fc.Flow("where")
flow.source("numbers", int).map(pid_of).key_by(third).reduce(max).sink("out")


def run(spark: Any, folder: Path, **options: Any) -> Any:
    return flamestream_spark.run(flow, numbers=spark.range(9), order_by="id", workers=1, **options)


def through(spark: Any, folder: Path, **options: Any) -> Any:
    return spark.range(9).transform(flamestream_spark.through(flow, order_by="id", workers=1, **options))


def stream(spark: Any, folder: Path, **options: Any) -> Any:
    numbers = spark.readStream.schema("n bigint").json(str(folder / "in"))
    at = folder / "job"
    with flamestream_spark.stream(flow, numbers=numbers, checkpoint=at, workers=1, **options) as running:
        running.processAllAvailable()
        assert running.progress()["waiting"] == 0
        return running.output()


WAYS: Final[dict[str, Callable[..., Any]]] = {"run": run, "through": through, "stream": stream}


def give(folder: Path, name: str, *numbers: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(f'{{"n": {number}}}\n' for number in numbers))


@pytest.mark.parametrize("on_spark", [None, False, True])
@pytest.mark.parametrize("way", WAYS)
def test_on_spark_says_where_a_flow_runs_and_a_local_master_has_it_in_the_driver(
    way: str, on_spark: bool | None, spark: Any, tmp_path: Path
) -> None:
    import os

    give(tmp_path, "a.json", *range(9))
    with capture_logs() as said:
        rows = WAYS[way](spark, tmp_path, on_spark=on_spark).collect()
    pids = {row.value[1] for row in rows}
    assert (pids == {os.getpid()}) == (on_spark is not True)
    assert len(rows) == 9
    because = ["the master is local[4]"] if on_spark is None else [f"on_spark={on_spark}"]
    placed = {"job": "where", "on": "spark" if on_spark else "here", "because": because}
    assert said[0] == {"event": "job.placed", "log_level": "info", **placed}


@pytest.mark.parametrize(
    ("master", "on"),
    [
        ("local", "here"),
        ("local[*]", "here"),
        ("local-cluster[2,1,1024]", "here"),
        ("spark://127.0.0.1:7077", "spark"),
        ("spark://head:7077", "spark"),
        ("yarn", "spark"),
        ("k8s://https://localhost:443", "spark"),
    ],
)
def test_the_master_decides_where_a_flow_runs_unless_the_program_does(master: str, on: str) -> None:
    spark = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: {"spark.master": master}[name]))
    assert host_of(spark, "where", on_spark=None) == on
    assert host_of(spark, "where", on_spark=True) == "spark"
    assert host_of(spark, "where", on_spark=False) == "here"


def test_a_stream_goes_on_in_the_other_place(spark: Any, tmp_path: Path) -> None:
    found = []
    for turn, on_spark in enumerate([False, True, False]):
        give(tmp_path, f"{turn}.json", *range(3 * turn, 3 * turn + 3))
        rows = stream(spark, tmp_path, on_spark=on_spark).orderBy(*flamestream_spark.TIMES).collect()
        found.append([(row.key, row.value[0]) for row in rows])
    assert [len(rows) for rows in found] == [3, 6, 9]
    assert found[-1] == [(number % 3, number) for number in range(9)]


def test_the_line_of_where_a_flow_runs_is_apart_from_data_of_the_program() -> None:
    program = (
        "from types import SimpleNamespace as Some\n"
        "from flamestream_spark.placement import host_of\n"
        "print(host_of(Some(conf=Some(get=lambda *_: 'yarn')), 'where', on_spark=None))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "spark\n"
    assert "the master is yarn" in done.stderr
