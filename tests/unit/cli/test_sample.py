"""`check --sample` runs the first records: it says which functions wait, and leaves no trace of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import flamecore as fc
from flamecore.abc.source import Batch, EdgeContext, Reader, Source, SourceCapabilities
from flamecore.cli import main, sample
from flamecore.cli.sample import Timing, timed

pytestmark = pytest.mark.usefixtures("installed")

FLOW = """
import time
from pathlib import Path
import flamecore as fc

flow = fc.Flow("pages")


def fetch(line: str) -> str:
    with open("calls.txt", "a") as file:
        file.write(line + chr(10))
    time.sleep(0.02)
    if line == "bad":
        raise ValueError("no such page")
    return line.upper()


flow.source("lines", str).map(fetch).key_by(len).count().sink("counts")
"""
FILES = ("--source", "lines=lines", "--set", "source.lines.path=*.in")


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pages-app.py").write_text(FLOW, "utf-8")
    (tmp_path / "a.in").write_text("a\nb\nc\n", "utf-8")
    (tmp_path / "b.in").write_text("d\ne\nf\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return "pages-app.py"


def check(app: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", app, *FILES, *arguments], prog_name="flamestream")


def calls() -> list[str]:
    file = Path("calls.txt")
    return file.read_text("utf-8").split() if file.exists() else []


def test_a_function_that_waits_is_named_with_its_figures(app: str) -> None:
    done = check(app, "--sample", "4")
    assert done.exit_code == 0
    assert "sample         4 records in " in done.stdout
    assert re.search(
        r"^function       map:fetch: 4 calls, \S+ ms each, \S+ ms of it CPU time$", done.stdout, re.MULTILINE
    )
    (note,) = [line for line in done.stdout.splitlines() if line.startswith("note           map:fetch waits")]
    assert "-w in one process does not speed this up" in note
    assert "-w 8 --on processes" in note


def test_a_job_on_processes_is_told_of_more_workers(app: str) -> None:
    facts = json.loads(check(app, "--sample", "4", "-w", "2", "--on", "processes", "--json").stdout)
    (note,) = [note for note in facts["notes"] if note.startswith("map:fetch waits")]
    assert "more workers (-w) wait at the same time" in note
    (fetch,) = [function for function in facts["sample"]["functions"] if function["name"] == "map:fetch"]
    assert (fetch["calls"], fetch["waits"]) == (4, True)
    assert fetch["wall_s"] >= 4 * 0.02
    assert fetch["cpu_s"] < fetch["wall_s"] / 4
    assert facts["sample"]["items_in"] == 4


def test_no_function_runs_unless_a_sample_is_asked_for(app: str) -> None:
    check(app)
    assert calls() == []
    check(app, "--sample", "1")
    assert len(calls()) == 1


def test_a_sample_ends_where_the_input_does(app: str) -> None:
    assert "sample         6 records in " in check(app, "--sample", "100").stdout
    assert sorted(calls()) == list("abcdef")


def test_a_sample_touches_neither_sinks_nor_state_nor_dead_letters(app: str) -> None:
    Path("a.in").write_text("bad\n", "utf-8")
    before = {file.name for file in Path().iterdir()}
    Path("job.toml").write_text(
        "schema = 1\n[job]\nflow = 'pages-app.py'\nworkers = 4\non_error = 'dead_letter'\n"
        "[source.lines]\nuse = 'lines'\npath = '*.in'\n[sink.counts]\nuse = 'jsonl'\npath = 'counts.jsonl'\n"
        "[state]\nuse = 'sqlite'\npath = 'state/'\n[dead_letter]\nuse = 'jsonl'\npath = 'dead.jsonl'\n",
        "utf-8",
    )
    done = CliRunner().invoke(main, ["check", "job.toml", "--sample", "10"], prog_name="flamestream")
    assert done.exit_code == 0, done.stderr
    assert "sample         4 records, 1 left out in " in done.stdout
    assert {file.name for file in Path().iterdir()} - before - {"__pycache__"} == {"job.toml", "calls.txt"}


def test_a_function_that_fails_on_the_sample_is_a_problem(app: str) -> None:
    Path("a.in").write_text("bad\n", "utf-8")
    done = check(app, "--sample", "10")
    assert done.exit_code != 0
    assert "problem 1 of 1: 'map:fetch' failed: ValueError: no such page" in done.stderr
    assert "a.in line 1" in done.stderr


def test_a_job_with_a_problem_is_not_sampled(app: str) -> None:
    done = check(app, "--sample", "10", "--set", "job.wrokers=2")
    assert "unknown key job.wrokers" in done.stderr
    assert calls() == []


class Silent(Source, Reader):
    """A source without end that nothing comes from."""

    name = "silent"

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=False, bounded=False)

    async def open(self, partition: str, position: Any = None) -> Reader:
        return self

    async def read(self, limit: int) -> Batch | None:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def test_a_source_that_nothing_comes_from_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "READING_S", 0.01)
    source = sample._FirstOf(Silent(None, EdgeContext("silent")), 5)
    assert source.capabilities.bounded

    async def read() -> Batch | None:
        return await (await source.open("")).read(100)

    assert asyncio.run(read()) is None


@pytest.mark.parametrize(
    ("wall", "cpu", "waits"),
    [
        (1.0, 0.01, True),  # it waits
        (1.0, 0.9, False),  # it computes
        (1.0, 0.3, False),  # it computes, on a machine that others use
        (0.0001, 0.0, False),  # it is fast
    ],
)
def test_a_call_waits_if_it_is_slow_and_little_is_computed(wall: float, cpu: float, waits: bool) -> None:
    assert Timing("fetch", calls=10, wall_s=10 * wall, cpu_s=10 * cpu).waits is waits
    assert not Timing("fetch").waits


def test_functions_are_timed_until_the_sample_has_ended() -> None:
    def twice(n: int) -> Any:
        yield n
        yield n

    flow = fc.Flow("timed")
    flow.source("numbers", int).flat_map(twice).key_by(lambda n: n).reduce(max).sink("out")
    graph = flow.graph()
    before = [(vertex, name, getattr(vertex, name)) for vertex in graph.vertices for name in vertex.functions]
    walls, cpus = itertools.count(0, 3), itertools.count()
    with timed(graph, lambda: next(walls), lambda: next(cpus)) as timings:
        function = next(vertex for vertex in graph.vertices if vertex.name == "flat_map:twice").function  # type: ignore[attr-defined]
        assert function(1) == [1, 1], "a generator is run through"
        assert function(2) == [2, 2]
    assert timings == [Timing("flat_map:twice", calls=2, wall_s=6, cpu_s=2)]
    assert [(vertex, name, getattr(vertex, name)) for vertex, name, _ in before] == before


def test_what_the_engine_computes_is_not_timed() -> None:
    flow = fc.Flow("timed")
    flow.source("numbers", int).key_by(lambda n: n).count().sink("out")
    graph = flow.graph()
    with timed(graph) as timings:
        assert [timing.name for timing in timings] == ["key of count"]


def test_the_key_of_a_loop_is_timed_once() -> None:
    def key(item: tuple[int, int]) -> int:
        return item[0]

    def turn(state: int, item: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
        return state + 1, [(item[0], item[1] - 1)]

    def body(items: fc.KeyedStream[int, Any]) -> Any:
        first = items.stateful_map(0, turn, name="first")
        return first.key_by(key).stateful_map(0, turn, name="second").branch(lambda item: item[1] > 0)

    flow = fc.Flow("loops")
    flow.source("in").key_by(key).loop(body).sink("out")
    graph = flow.graph()
    with timed(graph) as timings:
        graph.check()  # as a job does: all in the loop is by the loop's key still
        found = [timing.name for timing in timings]
    assert [name for name in found if not name.startswith("branch")] == ["key of loop", "first", "second"]
