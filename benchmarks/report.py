"""Ratios, tables and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing: median, least and most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def facts(self) -> dict[str, float]:
        """Return the figures as a mapping, for JSON."""
        return {"median": self.median, "min": self.least, "max": self.most}

    def __str__(self) -> str:
        if self.least == self.most:
            return _short(self.median)
        return f"{_short(self.median)} ({_short(self.least)}–{_short(self.most)})"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def ratios(base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], key: str) -> Spread:
    """Return how many times as fast the other is.

    Each run is compared with the base's run of the same round.
    """
    return Spread.of([a[key] / b[key] for a, b in zip(base, other, strict=True)])


@dataclass(slots=True)
class Table:
    """The results of one benchmark."""

    title: str
    columns: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    targets: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row."""
        self.rows.append(tuple(map(str, cells)))

    def fail(self, name: str, why: str) -> None:
        """Add a row without figures, for a contender whose outputs are wrong."""
        self.failed[name] = why
        self.rows.append((name, *["-"] * (len(self.columns) - 2), f"DIFFERS: {why}"))

    def note(self, text: str) -> None:
        """Add a text below the table, once."""
        if text not in self.notes:
            self.notes.append(text)

    def target(self, name: str, wanted: str, reached: Spread, limit: float, *, at_most: bool = False) -> None:
        """Compare the median of a figure with a limit: at least, or at most."""
        met = reached.median <= limit if at_most else reached.median >= limit
        self.targets.append(
            {"contender": name, "wanted": wanted, "reached": reached.facts(), "limit": limit, "met": met}
        )

    def markdown(self) -> str:
        """Return the table, and whether the targets were met."""
        rows = [tuple(self.columns), *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.columns))]

        def line(cells: Sequence[str]) -> str:
            padded = [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
            return "| " + " | ".join(padded) + " |"

        rule = "|" + "|".join("-" * (width + 1) + ("-" if n == 0 else ":") for n, width in enumerate(widths)) + "|"
        lines = [f"## {self.title}", "", line(rows[0]), rule, *map(line, rows[1:])]
        if self.targets or self.notes:
            lines.append("")
        lines += [f"- {note}" for note in self.notes]
        for target in self.targets:
            mark = "met" if target["met"] else "NOT MET"
            reached = Spread(*target["reached"].values())
            lines.append(f"- {target['wanted']}: {reached}, wanted {_short(target['limit'])}: {mark}")
        return "\n".join(lines)
