"""The suffix of a sink in tasks of Spark, some of which are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import flamestream_spark
from flamecore.errors import OperationError
from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.launch import job_of, to_the_end
from flamestream_spark.drain import held

FLOW = """
import os
import time
from pathlib import Path

import flamecore as fc


def costly(pair: tuple[str, int]) -> tuple[str, int, str]:
    time.sleep(0.002)
    kill()
    if pair == ("b1", 9):
        raise ValueError("b1 has nine")
    return pair[0].upper(), pair[1], str(Path("/proc/self/cmdline").read_bytes().count(b"pyspark.daemon"))


def kill() -> None:
    '''Kill the executor that runs this task: the JVM above the daemon of Python; once.'''
    flag = Path({flag!r})
    if not flag.exists() or b"pyspark.daemon" not in Path("/proc/self/cmdline").read_bytes():
        return
    try:
        flag.rename(flag.with_suffix(".done"))
    except FileNotFoundError:
        return
    above = int(Path(f"/proc/{{os.getppid()}}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(above, 9)
    os.kill(os.getppid(), 9)
    time.sleep(60)


flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().map(costly).sink("out")
"""
PROGRAM = """
import sys
from pathlib import Path

from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.launch import job_of, to_the_end
import json

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    spec = resolve(make_config(from_program(settings), folder=folder), load_flow(f"{folder.name}.py:flow", folder))
    report = to_the_end(job_of(spec))
    print(json.dumps({"out": report.stats.items_out, "failed": report.stats.failed}))
"""
LINES = [f"a b{n % 3} c{n % 50}" for n in range(60)]


def settings_of(folder: Path, name: str, on: str, **more: Any) -> dict[str, Any]:
    (folder / "lines").write_text("\n".join(LINES) + "\n")
    (folder / f"{folder.name}.py").write_text(FLOW.format(flag=str(folder / "kill")))
    return {
        "deploy.on": on,
        "job.workers": 1,
        "job.on_error": "skip",
        "source.lines.use": "lines",
        "source.lines.path": str(folder / "lines"),
        "sink.out.use": "spark",
        "sink.out.path": str(folder / name),
        "sink.out.times": True,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def rows(folder: Path) -> list[Any]:
    """Return the outputs of a sink, in the order of delivery, without what tells where they were made."""
    keys = [(name, "ascending") for name in ("_time", "_front", "_place")]
    table = pq.read_table(folder).sort_by(keys)
    found: list[Any] = table.remove_column(2).to_pylist()
    return found


def run(folder: Path, settings: dict[str, Any]) -> Any:
    spec = resolve(make_config(from_program(settings), folder=folder), load_flow(f"{folder.name}.py:flow", folder))
    return to_the_end(job_of(spec))


def test_an_executor_that_is_killed_while_it_drains_changes_nothing(tmp_path: Path) -> None:
    here = run(tmp_path, settings_of(tmp_path, "here", "here"))
    (tmp_path / "program.py").write_text(PROGRAM)
    more = {"spark__master": "local-cluster[2,2,1024]", "spark__config": {"spark.executor.memory": "512m"}}
    (tmp_path / "settings.json").write_text(json.dumps(settings_of(tmp_path, "there", "spark", **more)))
    (tmp_path / "kill").touch()
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "kill.done").exists(), "none was killed"
    assert rows(tmp_path / "there") == rows(tmp_path / "here")
    assert json.loads(done.stdout.splitlines()[-1]) == {"out": {"out": 179}, "failed": 1}
    assert here.stats.items_out == {"out": 179}
    found = pq.read_table(tmp_path / "there").column(2).to_pylist()
    assert set(found) == {"1"}, "tasks have run it"


@pytest.fixture
def everything_is_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every suffix wait for its tasks, whatever it costs."""
    monkeypatch.setattr(held.HeldSink, "_is_costly", lambda *_: True)


@pytest.mark.usefixtures("everything_is_costly")
def test_rows_of_a_dataframe_meet_it_there_too(spark: Any, tmp_path: Path) -> None:
    settings_of(tmp_path, "there", "spark")
    flow: Any = load_flow(f"{tmp_path.name}.py:flow", tmp_path)
    frame = spark.createDataFrame(list(enumerate(LINES)), ["n", "line"])
    settings = {"job.on_error": "dead_letter"}
    found = flamestream_spark.run(flow, lines=frame, order_by="n", on_spark=True, workers=1, settings=settings)
    here = flamestream_spark.run(flow, lines=frame, order_by="n", on_spark=False, settings=settings)
    order = ("_time", "_front", "_place")
    there_rows, here_rows = [found["out"].orderBy(*order).collect()], [here["out"].orderBy(*order).collect()]
    assert [(*row[:2], *row[3:]) for row in there_rows[0]] == [(*row[:2], *row[3:]) for row in here_rows[0]]
    assert {row[2] for row in there_rows[0]} == {"1"}
    assert len(here_rows[0]) == 179
    (letter,), (letter_here,) = found["dead_letter"].collect(), here["dead_letter"].collect()
    assert "b1 has nine" in letter.reason
    assert "row 26" in letter.position
    assert "row 26" in letter_here.position
    assert found["dead_letter"].schema == here["dead_letter"].schema
    with pytest.raises(OperationError, match=r"b1 has nine(.|\n)*at        row 26") as caught:
        flamestream_spark.run(flow, lines=frame, order_by="n", on_spark=True, workers=1)
    assert "in costly: raise ValueError" in str(caught.value)


@pytest.mark.usefixtures("everything_is_costly")
def test_an_error_names_the_row_that_spark_has_read(spark: Any, tmp_path: Path) -> None:
    more = {"job__on_error": "fail", "source__lines__use": "spark", "source__lines__format": "text"}
    with pytest.raises(OperationError, match=r"b1 has nine(.|\n)*lines row 26, behind the workers"):
        run(tmp_path, settings_of(tmp_path, "there", "spark", **more))
    assert len(rows(tmp_path / "there")) == 75, "what comes before the record"
