"""The table of docs/how-to/balance.md has the form in which the command prints it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flamecore.cli.placement import placement_lines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "balance.md"


def _facts(table: list[str], verdict: str) -> dict[str, Any]:
    """Return the facts that a table shows."""
    workers: dict[str, Any] = {}
    for line in table[1:]:
        name, busy, of_fronts, fronts, groups, would_be, then_fronts, then_groups = re.split(r"  +", line)
        now = {"fronts": _names(fronts), "key_groups": _ends(groups)}
        workers[name] = {
            **now,
            "busy": _share(busy),
            "of_fronts": _share(of_fronts),
            "would_be": {
                "busy": _share(would_be),
                "fronts": now["fronts"] if then_fronts == "=" else _names(then_fronts),
                "key_groups": now["key_groups"] if then_groups == "=" else _ends(then_groups),
            },
        }
    return {"workers": workers, "verdict": verdict}


def _share(cell: str) -> float:
    return int(cell.removesuffix("%")) / 100


def _names(cell: str) -> list[str]:
    return [] if cell == "-" else cell.split(", ")


def _ends(cell: str) -> list[int]:
    return [] if cell == "-" else [int(end) for end in cell.split(" to ")]


def test_the_sample_is_what_the_command_prints_of_its_facts() -> None:
    text = re.search(
        r"^\$ flamestream status .* --placement\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert text is not None
    *table, verdict = text[1].splitlines()
    facts = _facts(table, verdict)
    assert list(placement_lines(facts)) == [*table, verdict]
    # The parts of all workers are those before and after, and no part of a load is greater than the load.
    workers = facts["workers"].values()
    for of in ("fronts", "key_groups"):
        now = sorted(part for worker in workers for part in worker[of])
        assert now == sorted(part for worker in workers for part in worker["would_be"][of])
    assert all(worker["of_fronts"] <= worker["busy"] <= 1 for worker in workers)
    # A placement is shown if the greatest load is lower by a tenth or more.
    assert max(worker["would_be"]["busy"] for worker in workers) <= 0.9 * max(worker["busy"] for worker in workers)
