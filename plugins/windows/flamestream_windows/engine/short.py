"""Shorter ways for `emit="final"` and `emit="updates"`, where windows do not join and their panes have the end as time.

They give what a grouping gives, pane for pane, and keep little more than an accumulator for each window and key: there
is no trigger to look at, and nothing to take back. Elements come in columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from flamecore.model.hashing import canonical, stable_hash
from flamestream_windows.engine.keyed import Keyed
from flamestream_windows.engine.values import Cell, Drop, Firing, Late, Output, Record
from flamestream_windows.model.aggregates import Aggregate
from flamestream_windows.model.panes import Timing
from flamestream_windows.model.strategy import FINAL, UPDATES, Strategy
from flamestream_windows.model.times import MIN
from flamestream_windows.model.windows import GLOBAL, Fixed, Window, ordered

Numbered = tuple[int, Output]
"""The number of an element in its columns, and an output that comes of it."""


def is_final(strategy: Strategy) -> bool:
    """Return whether `FinalKeys` can do what a strategy says."""
    return strategy.trigger == FINAL and strategy.time == "end" and not strategy.windows.merging


def is_updates(strategy: Strategy) -> bool:
    """Return whether `UpdateKeys` can do what a strategy says."""
    return (
        strategy.trigger == UPDATES
        and strategy.time == "end"
        and not strategy.windows.merging
        and strategy.panes != "retracting"
        and (strategy.on_time, strategy.closing) == ("if_any", "if_any")
    )


def _open(strategy: Strategy, at: int, value: Any, watermark: int, outputs: list[Output]) -> list[Window]:
    """Return the windows that take an element; tell of those that do not, and of whether it is late."""
    windows = ordered(set(strategy.windows.assign(at, value, (GLOBAL,))))
    if not windows:
        outputs.append(Drop(value, at, "no window", None))
    taking = []
    for window in windows:
        if strategy.expiry(window) < watermark:
            outputs.append(Drop(value, at, "lateness", window))
        else:
            taking.append(window)
    if taking and at < watermark:
        outputs.append(Late(value, at))
    return taking


class FinalKeys:
    """The keys of a grouping whose windows give one pane each.

    Args:
        strategy: A strategy of which `is_final` is true.
        aggregate: What elements come to.

    Attributes:
        watermark: The input watermark.
    """

    def __init__(self, strategy: Strategy, aggregate: Aggregate, *, watermark: int = MIN) -> None:
        self.strategy = strategy
        self.aggregate = aggregate
        self.watermark = watermark
        # By window, and then by key: an accumulator, and how many elements are in it. What holds the output watermark
        # at the end of its window is apart from what came behind it and is to be late.
        self._on_time: dict[Window, dict[Hashable, tuple[Any, int]]] = {}
        self._late: dict[Window, dict[Hashable, tuple[Any, int]]] = {}

    def elements(self, keys: Sequence[Hashable], times: Sequence[int], values: Sequence[Any]) -> list[Numbered]:
        """Take elements, given by their keys, timestamps and values. Return those that are late or dropped.

        Where a function of the user raises, the elements before are taken, and that one is not.
        """
        watermark, windows = self.watermark, self.strategy.windows
        outputs: list[Numbered] = []
        if type(windows) is not Fixed:
            for number, (key, at, value) in enumerate(zip(keys, times, values, strict=True)):
                outputs += [(number, output) for output in self._element(key, at, value)]
            return outputs
        add, create = self.aggregate.add, self.aggregate.create
        size, offset = windows.size, windows.offset
        current: dict[Hashable, tuple[Any, int]] = {}
        start = end = MIN  # of `current`
        for number, (key, at, value) in enumerate(zip(keys, times, values, strict=True)):
            if at < watermark:
                outputs += [(number, output) for output in self._element(key, at, value)]
                continue
            if not start <= at < end:
                start = at - (at - offset) % size
                end = start + size
                current = self._on_time.setdefault(Window(start, end), {})
            found = current.get(key)
            current[key] = (add(create(), value), 1) if found is None else (add(found[0], value), found[1] + 1)
        return outputs

    def _element(self, key: Hashable, at: int, value: Any) -> list[Output]:
        aggregate, watermark = self.aggregate, self.watermark
        outputs: list[Output] = []
        taken = []
        for window in _open(self.strategy, at, value, watermark, outputs):
            cells = self._on_time.setdefault(window, {})
            if window.end <= watermark and key not in cells:
                cells = self._late.setdefault(window, {})
            accumulator, count = cells.get(key) or (aggregate.create(), 0)
            taken.append((cells, (aggregate.add(accumulator, value), count + 1)))
        for cells, cell in taken:
            cells[key] = cell
        return outputs

    def advance(self, to: int) -> list[Keyed]:
        """Move the input watermark. Return the panes of the windows that expire, in the order of a grouping."""
        if to <= self.watermark:
            return []
        expiry, result = self.strategy.expiry, self.aggregate.result
        expired = ordered(window for window in {**self._on_time, **self._late} if expiry(window) < to)
        outputs: list[Keyed] = []
        for window in expired:
            on_time, late = self._on_time.get(window, {}), self._late.get(window, {})
            keys = [*on_time, *late]
            if len(keys) > 1:
                keys.sort(key=lambda key: (stable_hash(key), canonical(key)))
            place = (window.end, window.start)
            for key in keys:
                # What came behind its window is on time only where another window of the key still holds.
                timing = Timing.ON_TIME if key in on_time or self._held(key, window.end) else Timing.LATE
                value = result((on_time.get(key) or late[key])[0])
                outputs.append((key, Firing(value, window, window.end - 1, int(timing), 0, 0, True, False, place)))
        for window in expired:
            self._on_time.pop(window, None)
            self._late.pop(window, None)
        self.watermark = to
        return outputs

    def _held(self, key: Hashable, end: int) -> bool:
        return any(window.end <= end and key in cells for window, cells in self._on_time.items())

    @property
    def output(self) -> int:
        """The output watermark: the least of the keys'."""
        return min([self.watermark, *(window.end - 1 for window, cells in self._on_time.items() if cells)])

    @property
    def records(self) -> dict[Hashable, Record]:
        """The records that a grouping would have."""
        found: dict[Hashable, list[Cell]] = {}
        for window in ordered({**self._on_time, **self._late}):
            for key, (accumulator, count) in self._on_time.get(window, {}).items():
                cell = Cell(window, accumulator, count, window.end - 1, None, (), None, False, ())
                found.setdefault(key, []).append(cell)
            for key, (accumulator, count) in self._late.get(window, {}).items():
                cell = Cell(window, accumulator, count, None, self.strategy.expiry(window), (), None, False, ())
                found.setdefault(key, []).append(cell)
        return {key: Record(tuple(cells)) for key, cells in found.items()}

    def restore(self, records: Mapping[Hashable, Record]) -> None:
        """Go on from records of a snapshot, those of a grouping, too."""
        for key, record in records.items():
            for cell in record.open:
                cells = self._late if cell.hold is None else self._on_time
                cells.setdefault(cell.window, {})[key] = (cell.accumulator, cell.fresh)


