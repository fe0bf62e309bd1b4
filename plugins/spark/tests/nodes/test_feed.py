"""Sources that Spark reads, of jobs whose workers are tasks of Spark too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import flamestream_spark
from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.launch import make_job

FLOW = """
import flamecore as fc


def split(line: str) -> list[str]:
    if line.endswith("7"):
        raise ValueError(f"no {line}")
    return line.split()


def itself(word: str) -> str:
    return word


def join(before: str, word: str) -> tuple[str, list[str]]:
    return before + word, [before + word]


flow = fc.Flow("joined")
flow.source("lines", str).filter(bool, name="filled").flat_map(split, name="split").key_by(itself).stateful_map(
    "", join, name="join"
).sink("out")
"""
LINES = [f"w{n % 5} v{n}" if n % 11 else "" for n in range(300)]


def told(letters: Path) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in letters.read_text().splitlines()]
    return [(letter["vertex"], letter["reason"], letter["record"]) for letter in found]


def test_outputs_and_dead_letters_are_those_of_one_process(spark: Any, tmp_path: Path) -> None:
    (tmp_path / f"{tmp_path.name}.py").write_text(FLOW)
    (tmp_path / "lines").mkdir()
    for number, start in enumerate(range(0, len(LINES), 50)):
        (tmp_path / "lines" / f"{number}.txt").write_text("".join(f"{line}\n" for line in LINES[start : start + 50]))
    chosen = {
        "deploy.on": "spark",
        "job.workers": 2,
        "job.on_error": "dead_letter",
        "dead_letter.use": "jsonl",
        "dead_letter.path": str(tmp_path / "dead.jsonl"),
        "source.lines.use": "spark",
        "source.lines.format": "text",
        "source.lines.path": str(tmp_path / "lines"),
        "sink.out.use": "jsonl",
        "sink.out.path": str(tmp_path / "out.jsonl"),
    }
    flow: Any = load_flow(f"{tmp_path.name}.py:flow", tmp_path)
    asyncio.run(
        asyncio.wait_for(make_job(make_config(from_program(chosen), file=tmp_path / "job.toml"), flow).run(), 100)
    )
    letters = tmp_path / "letters.jsonl"
    settings = {"job.on_error": "dead_letter", "dead_letter.use": "jsonl", "dead_letter.path": str(letters)}
    wanted = flow.run({"lines": LINES}, settings=settings)["out"]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == wanted
    assert told(tmp_path / "dead.jsonl") == told(letters) != []


def test_outputs_of_a_dataframe_are_those_of_one_process(spark: Any, tmp_path: Path) -> None:
    (tmp_path / f"{tmp_path.name}.py").write_text(FLOW)
    flow: Any = load_flow(f"{tmp_path.name}.py:flow", tmp_path)
    frame = spark.createDataFrame(list(enumerate(LINES)), ["n", "line"])
    settings = {"job.on_error": "skip"}
    found = flamestream_spark.run(flow, lines=frame, order_by="n", on_spark=True, settings=settings)
    rows = found.orderBy(*flamestream_spark.TIMES).collect()
    assert [row[0] for row in rows] == flow.run({"lines": LINES}, settings=settings)["out"]
