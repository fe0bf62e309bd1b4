"""Slim records: what is stored of a key whose windows are alike.

Most windows of a grouping by `emit="final"` or `"updates"` differ by an accumulator and a number only. A record of no
others is stored as four values for each, in a row: then it is a plain tuple, which costs a fraction to make.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.tree import rank, row_of
from flamestream_windows.engine.values import Cell, Record
from flamestream_windows.model.strategy import Strategy
from flamestream_windows.model.triggers import Look
from flamestream_windows.model.windows import Same, Window

Slim = tuple[Any, ...]
"""The start, end, accumulator and number of elements, or of panes, of each open window."""


class Alike(ABC):
    """The properties that all windows of a strategy share.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._look = Look(False, 0, strategy.windows.merging)
        self._fed = strategy.trigger.on_element(strategy.trigger.start(), self._look)

    def slim(self, record: Record) -> Slim | Record:
        """Return a record as it is stored."""
        if record.closed or not all(map(self.is_alike, record.open)):
            return record
        found: list[Any] = []
        for window, accumulator, fresh, _, _, _, pane, _, _ in record.open:
            found += (*window, accumulator, self._number(fresh, pane))
        return tuple(found)

    def is_alike(self, cell: Cell) -> bool:
        """Return whether an open window is stored as four values."""
        number = self._number(cell.fresh, cell.pane)
        return cell.fresh == self._fresh(number) and cell[3:] == self._alike(cell.window, number)

    def spelled(self, stored: Slim | Record) -> Record:
        """Return a record that is stored."""
        if type(stored) is not tuple:
            assert isinstance(stored, Record)
            return stored
        cells = [self._cell(*stored[at : at + 4]) for at in range(0, len(stored), 4)]
        cells.sort(key=rank)  # as they are, unless windows of several sizes expire at once
        return Record(row_of(tuple(cells)))

    def _cell(self, start: int, end: int, accumulator: Any, number: int) -> Cell:
        window = Window(start, end)
        return Cell(window, accumulator, self._fresh(number), *self._alike(window, number))

    @abstractmethod
    def _number(self, fresh: int, pane: tuple[int, int, int] | None) -> int:
        """Return the stored number for a count of fresh elements and the panes so far."""

    @abstractmethod
    def _fresh(self, number: int) -> int:
        """Return how many elements are fresh."""

    @abstractmethod
    def _alike(self, window: Window, number: int) -> tuple[Any, ...]:
        """Return the fields behind `fresh` of a cell that is stored as four values."""


class FinalAlike(Alike):
    """Windows that give one pane, when they expire."""

    def _number(self, fresh: int, pane: tuple[int, int, int] | None) -> int:
        return fresh

    def _fresh(self, number: int) -> int:
        return number

    def _alike(self, window: Window, number: int) -> tuple[Any, ...]:
        return (window[1] - 1, None, self._fed, None, False, ())


class UpdateAlike(Alike):
    """Windows that give a pane with each element."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._fired = strategy.trigger.fire(self._fed, self._look)

    def _number(self, fresh: int, pane: tuple[int, int, int] | None) -> int:
        return 0 if pane is None else pane[1] + 1

    def _fresh(self, number: int) -> int:
        return 0

    def _alike(self, window: Window, number: int) -> tuple[Any, ...]:
        return (None, None, self._fired, (0, number - 1, -1), False, ())


def alike(grouping: Grouping) -> Alike | None:
    """Return what the windows of a grouping have in common; None: they are not alike."""
    strategy = grouping.strategy
    if isinstance(strategy.windows, Same) and not strategy.is_final:
        return None
    if strategy.is_final or strategy.is_sessions:
        return FinalAlike(strategy)
    return UpdateAlike(strategy) if strategy.is_updates else None
