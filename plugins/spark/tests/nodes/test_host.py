"""Workers on Spark, in one session: whole jobs, what they are refused for, what cancels them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flamecore.errors import ConfigError, JobError
from flamecore.model.messages import Rescale
from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.engine.job import AnyJob
from flamecore.runtime.launch import make_job
from flamecore.testing.flows.over_transport import Cell, check_cell
from flamecore.testing.flows.standard import Visit
from flamecore.testing.progress import patiently
from flamestream_spark.session import master

WORDS = """
import time

import flamecore as fc


def split(line: str) -> list[str]:
    time.sleep({pause})
    return line.split()


flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count().sink("counts")
"""


def job_of(
    folder: Path, name: str, *, lines: int = 200, pause: float = 0.0, source: str = "", **settings: Any
) -> AnyJob:
    """Make a job on Spark that counts words.

    `settings` are keys with `__` for the dots.
    """
    (folder / f"{name}.py").write_text(source or WORDS.format(pause=pause))
    (folder / "lines").write_text("".join(f"a b{n % 3} c{n % 50}\n" for n in range(lines)))
    chosen = {
        "deploy.on": "spark",
        "job.workers": 2,
        "source.lines.use": "lines",
        "source.lines.path": str(folder / "lines"),
        "sink.counts.use": "sqlite",
        "sink.counts.path": str(folder / "out.db"),
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    return make_job(make_config(from_program(chosen), file=folder / "job.toml"), load_flow(f"{name}.py:flow", folder))


@pytest.mark.parametrize("cell", [Cell("local", 2, "worker", "spark"), Cell("centralized", 1, "own", "spark")], ids=str)
def test_flows_give_what_the_reference_interpreter_gives(spark: Any, cell: Cell) -> None:
    check_cell(PluginRegistry().get("transport", "grpc"), cell, limit_s=100)
    assert spark.range(3).count() == 3, "a session that was there is never stopped"


STATES = {
    "row": """
stream = numbers
for by in range(2, 6):
    stream = stream.key_by(lambda number, by=by: number % by).stateful_map(0, pass_on)
stream.sink("counts")
""",
    "cycle": """
def body(inside):
    seen = inside.key_by(lambda visit: visit.place).stateful_map(-1, visit)
    return seen.flat_map(neighbours), seen

numbers.map(lambda number: Visit(number % 8, number % 5)).loop(body).sink("counts")
""",
}
"""Behind the numbers of a source."""


@pytest.mark.parametrize("states", STATES)
def test_states_over_several_files_give_what_they_give_in_one_process(spark: Any, tmp_path: Path, states: str) -> None:
    (tmp_path / "files").mkdir()
    for file in range(3):
        numbers = [number * 7 % 97 for number in range(file, 60 // (file + 1))]
        (tmp_path / "files" / f"{file}.txt").write_text("".join(f"{number}\n" for number in numbers))
    head = """
import flamecore as fc
from flamecore.testing.flows.standard import Visit, neighbours, pass_on, visit

