"""Output of an earlier run, with workers in processes of their own: it stays until there is another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import flamecore as fc


def number_of(line):
    return int(line)


flow = fc.Flow("numbers")
flow.source("lines", str).map(number_of).rebalance().filter(lambda number: number > 0).sink("numbers")
"""


def run(folder: Path, lines: list[str], *options: str) -> int:
    (folder / "app.py").write_text(APP)
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "-c", "from flamecore.cli import main; main()", "run", "app.py", "-w", "2"]
    command += ["--on", "processes", "--quiet", "--set", "transport.use=socket"]
    command += ["--source", "lines=lines", "--set", "source.lines.path=lines.txt"]
    command += ["--sink", "numbers=jsonl", "--set", "sink.numbers.path=out.jsonl", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


@pytest.mark.parametrize("kept", [False, True], ids=["stateless", "kept"])
def test_output_stays_until_there_is_another_one(kept: bool, tmp_path: Path) -> None:
    def states(name: str) -> list[str]:
        return ["--set", "state.use=sqlite", "--set", f"state.path={name}"] if kept else []

    out = tmp_path / "out.jsonl"
    assert run(tmp_path, ["1", "2"], *states("a.db")) == 0
    for _ in range(2):  # the second time the job goes on, and has not opened its sink either
        assert run(tmp_path, ["none", "3"], *states("b.db")) != 0
        assert out.read_text() == "1\n2\n"
    assert run(tmp_path, ["3"], *states("c.db")) == 0
    assert out.read_text() == "3\n"
    assert run(tmp_path, ["-1"], *states("d.db")) == 0
    assert out.read_text() == ""
