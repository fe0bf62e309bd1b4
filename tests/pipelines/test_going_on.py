"""Jobs in one process that keep state, with real files: run again, they go on; what they have put out is one output."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import FlameError, JobError
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.launch import make_job
from flamecore.runtime.tasks.stats import JobReport
from flamecore.testing.flows.reference import interpret

flow = fc.Flow("going-on")
left, right = flow.source("left", str).rebalance().map(str), flow.source("right", str).rebalance().map(str)
words = left.merge(right).flat_map(str.split).key_by(lambda word: word).count()
words.sink("counts")
words.key_by(lambda pair: pair[1] % 3).group(2).sink("pairs")

LEFT = [f"a{number % 7} b{number % 3}" for number in range(3000)]
RIGHT = [f"a{number % 5} c{number % 11}" for number in range(2000)]


class Job:
    """A job whose sources are files, each with as much in it as `there` says."""

    def __init__(self, folder: Path, clock: str = "sequence") -> None:
        self.folder, self.clock = folder, clock
        self.there = {"left": len(LEFT), "right": len(RIGHT)}

    def run(self, *, workers: int = 1, drain_at: int | None = None, **settings: Any) -> JobReport:
        for name, lines in (("left", LEFT), ("right", RIGHT)):
            text = "".join(f"{line}\n" for line in lines[: self.there[name]])
            (self.folder / f"{name}.txt").write_text(text)
        chosen = {
            "job.workers": workers,
            "job.owners": 2,
            "job.clock": self.clock,
            "job.max_in_flight": 400,
            "job.guarantee": "exactly_once",
            "state.use": "sqlite",
            "state.path": str(self.folder / "state"),
            "state.interval_s": 0.01,
            **{f"source.{name}.use": "lines" for name in self.there},
            **{f"source.{name}.path": str(self.folder / f"{name}.txt") for name in self.there},
            **{f"sink.{name}.use": "jsonl" for name in ("counts", "pairs")},
            **{f"sink.{name}.path": str(self.folder / f"{name}.jsonl") for name in ("counts", "pairs")},
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        job = make_job(make_config(from_program(chosen)), flow)

        async def live() -> JobReport:
            running = asyncio.create_task(job.run())
            while drain_at is not None and job.stats().items_in < drain_at and not running.done():
                # Not 0: a loop that never waits leaves the thread of the store a few ms for each call of the database.
                await asyncio.sleep(0.001)
            if drain_at is not None:
                job.drain()
            return await running

        return asyncio.run(live())

    def outputs(self) -> dict[str, list[Any]]:
        return {
            name: [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_text().splitlines()]
            for name in ("counts", "pairs")
        }

    @property
    def blobs(self) -> dict[str, bytes]:
        (database,) = (self.folder / "state").glob("*.db")
        with closing(sqlite3.connect(database)) as connection:
            return dict(connection.execute("SELECT name, data FROM blobs"))

    def spoil(self, blob: str) -> None:
        (database,) = (self.folder / "state").glob("*.db")
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE blobs SET data = zeroblob(50) WHERE name = ?", (blob,))


def expected() -> dict[str, list[Any]]:
    """Return the outputs in the order of the sequence clock.

    They are the n-th lines of both, the left one first.
    """
    found = interpret(flow.graph(), {"left": LEFT, "right": RIGHT})
    return {name: json.loads(json.dumps([output.payload for output in each])) for name, each in found.items()}


WANTED = expected()


def unordered(outputs: dict[str, list[Any]]) -> list[tuple[str, int]]:
    """Return the counts sorted, whatever order the clock has given."""
    return sorted((word, count) for word, count in outputs["counts"])


@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_a_job_stopped_again_and_again_gives_the_outputs_of_one_run(tmp_path: Path, clock: str) -> None:
    """Its sources are at different places when it is stopped, and it goes on with other numbers of workers."""
    job = Job(tmp_path, clock)
    drained = [job.run(workers=1 + number % 3, drain_at=300 + 150 * number).drained for number in range(5)]
    assert all(drained)
    before = job.outputs()
    assert 0 < len(before["counts"]) < len(WANTED["counts"])
    assert not job.run(workers=2).drained
    after = job.outputs()
    assert {name: each[: len(before[name])] for name, each in after.items()} == before
    if clock == "sequence":
        assert after == WANTED
    assert unordered(after) == unordered(WANTED)


def test_a_finished_job_goes_on_with_new_records(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for share in (0.2, 0.2, 0.5, 1):
        job.there = {"left": int(len(LEFT) * share), "right": int(len(RIGHT) * share**2)}
        job.run(workers=2)
    assert unordered(job.outputs()) == unordered(WANTED)
    blobs = job.blobs
    job.run()
    assert unordered(job.outputs()) == unordered(WANTED)
    assert len(job.blobs) <= len(blobs) + 2, "a run with nothing to do leaves next to nothing"


@pytest.mark.parametrize("kind", ["commit", "part"])
def test_a_job_resumes_from_before_a_damaged_snapshot(tmp_path: Path, kind: str) -> None:
    job = Job(tmp_path)
    job.run(drain_at=2000)
    newest = max(name for name in job.blobs if name.startswith(kind))
    job.spoil(newest)
    job.run(workers=3)
    assert job.outputs() == WANTED


def test_two_damaged_snapshots_are_an_error(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(drain_at=2000)
    for name in [name for name in job.blobs if name.startswith("commit")]:
        job.spoil(name)
    with pytest.raises(FlameError, match="no snapshot of the state can be used"):
        job.run()


def test_a_partition_gone_before_its_end_is_an_error(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(drain_at=1000)
    with pytest.raises(JobError, match="no longer has"):
        job.run(source__left__path=str(tmp_path / "right.txt"))
