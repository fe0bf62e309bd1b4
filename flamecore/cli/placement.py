"""The placement of a running job as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_COLUMNS = ("worker", "busy", "of fronts", "fronts", "key groups", "would be", "fronts", "key groups")


def placement_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of loads, and of the placement that would lower them.

    Args:
        facts: The placement in the status of a job.
    """
    rows = [_COLUMNS]
    for name, worker in facts.get("workers", {}).items():
        then = worker["would_be"]
        rows.append(
            (
                name,
                f"{worker['busy']:.0%}",
                f"{worker['of_fronts']:.0%}",
                _fronts(worker["fronts"]),
                _groups(worker["key_groups"]),
                f"{then['busy']:.0%}",
                "=" if then["fronts"] == worker["fronts"] else _fronts(then["fronts"]),
                "=" if then["key_groups"] == worker["key_groups"] else _groups(then["key_groups"]),
            )
        )
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for group, hot in facts.get("hot_groups", {}).items():
        of = f"{hot['share']:.0%} of the load of worker/{hot['owner']}"
        yield f"hot: key group {group} is {of}, and {hot['key']} its most costly key"
    yield str(facts["verdict"])


def _fronts(names: list[str]) -> str:
    # Some by name, or a job with a thousand files would have no table.
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "") if names else "-"


def _groups(ends: list[int]) -> str:
    return f"{ends[0]} to {ends[1]}" if ends else "-"
