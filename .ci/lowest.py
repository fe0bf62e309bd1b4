"""Installation at the oldest versions that pyproject.toml allows, by pip, or by uv in an environment without pip.

Usage: lowest.py ARGUMENTS_OF_PIP_INSTALL

Every dependency of the project, of its extras and of the tests is held at its lower bound; what these depend on in turn
is the newest that goes with them. tox installs in several steps, each of which has to know all the bounds: a step that
knows only what it installs leaves what an earlier one has brought.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(\[[^]]*\])?\s*(?P<versions>[^;]*)")


def requirements(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield all requirements of a pyproject.toml: of the project, its extras, and the group of the tests."""
    yield from project["project"]["dependencies"]
    for extra in project["project"].get("optional-dependencies", {}).values():
        yield from extra
    yield from project.get("dependency-groups", {}).get("test", ())


def constraints(asked: Iterable[str]) -> list[str]:
    """Return "name==lower bound" for each distribution, in order of names.

    Raises:
        ValueError: One has no lower bound, or two that differ: then one of them is never tried.
    """
    bounds: dict[str, str] = {}
    for requirement in asked:
        matched = REQUIREMENT.match(requirement)
        lower = [part.strip() for part in matched["versions"].split(",") if ">=" in part] if matched else []
        if not matched or len(lower) != 1:
            raise ValueError(f"{requirement!r} has no lower bound: write name>=version")
        name = re.sub(r"[-_.]+", "-", matched["name"]).lower()
        bound = lower[0].removeprefix(">=").strip()
        if bounds.setdefault(name, bound) != bound:
            raise ValueError(f"{name} has two lower bounds, {bounds[name]} and {bound}: write the same everywhere")
    return [f"{name}=={bound}" for name, bound in sorted(bounds.items())]


def main(*arguments: str) -> int:
    """Install under the constraints; return the exit code."""
    lines = constraints(requirements(tomllib.loads(PYPROJECT.read_text("utf-8"))))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lowest.txt")
        file.write_text("\n".join(lines) + "\n", "utf-8")
        pip = [sys.executable, "-I", "-m", "pip"] if find_spec("pip") else ["uv", "pip"]
        # An option, not PIP_CONSTRAINT: builds of source distributions would heed that too.
        return subprocess.run([*pip, "install", "--constraint", str(file), *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
