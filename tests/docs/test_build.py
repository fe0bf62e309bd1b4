"""The documentation is built, with warnings as errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flamecore.testing import draws

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_builds(tmp_path: Path) -> None:
    # Warnings come from reading and resolving, which take half of the work; pages are written where all cases run.
    builder = "html" if draws.tier().cases == 1.0 else "dummy"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder]
    folders = ["-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(tmp_path / "site")]
    done = subprocess.run([*command, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").is_file() == (builder == "html")
