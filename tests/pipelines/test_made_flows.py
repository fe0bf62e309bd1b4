"""Flows that functions make, on several processes: each process finds the same flow, wherever its functions are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 90.0
FILES = {
    "factory.py": """
import flamecore as fc
from helpers import shout


def make_flow(times: int = 2) -> fc.Flow:
    flow = fc.Flow("made")

    def repeat(line: str) -> list[str]:
        return [shout(line)] * times

    flow.source("lines", str).rebalance().flat_map(repeat).key_by(lambda line: line).count().sink("counts")
    return flow
""",
    "helpers.py": """
def shout(line: str) -> str:
    return line.upper()
""",
    "app.py": """
import factory

flow = factory.make_flow()
""",
    "two.py": """
from factory import make_flow

one, two = make_flow(1), make_flow(2)
""",
    "parcel/__init__.py": "",
    "parcel/inner/__init__.py": "",
    "parcel/inner/deep.py": """
def shout(line: str) -> str:
    return line.upper()
""",
    "parcel/making.py": """
import flamecore as fc

from . import inner
from .inner.deep import shout


def make_flow() -> fc.Flow:
    flow = fc.Flow("made")
    lines = flow.source("lines", str).rebalance().flat_map(lambda line: [inner.deep.shout(line), shout(line)])
    lines.key_by(lambda line: line).count().sink("counts")
    return flow
""",
    "parcel/app.py": """
from .making import make_flow

flow = make_flow()
""",
}
LINES = [f"line {number % 7}" for number in range(50)]


@pytest.mark.parametrize(
    "app", ["app.py", "two.py:two", "factory.py:make_flow", "factory:make_flow", "parcel.app:flow", "parcel/app.py"]
)
def test_every_process_finds_the_flow_that_a_function_made(tmp_path: Path, over: list[str], app: str) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    job = tmp_path / "job.toml"
    job.write_text(f'schema = 1\n[job]\nflow = "{app}"\nworkers = 2\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = [f"source.lines.path={tmp_path / 'lines.txt'}", *over]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "flamecore", "run", str(job), "-q", "--source=lines=lines", "--sink=counts=stdout"),
            *(f"--set={setting}" for setting in settings),
        ],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, int] = {}
    wanted = []
    for line in (line.upper() for line in LINES for _ in range(2)):
        seen[line] = seen.get(line, 0) + 1
        wanted.append(f"{line} {seen[line]}")
    assert done.stdout.splitlines() == wanted
