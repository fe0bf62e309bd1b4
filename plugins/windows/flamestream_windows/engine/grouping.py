"""The grouping step: windows of one key take elements, join, fire, and expire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, assert_never

from flamestream_windows.engine import tree
from flamestream_windows.engine.tree import Row, Tree, rank
from flamestream_windows.engine.values import (
    NOTHING,
    Cell,
    Clock,
    Drop,
    Element,
    Firing,
    Input,
    Late,
    Moment,
    Output,
    Place,
    Record,
    Timer,
    Watermark,
)
from flamestream_windows.model.aggregates import Aggregate
from flamestream_windows.model.panes import Timing
from flamestream_windows.model.strategy import FINAL, Strategy
from flamestream_windows.model.times import MAX
from flamestream_windows.model.triggers import Look, State, walk
from flamestream_windows.model.windows import Sessions, Window, merged, ordered


@dataclass(frozen=True)
class Grouping:
    """A grouping: a strategy, and what the elements of a window come to.

    Attributes:
        strategy: The strategy.
        aggregate: The aggregate.
        lenient: Whether a window on which a function of the user's fails when a watermark comes gives no pane, and
            holds up none of the others. If it has expired it is gone; else it stays as it was.
    """

    strategy: Strategy
    aggregate: Aggregate
    lenient: bool = False

    @property
    def nothing(self) -> Record:
        """Return the initial record of a key."""
        return NOTHING

    @cached_property
    def timed(self) -> bool:
        """Return whether the trigger looks at processing time."""
        return any(each.timed for each in walk(self.strategy.trigger))

    def step(self, record: Record, given: Input, moment: Moment, key: Any = None) -> tuple[Record, list[Output]]:
        """Return the record of a key after an input, and what comes of it, in order.

        If a function of the user raises an error, the record is as it was.

        Args:
            record: The record before.
            given: The input.
            moment: The watermark and the clock before it.
            key: The key, which says nothing here.
        """
        if isinstance(given, Element):
            quick = None if self.strategy.windows.merging else self._quietly(record, given, moment)
            if quick is not None:
                return quick, []
        step = _Step(self, record, moment)
        match given:
            case Element():
                step.element(given)
            case Watermark(to):
                step.watermark(to)
            case Clock(to):
                step.clock(to)
            case Timer(window):
                step.look(window)
            case _:
                assert_never(given)
        return step.result()

    def _quietly(self, record: Record, element: Element, moment: Moment) -> Record | None:
        """Return the record after an element that has no outputs, or None.

        None: take the long way, as for one of several windows, or a late one.

        Most elements have none. The long way says the same of them.
        """
        strategy = self.strategy
        windows = strategy.windows.assign(element.at, element.value, element.windows)
        if type(windows) is not tuple or len(windows) != 1 or element.at < moment.input or record.closed:
            return None
        window = windows[0]
        if strategy.hold(window, element.at) < moment.input or window.end <= moment.input:
            return None
        look = Look(False, moment.clock)
        cell = tree.find(record.open, window) or born(self, window, False)
        if strategy.trigger.ready(strategy.trigger.on_element(cell.trigger, look), look):
            return None
        return Record(tree.put(record.open, accept(self, cell, element, moment.input, moment.input, look)))

    def hold(self, record: Record) -> int | None:
        """Return where a key holds the output watermark, or None."""
        return tree.least_hold(record.open)

    def due(self, record: Record, moment: Moment) -> tuple[int | None, int | None]:
        """Return the next watermark and clock at which a step may do anything."""
        turn, trigger = self.turn(record, moment), self.strategy.trigger
        clocks: list[int] = []
        for cell in record.open if self.timed else ():
            clocks += [target for target in trigger.targets(cell.trigger) if target > moment.clock]
        return None if turn is None else turn[0], min(clocks, default=None)

    def turn(self, record: Record, moment: Moment) -> tuple[int, int] | None:
        """Return the next watermark at which a step may do anything, and the start of the first window due then."""
        trigger, expiry = self.strategy.trigger, self.strategy.expiry
        look = Look(True, moment.clock, self.strategy.windows.merging)
        turns = [(expiry(window) + 1, window.start) for window in record.closed[:1]]
        if isinstance(record.open, Tree):
            turns += self._turns(record.open, moment.input, look)
            return min(turns)
        final = trigger == FINAL
        again: dict[State, bool] = {}  # many windows that are over are in the same state
        expires: Window | None = None
        for cell in record.open:
            window = cell.window
            if not final and moment.input < window.end:
                turns.append((window.end, window.start))
                break  # those behind it end later
            state = cell.trigger
            if not final and state not in again:
                # One that is ready again at once fires with the next step, and that may close the window.
                again[state] = trigger.ready(state, look) and trigger.fire(state, look) != state
            if again.get(state):
                turns.append((moment.input + 1, window.start))
            elif expires is None or window.start < expires.start:  # those behind it expire no earlier
                expires = window
                turns.append((expiry(window) + 1, window.start))
        return min(turns, default=None)

    def _turns(self, open: Tree, input: int, look: Look) -> Iterator[tuple[int, int]]:
        """Yield the turns of many windows, as those of a few: of windows of one state, the first."""
        trigger = self.strategy.trigger
        if trigger == FINAL:
            yield self._expires(open[0].window, open.start)
            return
        for state, end, start, least in open.over(input):
            if trigger.ready(state, look) and trigger.fire(state, look) != state:
                yield input + 1, least
            else:
                yield self._expires(Window(start, end), least)
        for cell in open.behind(input):
            yield rank(cell)
            break  # those behind it end later

    def _expires(self, first: Window, least: int) -> tuple[int, int]:
        """Return when the first of some windows expires, and the least start of those that do then.

        Args:
            first: The first of the windows.
            least: The least start of all.
        """
        expiry = self.strategy.expiry(first)
        # Windows of which none expires before the last watermark expire together.
        return (expiry + 1, first.start if expiry < MAX - 1 else least)

    def due_of(self, cell: Cell, moment: Moment) -> int:
        """Return the next watermark at which a step may do anything with a window."""
        turn = self.turn(Record((cell,)), moment)
        assert turn is not None
        return turn[0]


def born(grouping: Grouping, window: Window, late: bool) -> Cell:
    """Return a window without elements."""
    return Cell(window, grouping.aggregate.create(), 0, None, None, grouping.strategy.trigger.start(), None, late, ())


def accept(grouping: Grouping, cell: Cell, element: Element, input: int, output: int, look: Look) -> Cell:
    """Return a window with one more element.

    Args:
        grouping: The grouping.
        cell: The window before.
        element: The element.
        input: The input watermark.
        output: The output watermark of the key.
        look: The moment.
    """
    window, accumulator, fresh, held, expiry_hold, trigger, pane, late_born, outstanding = cell
    strategy = grouping.strategy
    if element.retraction:
        accumulator = grouping.aggregate.remove(accumulator, element.value)
    else:
        accumulator = grouping.aggregate.add(accumulator, element.value)
    time = strategy.hold(window, element.at)
    if time >= output and window.end > input:
        held = time if held is None else strategy.combine(held, time)
    else:  # too late to matter on time; it has yet to come out before its window expires downstream
        expiry_hold = strategy.expiry(window)
    trigger = strategy.trigger.on_element(trigger, look)
    return Cell(window, accumulator, fresh + 1, held, expiry_hold, trigger, pane, late_born, outstanding)


class _Few(dict[Window, Cell]):
    """A few open windows of a key during a step."""

    def put(self, cell: Cell) -> None:
        """Put in the state of a window, or replace it."""
        self[cell.window] = cell

    def remove(self, window: Window) -> None:
        """Remove the state of a window, which is there."""
        del self[window]

    @property
    def row(self) -> Row:
        """Return the windows, in order."""
        return tree.row_of(tuple([self[window] for window in ordered(self)]))


class _Many:
    """Many open windows of a key during a step.

    Args:
        row: The windows before it.

    Attributes:
        row: The windows now, in order.
    """

    def __init__(self, row: Tree) -> None:
        self.row: Row = row

    def get(self, window: Window) -> Cell | None:
        """Return the state of a window, or None."""
        return tree.find(self.row, window)

    def put(self, cell: Cell) -> None:
        """Put in the state of a window, or replace it."""
        self.row = tree.put(self.row, cell)

    def remove(self, window: Window) -> None:
        """Remove the state of a window, which is there."""
        self.row = tree.remove(self.row, window)


class _Step:
    """A step at work: the windows of a key, changed here, and a new record at the end."""

    def __init__(self, grouping: Grouping, record: Record, moment: Moment) -> None:
        self.grouping = grouping
        self.strategy = grouping.strategy
        self.aggregate = grouping.aggregate
        self.merging = grouping.strategy.windows.merging
        self.before = record
        open = record.open
        self.cells = _Many(open) if isinstance(open, Tree) else _Few(zip([cell[0] for cell in open], open, strict=True))
        self.closed = set(record.closed)
        self.outputs: list[Output] = []
        self.input = moment.input
        self.now = moment.clock
        held = grouping.hold(record)
        self.output = moment.input if held is None else min(moment.input, held)

    def result(self) -> tuple[Record, list[Output]]:
        """Return the record after the step, and the outputs."""
        cells = self.cells.row
        closed = self.before.closed
        if len(closed) != len(self.closed) or not self.closed.issuperset(closed):
            closed = tuple(ordered(self.closed))
        return (Record(cells, closed) if cells or closed else NOTHING), self.outputs

    # Elements

    def element(self, element: Element) -> None:
        """Take an element into its windows, and look at their triggers."""
        windows = set(self.strategy.windows.assign(element.at, element.value, element.windows))
        if not windows:
            self.outputs.append(Drop(element.value, element.at, "no window", None))
            return
        alive = [window for window in windows if self.strategy.expiry(window) >= self.input]
        dropped = [(window, "lateness") for window in windows.difference(alive)]
        taking = self._join(alive) if self.merging else alive
        shut = [window for window in taking if window in self.closed]
        dropped += [(window, "closed window") for window in shut]
        for window, reason in sorted(dropped, key=lambda pair: (pair[0].end, pair[0].start)):
            self.outputs.append(Drop(element.value, element.at, reason, window))  # type: ignore[arg-type]
        taken = [window for window in ordered(taking) if window not in shut]
        if taken and element.at < self.input:
            self.outputs.append(Late(element.value, element.at))
        for window in taken:
            self._accept(window, element)
        for window in taken:
            self.look(window)

    def _accept(self, window: Window, element: Element) -> None:
        cell = self.cells.get(window)
        if cell is None:
            cell = born(self.grouping, window, self.merging and window.end <= self.input)
        self.cells.put(accept(self.grouping, cell, element, self.input, self.output, self._look(window)))

    def _look(self, window: Window) -> Look:
        return Look(self.input >= window.end, self.now, self.merging)

    # Windows that join

    def _join(self, windows: Sequence[Window]) -> list[Window]:
        """Join open windows with new ones; return those that take the element."""
        new = [window for window in windows if self.cells.get(window) is None]
        if not new:
            return list(windows)
        became = {window: window for window in windows}
        for result, members in merged(self.strategy.windows, [*self._around(new), *new]):
            became |= dict.fromkeys((member for member in members if member in became), result)
            sources = [cell for member in members if (cell := self.cells.get(member)) is not None]
            if sources:
                self._merge(result, sources)
        return list(set(became.values()))

    def _around(self, new: Sequence[Window]) -> Iterable[Window]:
        """Return the open windows that may join new ones."""
        if isinstance(self.cells, _Few):
            return self.cells
        if type(self.strategy.windows) is not Sessions:
            return [cell.window for cell in self.cells.row]
        # Sessions that are open lie apart from each other, so that only those around a new one can join.
        found: dict[Window, None] = {}
        for window in new:
            for cell in tree.behind(self.cells.row, window.start):
                if cell.window.start >= window.end:
                    break
                found[cell.window] = None
        return found

    def _merge(self, result: Window, sources: list[Cell]) -> None:
        strategy, aggregate = self.strategy, self.aggregate
        sources.sort(key=lambda cell: (cell.pane is None, cell.window.end, cell.window.start))  # emitted ones first
        own = self.cells.get(result)
        accumulator = sources[0].accumulator
        for cell in sources[1:]:
            accumulator = aggregate.merge(accumulator, cell.accumulator)
        holds = [cell.hold for cell in sources if cell.hold is not None]
        held: int | None = None
        if holds:
            held = result.end - 1 if strategy.time == "end" else max(holds) if strategy.time == "latest" else min(holds)
        fresh = sum(cell.fresh for cell in sources)
        for cell in sources:
            self.cells.remove(cell.window)
        self.closed.discard(result)
        self.cells.put(
            Cell(
                result,
                accumulator,
                fresh,
                held,
                strategy.expiry(result) if fresh and held is None else None,
                strategy.trigger.merge([cell.trigger for cell in sources], self._look(result)),
                None if own is None else own.pane,
                (result.end <= self.input and held is None) if own is None else own.late_born,
                tuple(firing for cell in sources for firing in cell.outstanding),
            )
        )

    # The passing of time

    def watermark(self, to: int) -> None:
        """Fire or give up the windows whose end the watermark has passed."""
        if to <= self.input:
            return
        self.input = to
        open = self.before.open  # a window that is looked at changes, and no other
        expired = True
        for cell in open:
            window = cell.window
            expired = expired and self.strategy.expiry(window) < to  # those behind one that is not expire no earlier
            if window.end > to or not expired:
                break
            self.cells.remove(window)
            self._leniently(self._emit, cell, True, rank(cell))
        if self.strategy.trigger != FINAL and not expired:
            look = Look(True, self.now, self.merging)
            ready: dict[State, bool] = {}  # many of them are in the same state

            def is_ready(state: State) -> bool:
                if state not in ready:
                    ready[state] = self.strategy.trigger.ready(state, look)
                return ready[state]

            for cell in tree.chosen(open, to, is_ready):
                if self.strategy.expiry(cell.window) < to:
                    continue
                self._leniently(self.look, cell.window, rank(cell))
        if self.closed:
            self.closed = {window for window in self.closed if self.strategy.expiry(window) >= to}

    def _leniently(self, do: Callable[..., object], *given: Any) -> None:
        """Do what gives a pane; without one if that fails, and the grouping is lenient."""
        count = len(self.outputs)
        try:
            do(*given)
        except Exception:
            if not self.grouping.lenient:
                raise
            del self.outputs[count:]

    def clock(self, to: int) -> None:
        """Look at the windows whose processing time has come since the last step."""
        before, self.now = self.now, to
        due = []
        for cell in self.cells.row:
            window = cell.window
            targets = [at for at in self.strategy.trigger.targets(cell.trigger) if before < at <= to]
            if targets and self.strategy.expiry(window) >= self.input:
                due.append((min(targets), window.end, window.start))
        for place in sorted(due):
            self.look(Window(place[2], place[1]), place)

    # Panes

    def look(self, window: Window, place: Place = ()) -> None:
        """Fire a window if its trigger is ready."""
        cell = self.cells.get(window)
        look = self._look(window)
        if cell is None or not self.strategy.trigger.ready(cell.trigger, look):
            return
        trigger = self.strategy.trigger.fire(cell.trigger, look)
        finished = self.strategy.trigger.finished(trigger)
        cell = self._emit(cell, finished, place)
        if finished:
            self.cells.remove(window)
            self.closed.add(window)
            return
        promised = self.strategy.expiry(window) if self.strategy.closing == "always" else None
        accumulator = self.aggregate.create() if self.strategy.panes == "discarding" else cell.accumulator
        self.cells.put(
            cell._replace(accumulator=accumulator, fresh=0, hold=None, expiry_hold=promised, trigger=trigger)
        )

    def _emit(self, cell: Cell, last: bool, place: Place) -> Cell:
        """Give a pane, if there is one to give, and return the window with it noted."""
        strategy, window, before = self.strategy, cell.window, cell.pane
        if self.output >= window.end or cell.late_born or (before is not None and before[0] != Timing.EARLY):
            timing = Timing.LATE
        else:
            timing = Timing.EARLY if self.input < window.end else Timing.ON_TIME
        promised = (timing == Timing.ON_TIME and strategy.on_time == "always") or (
            last and strategy.closing == "always"
        )
        if not cell.fresh and not promised:
            return cell
        index, on_time_index = (0, -1) if before is None else (before[1] + 1, before[2])
        on_time_index = -1 if timing == Timing.EARLY else on_time_index + 1
        times = [time for time in (cell.hold, cell.expiry_hold) if time is not None]
        at = min(times, default=window.end - 1)
        if not (strategy.beyond and at == cell.hold):
            at = min(at, window.end - 1)
        value = self.aggregate.result(cell.accumulator)
        firing = Firing(value, window, at, int(timing), index, on_time_index, last, False, place)
        for old in cell.outstanding:
            again = self.aggregate.result(old.value)
            self.outputs.append(old._replace(value=again, retraction=True, place=place))
        self.outputs.append(firing)
        kept = firing._replace(value=cell.accumulator, place=())
        outstanding = (kept,) if strategy.panes == "retracting" else ()
        return cell._replace(pane=(int(timing), index, on_time_index), outstanding=outstanding)
