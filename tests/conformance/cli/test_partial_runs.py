"""Runs without state that end early, over several files: a sink holds the first outputs, and goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path

import pytest

from flamecore.testing.progress import Patience

FLOW = """
import os
import time

import flamecore as fc


def key(number: int) -> int:
    if os.environ.get("FAILING") == "yes" and number == 1005:
        raise ValueError(number)
    return number % 5


def read(line: str) -> int:
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return int(line)


flow = fc.Flow("branches")
numbers = flow.source("numbers", str).map(read)
numbers.map(lambda number: number * 2).sink("free")
numbers.key_by(key).count().sink("counts")
"""

LENGTHS = (0, 60, 0, 0, 0, 0, 60, 900)
"""Lengths of the files, in lines: besides the one with the failing record others are long, and two workers read."""


class Job:
    """A job in a folder, with files of some lengths.

    Args:
        folder: Where its files are.
        transport: Name of its transport.
    """

    def __init__(self, folder: Path, transport: str) -> None:
        self.folder = folder
        (folder / "flow.py").write_text(FLOW)
        (folder / "in").mkdir()
        files = [[1000 * place + line for line in range(length)] for place, length in enumerate(LENGTHS)]
        for place, numbers in enumerate(files):
            (folder / "in" / f"{place}.txt").write_text("".join(f"{number}\n" for number in numbers))
        self.whole = [2 * number for row in zip_longest(*files) for number in row if number is not None]
        settings = ["source.numbers.path=in/*.txt", f"transport.use={transport}", "job.max_in_flight=10"]
        self.command = [
            sys.executable,
            "-m",
            "flamecore",
            "run",
            "flow.py",
            "-q",
            "-w",
            "3",
            "--source",
            "numbers=lines",
        ]
        for sink in ("free", "counts"):
            self.command += ["--sink", f"{sink}=jsonl"]
            settings += [f"sink.{sink}.path={sink}.jsonl", f"sink.{sink}.mode=resume"]
        self.command += [part for setting in settings for part in ("--set", setting)]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command, cwd=self.folder, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
        )

    def run(self, **environment: str) -> tuple[int, str]:
        with self.start(**environment) as process:
            said = process.communicate()[1]
        return process.returncode, said

    def free(self) -> list[int]:
        path = self.folder / "free.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def goes_on(self) -> None:
        """Hold what there is, and what there is after a second run, against the whole output."""
        assert self.free() == self.whole[: len(self.free())]
        assert len(self.free()) < len(self.whole)
        assert self.run() == (0, "")
        assert self.free() == self.whole


@pytest.fixture(params=["inproc", pytest.param("grpc", marks=pytest.mark.grpc)])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


def test_a_sink_of_another_branch_holds_the_first_outputs_and_goes_on(job: Job) -> None:
    """The unread rest of one file is not passed over for records of another."""
    code, said = job.run(FAILING="yes")
    assert code == 1, said
    assert "1.txt line 6" in said
    job.goes_on()


def test_a_drained_job_holds_the_first_outputs_and_goes_on(job: Job) -> None:
    with job.start(PAUSE="0.02") as process:
        limit = Patience(60)
        while len(job.free()) < 20:
            assert process.poll() is None, process.communicate()[1]
            assert not limit.passed()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 0, said
    job.goes_on()