class UpdateKeys:
    """The keys of a grouping whose windows give a pane with each element, and no other.

    Nothing waits between two steps, so that nothing holds the output watermark.

    Args:
        strategy: A strategy of which `is_updates` is true.
        aggregate: What elements come to.

    Attributes:
        watermark: The input watermark.
    """

    def __init__(self, strategy: Strategy, aggregate: Aggregate, *, watermark: int = MIN) -> None:
        self.strategy = strategy
        self.aggregate = aggregate
        self.watermark = watermark
        # By window, and then by key: an accumulator, how many panes there were, and how many of them were late.
        self._cells: dict[Window, dict[Hashable, tuple[Any, int, int]]] = {}

    def elements(self, keys: Sequence[Hashable], times: Sequence[int], values: Sequence[Any]) -> list[Numbered]:
        """Take elements, given by their keys, timestamps and values. Return their panes, and what is late or dropped.

        Where a function of the user raises, the elements before are taken, and that one is not.
        """
        watermark, windows = self.watermark, self.strategy.windows
        create, add, result = self.aggregate.create, self.aggregate.add, self.aggregate.result
        keeps = self.strategy.panes == "accumulating"
        fixed = windows if type(windows) is Fixed else None
        early = int(Timing.EARLY)
        outputs: list[Numbered] = []
        window = Window(MIN, MIN)
        current: dict[Hashable, tuple[Any, int, int]] = {}
        for number, (key, at, value) in enumerate(zip(keys, times, values, strict=True)):
            if fixed is None or at < watermark:
                outputs += [(number, output) for output in self._element(key, at, value)]
                continue
            if not window.start <= at < window.end:
                start = at - (at - fixed.offset) % fixed.size
                window = Window(start, start + fixed.size)
                current = self._cells.setdefault(window, {})
            accumulator, panes, late = current.get(key) or (create(), 0, 0)
            accumulator = add(accumulator, value)
            firing = Firing(result(accumulator), window, window.end - 1, early, panes, -1, False)
            current[key] = (accumulator if keeps else create(), panes + 1, late)
            outputs.append((number, firing))
        return outputs

    def _element(self, key: Hashable, at: int, value: Any) -> list[Output]:
        aggregate, watermark = self.aggregate, self.watermark
        keeps = self.strategy.panes == "accumulating"
        outputs: list[Output] = []
        taken = []
        for window in _open(self.strategy, at, value, watermark, outputs):
            cells = self._cells.setdefault(window, {})
            accumulator, panes, late = cells.get(key) or (aggregate.create(), 0, 0)
            accumulator = aggregate.add(accumulator, value)
            behind = window.end <= watermark
            timing, number = (Timing.LATE, late) if behind else (Timing.EARLY, -1)
            given = aggregate.result(accumulator)
            outputs.append(Firing(given, window, window.end - 1, int(timing), panes, number, False))
            taken.append((cells, (accumulator if keeps else aggregate.create(), panes + 1, late + behind)))
        for cells, cell in taken:
            cells[key] = cell
        return outputs

    def advance(self, to: int) -> list[Keyed]:
        """Move the input watermark, and forget the windows that expire. No pane comes of it."""
        if to > self.watermark:
            self.watermark = to
            for window in [window for window in self._cells if self.strategy.expiry(window) < to]:
                del self._cells[window]
        return []

    @property
    def output(self) -> int:
        """The output watermark: the input watermark."""
        return self.watermark

    @property
    def records(self) -> dict[Hashable, Record]:
        """The records that a grouping would have."""
        found: dict[Hashable, list[Cell]] = {}
        trigger = self.strategy.trigger.start()
        for window in ordered(self._cells):
            for key, (accumulator, panes, late) in self._cells[window].items():
                pane = (int(Timing.LATE if late else Timing.EARLY), panes - 1, late - 1)
                cell = Cell(window, accumulator, 0, None, None, trigger, pane, False, ())
                found.setdefault(key, []).append(cell)
        return {key: Record(tuple(cells)) for key, cells in found.items()}

    def restore(self, records: Mapping[Hashable, Record]) -> None:
        """Go on from records of a snapshot, those of a grouping, too."""
        for key, record in records.items():
            for cell in record.open:
                assert cell.pane is not None
                self._cells.setdefault(cell.window, {})[key] = (cell.accumulator, cell.pane[1] + 1, cell.pane[2] + 1)
