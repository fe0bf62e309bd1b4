"""An oracle: the panes of `emit="final"`, by plain loops.

It shares nothing with the engine but the words, and has no triggers, indexes or records.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["fixed", "sliding", "sessions"]


class Given(NamedTuple):
    """An element, or with the key `WATERMARK` a watermark: then `at` is it."""

    key: Hashable
    at: int
    value: int = 0


WATERMARK = "the watermark"


class Expected(NamedTuple):
    """A pane: its key, window, elements, and whether it is late rather than on time."""

    key: Hashable
    start: int
    end: int
    values: tuple[int, ...]
    late: bool


class _Open:
    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.elements: list[tuple[int, int]] = []  # number of arrival, value
        self.held = False  # whether the output watermark waits at its end
        self.born_late = False


def final_panes(kind: Kind, size: int, period: int, lateness: int, events: Sequence[Given]) -> list[list[Expected]]:
    """Return the panes of each event, in the order of (end, start).

    Args:
        kind: Which windows.
        size: Their size, or the gap of sessions.
        period: Interval between the starts of sliding ones, counted from 0.
        lateness: Time after its end for which a window accepts elements.
        events: Elements and watermarks.
    """
    watermark: int | None = None
    windows: dict[Hashable, list[_Open]] = {}
    found: list[list[Expected]] = []
    for number, event in enumerate(events):
        panes: list[Expected] = []
        if event.key == WATERMARK:
            if watermark is None or event.at > watermark:
                panes = _expire(windows, watermark, event.at, lateness)
                watermark = event.at
        else:
            for start in _starts(kind, size, period, event.at):
                if watermark is None or start + size + lateness > watermark:
                    _take(windows.setdefault(event.key, []), kind, start, start + size, number, event.value, watermark)
        found.append(panes)
    return found


def _starts(kind: Kind, size: int, period: int, at: int) -> list[int]:
    if kind == "sessions":
        return [at]
    every = size if kind == "fixed" else period
    return [start for start in range(at - size + 1, at + 1) if start % every == 0]


def _take(open: list[_Open], kind: Kind, start: int, end: int, number: int, value: int, watermark: int | None) -> None:
    mine = _Open(start, end)
    met = [
        each
        for each in open
        if (each.start, each.end) == (start, end) or (kind == "sessions" and each.start < end and start < each.end)
    ]
    for other in met:
        open.remove(other)
        mine.start, mine.end = min(mine.start, other.start), max(mine.end, other.end)
        mine.elements += other.elements
        mine.held = mine.held or other.held
    behind = watermark is not None and mine.end <= watermark
    before = [each for each in met if (each.start, each.end) == (mine.start, mine.end)]
    mine.born_late = before[0].born_late if before else kind == "sessions" and behind and not mine.held
    mine.held = mine.held or not behind
    mine.elements.append((number, value))
    open.append(mine)


def _expire(windows: dict[Hashable, list[_Open]], before: int | None, to: int, lateness: int) -> list[Expected]:
    panes = []
    for key, open in windows.items():
        holds = [each.end - 1 if each.held else each.end - 1 + lateness for each in open]
        output = min(holds) if before is None else min([before, *holds])
        for each in list(open):
            if each.end + lateness <= to:
                open.remove(each)
                values = tuple(value for _, value in sorted(each.elements))
                late = each.born_late or (before is not None and output >= each.end)
                panes.append(Expected(key, each.start, each.end, values, late))
    return sorted(panes, key=lambda pane: (pane.end, pane.start))
