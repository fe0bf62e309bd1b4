"""Workers in processes exchange totals of blocks; one is killed, and the output is that of a quiet run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

APP = """
    import time
    from pathlib import Path

    import flamecore as fc


    def split(line: str) -> list[str]:
        if not Path("hurry").exists():
            time.sleep(0.0005)
        return line.split()


    flow = fc.Flow("words")
    words = flow.source("lines", str)
"""
BLOCK, LINES, FILES = 4096, 5000, 3


def line(number: int) -> str:
    return f"w{number % 211} w{number % 7} w{number % 13}"


def counts(files: int) -> Iterator[list[object]]:
    """Yield what a plain loop makes of the files, which take turns by blocks."""
    found: Counter[str] = Counter()
    for start in range(0, LINES, BLOCK):
        for file in range(files):
            for number in range(start, min(start + BLOCK, LINES)):
                for word in line(number * files + file).split():
                    found[word] += 1
                    yield [word, found[word]]


@pytest.mark.parametrize(
    ("workers", "in_flight"), [(2, BLOCK), (4, BLOCK), (3, 100), (2, None), (3, None)], ids=lambda number: f"{number}"
)
def test_a_killed_worker_does_not_show(tmp_path: Path, over: list[str], workers: int, in_flight: int | None) -> None:
    """However few records of a block may be in flight."""
    drawn = 'words.flat_map(split).key_by(lambda word: word).count(scan=True).sink("counts")'
    play(tmp_path, drawn, FILES, workers, [*over, *credit(in_flight)])


@pytest.mark.parametrize(("workers", "in_flight"), [(2, None), (3, 50)], ids=lambda number: f"{number}")
def test_a_killed_worker_does_not_show_in_what_is_dealt(
    tmp_path: Path, grpc: list[str], workers: int, in_flight: int | None
) -> None:
    drawn = """
pairs = words.rebalance().flat_map(split).map(lambda word: (word, 1)).key_by(lambda pair: pair[0])
pairs.reduce(lambda a, b: (a[0], a[1] + b[1]), scan=True).map(lambda found: found[1]).sink("counts")
"""
    play(tmp_path, drawn, 1, workers, [*grpc, *credit(in_flight)])


def credit(in_flight: int | None) -> list[str]:
    return [] if in_flight is None else [f"job.max_in_flight={in_flight}"]


def play(tmp_path: Path, drawn: str, files: int, workers: int, settings: list[str]) -> None:
    """Run a flow, kill a worker in the midst of it, and compare its outputs with those of a plain loop."""
    (tmp_path / "app.py").write_text(dedent(APP) + drawn)
    for file in range(files):
        text = "".join(f"{line(number * files + file)}\n" for number in range(LINES))
        (tmp_path / f"{file}.txt").write_text(text)
    settings = [*settings, "job.clock=blocks", "source.lines.path=*.txt", "sink.counts.path=out.jsonl"]
    settings += ["state.use=sqlite", "state.path=state", "state.interval_s=0.05"]
    options = [part for setting in settings for part in ("--set", setting)]
    edges = ["--source", "lines=lines", "--sink", "counts=jsonl"]
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "-w", f"{workers}", *edges, *options]
    out = tmp_path / "out.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        try:
            while not (out.exists() and out.stat().st_size > 60_000 * files) and run.poll() is None:
                time.sleep(0.01)
            children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
            assert children, "the job had ended before"
            os.kill(int(children[-1]), signal.SIGKILL)
            (tmp_path / "hurry").touch()
            _, said = run.communicate(timeout=100)
        finally:
            run.kill()
    assert run.returncode == 0, said
    assert [json.loads(text) for text in out.read_text().splitlines()] == [*counts(files)]
