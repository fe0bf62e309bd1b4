"""Stretches of elements that come without a watermark between them: all elements of a key at once.

They give what a grouping gives, and change its records as it does. A record is replaced once for all elements of its
key in a stretch, and holds and turns change with a new window only. Elements that are behind the watermark go alone.

Most windows of these groupings are alike but for four values each. A record of such windows only is stored as these, in
a row: then it is a plain tuple, which costs a fraction to make.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap, Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.short import is_final, is_updates
from flamestream_windows.engine.values import Cell, Record
from flamestream_windows.model.aggregates import Count
from flamestream_windows.model.panes import Pane, Timing, made_pane
from flamestream_windows.model.triggers import Look
from flamestream_windows.model.windows import GLOBAL, Calendar, Fixed, Global, Sliding, Window, ordered

Slim = tuple[Any, ...]
"""The start, end, accumulator and number of elements, or of panes, of each open window."""

Kept = tuple[Slim | Record, tuple[tuple[int, int, bool], ...], int | None]
"""(record, turns, hold) of a key. A turn is the watermark for which a window waits, its start, and True."""

_NEW: Final[Callable[..., Any]] = tuple.__new__
_ALL: Final = (GLOBAL,)


class Taken(NamedTuple):
    """The outcome of a stretch.

    Attributes:
        kept: The records of the keys whose turns and holds are as before.
        changed: The records of other keys.
        panes: The panes, one of each element, or none.
    """

    kept: dict[Hashable, Kept]
    changed: dict[Hashable, Kept]
    panes: list[Pane[Any, Any]]


class Stretches(ABC):
    """The work of a grouping on stretches of elements.

    Args:
        grouping: The grouping.
    """

    def __init__(self, grouping: Grouping) -> None:
        self._aggregate = grouping.aggregate
        self._strategy = strategy = grouping.strategy
        self._windows = strategy.windows
        look = Look(False, 0)
        self._fed = strategy.trigger.on_element(strategy.trigger.start(), look)
        self._look = look

    def take(
        self,
        keys: Sequence[Hashable],
        times: Sequence[int],
        values: Sequence[Any],
        watermark: int,
        records: Mapping[Hashable, Any],
    ) -> Taken | Sequence[int]:
        """Take elements; return what they come to, or the numbers of those that have to go alone.

        Args:
            keys: Key of each.
            times: Timestamp of each.
            values: Value of each.
            watermark: The input watermark.
            records: `Kept` of each key before.
        """
        first = min(times)
        if first < watermark:
            return [number for number, at in enumerate(times) if at < watermark]
        taken = Taken({}, {}, [])
        return taken if self._take(keys, times, values, records, taken, first) else ()

    @abstractmethod
    def _take(
        self,
        keys: Sequence[Hashable],
        times: Sequence[int],
        values: Sequence[Any],
        records: Mapping[Hashable, Any],
        taken: Taken,
        first: int,
    ) -> bool:
        """Take elements that are not late, `first` the first time; return False if all have to go alone."""

    def end(
        self, keys: Sequence[Hashable], turn: int, start: int, to: int, records: Mapping[Hashable, Any]
    ) -> list[tuple[Kept | None, Pane[Any, Any] | None] | None]:
        """End a window of several keys, whose turn has come with a watermark.

        Args:
            keys: The keys.
            turn: The watermark for which the window waits.
            start: The start of the window.
            to: The watermark.
            records: `Kept` of each key before.

        Returns:
            For each key what is left of it, and its last pane, if there is one; None: that is left to the grouping.
        """
        ended: list[tuple[Kept | None, Pane[Any, Any] | None] | None] = []
        window, is_due = Window(start, start), False
        for key in keys:
            record, turns, _ = records[key]
            at = -1
            if type(record) is tuple:
                at = 0
                while at < len(record) and record[at] != start:
                    at += 4
            if not 0 <= at < len(record):
                ended.append(None)
                continue
            if record[at + 1] != window.end:
                window = Window(start, record[at + 1])
                is_due = self._strategy.expiry(window) < to
            if not is_due:
                ended.append(None)
                continue
            pane = self._last(key, record[at + 2], window)
            if len(record) == 4:
                ended.append((None, pane))
                continue
            rest = (*record[:at], *record[at + 4 :])
            left = tuple([each for each in turns if each != (turn, start, True)])
            ended.append(((rest, left, self._hold_of(rest)), pane))
        return ended

    def slim(self, record: Record) -> Slim | Record:
        """Return a record as it is stored."""
        found: list[Any] = []
        for window, accumulator, fresh, hold, late, state, pane, behind, outstanding in record[0]:
            number = self._number(fresh, pane)
            found += (*window, accumulator, number)
            rest = (hold, late, state, pane, behind, outstanding)
            if fresh != self._fresh(number) or rest != self._alike(window, number):
                return record
        return record if record[1] else tuple(found)

    def spelled(self, stored: Slim | Record) -> Record:
        """Return a record that is stored."""
        if type(stored) is not tuple:
            assert isinstance(stored, Record)
            return stored
        return Record(tuple([self._cell(*stored[at : at + 4]) for at in range(0, len(stored), 4)]))

    def _cell(self, start: int, end: int, accumulator: Any, number: int) -> Cell:
        window = Window(start, end)
        return Cell(window, accumulator, self._fresh(number), *self._alike(window, number))

    @abstractmethod
    def _number(self, fresh: int, pane: tuple[int, int, int] | None) -> int:
        """Return the number that tells how many elements are fresh and which panes there were."""

    @abstractmethod
    def _fresh(self, number: int) -> int:
        """Return how many elements are fresh."""

    @abstractmethod
    def _alike(self, window: Window, number: int) -> tuple[Any, ...]:
        """Return what windows have in common that are stored as four values: all of a cell behind `fresh`."""

    @abstractmethod
    def _hold_of(self, slim: Slim) -> int | None:
        """Return where a key holds the output watermark."""

    @abstractmethod
    def _last(self, key: Hashable, accumulator: Any, window: Window) -> Pane[Any, Any] | None:
        """Return the pane that a window gives when it expires."""


class FinalStretches(Stretches):
    """Stretches where a window gives one pane, when it expires."""

    def __init__(self, grouping: Grouping) -> None:
        super().__init__(grouping)
        self._apart = not isinstance(self._windows, Sliding)

    def _take(
        self,
        keys: Sequence[Hashable],
        times: Sequence[int],
        values: Sequence[Any],
        records: Mapping[Hashable, Any],
        taken: Taken,
        first: int,
    ) -> bool:
        stretch, assign = self._windows.stretch, self._windows.assign
        around = stretch(first)
        if around is None:
            return False
        if max(times) < around[1]:
            return self._add(ordered(assign(first, None, _ALL)), keys, values, records, taken)
        if not self._apart:
            return self._mix(keys, times, values, records, taken)
        # By window: an element is in one, so elements of another may go in before.
        parts: dict[Window, tuple[list[Hashable], list[Any]]] = {}
        start = end = 0
        for key, at, value in zip(keys, times, values, strict=True):
            if not start <= at < end:
                around = stretch(at)
                if around is None:
                    return False
                start, end = around
                some, those = parts.setdefault(around, ([], []))
            some.append(key)
            those.append(value)
        found = ChainMap(taken.changed, taken.kept, records)  # type: ignore[arg-type]  # records are only read
        return all(self._add([window], some, those, found, taken) for window, (some, those) in parts.items())

    def _mix(
        self,
        keys: Sequence[Hashable],
        times: Sequence[int],
        values: Sequence[Any],
        records: Mapping[Hashable, Any],
        taken: Taken,
    ) -> bool:
        """Add elements of windows that overlap, in their order."""
        several: dict[Hashable, dict[Window, list[Any]]] = {}
        windows: Sequence[Window] = ()
        start = end = 0
        for key, at, value in zip(keys, times, values, strict=True):
            if not start <= at < end:
                around = self._windows.stretch(at)
                windows = ordered(self._windows.assign(at, None, _ALL))
                if around is None or not windows:
                    return False
                start, end = around
            adds = several.get(key)
            if adds is None:
                adds = several[key] = {}
            for window in windows:
                those = adds.get(window)
                if those is None:
                    adds[window] = [value]
                else:
                    those.append(value)
        return all(self._put(key, records.get(key), adds.items(), taken) for key, adds in several.items())

    def _add(
        self,
        windows: Sequence[Window],
        keys: Sequence[Hashable],
        values: Sequence[Any],
        records: Mapping[Hashable, Any],
        taken: Taken,
    ) -> bool:
        """Add elements of the same windows."""
        kept, changed, _ = taken
        add, counts = self._aggregate.add_all, type(self._aggregate) is Count
        several: dict[Hashable, Any] = {}
        if counts:
            several = dict(Counter(keys))
        else:
            for key, value in zip(keys, values, strict=True):
                if (those := several.get(key)) is None:
                    several[key] = [value]
                else:
                    those.append(value)
        if not windows:
            return False
        start, end = windows[0]
        only = len(windows) == 1
        turns: tuple[tuple[int, int, bool], ...] = (self._turn(windows[0]),)
        create, get = self._aggregate.create, records.get
        fresh = not kept and not changed  # then no key has been here before
        for key, those in several.items():
            number: int = those if counts else len(those)
            found = get(key)
            if found is None:
                if only:
                    changed[key] = ((start, end, those if counts else add(create(), those), number), turns, end - 1)
                    continue
            elif only:
                stored, old, hold = found
                if type(stored) is tuple and stored[-4] == start:
                    accumulator = stored[-2] + those if counts else add(stored[-2], those)
                    slim = (start, end, accumulator, stored[-1] + number)
                    if len(stored) > 4:
                        slim = (*stored[:-4], *slim)
                    if fresh or key not in changed:
                        kept[key] = (slim, old, hold)
                    else:
                        changed[key] = (slim, old, hold)
                    continue
            those = range(those) if counts else those
            if not self._put(key, found, [(window, those) for window in windows], taken):
                return False
        return True

    def _put(
        self, key: Hashable, found: Kept | None, adds: Iterable[tuple[Window, Sequence[Any]]], taken: Taken
    ) -> bool:
        """Add elements of one key to windows; return False if they have to go alone."""
        kept, changed, _ = taken
        after = self._added(found, adds)
        if after is None:
            return False
        if found is not None and after[1] == found[1] and key not in changed:
            kept[key] = (after[0], found[1], found[2])
        else:
            changed[key] = after
            kept.pop(key, None)
        return True

    def _added(self, found: Kept | None, adds: Iterable[tuple[Window, Sequence[Any]]]) -> Kept | None:
        """Return the record of a key with elements added to windows; None: they have to go alone."""
        create, add = self._aggregate.create, self._aggregate.add_all
        stored, turns, hold = ((), (), None) if found is None else found
        if type(stored) is tuple:
            slim, new = [*stored], list[tuple[int, int, bool]]()
            for window, values in adds:
                start, end = window
                at = len(slim) - 4
                while at >= 0 and (slim[at + 1], slim[at]) > (end, start):
                    at -= 4
                if at >= 0 and slim[at] == start and slim[at + 1] == end:
                    slim[at + 2] = add(slim[at + 2], values)
                    slim[at + 3] += len(values)
                else:
                    slim[at + 4 : at + 4] = (start, end, add(create(), values), len(values))
                    new.append(self._turn(window))
            return tuple(slim), tuple(sorted((*turns, *new))) if new else turns, slim[1] - 1
        if type(stored) is not Record or stored.closed:
            return None
        cells = {cell.window: cell for cell in stored.open}
        for window, values in adds:
            cell = cells.get(window)
            if cell is None:
                cell = self._cell(*window, create(), 0)
                turns = tuple(sorted((*turns, self._turn(window))))
                hold = window.end - 1 if hold is None else min(hold, window.end - 1)
            elif cell.hold is None:
                return None
            accumulator = add(cell.accumulator, values)
            cells[window] = cell._replace(accumulator=accumulator, fresh=cell.fresh + len(values))
        return self.slim(Record(tuple([cells[window] for window in ordered(cells)]))), turns, hold

    def _turn(self, window: Window) -> tuple[int, int, bool]:
        return (self._strategy.expiry(window) + 1, window[0], True)

    def _number(self, fresh: int, pane: tuple[int, int, int] | None) -> int:
        return fresh

    def _fresh(self, number: int) -> int:
        return number

    def _alike(self, window: Window, number: int) -> tuple[Any, ...]:
        return (window[1] - 1, None, self._fed, None, False, ())

    def _hold_of(self, slim: Slim) -> int | None:
        found: int = slim[1] - 1  # in the order of ends
        return found

    def _last(self, key: Hashable, accumulator: Any, window: Window) -> Pane[Any, Any] | None:
        return made_pane(key, self._aggregate.result(accumulator), window, Timing.ON_TIME, 0, True)


class UpdateStretches(Stretches):
    """Stretches where a window gives a pane with each element, and an element is in one window."""

    def __init__(self, grouping: Grouping) -> None:
        super().__init__(grouping)
        self._keeps = self._strategy.panes == "accumulating"
        self._fired = self._strategy.trigger.fire(self._fed, self._look)

    def _take(
        self,
        keys: Sequence[Hashable],
        times: Sequence[int],
        values: Sequence[Any],
        records: Mapping[Hashable, Any],
        taken: Taken,
        first: int,
    ) -> bool:
        create, add, result = self._aggregate.create, self._aggregate.add, self._aggregate.result
        keeps, stretch, early, pane = self._keeps, self._windows.stretch, Timing.EARLY, made_pane
        lives: dict[Window, dict[Hashable, tuple[Any, int]]] = {}
        give = taken.panes.append
        start = end = 0
        window = Window(0, 0)
        live: dict[Hashable, tuple[Any, int]] = {}
        for key, at, value in zip(keys, times, values, strict=True):
            if not start <= at < end:
                around = stretch(at)
                if around is None:
                    return False
                window = around
                start, end = window
                live = lives.setdefault(window, {})
            found = live.get(key)
            if found is None:
                accumulator, index = self._before(records.get(key), window)
            else:
                accumulator, index = found
            accumulator = add(accumulator, value)
            give(pane(key, result(accumulator), window, early, index, False))
            live[key] = (accumulator if keeps else create(), index + 1)
        several = len(lives) > 1
        known = ChainMap(taken.changed, taken.kept, records) if several else records  # type: ignore[arg-type]
        return all(self._keep(window, live, known, taken) for window, live in lives.items())

    def _before(self, kept: Any, window: Window) -> tuple[Any, int]:
        """Return the accumulator of a window, and how many panes it has given."""
        if kept is not None:
            stored = kept[0]
            if type(stored) is tuple:
                for at in range(len(stored) - 4, -1, -4):
                    if stored[at] == window[0]:
                        return stored[at + 2], stored[at + 3]
            elif type(stored) is Record:
                for cell in stored.open:
                    if cell.window == window and cell.pane is not None:
                        return cell.accumulator, cell.pane[1] + 1
        return self._aggregate.create(), 0

    def _keep(
        self, window: Window, live: Mapping[Hashable, tuple[Any, int]], records: Mapping[Hashable, Any], taken: Taken
    ) -> bool:
        kept, changed, _ = taken
        start, end = window
        turn = (end, start, True)
        turns: tuple[tuple[int, int, bool], ...] = (turn,)
        for key, (accumulator, panes) in live.items():
            slim = (start, end, accumulator, panes)
            found = records.get(key)
            if found is None:
                changed[key] = (slim, turns, None)
                continue
            stored = found[0]
            if type(stored) is tuple and stored[-4] == start:
                if len(stored) > 4:
                    slim = (*stored[:-4], *slim)
                (changed if key in changed else kept)[key] = (slim, found[1], found[2])
                continue
            if type(stored) not in (tuple, Record) or (record := self.spelled(stored)).closed:
                return False
            cells = {cell.window: cell for cell in record.open}
            is_new = window not in cells
            cells[window] = self._cell(*slim)
            after = self.slim(Record(tuple([cells[each] for each in ordered(cells)])))
            if is_new:
                changed[key] = (after, tuple(sorted((*found[1], turn))), found[2])
                kept.pop(key, None)
            else:
                (changed if key in changed else kept)[key] = (after, found[1], found[2])
        return True

    def _number(self, fresh: int, pane: tuple[int, int, int] | None) -> int:
        return 0 if pane is None else pane[1] + 1

    def _fresh(self, number: int) -> int:
        return 0

    def _alike(self, window: Window, number: int) -> tuple[Any, ...]:
        return (None, None, self._fired, (0, number - 1, -1), False, ())

    def _hold_of(self, slim: Slim) -> int | None:
        return None

    def _last(self, key: Hashable, accumulator: Any, window: Window) -> Pane[Any, Any] | None:
        return None


def stretches(grouping: Grouping) -> Stretches | None:
    """Return what a grouping does with stretches; None: it takes each element alone."""
    strategy = grouping.strategy
    apart = isinstance(strategy.windows, (Fixed, Calendar, Global))
    if is_final(strategy) and (apart or isinstance(strategy.windows, Sliding)):
        return FinalStretches(grouping)
    return UpdateStretches(grouping) if is_updates(strategy) and apart else None
