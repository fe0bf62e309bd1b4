"""A source is read to its end by one job, and what comes behind it by another: with one state, as in one run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import flamecore as fc
from flamecore import events
from flamecore.errors import ConfigError, JobError
from flamecore.model.clock import WALL_CLOCK
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.launch import make_job, run_embedded
from flamecore.testing.flows.reference import interpret

flow = fc.Flow("phases")
words = flow.source("lines", str).rebalance().flat_map(str.split).key_by(lambda word: word).count()
words.sink("counts")
words.key_by(lambda pair: pair[1] % 3).group(2).sink("pairs")

HISTORY = [f"a{number % 7} b{number % 3}" for number in range(1500)]
LIVE = [f"a{number % 5} c{number % 11}" for number in range(1200)]


def wanted() -> dict[str, list[Any]]:
    """Return the outputs of one run over all."""
    found = interpret(flow.graph(), {"lines": HISTORY + LIVE})
    return {name: json.loads(json.dumps([output.payload for output in each])) for name, each in found.items()}


class Job:
    """The same job in two phases: history is a file of lines, what comes live one of JSON."""

    def __init__(self, folder: Path, clock: str = "sequence") -> None:
        self.folder, self.clock = folder, clock
        (folder / "history.txt").write_text("".join(f"{line}\n" for line in HISTORY))
        (folder / "live.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LIVE))
        self.settings: dict[int, dict[str, Any]] = {
            1: {"source.lines.use": "lines", "source.lines.path": str(folder / "history.txt")},
            2: {
                "source.lines.use": "jsonl",
                "source.lines.path": str(folder / "live.jsonl"),
                "source.lines.phase": 2,
            },
        }

    def config(self, phase: int, **more: Any) -> dict[str, Any]:
        return {
            "job.clock": self.clock,
            "job.owners": 2,
            "job.max_in_flight": 400,
            "job.guarantee": "exactly_once",
            "state.use": "sqlite",
            "state.path": str(self.folder / "state"),
            "state.interval_s": 0.01,
            **{f"sink.{name}.use": "jsonl" for name in ("counts", "pairs")},
            **{f"sink.{name}.path": str(self.folder / f"{name}.jsonl") for name in ("counts", "pairs")},
            **self.settings[phase],
            **{key.replace("__", "."): value for key, value in more.items()},
        }

    def run(self, phase: int, *, drain_at: int | None = None, **more: Any) -> bool:
        """Run one phase, and return whether it was drained."""
        job = make_job(make_config(from_program(self.config(phase, **more))), flow)

        async def live() -> bool:
            running = asyncio.create_task(job.run())
            while drain_at is not None and job.stats().items_in < drain_at and not running.done():
                # Not 0: a loop that never waits leaves the thread of the store a few ms for each call of the database.
                await asyncio.sleep(0.001)
            if drain_at is not None:
                job.drain()
            return (await running).drained

        return asyncio.run(live())

    def file(self, phase: int) -> Path:
        """Write the job as a file."""
        tables: dict[str, list[str]] = {"job": [f'flow = "{Path(__file__).resolve()}:flow"']}
        for key, value in self.config(phase).items():
            table, _, name = key.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
        lines = [line for table, keys in tables.items() for line in (f"[{table}]", *keys)]
        path = self.folder / f"job{phase}.toml"
        path.write_text("\n".join(["schema = 1", *lines]))
        return path

    def outputs(self, *names: str) -> dict[str, list[Any]]:
        return {
            name: [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_text().splitlines()]
            for name in names or ("counts", "pairs")
        }


@pytest.fixture(params=["sequence", "wall"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(tmp_path, request.param)


@pytest.mark.parametrize("workers", [1, 3])
def test_two_phases_give_the_outputs_of_one_run(job: Job, workers: int) -> None:
    job.run(1, job__workers=workers)
    with capture_logs() as logs:
        job.run(2)
    assert not logs
    assert job.outputs() == wanted()


def test_both_phases_resume_after_a_stop(job: Job) -> None:
    for at in (200, 300):
        assert job.run(1, drain_at=at)
    assert not job.run(1, job__workers=2)
    before = job.outputs()
    for at in (150, 400):
        assert job.run(2, drain_at=at, job__workers=2)
    assert not job.run(2)
    assert {name: each[: len(before[name])] for name, each in job.outputs().items()} == before
    assert job.outputs() == wanted()


def test_a_phase_begins_behind_the_last_one_although_the_clock_was_put_back(tmp_path: Path) -> None:
    job = Job(tmp_path, "wall")
    job.run(1, job__workers=2)
    token = WALL_CLOCK.set(lambda: time.time_ns() // 1000 - 3_600_000_000)
    try:
        assert job.run(2, drain_at=300, job__workers=3)
        job.run(2)
    finally:
        WALL_CLOCK.reset(token)
    assert job.outputs() == wanted()


def test_live_outputs_may_go_to_another_sink(job: Job) -> None:
    """A sink of a later phase has held nothing of what was put out before, and takes what comes from there on."""
    job.run(1)
    elsewhere = {"sink__counts__phase": 2, "sink__counts__path": str(job.folder / "live_counts.jsonl")}
    assert job.run(2, drain_at=300, **elsewhere)
    job.run(2, **elsewhere)
    found = job.outputs("counts", "live_counts", "pairs")
    assert found["counts"] + found["live_counts"] == wanted()["counts"]
    assert found["pairs"] == wanted()["pairs"]
    assert len(found["counts"]) == 2 * len(HISTORY)


def test_a_sink_that_was_there_before_must_hold_what_it_held(job: Job) -> None:
    job.run(1)
    with pytest.raises(Exception, match="sink 'counts'"):
        job.run(2, sink__counts__path=str(job.folder / "other.jsonl"))


def test_a_phase_does_not_begin_before_the_end_of_another(job: Job) -> None:
    assert job.run(1, drain_at=200)
    with pytest.raises(JobError, match="is to begin, and phase 1 has not been read to its end"):
        job.run(2)
    job.run(1)
    job.run(2)
    with pytest.raises(JobError, match="source 'lines' is in phase 2 by the state, and phase 1 is configured"):
        job.run(1)
    assert job.outputs() == wanted()


def test_a_phase_may_be_left_out(job: Job) -> None:
    """Nothing says that there must have been one before; but most likely there was, with another state."""
    with capture_logs() as logs:
        job.run(2, drain_at=200)
    assert [(log["event"], log["source"], log["phase"]) for log in logs] == [(events.PHASE_SKIPPED, "lines", 2)]
    with capture_logs() as logs:
        job.run(2)
    assert not logs, "the state holds something of the phase that goes on"
    found = interpret(flow.graph(), {"lines": LIVE})
    assert job.outputs("counts")["counts"] == json.loads(json.dumps([each.payload for each in found["counts"]]))


def test_phases_need_state() -> None:
    with pytest.raises(ConfigError, match=r"source.lines.phase is 2, and the job keeps no state"):
        run_embedded(flow, {"lines": LIVE}, settings={"source.lines.phase": 2})


def test_plan_prints_the_fate_of_phases(job: Job) -> None:
    def plan(phase: int) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flamecore", "plan", str(job.file(phase))],
            capture_output=True,
            text=True,
        )
        return f"{done.returncode}\n{done.stdout}{done.stderr}"

    assert job.run(1, drain_at=200)
    assert "DROP" in plan(2)
    assert "it is not read to its end in phase 1, and phase 2 is to begin" in plan(2)
    job.run(1)
    found = plan(2)
    assert found.startswith("0")
    assert "it has been read to its end" in found
    assert "phase 2 begins" in found
