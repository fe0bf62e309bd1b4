"""The first operations of a flow in the tasks of Spark that feed it, of jobs whose workers are tasks of Spark too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import flamestream_spark
from flamecore.cli import main
from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.launch import make_job

FLOW = """
import time

import flamecore as fc


def place(line: str) -> list[tuple[str, str]]:
    from pyspark import TaskContext

    time.sleep(0.001)
    if line.endswith("7"):
        raise ValueError(f"no {line}")
    where = "worker" if TaskContext.get() is None else "feed"
    return [(word, where) for word in line.split()]


def word(pair: tuple[str, str]) -> str:
    return pair[0]


def join(before: str, pair: tuple[str, str]) -> tuple[str, list[tuple[str, str]]]:
    return before + pair[0], [(before + pair[0], pair[1])]


flow = fc.Flow("places")
flow.source("lines", str).filter(bool, name="filled").flat_map(place, name="place").key_by(word).stateful_map(
    "", join, name="join"
).sink("places")
"""
LINES = [f"w{n % 5} v{n}" if n % 11 else "" for n in range(300)]


def run_job(folder: Path, **settings: Any) -> list[tuple[str, str]]:
    (folder / f"{folder.name}.py").write_text(FLOW)
    (folder / "lines").mkdir()
    for number, start in enumerate(range(0, len(LINES), 50)):
        (folder / "lines" / f"{number}.txt").write_text("".join(f"{line}\n" for line in LINES[start : start + 50]))
    chosen = {
        "deploy.on": "spark",
        "job.workers": 2,
        "job.on_error": "dead_letter",
        "dead_letter.use": "jsonl",
        "dead_letter.path": str(folder / "dead.jsonl"),
        "source.lines.use": "spark",
        "source.lines.format": "text",
        "source.lines.path": str(folder / "lines"),
        "sink.places.use": "jsonl",
        "sink.places.path": str(folder / "out.jsonl"),
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    chosen |= {"job.check_types": False, "job.check_mutation": False}
    job = make_job(make_config(from_program(chosen), folder=folder), load_flow(f"{folder.name}.py:flow", folder))
    asyncio.run(asyncio.wait_for(job.run(), 100))
    return [tuple(json.loads(line)) for line in (folder / "out.jsonl").read_text().splitlines()]


def expected(folder: Path) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return the outputs of a run in this process, and facts of its dead letters."""
    flow: Any = load_flow(f"{folder.name}.py:flow", folder)
    letters = folder / "letters.jsonl"
    settings = {"job.on_error": "dead_letter", "dead_letter.use": "jsonl", "dead_letter.path": str(letters)}
    found = flow.run({"lines": LINES}, settings=settings)["places"]
    return [text for text, _ in found], told(letters)


def told(letters: Path) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in letters.read_text().splitlines()]
    return [(letter["vertex"], letter["reason"], letter["record"]) for letter in found]


def test_the_first_operations_run_where_spark_reads(spark: Any, tmp_path: Path) -> None:
    outputs = run_job(tmp_path)
    assert ([text for text, _ in outputs], told(tmp_path / "dead.jsonl")) == expected(tmp_path)
    assert {where for _, where in outputs} == {"feed"}


def test_they_run_on_the_workers_where_the_option_says_so(spark: Any, tmp_path: Path) -> None:
    outputs = run_job(tmp_path, source__lines__prefix=False)
    assert ([text for text, _ in outputs], told(tmp_path / "dead.jsonl")) == expected(tmp_path)
    assert {where for _, where in outputs} == {"worker"}


def test_rows_of_a_dataframe_meet_them_there_too(spark: Any, tmp_path: Path) -> None:
    (tmp_path / f"{tmp_path.name}.py").write_text(FLOW)
    flow: Any = load_flow(f"{tmp_path.name}.py:flow", tmp_path)
    frame = spark.createDataFrame(list(enumerate(LINES)), ["n", "line"])
    settings = {"job.on_error": "skip", "job.check_types": False, "job.check_mutation": False}
    found = flamestream_spark.run(flow, lines=frame, order_by="n", on_spark=True, settings=settings)
    rows = found.orderBy(*flamestream_spark.TIMES).collect()
    alone = flow.run({"lines": LINES}, settings={"job.on_error": "skip"})["places"]
    assert [row[0] for row in rows] == [text for text, _ in alone]
    assert {row[1] for row in rows} == {"feed"}


def test_the_picture_shows_what_runs_where(tmp_path: Path) -> None:
    (tmp_path / "places_flow.py").write_text(FLOW)
    for prefix, read in (("true", ["lines", "filled", "place"]), ("false", [])):
        job = tmp_path / f"{prefix}.toml"
        job.write_text(JOB.format(prefix=prefix))
        done = CliRunner().invoke(main, ["graph", str(job), "--on", "spark", "--json"])
        found = {one["name"]: one.get("place", "") for one in json.loads(done.stdout)["vertices"]}
        assert [name for name, place in found.items() if place == "where lines is read"] == read
        assert found["join"] == "workers"
        assert found["places"] == ""


JOB = """schema = 1
[job]
flow = "places_flow.py:flow"

[source.lines]
use = "spark"
format = "text"
path = "lines"
prefix = {prefix}
"""
