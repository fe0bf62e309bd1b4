"""Groupings of alike windows: the state of a key is a cell for each open window.

They give what a grouping gives, and change its records as it does; elements of all keys are taken in columns. One that
is behind the watermark goes alone.

A cell is the accumulator and the number of a slim record; of what is counted, the count.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, cast

from flamecore.abc.operator import Cells, Part, Turn, Watermarks
from flamecore.model.batch import Ascending, ascending, extremes, in_order
from flamecore.model.ordered import Now, Timer
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.flows.slim import Slim
from flamestream_windows.flows.stamps import DROPPED, LATE, VALUE, Form
from flamestream_windows.model.aggregates import Count
from flamestream_windows.model.panes import Dropped, Pane, Timing, panes_of
from flamestream_windows.model.windows import GLOBAL, Calendar, Fixed, Global, Same, Sliding, Window, ordered

Stamp = tuple[int, int, Any]
Found = tuple[Sequence[Part], Sequence[Stamp]] | list[int]

NOTHING: Final[Mapping[Any, Any]] = {}


class GroupCells(Cells):
    """The cells of a grouping.

    Args:
        grouping: The grouping.
        form: Location of the times in payloads.

    Attributes:
        tell: Told each item that is late and taken, or dropped, by its kind.
    """

    def __init__(self, grouping: Grouping, form: Form) -> None:
        self.tell: Callable[[int], object] = _nobody
        self._form = form
        self._aggregate = grouping.aggregate
        self._counts = type(grouping.aggregate) is Count
        self._strategy = strategy = grouping.strategy
        self._windows = strategy.windows

    def take(
        self,
        keys: Sequence[Any],
        payloads: Sequence[Any],
        watermarks: Watermarks,
        cells: Mapping[Turn, Mapping[Any, Any]],
    ) -> Found:
        form = self._form
        if form.kind is not None and any(kinds := [*map(form.kind, payloads)]):
            return [place for place, kind in enumerate(kinds) if kind != VALUE]
        times = in_order(form.times(payloads))
        span, watermark = extremes(times), watermarks[0][1]
        if span[0] < watermark:
            return [place for place, at in enumerate(times) if at < watermark]
        if behind(times, watermarks):
            return []
        values = payloads if form.value is None else [*map(form.value, payloads)]
        return self._take_between(keys, times, values, cells, span, watermark)

    def take_alone(
        self, key: Any, payload: Any, watermark: int, cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> tuple[Sequence[Part], Sequence[Stamp]] | None:
        form = self._form
        if form.kind is not None and form.kind(payload) != VALUE:
            return None
        at, value = form.at(payload), form.shown(payload)
        windows = ordered(self._assigned(at, value))
        if windows and all(self._strategy.expiry(window) < watermark for window in windows):
            dropped = [(DROPPED, at, Dropped(value, at, "lateness", window)) for window in windows]
            for kind, _, _ in dropped:
                self.tell(kind)
            return (), dropped
        # Where a window is over, what comes of it depends on the others of the key, which may hold the marks.
        if not windows or any(window.end <= watermark for window in windows):
            return None
        found = self._take_between((key,), (at,), (value,), cells, (at, at), watermark)
        if not isinstance(found, tuple) or at >= watermark:
            return found if isinstance(found, tuple) else None
        self.tell(LATE)
        return found[0], ((LATE, at, value), *found[1])

    def _assigned(self, at: int, value: Any) -> set[Window]:
        """Return the windows of an element."""
        return {*self._windows.assign(at, value, (GLOBAL,))}

    @abstractmethod
    def _take_between(
        self,
        keys: Sequence[Any],
        times: Sequence[int],
        values: Sequence[Any],
        cells: Mapping[Turn, Mapping[Any, Any]],
        span: tuple[int, int],
        watermark: int,
    ) -> Found:
        """Take elements whose windows are not over.

        Args:
            keys: Key of each.
            times: Time of each.
            values: Value of each.
            cells: The cells of each turn before, by key.
            span: The least and the greatest of the times.
            watermark: The watermark before the first of them.
        """


class WindowCells(GroupCells):
    """Cells of windows that do not join: one for each open window."""

    def __init__(self, grouping: Grouping, form: Form) -> None:
        super().__init__(grouping, form)
        windows = self._windows
        self._size = windows.size if isinstance(windows, (Fixed, Sliding)) else None

    def _take_between(
        self,
        keys: Sequence[Any],
        times: Sequence[int],
        values: Sequence[Any],
        cells: Mapping[Turn, Mapping[Any, Any]],
        span: tuple[int, int],
        watermark: int,
    ) -> Found:
        first, last = span
        around = self._windows.stretch(first)
        if around is None:
            return []
        if last < around[1]:
            return self._take_alike(keys, first, values, cells)
        return self._take(keys, times, values, cells)

    @abstractmethod
    def _take_alike(
        self, keys: Sequence[Any], at: int, values: Sequence[Any], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        """Take elements that have the windows of a time."""

    @abstractmethod
    def _take(
        self, keys: Sequence[Any], times: Sequence[int], values: Sequence[Any], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        """Take elements."""

    def _turn(self, window: Window) -> Turn:
        return (self._strategy.expiry(window) + 1, window[0])

    def _window(self, turn: Turn) -> Window:
        """Return the window that waits for a turn."""
        start = turn[1]
        if self._size is not None:
            return Window(start, start + self._size)
        window = self._windows.stretch(start)
        assert window is not None
        return window

    # -- records ---------------------------------------------------------------------------------------------------

    def joined(self, cells: Sequence[tuple[Turn, Any]]) -> Slim:
        found: list[Any] = []
        for turn, cell in cells:
            found += self._window(turn)
            found += self._spread(cell)
        return tuple(found)

    def parted(self, state: Any, turns: Sequence[Turn]) -> Sequence[Any] | None:
        if type(state) is not tuple or len(state) != 4 * len(turns):
            return None
        found: dict[Window, Any] = {}
        for at in range(0, len(state), 4):
            start, end, accumulator, number = state[at : at + 4]
            found[Window(start, end)] = self._gathered(accumulator, number)
        cells = [found.get(self._window(turn)) for turn in turns]
        return None if None in cells or not all(map(self._is_turn, turns)) else cells

    def _is_turn(self, turn: Turn) -> bool:
        """Return whether the window of a turn waits for it."""
        return turn == self._turn(self._window(turn))

    def _spread(self, cell: Any) -> tuple[Any, int]:
        """Return the accumulator and the number of a cell."""
        return cell  # type: ignore[no-any-return]

    def _gathered(self, accumulator: Any, number: int) -> Any:
        """Return the cell of an accumulator and a number; None: there is none."""
        return (accumulator, number)


class FinalCells(WindowCells):
    """Cells of windows that give one pane, when they expire."""

    def _take_alike(
        self, keys: Sequence[Any], at: int, values: Sequence[Any], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        turns = self._turns(at)
        if not turns:
            return []
        if self._counts and len(turns) == 1:
            return [_counted(turns[0], keys)], ()
        new: dict[Turn, dict[Any, Any]] = {}
        self._add(new, turns, keys, values, cells)
        return [replaced(turn, found) for turn, found in new.items()], ()

    def _take(
        self, keys: Sequence[Any], times: Sequence[int], values: Sequence[Any], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        several = self._in_stretches(keys, times, values)
        if several is None:
            return []
        new: dict[Turn, dict[Any, Any]] = {}
        parts: list[Part] = []
        for at, some, those in several:
            turns = self._turns(at)
            if not turns:
                return []
            if self._counts and len(turns) == 1 and not isinstance(self._windows, Sliding):
                parts.append(_counted(turns[0], some))
            else:
                self._add(new, turns, some, those, cells)
        return [*parts, *[replaced(turn, found) for turn, found in new.items()]], ()

    def _in_stretches(
        self, keys: Sequence[Any], times: Sequence[int], values: Sequence[Any]
    ) -> Sequence[tuple[int, Sequence[Any], Sequence[Any]]] | None:
        """Return elements of the same windows together; None: one of them has no stretch.

        Each of the results is the time of the first of them, their keys and their values.
        """
        stretch = self._windows.stretch
        if ascending(times):  # as mostly: then they need not be gone through one by one
            found = []
            first, count = 0, len(times)
            values = () if self._counts else values  # where only keys are counted, no value is looked at
            while first < count:
                around = stretch(times[first])
                if around is None:
                    return None
                behind = bisect_left(times, around[1], first)
                found.append((times[first], keys[first:behind], values[first:behind]))
                first = behind
            return found
        # Counted elements, and those in one window only, need not be added in their order among those of others.
        several: list[tuple[int, list[Any], list[Any]]] = []
        known: dict[int, tuple[int, list[Any], list[Any]]] = {}
        apart = not self._counts and isinstance(self._windows, Sliding)
        start = end = 0
        for key, at, value in zip(keys, times, values, strict=True):
            if not start <= at < end:
                around = stretch(at)
                if around is None:
                    return None
                start, end = around
                if apart or start not in known:
                    known[start] = (at, [], [])
                    several.append(known[start])
                _, some, those = known[start]
            some.append(key)
            those.append(value)
        return several

    def _add(
        self,
        new: dict[Turn, dict[Any, Any]],
        turns: Iterable[Turn],
        keys: Sequence[Any],
        values: Sequence[Any],
        cells: Mapping[Turn, Mapping[Any, Any]],
    ) -> None:
        """Add elements of the same windows to new cells, in their order."""
        if self._counts:
            counts = Counter(keys)
            for turn in turns:
                before, after = cells.get(turn, NOTHING), new.get(turn)
                if after is None:
                    new[turn] = {key: before.get(key, 0) + number for key, number in counts.items()}
                    continue
                for key, number in counts.items():
                    after[key] = (after.get(key) or before.get(key, 0)) + number
            return
        create, add = self._aggregate.create, self._aggregate.add_all
        several = by_key(keys, values)
        for turn in turns:
            before = cells.get(turn, NOTHING)
            after = new.setdefault(turn, {})
            for key, those in several.items():
                found = after.get(key) or before.get(key)
                if found is None:
                    after[key] = (add(create(), those), len(those))
                else:
                    after[key] = (add(found[0], those), found[1] + len(those))

    def _turns(self, at: int) -> list[Turn]:
        """Return the turns of the windows of a time."""
        windows = self._windows
        if isinstance(windows, Sliding):
            return [self._turn(window) for window in windows.assign(at, None, ())]
        window = windows.stretch(at)
        assert window is not None
        return [self._turn(window)]

    def end(self, keys: Sequence[Any], cells: Mapping[Any, Any], timer: Timer, now: Now) -> list[Stamp]:
        window = self._window(timer[:2])
        if self._counts:
            values: Iterable[Any] = map(cells.__getitem__, keys)
        else:
            result = self._aggregate.result
            values = [result(cells[key][0]) for key in keys]
        return stamped(window, panes_of(window, Timing.ON_TIME, keys, values, repeat(0), last=True))

    def hold(self, turn: Turn) -> int:
        return self._window(turn)[1] - 1

    def _spread(self, cell: Any) -> tuple[Any, int]:
        return (cell, cell) if self._counts else cell

    def _gathered(self, accumulator: Any, number: int) -> Any:
        if not self._counts:
            return (accumulator, number)
        return accumulator if accumulator == number else None


class AgainCells(FinalCells):
    """Cells of panes that are grouped again by their windows, and give one pane when these expire."""

    def _take_between(
        self,
        keys: Sequence[Any],
        times: Sequence[int],
        values: Sequence[Any],
        cells: Mapping[Turn, Mapping[Any, Any]],
        span: tuple[int, int],
        watermark: int,
    ) -> Found:
        return self._take(keys, times, values, cells)

    def _take(
        self, keys: Sequence[Any], times: Sequence[int], values: Sequence[Any], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        several: dict[Window, tuple[list[Any], list[Any]]] = {}
        window: Window | None = None
        for key, value, at in zip(keys, values, times, strict=True):
            if value.window is not window:
                window = value.window
                # The time of such a pane is the last instant of its window, unless it is of another making.
                if at != window[1] - 1 or self._window(self._turn(window)) != window:
                    return []
                some, those = several.setdefault(window, ([], []))
            some.append(key)
            those.append(value)
        new: dict[Turn, dict[Any, Any]] = {}
        for window, (some, those) in several.items():
            self._add(new, [self._turn(window)], some, those, cells)
        return [replaced(turn, found) for turn, found in new.items()], ()

    def _assigned(self, at: int, value: Any) -> set[Window]:
        return {value.window}

    def _window(self, turn: Turn) -> Window:
        # Windows of any size: the turn tells the end, unless that is at the end of time.
        return Window(turn[1], turn[0] - self._strategy.lateness)


class UpdateCells(WindowCells):
    """Cells of windows that give a pane with each element.

    An element is in one window.
    """

    def __init__(self, grouping: Grouping, form: Form) -> None:
        super().__init__(grouping, form)
        self._keeps = self._strategy.panes == "accumulating"
        # The count of a window that gives a pane with each element is the number of its panes: one number, and no
        # tuple, for each of very many cells.
        self._plain = self._counts and self._keeps

    def _take_alike(
        self, keys: Sequence[Any], at: int, values: Sequence[Any], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        if not self._plain:
            return self._take(keys, (at,) * len(keys), values, cells)
        window = self._windows.stretch(at)
        assert window is not None
        turn = self._turn(window)
        after: dict[Any, int] = {}
        return [replaced(turn, after)], self._counted(keys, window, cells.get(turn, NOTHING), after)

    def _counted(
        self, keys: Sequence[Any], window: Window, before: Mapping[Any, int], after: dict[Any, int]
    ) -> list[Stamp]:
        """Count elements of one window, and return their panes.

        Args:
            keys: The key of each.
            window: The window.
            before: The cells of the window before.
            after: The new cells so far, to which those of the keys are added.
        """
        newest, known = after.get, before.get
        indexes: list[int] = []
        counts: list[int] = []
        add, add_count = indexes.append, counts.append
        for key in keys:
            index = newest(key)
            if index is None:
                index = known(key, 0)
            add(index)
            after[key] = count = index + 1
            add_count(count)
        return stamped(window, panes_of(window, Timing.EARLY, keys, counts, indexes, last=False))

    def _take(
        self, keys: Sequence[Any], times: Sequence[int], values: Sequence[Any], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        if self._plain:
            return self._take_counted(keys, times, cells)
        create, add, result = self._aggregate.create, self._aggregate.add, self._aggregate.result
        keeps, stretch, counts = self._keeps, self._windows.stretch, self._counts
        new: dict[Turn, dict[Any, tuple[Any, int]]] = {}
        stretches: list[tuple[int, Window]] = []  # the place of the first element of each, and its window
        given: list[Any] = []
        indexes: list[int] = []
        start = end = 0
        for key, at, value in zip(keys, times, values, strict=True):
            if not start <= at < end:
                window = stretch(at)
                if window is None:
                    return []
                start, end = window
                turn = self._turn(window)
                after, before = new.setdefault(turn, {}), cells.get(turn, NOTHING)
                stretches.append((len(indexes), window))
            accumulator, index = after.get(key) or before.get(key) or (create(), 0)
            accumulator = accumulator + 1 if counts else add(accumulator, value)
            given.append(accumulator if counts else result(accumulator))
            indexes.append(index)
            after[key] = (accumulator if keeps else create(), index + 1)
        stamps: list[Stamp] = []
        firsts = [first for first, _ in stretches]
        for (first, window), behind in zip(stretches, [*firsts[1:], len(keys)], strict=True):
            part = slice(first, behind)
            stamps += stamped(
                window, panes_of(window, Timing.EARLY, keys[part], given[part], indexes[part], last=False)
            )
        return [replaced(turn, found) for turn, found in new.items()], stamps

    def _take_counted(
        self, keys: Sequence[Any], times: Sequence[int], cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> Found:
        """Take elements that are counted, in stretches of one window each."""
        stretch, count, rising = self._windows.stretch, len(keys), ascending(times)
        new: dict[Turn, dict[Any, int]] = {}
        stamps: list[Stamp] = []
        first = 0
        while first < count:
            window = stretch(times[first])
            if window is None:
                return []
            start, end = window
            behind = bisect_left(times, end, first) if rising else first + 1
            while behind < count and start <= times[behind] < end:
                behind += 1
            turn = self._turn(window)
            stamps += self._counted(keys[first:behind], window, cells.get(turn, NOTHING), new.setdefault(turn, {}))
            first = behind
        return [replaced(turn, found) for turn, found in new.items()], stamps

    def _spread(self, cell: Any) -> tuple[Any, int]:
        return (cell, cell) if self._plain else cell

    def _gathered(self, accumulator: Any, number: int) -> Any:
        if not self._plain:
            return (accumulator, number)
        return accumulator if accumulator == number else None

    def after(self, turn: Turn, cells: Mapping[Any, Any], watermark: int) -> Mapping[Turn, Mapping[Any, Any]]:
        expiry = self._strategy.expiry(self._window(turn))
        return {} if expiry < watermark else {(expiry + 1, turn[1]): cells}

    def end(self, keys: Sequence[Any], cells: Mapping[Any, Any], timer: Timer, now: Now) -> Sequence[Stamp]:
        return ()

    def hold(self, turn: Turn) -> None:
        return None

    def joined(self, cells: Sequence[tuple[Turn, Any]]) -> Slim:
        # A window that is over waits for a later turn than some that are not.
        return super().joined(sorted(cells, key=_start_of))

    def _turn(self, window: Window) -> Turn:
        return (window[1], window[0])

    def _is_turn(self, turn: Turn) -> bool:
        window = self._window(turn)
        return turn[0] in (window[1], self._strategy.expiry(window) + 1)


def behind(times: Sequence[int], watermarks: Watermarks) -> bool:
    """Return whether a time is behind its watermark.

    Args:
        times: The times.
        watermarks: The watermarks among them, which rise.
    """
    rising = type(times) is Ascending
    # Each time is compared with the last watermark before it, which is the greatest.
    end = len(times)
    for start, watermark in reversed(watermarks):
        if start < end and (times[start] if rising else min(times[start:end])) < watermark:
            return True
        end = min(end, start)
    return False


def by_key(keys: Sequence[Any], values: Sequence[Any]) -> Mapping[Any, Sequence[Any]]:
    """Return the values of each key, in their order."""
    if keys[0] == keys[-1] and keys.count(keys[0]) == len(keys):  # often there is one key of all
        return {keys[0]: values}
    several: defaultdict[Any, list[Any]] = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        several[key].append(value)
    return several


def stamped(window: Window, panes: Iterable[Pane[Any, Any]]) -> list[Stamp]:
    """Return the stamps of panes of a window."""
    return [*zip(repeat(VALUE), repeat(window[1] - 1), panes, strict=False)]


def _nobody(kind: int) -> None:
    """Tell nobody."""


def _start_of(cell: tuple[Turn, Any]) -> int:
    return cell[0][1]


def _counted(turn: Turn, keys: Sequence[Any]) -> Part:
    """Return the new cells of keys that are counted in one window."""
    return Part(turn, keys, partial(_count, keys))


def _count(keys: Sequence[Any], cells: dict[Any, Any]) -> None:
    # It counts into any dictionary, at the speed of C.
    Counter.update(cast("Counter[Any]", cells), keys)


def replaced(turn: Turn, found: Mapping[Any, Any]) -> Part:
    return Part(turn, found.keys(), partial(_replace, found))


def _replace(found: Mapping[Any, Any], cells: dict[Any, Any]) -> None:
    cells.update(found)


def group_cells(grouping: Grouping, form: Form) -> GroupCells | None:
    """Return the cells of a grouping; None: its windows are not alike."""
    strategy = grouping.strategy
    if isinstance(strategy.windows, Same):
        return AgainCells(grouping, form) if strategy.is_final else None
    apart = isinstance(strategy.windows, (Fixed, Calendar, Global))
    if strategy.is_final and (apart or isinstance(strategy.windows, Sliding)):
        return FinalCells(grouping, form)
    return UpdateCells(grouping, form) if strategy.is_updates and apart else None
