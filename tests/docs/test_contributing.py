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
