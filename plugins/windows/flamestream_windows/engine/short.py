"""Shorter ways for `emit="final"` and `emit="updates"`.

For strategies whose panes have the end of their windows as time. They give what a grouping gives, pane for pane, and
keep little more than an accumulator for each window and key: there is no trigger to look at, and nothing to take back.
Elements come in columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from flamecore.model.hashing import canonical
from flamecore.model.ordered import rank_of
from flamestream_windows.engine.keyed import Keyed
from flamestream_windows.engine.values import Cell, Drop, Firing, Late, Output, Record
from flamestream_windows.model.aggregates import Aggregate
from flamestream_windows.model.panes import Timing
from flamestream_windows.model.strategy import FINAL, UPDATES, Strategy
from flamestream_windows.model.times import MIN
from flamestream_windows.model.windows import GLOBAL, Sessions, Window, ordered


class Interrupted(Exception):
    """A function has raised on one of several elements; its error is the cause.

    Args:
        number: The number of that element, which is not taken; those before it are.
        outputs: The outputs of those.
    """

    def __init__(self, number: int, outputs: list[Numbered]) -> None:
        super().__init__(f"a function has failed on element {number} of several")
        self.number = number
        self.outputs = outputs


Numbered = tuple[int, Output]
"""The number of an element in its columns, and an output that comes of it."""

Elements = Iterator[tuple[int, tuple[Hashable, int, Any]]]
"""Elements with their numbers: key, timestamp, value."""


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


def is_sessions(strategy: Strategy) -> bool:
    """Return whether `SessionKeys` can do what a strategy says."""
    return (
        type(strategy.windows) is Sessions
        and strategy.trigger == FINAL
        and strategy.time == "end"
        and strategy.lateness == 0
    )


def _open(strategy: Strategy, at: int, value: Any, watermark: int, outputs: list[Output]) -> list[Window]:
    """Return the windows that take an element; tell of drops and lateness."""
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


class ShortWay(ABC):
    """A shorter way. Elements are no retractions.

    Args:
        strategy: The strategy.
        aggregate: The aggregate of the elements.
        watermark: The input watermark.
    """

    def __init__(self, strategy: Strategy, aggregate: Aggregate, *, watermark: int = MIN) -> None:
        self.strategy = strategy
        self.aggregate = aggregate
        self.watermark = watermark

    def elements(self, keys: Sequence[Hashable], times: Sequence[int], values: Sequence[Any]) -> list[Numbered]:
        """Take elements, and return their outputs with their numbers.

        Args:
            keys: Key of each.
            times: Timestamp of each.
            values: Value of each.

        Raises:
            Interrupted: A function of the user has raised.
        """
        elements = enumerate(zip(keys, times, values, strict=True))
        outputs: list[Numbered] = []
        try:
            self._take(elements, outputs)
        except Exception as error:
            raise Interrupted(next(elements, (len(keys),))[0] - 1, outputs) from error
        return outputs

    @abstractmethod
    def _take(self, elements: Elements, outputs: list[Numbered]) -> None:
        """Take elements one after another, and add what comes of each at its end."""

    @abstractmethod
    def advance(self, to: int) -> list[Keyed]:
        """Move the input watermark; return panes in the order of a grouping."""

    @property
    @abstractmethod
    def output(self) -> int:
        """Return the output watermark: the least of the keys'."""

    @property
    @abstractmethod
    def records(self) -> dict[Hashable, Record]:
        """Return the records that a grouping would have."""

    @abstractmethod
    def restore(self, records: Mapping[Hashable, Record]) -> None:
        """Go on from records of a snapshot, those of a grouping, too."""


