"""Fronts and key groups move to idle workers while a job runs, and processes are killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from ephemeral_port_reserve import reserve

from flamecore.model.hashing import KEY_GROUPS, key_group, stable_hash
from flamecore.testing.progress import Patience

# A move has to save more than it takes, which is long where much else runs.
pytestmark = [pytest.mark.grpc]

APP = """
    import time
    from pathlib import Path

    import flamecore as fc


    def work(us: int) -> None:
        end = time.thread_time() + us / 1e6
        while time.thread_time() < end and not Path("hurry").exists():
            pass


    def split(line: str) -> list[str]:
        work(COST_OF_LINE)
        return line.split()


    def add(count: int, word: str) -> tuple[int, list[tuple[str, int]]]:
        work(COST_OF_WORD if word.startswith("dear") else 0)
        return count + 1, [(word, count + 1)]


    flow = fc.Flow("moving")
    words = flow.source("lines", str).flat_map(split).key_by(lambda word: word)
    words.stateful_map(0, add).sink("counts")
"""

LINES = 4000


def environment() -> dict[str, str]:
    return {**os.environ, "FLAMESTREAM_TOKEN": "a secret of this test"}


def start(folder: Path, port: int, line_us: int, word_us: int, *more: str) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(
        dedent(APP).replace("COST_OF_LINE", str(line_us)).replace("COST_OF_WORD", str(word_us))
    )
    settings = [
        "transport.use=grpc",
        f"transport.grpc.listen=127.0.0.1:{port}",
        "source.lines.path=*.txt",
        "sink.counts.path=out.jsonl",
        "job.max_in_flight=64",
        "state.use=sqlite",
        "state.path=state",
        "state.interval_s=0.2",
        "placement.fixed=false",
        *more,
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    edges = ["--source", "lines=lines", "--sink", "counts=jsonl"]
    line = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "-w", "2", *edges, *options]
    return subprocess.Popen(line, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)


def status(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "flamecore", "status", f"grpc://127.0.0.1:{port}", "--job", "moving", *options]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)


def wait_for(port: int, job: subprocess.Popen[str], condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first status that meets a condition."""
    limit = Patience(240)
    facts: dict[str, Any] = {}
    while not limit.passed():
        assert job.poll() is None, job.stderr.read() if job.stderr else ""
        asked = status(port, "--json")
        if asked.returncode == 0 and condition(facts := json.loads(asked.stdout)):
            return facts
    raise AssertionError(f"it does not come to that: {facts}")


def fronts(facts: dict[str, Any]) -> list[int]:
    return [len(worker["fronts"]) for worker in facts["placement"].get("workers", {}).values()]


def lines_of(folder: Path) -> list[str]:
    """Return the records in the order of their times: the first lines of all files, in their order, and so on."""
    files = [path.read_text().splitlines() for path in sorted(folder.glob("*.txt"))]
    most = max(map(len, files))
    return [lines[number] for number in range(most) for lines in files if number < len(lines)]


def counted(folder: Path) -> list[list[Any]]:
    counts: Counter[str] = Counter()
    found: list[list[Any]] = []
    for word in (word for line in lines_of(folder) for word in line.split()):
        counts[word] += 1
        found.append([word, counts[word]])
    return found


def outputs(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("killed", ["worker/0", "worker/1", None])
def test_two_busy_files_of_one_worker_are_parted(tmp_path: Path, killed: str | None) -> None:
    """The first and the third file are on one worker, and the others end at once."""
    seed = int(os.environ.get("FLAMESTREAM_SEED", random.randrange(2**32)))
    print(f"FLAMESTREAM_SEED={seed}")
    drawn, port = random.Random(seed), reserve()
    for number in range(4):
        lines = [f"w{drawn.randrange(100)} w{drawn.randrange(100)}" for _ in range(1 if number % 2 else LINES)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines) + "\n")
    job = start(tmp_path, port, 6000, 0)
    try:
        facts = wait_for(port, job, lambda facts: "moving" in facts["placement"]["verdict"] or fronts(facts) == [1, 3])
        if killed is not None:
            time.sleep(drawn.uniform(0, 1))  # at any moment of the move, or just behind it
            (pid,) = [node["pid"] for node in facts["nodes"].values() if killed in node["parts"]]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        facts = wait_for(port, job, lambda facts: fronts(facts) in ([1, 3], [2, 2]) and facts["placement"]["moves"] > 0)
        shown = status(port, "--placement")
        assert shown.returncode == 0, shown.stderr
        assert "worker/1" in shown.stdout
        (tmp_path / "hurry").touch()
        _, said = job.communicate()
    finally:
        job.kill()
        job.wait()
        assert job.stderr is not None
        job.stderr.close()
    assert job.returncode == 0, said
    assert outputs(tmp_path) == counted(tmp_path)


def test_key_groups_leave_the_worker_whose_keys_are_dear(tmp_path: Path) -> None:
    """Both workers own as many keys, which are as frequent."""
    seed = int(os.environ.get("FLAMESTREAM_SEED", random.randrange(2**32)))
    print(f"FLAMESTREAM_SEED={seed}")
    drawn, port = random.Random(seed), reserve()
    dear = [word for number in range(200) if key_group(stable_hash(word := f"dear{number}")) < KEY_GROUPS // 2]
    cheap = [word for number in range(200) if key_group(stable_hash(word := f"cheap{number}")) >= KEY_GROUPS // 2]
    for number in range(2):
        lines = [f"{drawn.choice(dear)} {drawn.choice(cheap)}" for _ in range(2 * LINES)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines) + "\n")
    job = start(tmp_path, port, 0, 4000)

    def owned(facts: dict[str, Any]) -> list[int]:
        workers = facts["placement"].get("workers", {}).values()
        return [last - first + 1 for first, last in (worker["key_groups"] for worker in workers)]

    try:
        facts = wait_for(port, job, lambda facts: facts["placement"]["moves"] > 0 and bool(owned(facts)))
        assert owned(facts)[0] < KEY_GROUPS // 2
        (tmp_path / "hurry").touch()
        _, said = job.communicate()
    finally:
        job.kill()
        job.wait()
        assert job.stderr is not None
        job.stderr.close()
    assert job.returncode == 0, said
    assert outputs(tmp_path) == counted(tmp_path)
