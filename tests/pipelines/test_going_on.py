"""Jobs in one process that keep state, with real files: run again, they go on; what they have put out is one output."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.operator import Work
from flamecore.errors import FlameError, JobError
from flamecore.model.ordered import Marking, Now, Ordered, Outcome, Timer
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


@dataclass(eq=False, slots=True, repr=False)
class Silence(Ordered):
    """Each item of a key, and that nothing more came for some time."""

    kind: ClassVar[str] = "silence"
    timers: ClassVar[bool] = True

    def work(self) -> Work:
        return SilenceWork()


class SilenceWork(Work):
    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        return Outcome((state or 0) + 1, [(key, "came", payload)], [Timer(now.time + 3)])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        return Outcome(None, [(key, "silent", state)])


@dataclass(eq=False, slots=True, repr=False)
class Seen(Ordered):
    """Each item, and the watermark that it finds."""

    kind: ClassVar[str] = "seen"

    def work(self) -> Work:
        return SeenWork()


class SeenWork(Work):
    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        return Outcome(None, [(payload, now.watermark)])


timed = fc.Flow("timed")
talk = [timed.source(name, str).apply(Marking, function=int, closes=None) for name in ("left", "right")]
talk[0].merge(talk[1]).key_by(lambda line: line[-1]).apply(Seen, name="seen").sink("seen")

silent = fc.Flow("silent")
talk = [silent.source(name, str).rebalance().map(str) for name in ("left", "right")]
talk[0].merge(talk[1]).key_by(lambda line: line[:2]).apply(Silence, name="silence").sink("silences")

marked = fc.Flow("marked")
talk = [marked.source(name, str).apply(Marking, function=len, closes=None) for name in ("left", "right")]
talk[0].merge(talk[1]).key_by(lambda line: line[:2]).apply(Silence, name="silence").sink("silences")

LEFT = [f"a{number % 7} b{number % 3}" for number in range(3000)]
RIGHT = [f"a{number % 5} c{number % 11}" for number in range(2000)]


class Job:
    """A job whose sources are files, each with as much in it as `there` says."""

    def __init__(self, folder: Path, clock: str = "sequence", flow: fc.Flow = flow) -> None:
        self.folder, self.clock, self.flow = folder, clock, flow
        self.sinks = [sink.name for sink in flow.graph().sinks]
        self.lines = {"left": LEFT, "right": RIGHT}
        self.there = {"left": len(LEFT), "right": len(RIGHT)}

    def run(self, *, workers: int = 1, drain_at: int | None = None, **settings: Any) -> JobReport:
        for name, lines in self.lines.items():
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
            **{f"sink.{name}.use": "jsonl" for name in self.sinks},
            **{f"sink.{name}.path": str(self.folder / f"{name}.jsonl") for name in self.sinks},
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        job = make_job(make_config(from_program(chosen)), self.flow)

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
            for name in self.sinks
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


@cache
def expected() -> dict[str, list[Any]]:
    """Return the outputs in the order of the sequence clock.

    They are the n-th lines of both, the left one first.
    """
    found = interpret(flow.graph(), {"left": LEFT, "right": RIGHT})
    return {name: json.loads(json.dumps([output.payload for output in each])) for name, each in found.items()}


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
    assert 0 < len(before["counts"]) < len(expected()["counts"])
    assert not job.run(workers=2).drained
    after = job.outputs()
    assert {name: each[: len(before[name])] for name, each in after.items()} == before
    if clock == "sequence":
        assert after == expected()
    assert unordered(after) == unordered(expected())


def test_a_finished_job_goes_on_with_new_records(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for share in (0.2, 0.2, 0.5, 1):
        job.there = {"left": int(len(LEFT) * share), "right": int(len(RIGHT) * share**2)}
        job.run(workers=2)
    assert unordered(job.outputs()) == unordered(expected())
    blobs = job.blobs
    job.run()
    assert unordered(job.outputs()) == unordered(expected())
    assert len(job.blobs) <= len(blobs) + 2, "a run with nothing to do leaves next to nothing"


@pytest.mark.parametrize("workers", [1, 3])
def test_runs_that_find_nothing_new_do_not_show(tmp_path: Path, workers: int) -> None:
    """Their number decides no order, wherever the files have ended."""
    found = []
    for again in range(4):
        folder = tmp_path / f"{again}"
        folder.mkdir()
        job = Job(folder)
        for left, right in ((700, 1024), (1024, 1100), (1025, 1100), (len(LEFT), len(RIGHT))):
            job.there = {"left": left, "right": right}
            for _ in range(1 + again):
                job.run(workers=workers)
        found.append(job.outputs())
    assert unordered(found[0]) == unordered(expected())
    assert all(outputs == found[0] for outputs in found)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("flow", [silent, marked], ids=lambda flow: flow.name)
def test_no_timer_is_due_in_a_run_that_finds_nothing_new(tmp_path: Path, flow: fc.Flow, workers: int) -> None:
    """Timers that wait at the end wait for the next record, in whichever file, and whatever its worker.

    That a file had nothing new is said at a time of its own, which must not let the timers come nearer.
    """
    found = []
    for again in range(3):
        folder = tmp_path / f"{again}"
        folder.mkdir()
        job, after = Job(folder, flow=flow), []
        for left, right in ((700, 64), (700, 65), (701, 65), (701, 300), (1000, 1000)):
            job.there = {"left": left, "right": right}
            for _ in range(1 + 2 * again):
                job.run(workers=1 + again if workers > 1 else 1)
                after.append(job.outputs()["silences"])
            assert all(outputs == after[-1] for outputs in after[-1 - 2 * again :])
        found.append(after[:: 1 + 2 * again])
    assert all(each == found[0] for each in found)
    assert any(each[1] == "silent" for each in found[0][-1])
    assert len(found[0][0]) < len(found[0][1]), "a new record, and what was due before it"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_drain_changes_no_watermark(tmp_path: Path, workers: int) -> None:
    """A file without anything new holds back none, before the drain and behind it, and does so again when it grows."""
    found = []
    for drained_in in (None, 1, 2):
        folder = tmp_path / f"{drained_in}"
        folder.mkdir()
        job, drained = Job(folder, flow=timed), []
        job.lines = {"left": [f"{number * 3}" for number in range(3000)], "right": [f"{n}" for n in range(3000)]}
        for step, (left, right) in enumerate(((5, 100), (5, 1500), (900, 1500), (910, 3000))):
            job.there = {"left": left, "right": right}
            if step == drained_in:
                drained.append(job.run(workers=workers, drain_at=200).drained)
            job.run(workers=workers)
        assert all(drained), "in the midst of what is new"
        found.append(job.outputs()["seen"])
    assert found[1] == found[0], "drained while only the right one had something new"
    assert found[2] == found[0], "drained while only the left one had something new"


@pytest.mark.parametrize("kind", ["commit", "part"])
def test_a_job_resumes_from_before_a_damaged_snapshot(tmp_path: Path, kind: str) -> None:
    job = Job(tmp_path)
    job.run(drain_at=2000)
    newest = max(name for name in job.blobs if name.startswith(kind))
    job.spoil(newest)
    job.run(workers=3)
    assert job.outputs() == expected()


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