class FinalKeys(ShortWay):
    """The keys of a grouping whose windows give one pane each.

    Its strategies are those of which `is_final` is true.
    """

    def __init__(self, strategy: Strategy, aggregate: Aggregate, *, watermark: int = MIN) -> None:
        super().__init__(strategy, aggregate, watermark=watermark)
        # By window, and then by key: an accumulator, and how many elements are in it. Those that hold the
        # output watermark at the end of their window are apart from those that came behind it.
        self._on_time: dict[Window, dict[Hashable, tuple[Any, int]]] = {}
        self._late: dict[Window, dict[Hashable, tuple[Any, int]]] = {}

    def _take(self, elements: Elements, outputs: list[Numbered]) -> None:
        watermark, windows = self.watermark, self.strategy.windows
        add, create = self.aggregate.add, self.aggregate.create
        several: list[dict[Hashable, tuple[Any, int]]] = []
        current: dict[Hashable, tuple[Any, int]] | None = None  # of the windows of the stretch, if it is one
        start = end = MIN  # of the stretch
        for number, (key, at, value) in elements:
            if at >= watermark and not start <= at < end and (stretch := windows.stretch(at)) is not None:
                start, end = stretch
                several = [self._on_time.setdefault(window, {}) for window in windows.assign(at, value, (GLOBAL,))]
                current = several[0] if len(several) == 1 else None
            if at < watermark or not start <= at < end:
                outputs += [(number, output) for output in self._element(key, at, value)]
                continue
            if current is not None:
                found = current.get(key)
                current[key] = (add(create(), value), 1) if found is None else (add(found[0], value), found[1] + 1)
            elif several:
                before = [cells.get(key) or (create(), 0) for cells in several]
                after = [(add(accumulator, value), count + 1) for accumulator, count in before]
                for cells, cell in zip(several, after, strict=True):
                    cells[key] = cell
            else:
                outputs.append((number, Drop(value, at, "no window", None)))

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
        """Move the input watermark; return the panes of windows that expire."""
        if to <= self.watermark:
            return []
        expiry, result = self.strategy.expiry, self.aggregate.result
        expired = ordered(window for window in {**self._on_time, **self._late} if expiry(window) < to)
        outputs: list[Keyed] = []
        for window in expired:
            on_time, late = self._on_time.get(window, {}), self._late.get(window, {})
            keys = [*on_time, *late]
            if len(keys) > 1:
                keys.sort(key=lambda key: (rank_of(key), canonical(key)))
            place = (window.end, window.start)
            for key in keys:
                # A key that came behind its window is on time only where another window of it still holds.
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
        """Return the output watermark: the least of the keys'."""
        return min([self.watermark, *(window.end - 1 for window, cells in self._on_time.items() if cells)])

    @property
    def records(self) -> dict[Hashable, Record]:
        """Return the records that a grouping would have."""
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


class UpdateKeys(ShortWay):
    """Keys of a grouping whose windows give a pane with each element, and no other.

    Nothing waits between two steps, so that nothing holds the output watermark.

    Its strategies are those of which `is_updates` is true.
    """

    def __init__(self, strategy: Strategy, aggregate: Aggregate, *, watermark: int = MIN) -> None:
        super().__init__(strategy, aggregate, watermark=watermark)
        # By window, and then by key: an accumulator, how many panes there were, and how many of them were late.
        self._cells: dict[Window, dict[Hashable, tuple[Any, int, int]]] = {}

    def _take(self, elements: Elements, outputs: list[Numbered]) -> None:
        watermark, windows = self.watermark, self.strategy.windows
        create, add, result = self.aggregate.create, self.aggregate.add, self.aggregate.result
        keeps = self.strategy.panes == "accumulating"
        early = int(Timing.EARLY)
        window = stretch = Window(MIN, MIN)
        current: dict[Hashable, tuple[Any, int, int]] = {}
        for number, (key, at, value) in elements:
            if not stretch.start <= at < stretch.end:
                around = windows.stretch(at)
                found = () if around is None else tuple(windows.assign(at, value, (GLOBAL,)))
                stretch = Window(MIN, MIN) if around is None or len(found) != 1 else around
                if found:
                    window, current = found[0], self._cells.setdefault(found[0], {})
            if at < watermark or stretch.end == MIN:
                outputs += [(number, output) for output in self._element(key, at, value)]
                continue
            accumulator, panes, late = current.get(key) or (create(), 0, 0)
            accumulator = add(accumulator, value)
            firing = Firing(result(accumulator), window, window.end - 1, early, panes, -1, False)
            current[key] = (accumulator if keeps else create(), panes + 1, late)
            outputs.append((number, firing))

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
        """Advance the input watermark and drop the windows that expire; give no pane."""
        if to > self.watermark:
            self.watermark = to
            for window in [window for window in self._cells if self.strategy.expiry(window) < to]:
                del self._cells[window]
        return []

    @property
    def output(self) -> int:
        """Return the output watermark: the input watermark."""
        return self.watermark

    @property
    def records(self) -> dict[Hashable, Record]:
        """Return the records that a grouping would have."""
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


