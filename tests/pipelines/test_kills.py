"""Processes of a job that keeps state are killed for real, at random moments: the output is that of a quiet run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest

APP = """
    import time

    import flamecore as fc


    def split(line: str) -> list[str]:
        time.sleep(0.0003)
        return line.split()


    flow = fc.Flow("words")
    flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count().sink("counts")
"""

LINES = 6000
LIMIT_S = 100


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def start(folder: Path, settings: list[str], log: Path) -> subprocess.Popen[bytes]:
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "-w", "2", "--source", "lines=lines"]
    with log.open("ab") as said:
        return subprocess.Popen([*command, "--sink", "counts=sqlite", *options], cwd=folder, stdout=said, stderr=said)


def shoot(folder: Path, settings: list[str], kills: int, chance: random.Random) -> tuple[int, int]:
    """Run the job to its end, killing its processes: (how many were killed, how many of them supervisors)."""
    log = folder / "log"
    job = start(folder, settings, log)
    done = supervisors = 0
    end = time.monotonic() + LIMIT_S
    try:
        while True:
            if job.poll() == -signal.SIGKILL:
                job = start(folder, settings, log)
            elif job.poll() is not None:
                break
            time.sleep(chance.uniform(0.2, 0.8))
            workers = children(job.pid)
            if done < kills and workers:
                victim = job.pid if chance.random() < 0.25 else chance.choice(workers)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                done += 1
                supervisors += victim == job.pid
            assert time.monotonic() < end, f"the job does not end; its log:\n{log.read_text()[-4000:]}"
    finally:
        if job.poll() is None:
            job.kill()
        job.wait()
    assert job.returncode == 0, log.read_text()[-4000:]
    return done, supervisors


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")
@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_kills_lose_no_output_and_repeat_none(tmp_path: Path, over: list[str], clock: str) -> None:
    seed = int(os.environ.get("FLAMESTREAM_SEED", random.randrange(2**32)))
    kills = int(os.environ.get("FLAMESTREAM_KILLS", 4))
    print(f"FLAMESTREAM_SEED={seed}")
    (tmp_path / "app.py").write_text(dedent(APP))
    lines = [f"w{number % 211} w{number % 7} w{number % 13}" for number in range(LINES)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    settings = [
        *over,
        f"source.lines.path={tmp_path / 'lines.txt'}",
        f"sink.counts.path={tmp_path / 'out.db'}",
        f"job.clock={clock}",
        "state.use=sqlite",
        f"state.path={tmp_path / 'state'}",
        "state.interval_s=0.1",
        f"deploy.restarts={kills}",
    ]
    done, supervisors = shoot(tmp_path, settings, kills, random.Random(seed))
    print(f"killed {done}, {supervisors} of them supervisors")
    counts: Counter[str] = Counter()
    expected = []
    for word in (word for line in lines for word in line.split()):
        counts[word] += 1
        expected.append((word, counts[word]))
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        rows = database.execute("SELECT * FROM counts ORDER BY seq").fetchall()
    assert [tuple(row[1:]) for row in rows] == expected
    shutil.rmtree(tmp_path / "state")
