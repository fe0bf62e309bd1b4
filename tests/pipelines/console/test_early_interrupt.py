"""Ctrl-C while the processes of a job start: a terminal sends it to all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from flamecore.testing.progress import Patience
from flamecore.toolkit.processes import START

APP = """
    import flamecore as fc

    flow = fc.Flow("words")
    flow.source("lines", str).rebalance().key_by(lambda line: line).count().sink("counts")
"""


def ignoring(pid: int) -> list[str]:
    """Return the children of a process that ignore SIGINT: those that begin to import their modules."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        status = dict(line.split(":", 1) for line in Path(f"/proc/{child}/status").read_text().splitlines())
        if int(status["SigIgn"], 16) >> (signal.SIGINT - 1) & 1:
            found.append(child)
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")
@pytest.mark.parametrize("wait_s", [0, 0.1, 0.5])
def test_workers_that_start_say_nothing_of_an_interrupt(wait_s: float, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(dedent(APP))
    (tmp_path / "lines.txt").write_text("".join(f"{number}\n" for number in range(20_000)))
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "-w", "2", "--on", "processes"]
    command += ["--source", "lines=lines", "--set=source.lines.path=lines.txt"]
    command += ["--sink", "counts=jsonl", "--set=sink.counts.path=out.jsonl"]
    with (tmp_path / "said").open("w") as said:
        job = subprocess.Popen(
            command, cwd=tmp_path, start_new_session=True, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        try:
            limit = Patience(30)
            while len(ignoring(job.pid)) < 2:
                assert job.poll() is None, (tmp_path / "said").read_text()
                assert not limit.passed(), "its workers have not started in time"
                time.sleep(0.01)
            time.sleep(wait_s)
            os.killpg(job.pid, signal.SIGINT)
            code = job.wait(60)
        finally:
            job.kill()
            job.wait()
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert code in (0, 130)


def test_a_program_ignores_signals_before_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import signal, sys\n"
        "print(__name__, sys.argv[1:], *(signal.getsignal(one).name for one in (signal.SIGINT, signal.SIGTERM)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, "program", "told.json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "__main__ ['told.json'] SIG_IGN SIG_IGN\n"