class SessionKeys(ShortWay):
    """The keys of sessions that give one pane each, at their end.

    Without lateness all of it is on time.

    Its strategies are those of which `is_sessions` is true.
    """

    def __init__(self, strategy: Strategy, aggregate: Aggregate, *, watermark: int = MIN) -> None:
        super().__init__(strategy, aggregate, watermark=watermark)
        assert isinstance(strategy.windows, Sessions)
        self._gap = strategy.windows.gap
        # By key: start, end, accumulator and count of each session, in the order of time.
        self._open: dict[Hashable, list[tuple[int, int, Any, int]]] = {}
        # When to look at a key: not before any of its sessions ends, though perhaps too soon.
        self._ends: list[tuple[int, int, Hashable]] = []
        self._entries = 0

    def _take(self, elements: Elements, outputs: list[Numbered]) -> None:
        watermark, gap, open = self.watermark, self._gap, self._open
        add, create = self.aggregate.add, self.aggregate.create
        for number, (key, at, value) in elements:
            if at + gap <= watermark:
                outputs.append((number, Drop(value, at, "lateness", Window(at, at + gap))))
                continue
            sessions = open.get(key)
            if sessions is None:
                open[key] = [(at, at + gap, add(create(), value), 1)]
                self._look_at(key, at + gap)
            else:
                start, end, accumulator, count = sessions[-1]
                if start <= at < end:
                    sessions[-1] = (start, max(end, at + gap), add(accumulator, value), count + 1)
                else:
                    self._insert(key, sessions, at, value)
            if at < watermark:
                outputs.append((number, Late(value, at)))

    def _insert(self, key: Hashable, sessions: list[tuple[int, int, Any, int]], at: int, value: Any) -> None:
        """Put an element anywhere among the sessions of its key."""
        start, end = at, at + self._gap
        met = [session for session in sessions if session[0] < end and start < session[1]]
        if not met:
            sessions.append((start, end, self.aggregate.add(self.aggregate.create(), value), 1))
            self._look_at(key, end)
        else:
            accumulator = met[0][2]
            for session in met[1:]:
                accumulator = self.aggregate.merge(accumulator, session[2])
            joined = (
                min(start, met[0][0]),
                max(end, met[-1][1]),
                self.aggregate.add(accumulator, value),
                sum(session[3] for session in met) + 1,
            )
            sessions[:] = [session for session in sessions if not (session[0] < end and start < session[1])]
            sessions.append(joined)
        sessions.sort(key=lambda session: session[0])

    def _look_at(self, key: Hashable, end: int) -> None:
        self._entries += 1
        heappush(self._ends, (end, self._entries, key))

    def advance(self, to: int) -> list[Keyed]:
        """Move the input watermark; return the panes of sessions that end."""
        if to <= self.watermark:
            return []
        entries: list[tuple[int, int, Hashable]] = []
        found: list[tuple[tuple[int, int], int, bytes, Hashable, Any]] = []
        ended: dict[Hashable, int] = {}
        try:
            while self._ends and self._ends[0][0] <= to:
                entries.append(heappop(self._ends))
                key = entries[-1][2]
                if key in ended:
                    continue
                sessions = self._open.get(key, [])
                ended[key] = count = sum(end <= to for _, end, _, _ in sessions)
                for start, end, accumulator, _ in sessions[:count]:
                    value = self.aggregate.result(accumulator)
                    found.append(((end, start), rank_of(key), canonical(key), key, value))
        except BaseException:
            for entry in entries:
                heappush(self._ends, entry)
            raise
        for key, count in ended.items():
            rest = self._open.get(key, [])[count:]
            if rest:
                self._open[key] = rest
                for _, end, _, _ in rest:
                    self._look_at(key, end)
            else:
                self._open.pop(key, None)
        self.watermark = to
        found.sort(key=lambda each: each[:3])
        return [
            (
                key,
                Firing(value, Window(place[1], place[0]), place[0] - 1, int(Timing.ON_TIME), 0, 0, True, False, place),
            )
            for place, _, _, key, value in found
        ]

    @property
    def output(self) -> int:
        """Return the output watermark: the input watermark."""
        return self.watermark

    @property
    def records(self) -> dict[Hashable, Record]:
        """Return the records that a grouping would have."""
        return {
            key: Record(
                tuple(
                    Cell(Window(start, end), accumulator, count, end - 1, None, (), None, False, ())
                    for start, end, accumulator, count in sessions
                )
            )
            for key, sessions in self._open.items()
        }

    def restore(self, records: Mapping[Hashable, Record]) -> None:
        """Go on from records of a snapshot, those of a grouping, too."""
        for key, record in records.items():
            self._open[key] = [(*cell.window, cell.accumulator, cell.fresh) for cell in record.open]
            for cell in record.open:
                self._look_at(key, cell.window.end)
