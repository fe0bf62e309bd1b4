"""Functions that print, in a job whose output is its standard output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

APP = """
    import flamecore as fc


    def shown(line: str) -> str:
        print("saw", line)
        return line


    flow = fc.Flow("prints")
    flow.source("lines", str).rebalance().map(shown).sink("out")
"""


def test_what_workers_print_is_not_among_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(dedent(APP))
    lines = [f"line {number}" for number in range(200)]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "-w", "3", "--on", "processes"]
    command += ["--source", "lines=lines", "--set=source.lines.path=lines.txt", "--sink", "out=stdout"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == lines
    told = sorted(line.partition("] ")[2] for line in done.stderr.splitlines() if line.startswith("[worker-"))
    assert told == sorted(f"saw {line}" for line in lines)
