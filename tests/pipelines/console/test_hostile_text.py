"""A job on processes whose names, data and output would act on a terminal: what is shown of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

APP = r"""
    import sys
    import warnings

    import flamecore as fc


    def function(line: str) -> str:
        print("printed \x1b[2J", line)
        print("err\x9b31m\rerror: forged", file=sys.stderr)
        if line == "2":
            warnings.warn("a warning\x1b[31m")
        if line == "3":
            raise ValueError("a record\x1b[31m\nerror: forged")
        return line


    flow = fc.Flow("hostile")
    flow.source("in\nproblem 1 of 1: forged", str).map(function).sink("out")
"""
JOB = r"""
    schema = 1
    [job]
    flow = "app.py"
    workers = 2
    [deploy]
    on = "processes"
    [source."in\nproblem 1 of 1: forged"]
    use = "lines"
    path = "in\nerror: forged\u001b[2J.txt"
    [sink.out]
    use = "jsonl"
    path = "out.jsonl"
"""


def called(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(dedent(APP))
    (folder / "job.toml").write_text(dedent(JOB))
    (folder / "in\nerror: forged\x1b[2J.txt").write_text("1\n2\n3\n")
    line = [sys.executable, "-m", "flamecore", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("run", "job.toml"), 1),
        (("run", "job.toml", "-v"), 1),
        (("run", "job.toml", "--set", "job.on_error=skip"), 0),
        (("check", "job.toml"), 0),
        (("check", "job.toml", "--set", "sink.out.use=none\x1b[2J\nproblem 9 of 9: forged"), 2),
        (("status", "socket:///none/x\x1b[2J\nerror: forged", "--job", "x\nerror: forged"), 2),
        (("no\x1b[2J\nerror: forged",), 2),
    ],
)
def test_no_letter_of_it_acts_and_no_line_is_forged(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    done = called(tmp_path, *command)
    assert done.returncode == code, done.stderr
    rows = (done.stdout + done.stderr).split("\n")
    assert all(row.isprintable() for row in rows)
    assert not [row for row in rows if row.startswith(("error: forged", "problem 9", "problem 1 of 1: forged"))]


@pytest.mark.parametrize(
    ("more", "code"), [((), 1), (("-q",), 1), (("-v",), 1), (("-q", "--set", "job.on_error=skip"), 0), (("--no",), 2)]
)
def test_with_a_log_of_json_every_line_is_an_object(tmp_path: Path, more: tuple[str, ...], code: int) -> None:
    done = called(tmp_path, "run", "job.toml", "--log", "json", *more)
    assert done.returncode == code, done.stderr
    rows = done.stderr.splitlines()
    assert all(row.isprintable() for row in rows)
    told = [json.loads(row) for row in rows]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in told)
    assert not done.stdout
    if "--no" not in more:
        printed = [line for line in told if line["event"] == "node.printed"]
        assert any(line["text"] == "printed \x1b[2J 1" for line in printed)
        assert any("a warning\x1b[31m" in line.get("message", "") for line in told)
