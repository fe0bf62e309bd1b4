"""Processes of a job with windows are killed: its files hold the bytes of an undisturbed run in one process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from processes import Run
from words import ended, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")

APP = """
    import time
    from datetime import timedelta
    from pathlib import Path
    from typing import NamedTuple

    import flamecore as fc
    import flamestream_windows as w
    from flamestream_windows import aggregates as agg, triggers as t, watermarks


    class Reading(NamedTuple):
        at: float
        sensor: str
        value: int


    def slowly(reading: Reading) -> Reading:
        if not Path("hurry").exists():
            time.sleep(0.005)
        return reading


    NONE: tuple[int, ...] = ()

    flow = fc.Flow("windows")
    late = watermarks.bounded_disorder(seconds=10)
    at_end = "keep" if Path("keep").exists() else "close"
    timed = w.event_time(flow.source("readings", Reading), lambda r: r.at, watermark=late, at_end=at_end)
    keyed = timed.rebalance().map(slowly).key_by(lambda r: r.sensor)
    sums = keyed.window(
        w.fixed(seconds=20),
        lateness=timedelta(seconds=10),
        emit=t.at_watermark(early=t.count(3), late=t.count(1)),
        panes="accumulating",
    ).aggregate(n=agg.count(), sum=agg.sum(lambda r: r.value))
    sums.sink("sums")
    sums.dropped.map(lambda dropped: dropped.value).sink("dropped")
    sums.key_by(lambda pane: pane.key[0]).window(w.fixed(seconds=60)).count(name="panes").sink("panes")
    visits = keyed.window(w.sessions(seconds=3))
    visits.fold(NONE, lambda all, r: (*all, r.value), merge=lambda one, other: one + other).sink("visits")
    keyed.inactive(after=timedelta(seconds=5)).sink("silent")
"""
SINKS = ("sums", "dropped", "panes", "visits", "silent")


class Windows:
    """The job in a folder, which must be empty."""

    def __init__(self, folder: Path, lines: list[str]) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "app.py").write_text(dedent(APP))
        (folder / "readings.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def arguments(self, *more: str) -> list[str]:
        """Return arguments of `flamestream run`."""
        sinks = [f"--sink={name}=jsonl" for name in SINKS] + [f"--set=sink.{name}.path={name}.jsonl" for name in SINKS]
        source = ["--source=readings=jsonl", "--set=source.readings.path=readings.jsonl"]
        return ["app.py", "-q", *source, *sinks, "--set=job.guarantee=exactly_once", *more]

    @contextmanager
    def running(self, over: list[str]) -> Iterator[Run]:
        """Run it on three processes with state in SQLite, and end them all if it has not ended by itself."""
        state = ["state.use=sqlite", "state.path=state", "state.interval_s=0.1", "deploy.start_timeout_s=60"]
        run = Run(self.folder, self.arguments("-w", "3", *[f"--set={setting}" for setting in (*state, *over)]))
        try:
            yield run
        finally:
            run.end()

    def append(self, name: str, lines: list[str]) -> None:
        """Add lines to a file of the folder that the job reads."""
        path = self.folder / "in" / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def delivered(self) -> int:
        """Return the number of outputs of one sink."""
        path = self.folder / "sums.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def outputs(self) -> dict[str, bytes]:
        """Return the files of all sinks."""
        return {name: (self.folder / f"{name}.jsonl").read_bytes() for name in SINKS}


def run(job: Windows, *more: str) -> None:
    """Run a job to its end as fast as it can."""
    (job.folder / "hurry").touch()
    command = [sys.executable, "-m", "flamecore", "run", *job.arguments(*more)]
    done = subprocess.run(command, cwd=job.folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def readings(count: int) -> list[str]:
    """Return readings out of order, of which some are late and a few very late."""
    rng = random.Random(7)
    lines = []
    for place in range(count):
        at = 1_709_251_200 + place * 0.25 - rng.choice((0, 0, 1, 4, 9, 9, 15, 40)) * rng.random()
        lines.append(
            json.dumps({"at": round(at, 3), "sensor": f"{rng.choice('abc')}{rng.randrange(5)}", "value": place})
        )
    return lines


def test_killed_processes_leave_the_bytes_of_an_undisturbed_run(tmp_path: Path, over: list[str]) -> None:
    lines = readings(1200)
    quiet = Windows(tmp_path / "quiet", lines)
    run(quiet)
    wanted = quiet.outputs()
    assert all(wanted.values()), {name: len(found) for name, found in wanted.items()}

    killed = Windows(tmp_path / "killed", lines)
    with killed.running(over) as job:
        for whom in ("worker", "supervisor", "worker"):
            before = killed.delivered()
            wait_for(lambda before=before: job.over() or killed.delivered() > before + 60)  # type: ignore[misc]
            assert job.process.poll() is None, job.said()
            if whom == "supervisor":
                job.process.send_signal(signal.SIGKILL)
                job.process.wait()
                assert not job.over()  # it is started again
            else:
                wait_for(lambda: job.nodes())
                os.kill(job.nodes()[-1].pid, signal.SIGKILL)
        (killed.folder / "hurry").touch()
        assert ended(job) == 0, job.said()
    assert job.said(1_000_000).count("job.faulted") >= 2
    assert killed.outputs() == wanted


def test_a_backfill_and_what_comes_live_leave_the_bytes_of_one_run(tmp_path: Path, over: list[str]) -> None:
    lines, state = readings(300), ["--set=state.use=sqlite", "--set=state.path=state"]
    whole, parts = Windows(tmp_path / "whole", lines), Windows(tmp_path / "parts", lines[:150])
    for job in (whole, parts):
        (job.folder / "keep").touch()
    run(whole, *state)
    settings = [*state, *[f"--set={setting}" for setting in (*over, "deploy.start_timeout_s=60")], "-w", "3"]
    run(parts, *settings)
    (parts.folder / "readings.jsonl").write_text("".join(f"{line}\n" for line in lines[150:]))
    run(parts, *settings, "--set=source.readings.phase=2")
    assert all(whole.outputs().values())
    assert parts.outputs() == whole.outputs()


def test_files_that_come_from_run_to_run_leave_the_same_bytes_over_processes(tmp_path: Path, over: list[str]) -> None:
    """A file with nothing new holds nothing back, also if the run over it is killed and started again."""
    lines, state = readings(360), ["--set=state.use=sqlite", "--set=state.path=state", "--set=state.interval_s=0.05"]
    source = "--set=source.readings.path=in"
    settings = [*state, *[f"--set={setting}" for setting in (*over, "deploy.start_timeout_s=60")], "-w", "3"]
    here, spread = Windows(tmp_path / "here", []), Windows(tmp_path / "spread", [])
    sizes = []
    for number in range(3):
        for job in (here, spread):
            (job.folder / "keep").touch()
            job.append(f"{number}.jsonl", lines[number * 120 : (number + 1) * 120])
        run(here, source, *state)
        (spread.folder / "hurry").unlink(missing_ok=True)
        before, killed = spread.delivered(), Run(spread.folder, spread.arguments(source, *settings))
        try:
            wait_for(lambda before=before, killed=killed: killed.over() or spread.delivered() > before)  # type: ignore[misc]
            assert not killed.over(), killed.said()
            killed.process.send_signal(signal.SIGKILL)
            killed.process.wait()
        finally:
            killed.end()
        run(spread, source, *settings)
        assert spread.outputs() == here.outputs()
        sizes.append(len(here.outputs()["sums"]))
    assert 0 < sizes[0] < sizes[1] < sizes[2], "each file closes windows of those before"