flow = fc.Flow("states")
numbers = flow.source("lines", str).rebalance().map(int)
"""
    out = tmp_path / "out.jsonl"
    settings: Any = {"source__lines__path": str(tmp_path / "files"), "sink__counts__use": "jsonl"}
    job = job_of(tmp_path, f"states_{states}", source=head + STATES[states], sink__counts__path=str(out), **settings)
    asyncio.run(patiently(job.run(), 60))
    flow: Any = load_flow(f"states_{states}.py:flow", tmp_path)
    alone = flow.run(settings={"source.lines.use": "lines", "source.lines.path": str(tmp_path / "files")})["counts"]
    assert len(alone) > 20
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        each._asdict() if isinstance(each, Visit) else each for each in alone
    ]


def test_the_log_says_where_workers_are(spark: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, "words_where", lines=2000, pause=0.001)

    async def look() -> Any:
        running = asyncio.create_task(job.run())
        while not job.stats().items_in:
            await asyncio.wait((running,), timeout=0.05)
            assert not running.done(), "too soon"
        where = job.stats().where
        job.drain()
        return where, await running

    where, report = asyncio.run(patiently(look(), 60))
    assert where == {"master": spark.conf.get("spark.master"), "workers": 2, "executors": 1}
    assert report.drained


def test_a_job_with_too_few_slots_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local\[4\]\) has 4 slots, and the job needs 5: 5 for the workers"):
        asyncio.run(job_of(tmp_path, "words_many", job__workers=5).run())


def cancel_soon(spark: Any, job: AnyJob) -> threading.Thread:
    def cancel() -> None:
        while not job.stats().items_in:
            time.sleep(0.05)
        spark.interruptAll()

    thread = threading.Thread(target=cancel)
    thread.start()
    return thread


def test_a_job_cancelled_in_spark_ends_if_it_keeps_no_state(spark: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, "words_cancelled", lines=20_000, pause=0.001)
    thread = cancel_soon(spark, job)
    with pytest.raises(JobError) as caught:
        asyncio.run(job.run())
    thread.join()
    assert "worker-" in str(caught.value)


def test_a_job_cancelled_in_spark_resumes_if_it_keeps_state(spark: Any, tmp_path: Path) -> None:
    state = {"state__use": "sqlite", "state__path": str(tmp_path / "state")}
    job = job_of(tmp_path, "words_kept", lines=3000, pause=0.001, **state)
    thread = cancel_soon(spark, job)
    asyncio.run(patiently(job.run(), 100))
    thread.join()
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        counts = database.execute("SELECT * FROM counts").fetchall()
    assert len(counts) == 9000
    expected: dict[str, int] = {}
    for n in range(3000):
        for word in ("a", f"b{n % 3}", f"c{n % 50}"):
            expected[word] = expected.get(word, 0) + 1
            assert counts[3 * n + ("abc".index(word[0]))][1:3] == (word, expected[word])
    assert job.described()["faults"] >= 1  # type: ignore[attr-defined]  # a Deployment


def test_workers_are_added_and_removed(spark: Any, tmp_path: Path) -> None:
    state = {"state__use": "sqlite", "state__path": str(tmp_path / "state")}
    job: Any = job_of(tmp_path, "words_rescaled", lines=8000, pause=0.001, job__workers=1, **state)

    async def rescaled() -> None:
        running = asyncio.create_task(job.run())

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                await asyncio.wait((running,), timeout=0.05)
                assert not running.done(), "too soon"

        await until(lambda: job.stats().items_in > 0)
        for workers in (2, 1):
            job._serve("operator/test", Rescale(workers))
            await until(lambda: job._reconfiguration._request is None and job.stats().where["workers"] == workers)  # noqa: B023
        await running

    asyncio.run(patiently(rescaled(), 100))
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert database.execute("SELECT count(*) FROM counts").fetchone() == (24_000,)
    assert job.described()["faults"] == 0


HANGING = """
import time
from pathlib import Path

import flamecore as fc


def split(line: str) -> list[str]:
    if line == "hang" and not Path({flag!r}).exists():
        Path({flag!r}).touch()
        time.sleep(1000)
    return line.split()


flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count().sink("counts")
"""


def test_a_worker_that_hangs_is_ended_with_its_stage_alone(spark: Any, tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "state__use": "sqlite",
        "state__path": str(tmp_path / "state"),
        "job__call_limit_s": 3.0,
    }
    job: Any = job_of(tmp_path, "words_that_hang", source=HANGING.format(flag=str(tmp_path / "flag")), **state)
    (tmp_path / "lines").write_text("a b\n" * 50 + "hang\n" + "a c\n" * 50)
    asyncio.run(patiently(job.run(), 100))
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert database.execute("SELECT count(*) FROM counts").fetchone() == (201,)
    assert job.described()["faults"] == 1, "the other one goes on"


THRESHOLD = "spark.speculation.task.duration.threshold"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"source__lines__use": "stdin"}, "reads standard input"),
        ({"deploy__start": "join"}, "who starts the workers"),
        ({"spark__config": {"spark.speculation": "true", THRESHOLD: "1min"}}, "Spark would take a worker"),
        ({"spark__master": "lokal[2]"}, "spark.master = 'lokal[2]': there is no such master"),
        ({"spark__master": "yarn", "state__use": "sqlite", "state__path": "state"}, "executors of yarn do not reach"),
    ],
)
def test_settings_no_task_can_meet_are_refused_before_anything_starts(
    tmp_path: Path, settings: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "_of_session", lambda name: None)  # that of other tests says where Spark runs
    (tmp_path / "lines").touch()
    source = {"source__lines__use": "lines", "source__lines__path": str(tmp_path / "lines")}
    chosen = {"deploy__on": "spark", **source, **settings}
    chosen |= {"transport__grpc__insecure": True}
    if chosen["source__lines__use"] == "stdin":
        del chosen["source__lines__path"]
    layer = from_program({key.replace("__", "."): value for key, value in chosen.items()})
    (tmp_path / "words_refused.py").write_text(WORDS.format(pause=0))
    spec = resolve(make_config(layer, file=tmp_path / "job.toml"), load_flow("words_refused.py:flow", tmp_path))
    told = [str(each) for each in (*spec.problems, *spec.host().problems())]
    assert len(told) == 1
    assert problem in told[0]
