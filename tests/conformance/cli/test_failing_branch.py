"""A job that fails on one branch: the sinks of others hold a part of the whole output, and go on from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

FLOW = """
import os

import flamecore as fc


def key(number: int) -> int:
    if os.environ.get("FAILING") == "yes" and number == 105:
        raise ValueError(number)
    return number % 5


flow = fc.Flow("branches")
numbers = flow.source("numbers", str).map(int)
numbers.map(lambda number: number * 2).sink("free")
numbers.key_by(key).count().sink("counts")
"""

LENGTHS = (0, 60, 0, 0, 0, 0, 60)
"""Of the files: that of the failing record is not the only one that is long, and two workers read."""


def run(folder: Path, transport: str, *, failing: bool) -> subprocess.CompletedProcess[str]:
    settings = ["source.numbers.path=in/*.txt", f"transport.use={transport}", "job.max_in_flight=10"]
    command = [sys.executable, "-m", "flamecore", "run", "flow.py", "-q", "-w", "3", "--source", "numbers=lines"]
    for sink in ("free", "counts"):
        command += ["--sink", f"{sink}=jsonl"]
        settings += [f"sink.{sink}.path={sink}.jsonl", f"sink.{sink}.mode=resume"]
    command += [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "FAILING": "yes" if failing else "no"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.parametrize("transport", ["inproc", pytest.param("grpc", marks=pytest.mark.grpc)])
def test_a_sink_of_another_branch_holds_the_first_outputs_and_goes_on(tmp_path: Path, transport: str) -> None:
    """Without state. What is left unread of one file is not passed over for what is read of another."""
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "in").mkdir()
    files = [[100 * place + line for line in range(length)] for place, length in enumerate(LENGTHS)]
    for place, numbers in enumerate(files):
        (tmp_path / "in" / f"{place}.txt").write_text("".join(f"{number}\n" for number in numbers))
    whole = [2 * number for row in zip_longest(*files) for number in row if number is not None]

    def free() -> list[int]:
        return [json.loads(line) for line in (tmp_path / "free.jsonl").read_text().splitlines()]

    failed = run(tmp_path, transport, failing=True)
    assert failed.returncode == 1, failed.stderr
    assert "1.txt line 6" in failed.stderr
    assert free() == whole[: len(free())]
    mended = run(tmp_path, transport, failing=False)
    assert mended.returncode == 0, mended.stderr
    assert free() == whole
