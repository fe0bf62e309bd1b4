"""The wheel, and an environment that holds it and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that tox has built; outside of tox build one here."""
    if built := os.environ.get("TOX_PACKAGE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (found,) = folder.glob("flamestream-*.whl")
    return found


class Installed:
    """A virtual environment with the wheel in it."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"
        self.away = folder / "away"
        self.away.mkdir()

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, in an empty folder, with nothing of this process's surroundings."""
        environ = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "COV"))
        }
        program = self.bin / command[0]
        return subprocess.run(
            [program, *command[1:]],
            check=check,
            capture_output=True,
            text=True,
            env=environ,
            cwd=self.away,
            stdin=subprocess.DEVNULL,
        )

    def evaluate(self, code: str) -> Any:
        """Return the JSON that a Python program prints."""
        return json.loads(self.run("python", "-c", code).stdout)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Make an environment with the wheel and its dependencies, as wheels."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    made = Installed(folder)
    made.run("python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel))
    return made
