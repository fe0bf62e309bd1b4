"""Sinks in partitions: merged, they hold what one sequence holds, whatever crashes, on any number of workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import flamecore as fc
from flamecore.cli.commands.merge_output import command
from flamecore.cli.commands.verify_output import command as verify
from flamecore.errors import ConfigError, OperationError, SinkError
from flamecore.testing.draws import seeds
from flamecore.testing.flows.exactly_once import assert_exactly_once

LINES = [f"a b{number % 3} c{number % 5} {number}" for number in range(60)]


def split(line: str) -> list[str]:
    return line.split()


def checked(word: str) -> str:
    if word == "41":
        raise ValueError("no such word")
    return word


def word_of(word: str) -> str:
    return word


def counts() -> fc.Flow:
    """Return a flow in which any worker may split a line, and words of a line are counted by several."""
    flow = fc.Flow("counts")
    flow.source("lines", str).rebalance().flat_map(split).key_by(word_of).count().sink("out")
    return flow


def failing() -> fc.Flow:
    """Return a flow that fails at a record."""
    flow = fc.Flow("failing")
    flow.source("lines", str).rebalance().flat_map(split).map(checked).key_by(word_of).count().sink("out")
    return flow


def run(flow: fc.Flow, path: Path, workers: int, order: str, use: str = "jsonl", **settings: Any) -> None:
    """Run a flow into a file or a folder."""
    sink = {"sink.out.use": use, "sink.out.path": str(path), "sink.out.order": order}
    flow.run({"lines": LINES}, workers=workers, settings={**sink, **settings})


def merged(folder: Path, use: str = "jsonl") -> bytes:
    """Return the output of a folder as one sequence."""
    done = CliRunner().invoke(command, [str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


@pytest.mark.parametrize("use", ["jsonl", "csv"])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_partitions_of_any_number_of_workers_hold_one_output(tmp_path: Path, workers: int, use: str) -> None:
    run(counts(), tmp_path / "one", 1, "ordered", use)
    run(counts(), tmp_path / "parts", workers, "partitioned", use)
    assert merged(tmp_path / "parts") == (tmp_path / "one").read_bytes()
    named = json.loads((tmp_path / "parts" / "manifest.json").read_text())
    assert named["partitions"] == [f"part-{number:05d}.{use}" for number in range(workers)]


def test_a_folder_is_verified_file_by_file(tmp_path: Path) -> None:
    run(counts(), tmp_path / "parts", 3, "partitioned")
    whole = CliRunner().invoke(verify, [str(tmp_path / "parts")])
    assert whole.exit_code == 0, whole.output
    assert re.findall(r"part-(\d+).jsonl: whole", whole.output) == ["00000", "00001", "00002"]
    largest = max((tmp_path / "parts").glob("part-*.jsonl"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes().replace(b"1", b"2", 1))
    damaged = CliRunner().invoke(verify, [str(tmp_path / "parts")])
    assert damaged.exit_code == 1
    assert f"{largest}: DAMAGED" in damaged.output


@pytest.mark.parametrize("workers", [1, 3])
def test_a_file_that_is_lost_is_named(tmp_path: Path, workers: int) -> None:
    run(counts(), tmp_path / "parts", workers, "partitioned")
    lost = tmp_path / "parts" / f"part-{workers - 1:05d}.jsonl"
    lost.unlink()
    found = CliRunner().invoke(verify, [str(tmp_path / "parts")])
    assert found.exit_code == 1
    assert f"{lost}: DAMAGED: " in found.output
    assert f"{lost.name} is missing" in found.output
    assert found.output.count(": whole: ") + found.output.count("not covered") == workers - 1
    with pytest.raises(SinkError, match=f"{lost.name} is missing"):
        CliRunner().invoke(command, [str(tmp_path / "parts")], catch_exceptions=False)


@pytest.mark.parametrize("options", [{}, {"delimiter": ";"}, {"header": False}, {"columns": ["a;b", "two\nlines"]}])
def test_tables_are_verified_without_their_job(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = tmp_path / "parts"
    run(counts(), folder, 3, "partitioned", "csv", **{f"sink.out.{key}": value for key, value in options.items()})
    whole = CliRunner().invoke(verify, [str(folder)])
    assert whole.exit_code == 0, whole.output
    assert (whole.output.count(": whole: "), whole.output.count("not covered")) == (3, 0)
    largest = max(folder.glob("part-*.csv"), key=lambda path: path.stat().st_size)
    largest.with_name(f"{largest.name}.orders").write_bytes(b"")
    damaged = CliRunner().invoke(verify, [str(folder)])
    assert damaged.exit_code == 1
    assert f"{largest.name}.orders has the orders" in damaged.output
    assert CliRunner().invoke(command, [str(folder)]).exit_code, "its rows are not taken for a header"


@pytest.mark.parametrize("asked", [verify, command])
def test_other_places_are_refused(tmp_path: Path, asked: click.Command) -> None:
    refused = CliRunner().invoke(asked, [str(tmp_path)])
    assert refused.exit_code == 2
    assert "has no files of a sink in partitions" in refused.output
    job = tmp_path / "job.toml"
    job.write_text("schema = 1")
    assert f"--app {job}" in CliRunner().invoke(command, [str(job)]).output.replace("\n", "")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failed_record_ends_the_output_where_one_sequence_ends(tmp_path: Path, workers: int) -> None:
    for path, count, order in ((tmp_path / "one", 1, "ordered"), (tmp_path / "parts", workers, "partitioned")):
        with pytest.raises(OperationError, match="no such word"):
            run(failing(), path, count, order)
    found = (tmp_path / "one").read_bytes()
    assert found
    assert merged(tmp_path / "parts") == found
    rows = [path.read_bytes() for path in sorted((tmp_path / "parts").glob("part-*.jsonl"))]
    assert sum(map(len, rows)) == len(found), "what is behind the record is taken away"


def test_crashes_lose_no_output_and_repeat_none() -> None:
    played = assert_exactly_once(counts(), {"lines": LINES}, seeds=seeds(40), order="partitioned")
    assert played["kill"]


def test_crashes_of_a_job_that_fails_at_a_record() -> None:
    assert_exactly_once(failing(), {"lines": LINES}, seeds=seeds(11), order="partitioned")


@pytest.mark.parametrize(("use", "options"), [("stdout", {}), ("sqlite", {"sink.out.path": "out.db"})])
def test_a_sink_of_one_sequence_cannot_be_in_partitions(use: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{use} writes one sequence") as caught:
        counts().run({"lines": LINES}, settings={"sink.out.use": use, "sink.out.order": "partitioned", **options})
    assert "such as jsonl or csv" in str(caught.value)


def test_partitions_need_the_barrier(tmp_path: Path) -> None:
    flow = fc.Flow("lines")
    flow.source("lines", str).sink("out")
    with pytest.raises(ConfigError, match="the barrier is off"):
        run(flow, tmp_path / "out", 2, "partitioned", **{"job.barrier": False})
