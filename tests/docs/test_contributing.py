"""The tree keeps the rules of CONTRIBUTING.md that can be counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULE = re.search(r"At most (\d+) modules in a folder", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))


def modules(folder: Path) -> list[str]:
    """Return the names of the modules that lie in a folder, `__init__` left out."""
    return sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("tree", ["flamecore", "plugins", "tests"])
def test_no_folder_holds_more_modules_than_the_rule_allows(tree: str) -> None:
    assert RULE is not None
    folders = {path.parent for path in (ROOT / tree).rglob("*.py")}
    assert len(folders) > 10
    counts = {str(folder.relative_to(ROOT)): len(modules(folder)) for folder in folders}
    assert {name: count for name, count in counts.items() if count > int(RULE[1])} == {}


CONTRIB = sorted(path for path in (ROOT / "contrib").rglob("README.md") if path.parent != ROOT / "contrib")


@pytest.mark.parametrize("page", CONTRIB, ids=lambda page: page.parent.name)
def test_commands_of_contrib_pages_work_in_a_checkout(page: Path) -> None:
    """Nothing of contrib is in a registry of packages; pytest is."""
    commands = re.findall(r"^\$ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert any(command.startswith("pip install . ./contrib/") for command in commands)
    for command in commands:
        program, *arguments = command.removeprefix("pip install").split()
        places = [program, *arguments] if command.startswith("pip") else [one for one in arguments if "/" in one]
        assert [one for one in places if one != "pytest" and not (ROOT / one).is_dir()] == [], command
