"""Half a line at the end of a growing file, over several runs of a job as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.usefixtures("installed"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals of Windows are other ones"),
]

APP = """
import os
import signal
from pathlib import Path

import flamecore as fc


def die_once(line: str) -> str:
    if line == "die" and not Path("dead").exists():
        Path("dead").touch()
        os.killpg(0, signal.SIGKILL)
    return line


flow = fc.Flow("copy")
flow.source("lines", str).map(die_once).sink("out")
"""
STATE = ["--set", "state.use=directory", "--set", "state.path=state"]


class Copy:
    """A job that copies a log, and its outputs."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        (folder / "app.py").write_text(APP)

    def log(self, content: str, name: str = "app.log") -> None:
        with (self.folder / name).open("a") as file:
            file.write(content)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flamecore", "run", "app.py", "--source", "lines=lines"]
        command += ["--set", "source.lines.path=*.log", "--sink", "out=jsonl", "--set", "sink.out.path=out.jsonl"]
        return subprocess.run(
            [*command, *self.options, *options],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )

    def lines(self, *options: str) -> list[str]:
        """Run, and return the outputs there are then."""
        done = self.run("--quiet", *options)
        assert done.returncode == 0, done.stderr
        self.said = done.stderr
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]


def test_a_half_is_a_record_without_state(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.log("one\ntw")
    assert copy.lines() == ["one", "tw"]
    assert copy.said == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_half_is_held_back_with_state_and_read_whole_by_a_later_run(workers: int, tmp_path: Path) -> None:
    copy = Copy(tmp_path, *STATE, "--set", f"job.workers={workers}")
    copy.log("one\ntw")
    copy.log("whole\n", "other.log")
    assert sorted(copy.lines()) == ["one", "whole"]
    assert copy.said == (
        "copy: app.log: 2 bytes from offset 4 held back: no line end yet "
        '(source.lines.partial = "record" reads them as they are)\n'
    )
    said = copy.said
    copy.log("more\n", "other.log")
    assert sorted(copy.lines()) == ["more", "one", "whole"]
    assert copy.said == said
    copy.log("o\nthree\n")
    assert sorted(copy.lines()) == ["more", "one", "three", "two", "whole"]
    assert copy.said == ""


def test_the_last_line_of_a_file_that_never_grows_is_read_by_the_option_that_its_run_names(tmp_path: Path) -> None:
    copy = Copy(tmp_path, *STATE)
    copy.log("one\nlast")
    assert copy.lines() == ["one"]
    assert 'source.lines.partial = "record"' in copy.said
    assert copy.lines("--set", "source.lines.partial=record") == ["one", "last"]
    assert copy.said == ""
    assert copy.lines() == ["one", "last"], "and by no run again"
    copy.log("\nmore\n")
    assert copy.lines() == ["one", "last", "more"]


def test_a_half_is_in_the_event_and_in_the_result(tmp_path: Path) -> None:
    copy = Copy(tmp_path, *STATE)
    copy.log("one\ntw")
    done = copy.run("--json")
    found = json.loads(done.stdout)["unfinished"]
    assert list(found) == ["1"]
    assert found["1"].startswith("app.log: 2 bytes from offset 4 held back")
    assert "unfinished.1" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("snapshots_s", ["0.001", "60"])
def test_a_half_is_read_whole_after_a_kill(snapshots_s: str, tmp_path: Path) -> None:
    copy = Copy(tmp_path, *STATE, "--set", f"state.interval_s={snapshots_s}")
    before = [f"line {number}" for number in range(300)]
    copy.log("\n".join([*before, "die", "ha"]))
    assert copy.run("--quiet").returncode == -signal.SIGKILL
    assert copy.lines() == [*before, "die"]
    assert "2 bytes" in copy.said
    copy.log("lf\n")
    assert copy.lines() == [*before, "die", "half"]
    assert copy.said == ""


def test_a_half_may_be_completed_while_the_job_is_dead(tmp_path: Path) -> None:
    copy = Copy(tmp_path, *STATE)
    copy.log("one\ndie\nha")
    assert copy.run("--quiet").returncode == -signal.SIGKILL
    copy.log("lf\nmo")
    assert copy.lines() == ["one", "die", "half"]
    copy.log("re\n")
    assert copy.lines() == ["one", "die", "half", "more"]
