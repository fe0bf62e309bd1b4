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
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest

APP = """
    import time
    from itertools import count
    from pathlib import Path

    import flamecore as fc

    calls = count()


    def split(line: str) -> list[str]:
        if next(calls) % PACE == 0 and not Path("hurry").exists():
            time.sleep(0.0005)
        return line.split()


    flow = fc.Flow("words")
    words = flow.source("lines", str)
"""
LINES, FILES = 5000, 3
MANY, FEW = 100_000, 2


def line(number: int) -> str:
    return f"w{number % 211} w{number % 7} w{number % 13}"


def counts(files: int, lines: int) -> Iterator[list[object]]:
    """Yield what a plain loop makes of the files, which take turns by blocks."""
    found: Counter[str] = Counter()
    for start, end in pairwise([*range(0, 16 * 4096, 4096), *range(16 * 4096, lines + 16_384, 16_384)]):
        for file in range(files):
            for number in range(start, min(end, lines)):
                for word in line(number * files + file).split():
                    found[word] += 1
                    yield [word, found[word]]


@pytest.mark.parametrize(
    ("workers", "in_flight"), [(2, 4096), (4, 4096), (3, 100), (2, None), (3, None)], ids=lambda number: f"{number}"
)
def test_a_killed_worker_does_not_show(tmp_path: Path, over: list[str], workers: int, in_flight: int | None) -> None:
    """However few records of a block may be in flight."""
    drawn = 'words.flat_map(split).key_by(lambda word: word).count(scan=True).sink("counts")'
    play(tmp_path, drawn, FILES, workers, [*over, *credit(in_flight)])


@pytest.mark.parametrize("in_flight", [None, 10_000])
def test_a_worker_killed_in_a_large_block_does_not_show(tmp_path: Path, grpc: list[str], in_flight: int | None) -> None:
    drawn = 'words.flat_map(split).key_by(lambda word: word).count(scan=True).sink("counts")'
    # The outputs of the small blocks are 4,924,103 bytes, and more than two blocks of each file follow.
    play(tmp_path, drawn, FEW, 2, [*grpc, *credit(in_flight)], lines=MANY, until=4_950_000)


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


def play(
    tmp_path: Path,
    drawn: str,
    files: int,
    workers: int,
    settings: list[str],
    *,
    lines: int = LINES,
    until: int | None = None,
) -> None:
    """Run a flow, kill a worker in the midst of it, and compare its outputs with those of a plain loop.

    Args:
        lines: Number of lines of each file.
        until: Bytes of output after which the worker is killed; None: a third of all or more.
    """
    (tmp_path / "app.py").write_text(dedent(APP).replace("PACE", f"{lines // LINES}") + drawn)
    for file in range(files):
        text = "".join(f"{line(number * files + file)}\n" for number in range(lines))
        (tmp_path / f"{file}.txt").write_text(text)
    settings = [*settings, "job.clock=blocks", "source.lines.path=*.txt", "sink.counts.path=out.jsonl"]
    settings += ["state.use=sqlite", "state.path=state", "state.interval_s=0.05"]
    options = [part for setting in settings for part in ("--set", setting)]
    edges = ["--source", "lines=lines", "--sink", "counts=jsonl"]
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "-w", f"{workers}", *edges, *options]
    out = tmp_path / "out.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        try:
            while not (out.exists() and out.stat().st_size > (until or 60_000 * files)) and run.poll() is None:
                time.sleep(0.01)
            children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
            assert children, "the job had ended before"
            os.kill(int(children[-1]), signal.SIGKILL)
            (tmp_path / "hurry").touch()
            _, said = run.communicate(timeout=100)
        finally:
            run.kill()
    assert run.returncode == 0, said
    assert [json.loads(text) for text in out.read_text().splitlines()] == [*counts(files, lines)]
