"""flamestream verify-output, as a process: outputs of jobs that end, are killed, and are tampered with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest

pytestmark = pytest.mark.usefixtures("installed")

LIMIT_S = 60
COMMAND = [sys.executable, "-c", "from flamecore.cli import main; main(prog_name='flamestream')"]

APP = """
import os
from pathlib import Path

import flamecore as fc


def look(line):
    if line == "9000" and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), 9)
    if line == "7":
        raise ValueError(line)
    return line


flow = fc.Flow("numbers")
flow.source("lines", str).map(look).sink("out")
"""

JOB = """
schema = 1
[job]
flow = "app.py"
on_error = "dead_letter"
max_in_flight = 100
[source.lines]
use = "lines"
path = "in.txt"
[sink.out]
use = "jsonl"
path = "out.jsonl"
[dead_letter]
use = "jsonl"
path = "dead.jsonl"
[state]
use = "directory"
path = "state"
interval_s = 0.01
"""


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    Path("job.toml").write_text(JOB)
    Path("in.txt").write_text("".join(f"{number}\n" for number in range(10_000)))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.call(*arguments)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_outputs_of_a_job_that_is_killed_and_goes_on_are_whole() -> None:
    assert run("run", "job.toml", "-q").returncode == -9
    assert "DAMAGED" not in run("verify-output", "out.jsonl").stdout.replace("which the next run takes away", "")
    assert run("run", "job.toml", "-q").returncode == 0
    done = run("verify-output")
    assert (done.returncode, done.stdout.count(": whole: "), done.stdout.count("not covered")) == (0, 2, 0)
    found = json.loads(run("verify-output", "--json").stdout)["outputs"]
    assert {name: one["covered"] for name, one in found.items()} == {
        "out": Path("out.jsonl").stat().st_size,
        "dead_letter": Path("dead.jsonl").stat().st_size,
    }
    assert len(Path("out.jsonl").read_text().splitlines()) == 9_999


def test_the_place_of_a_flipped_bit_is_named_and_the_code_is_1() -> None:
    Path("killed").touch()
    assert run("run", "job.toml", "-q").returncode == 0
    data = bytearray(Path("out.jsonl").read_bytes())
    data[40_000] ^= 16
    Path("out.jsonl").write_bytes(data)
    done = run("verify-output", "--json")
    (damage,) = json.loads(done.stdout)["outputs"]["out"]["damages"]
    assert done.returncode == 1
    assert damage["start"] <= 40_000 < damage["end"]
    words = f"out: {Path('out.jsonl').resolve()}: DAMAGED: bytes {damage['start']} to {damage['end'] - 1}: "
    assert run("verify-output").stdout.startswith(words)


def test_edited_dead_letters_are_no_damage() -> None:
    Path("killed").touch()
    assert run("run", "job.toml", "-q").returncode == 0
    letters = Path("dead.jsonl")
    letters.write_text(letters.read_text().replace('"original":"7"', '"original":"8"'))
    done = run("verify-output")
    assert done.returncode == 0
    assert f"dead_letter: {letters.resolve()}: changed (dead letters may be edited): bytes 0 to " in done.stdout
    assert run("verify-output", "dead.jsonl").returncode == 1, "nothing says that they are dead letters"
    Path("out.jsonl").write_bytes(b"x" + Path("out.jsonl").read_bytes()[1:])
    assert run("verify-output").returncode == 1, "an output may not be edited"


def test_what_has_no_checksums_is_not_covered_and_no_error() -> None:
    Path("old.jsonl").write_text("1\n")
    done = run("verify-output", "old.jsonl")
    assert (done.returncode, done.stdout) == (0, "old.jsonl: not covered: 2 bytes without checksums\n")
    done = run("verify-output", "--set", "sink.out.use=stdout")
    assert (done.returncode, "out: not covered: outputs of this sink" in done.stdout) == (0, True)
    assert run("verify-output", "none.jsonl").returncode == 2
    assert run("verify-output", "--app", "none.toml").returncode == 2


def test_a_folder_of_partitions_that_is_gone_is_an_error() -> None:
    Path("killed").touch()
    Path("job.toml").write_text(JOB.replace('path = "out.jsonl"', 'path = "parts"\norder = "partitioned"'))
    assert run("run", "job.toml", "-q").returncode == 0
    assert run("verify-output").returncode == 0
    shutil.rmtree("parts")
    done = run("verify-output")
    assert done.returncode == 1
    assert f"there is no folder {Path('parts').resolve()}" in done.stderr
