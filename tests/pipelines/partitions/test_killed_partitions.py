"""Processes that write partitions of a sink are killed and rescaled: merged, these hold what one sequence would."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ephemeral_port_reserve import reserve
from processes import Run
from words import LIMIT_S, TOKEN, Words, ended, wait_for

from flamecore.testing.progress import Patience

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")

PARTS = {"sink__counts__order": "partitioned"}


def merged(folder: Path) -> bytes:
    """Return what the command of merging writes."""
    line = [sys.executable, "-m", "flamecore", "merge-output", "parts"]
    return subprocess.run(line, cwd=folder, capture_output=True, check=True).stdout


def uncovered(folder: Path) -> list[str]:
    """Return the files in which bytes have no checksum, or are not as they were written."""
    line = [sys.executable, "-m", "flamecore", "verify-output", "parts", "--json"]
    found = json.loads(subprocess.run(line, cwd=folder, capture_output=True, check=True).stdout)["outputs"]
    return [name for name, one in found.items() if one["damages"] or one["covered"] < one["size"]]


def in_one_sequence(folder: Path, words: Words) -> bytes:
    """Return the output of the job in one process, in order, without a fault."""
    line = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "--source=lines=lines", "--sink=counts=jsonl"]
    line += ["--set=source.lines.path=lines", "--set=sink.counts.path=one.jsonl"]
    words.hurry()
    subprocess.run(line, cwd=folder, check=True)
    return (folder / "one.jsonl").read_bytes()


def play(words: Words, chance: random.Random, kills: int, workers: tuple[int, ...], **settings: Any) -> tuple[int, str]:
    """Run the job, and kill its processes at random moments; return the number of kills, and the log.

    Whenever the whole job is killed, it goes on with another number of workers.
    """
    run = words.start(**settings)
    killed = 0
    limit = Patience(LIMIT_S)
    try:
        while not run.over():
            assert not limit.passed(), run.said()
            if killed == kills:
                words.hurry()
                time.sleep(0.02)
                continue
            time.sleep(chance.uniform(0.3, 2.5))
            nodes = run.nodes()
            if chance.random() < 0.6 and nodes:
                os.kill(chance.choice(nodes).pid, signal.SIGKILL)
            elif run.process.poll() is None:
                at = run.arguments.index("-w") + 1
                run.arguments[at] = f"{chance.choice(workers)}"
                run.process.kill()
                run.process.wait()
            killed += 1
        assert run.process.returncode == 0, run.said()
        return killed, run.said()
    finally:
        run.end()


@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_kills_lose_no_output_and_repeat_none(tmp_path: Path, over: list[str], clock: str) -> None:
    seed = int(os.environ.get("FLAMESTREAM_SEED", random.randrange(2**32)))
    print(f"FLAMESTREAM_SEED={seed}")
    words = Words(tmp_path, over, lines=3000, out="parts", pause_s=0.005)
    kills = int(os.environ.get("FLAMESTREAM_KILLS", 4))
    killed, _ = play(words, random.Random(seed), kills, (1, 2, 3), job__clock=clock, **PARTS)
    assert killed == kills
    assert merged(tmp_path) == in_one_sequence(tmp_path, words)
    assert not uncovered(tmp_path)


def test_a_job_goes_on_with_other_numbers_of_partitions(tmp_path: Path, over: list[str]) -> None:
    """The number of workers is another at each start, and each time there is more to read."""
    words = Words(tmp_path, over, lines=200, out="parts")
    for turn, workers in enumerate((1, 3, 2)):
        words.write(f"{turn}", [f"turn-{turn} w{number % 7} w{number % 13}" for number in range(200)])
        arguments = words.arguments(**PARTS)
        arguments[arguments.index("-w") + 1] = f"{workers}"
        finish(Run(tmp_path, arguments))
    rows = [path.read_bytes().count(b"\n") for path in sorted((tmp_path / "parts").glob("part-*.jsonl"))]
    assert len(rows) == 3
    assert not uncovered(tmp_path)
    assert merged(tmp_path).count(b"\n") == sum(rows) == 4 * 600


@pytest.mark.grpc
def test_a_job_that_writes_is_rescaled(tmp_path: Path) -> None:
    """Key groups go to other workers, and outputs to other files, while a reader merges what is there."""
    words, port = Words(tmp_path, ["transport.use=grpc"], lines=3000, out="parts", pause_s=0.02), reserve()
    words.environ["FLAMESTREAM_TOKEN"] = TOKEN
    settings: dict[str, Any] = {"transport__grpc__listen": f"127.0.0.1:{port}", "job__max_in_flight": 64, **PARTS}
    seen = [b""]

    def grows() -> bool:
        seen.append(merged(tmp_path) if (tmp_path / "parts" / "manifest.json").exists() else b"")
        return len(seen[-1]) > len(seen[-2])

    with words.running(**settings) as run:
        wait_for(grows, run)
        for workers in (4, 1, 3):
            assert rescale(port, workers)["workers"] == workers
            wait_for(grows, run)
            assert writing(tmp_path / "parts") == workers
        words.hurry()
        assert ended(run) == 0, run.said()
    assert len(list((tmp_path / "parts").glob("part-*.jsonl"))) == 4
    wanted = in_one_sequence(tmp_path, words)
    assert merged(tmp_path) == wanted
    assert all(wanted.startswith(earlier) for earlier in seen)


def rescale(port: int, workers: int) -> dict[str, Any]:
    """Give a running job another number of workers; return what the command tells of it."""
    line = [sys.executable, "-m", "flamecore", "rescale", f"grpc://127.0.0.1:{port}", "--job", "words", "--json"]
    environ = {**os.environ, "FLAMESTREAM_TOKEN": TOKEN}
    asked = subprocess.run([*line, "-w", f"{workers}"], env=environ, capture_output=True, check=False)
    assert asked.returncode == 0, asked.stderr.decode()
    facts: dict[str, Any] = json.loads(asked.stdout)
    return facts


def writing(folder: Path) -> int:
    """Return the number of files that workers write now."""
    return len(json.loads((folder / "manifest.json").read_text())["writing"])


def finish(run: Run) -> None:
    """Wait for the good end of a run."""
    try:
        limit = Patience(LIMIT_S)
        while not run.over():
            assert not limit.passed(), run.said()
            time.sleep(0.02)
        assert run.process.returncode == 0, run.said()
    finally:
        run.end()
