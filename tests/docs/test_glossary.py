"""The glossary's tables of former names lead to names that are there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"
FORMER = PAGE.read_text("utf-8").partition("## Until 0.1\n")[2]
NAME = re.compile(r"`(flamecore(?:\.\w+)+|\.\w+)`")


def resolve(name: str) -> Any:
    """Return the module, class or attribute of a dotted name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def rows() -> list[tuple[str, str]]:
    """Return the cells of all rows: (former names, present names)."""
    cells = [line.strip("| ").split(" | ") for line in FORMER.splitlines() if line.startswith("| ")]
    return [(row[0], row[1]) for row in cells if row != ["until 0.1", "now"]]


def present(cell: str) -> list[str]:
    """Return the names of a cell in full: `.name` is an attribute of the class of the name before."""
    names: list[str] = []
    for name in NAME.findall(cell):
        names.append(names[-1].rpartition(".")[0] + name if name.startswith(".") else name)
    return names


@pytest.mark.parametrize(("former", "now"), rows(), ids=[row[0] for row in rows()])
def test_former_names_lead_to_present_ones(former: str, now: str) -> None:
    assert present(now)
    for name in present(now):
        resolve(name)
    for name in re.findall(r"`(flamecore\.\w+)`", former):
        with pytest.raises((ModuleNotFoundError, AttributeError)):
            resolve(name)
