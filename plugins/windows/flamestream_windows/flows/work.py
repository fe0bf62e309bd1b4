"""Work of ordered operations on event time: engine steps by key, in core order.

Panes that a watermark makes due are emitted in the order in which they were due: by the watermark that they waited for,
then by the start of the window, then by key. A step of the engine makes all panes of a key at once, so those that are
due behind the panes of other keys wait in the state of the key; until the mark has been worked on, and never in a
snapshot.

Processing time is the global time of what is worked on.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

from flamecore.abc.operator import Record as Kept
from flamecore.abc.operator import Work
from flamecore.model.ordered import KEPT, Now, Outcome, Timer
from flamestream_windows.engine import values
from flamestream_windows.engine.functions import FnRecord, Function
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.tree import every, find, row_of
from flamestream_windows.engine.values import Clock, Drop, Element, Emit, Firing, Late, Moment, Record, Watermark
from flamestream_windows.flows.cells import group_cells
from flamestream_windows.flows.slim import alike
from flamestream_windows.flows.stamps import DROPPED, LATE, RETRACTION, VALUE, Form
from flamestream_windows.model.contents import spelled
from flamestream_windows.model.panes import Dropped, Pane, Timing
from flamestream_windows.model.times import MAX, MIN
from flamestream_windows.model.windows import GLOBAL, Window

Stamp = tuple[int, int, Any]
Turn = tuple[int, int]
"""(watermark, tag) of a timer."""

_TIMING: Final = tuple(Timing)
_ALL: Final = (GLOBAL,)


class Waiting(NamedTuple):
    """The state of a key in the midst of a mark.

    Attributes:
        record: The record behind the mark.
        outputs: The outputs of the mark, with their turns, in order.
        first: Number of those that have come. The others are due behind outputs of other keys.
    """

    record: Any
    outputs: Sequence[tuple[Turn, Stamp]]
    first: int


class TimedWork(Work):
    """The work of a step of the engine.

    Args:
        step: The grouping or function.
        form: Location of the times in payloads.
        keeps_windows: Whether elements are panes that stay in their windows.
    """

    _step: Any

    def __init__(self, step: Grouping | Function, form: Form, keeps_windows: bool = False) -> None:
        self._step = step
        self._lenient: Any = replace(step, lenient=True)
        self._nothing = step.nothing
        self._at, self._value, self._kind = form
        self._keeps_windows = keeps_windows

    def timed(self, payload: Any) -> tuple[int, Any]:
        """Return the time and the value of a payload."""
        return self._at(payload), payload if self._value is None else self._value(payload)

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        value = payload if self._value is None else self._value(payload)
        retraction = self._kind is not None and self._kind(payload) == RETRACTION
        windows = (value.window,) if self._keeps_windows else _ALL
        moment = Moment(_engine(now.watermark), now.time)
        before = self._nothing if state is None else self._spelled(state)
        element = Element(value, self._at(payload), windows, retraction)
        record, outputs = self._step.step(before, element, moment, key)
        stamps = [_stamp(key, output) for output in outputs]
        for kind, _, _ in stamps:
            self._count(kind)
        if state is not None and self._waits_alike(before, record):
            return Outcome(self._stored(record), stamps, KEPT)
        return self._outcome(record, moment, stamps)

    def _count(self, kind: int) -> None:
        """Count an item that is told beside the panes."""
        self.late += kind == LATE
        self.dropped += kind == DROPPED

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        return self._timed(self._step, key, state, timer, now)

    def leave_out(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome | None:
        # Windows, and timers of functions, are in the state: they would be due with whatever comes next.
        return self._timed(self._lenient, key, state, timer, now)

    def _timed(self, step: Any, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        to = _engine(now.watermark)
        moment = Moment(to, now.time)
        state = self._spelled(state)
        if not timer.mark:
            record, outputs = self._tick(step, state, timer, moment, key)
            return self._outcome(record, moment, [_stamp(key, output) for output in outputs])
        waiting: Sequence[tuple[Turn, Stamp]]
        first = 0
        if type(state) is Waiting:
            record, waiting, first = state
        else:
            before = Moment(_engine(now.before), now.time)
            record, outputs = step.step(state, Watermark(to), before, key)
            turns = [self._turn(state, output, before) for output in outputs]
            stamped = [(turn, _stamp(key, output)) for turn, output in zip(turns, outputs, strict=True)]
            waiting = tuple(sorted(stamped, key=itemgetter(0)))
        end = bisect_right(waiting, (timer.time, timer.tag), lo=first, key=itemgetter(0))
        left = Waiting(record, waiting, end) if end < len(waiting) else None
        return self._outcome(record, moment, [stamp for _, stamp in waiting[first:end]], left)

    def _outcome(
        self, record: Any, moment: Moment, outputs: Sequence[Stamp], waiting: Waiting | None = None
    ) -> Outcome:
        if record is self._nothing and waiting is None:
            return Outcome(None, outputs)
        timers = self._timers(record, moment)
        if waiting is None:
            return Outcome(self._stored(record), outputs, timers, self._hold(record))
        timers.append(Timer(*waiting.outputs[waiting.first][0], True))  # then comes the next
        return Outcome(waiting, outputs, timers, self._hold(record))

    def _hold(self, record: Any) -> int | None:
        """Return where a record holds the marks."""
        hold: int | None = self._step.hold(record)
        return hold

    def _stored(self, record: Any) -> Any:
        """Return a record as the state of its key."""
        return record

    def _spelled(self, state: Any) -> Any:
        """Return the record of a state."""
        return state

    def _waits_alike(self, before: Any, record: Any) -> bool:
        """Return whether a record is known to hold and wait for the same as one before it."""
        return False

    def held(self, state: Any) -> int:
        if type(state) is Waiting:
            return len(state.outputs) - state.first + self._held(self._spelled(state.record))
        return self._held(self._spelled(state))

    @abstractmethod
    def _held(self, record: Any) -> int:
        """Return the number of elements in a record that have not come out."""

    @abstractmethod
    def _timers(self, record: Any, moment: Moment) -> list[Timer]:
        """Return the watermarks and processing times for which a record waits."""

    @abstractmethod
    def _turn(self, record: Any, output: Any, moment: Moment) -> Turn:
        """Return the watermark for which an output has waited."""

    @abstractmethod
    def _tick(self, step: Any, record: Any, timer: Timer, moment: Moment, key: Any) -> tuple[Any, list[values.Output]]:
        """Return the record after a processing time that it waited for, and the outputs."""


class GroupingWork(TimedWork):
    """The work of a grouping. A window waits by itself: its start is the tag."""

    _step: Grouping

    def __init__(self, step: Grouping, form: Form, keeps_windows: bool = False) -> None:
        super().__init__(step, form, keeps_windows)
        self._alike = alike(step)
        if self._alike is not None:
            self.cells = group_cells(step, form)
            if self.cells is not None:
                self.cells.tell = self._count

    def leave_out(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome | None:
        # A processing time that is past is not due again.
        return super().leave_out(key, state, timer, now) if timer.mark else None

    def stored(self, record: Kept) -> Kept:
        """Return a record with its windows as a tuple, as `Work.stored`."""
        state, timers, hold = record
        if type(state) is not Record or type(state.open) is tuple:
            return record
        return (state._replace(open=(*state.open,)), timers, hold)

    def _stored(self, record: Record) -> Any:
        if self._alike is None or not every(record.open, self._alike.is_alike):
            return record
        return self._alike.slim(record)

    def _spelled(self, state: Any) -> Any:
        if type(state) is Record:
            return state._replace(open=row_of(state.open))
        return state if self._alike is None or type(state) is not tuple else self._alike.spelled(state)

    def _timers(self, record: Record, moment: Moment) -> list[Timer]:
        timers = [Timer(*turn, True) for turn in self._turns(record, moment)]
        if self._step.timed:
            timers += [Timer(*turn) for turn in self._ticks(record, moment)]
        return timers

    def _held(self, record: Record) -> int:
        return sum(cell.fresh for cell in record.open)

    def _turns(self, record: Record, moment: Moment) -> Iterator[Turn]:
        """Yield the watermarks for which a record waits."""
        if self._alike is None or not every(record.open, self._alike.is_alike):
            # The first is enough, as what is due behind it waits for its turn: a key may have thousands of windows.
            if (turn := self._step.turn(record, moment)) is not None:
                yield turn
            return
        for cell in record.open:  # as in columns, where each cell has its turn
            yield self._step.due_of(cell, moment), cell.window.start

    def _turn(self, record: Record, output: Any, moment: Moment) -> Turn:
        end, start = output.place
        cell = find(record.open, Window(start, end))
        assert cell is not None
        return self._step.due_of(cell, moment), start

    def _ticks(self, record: Record, moment: Moment) -> Iterator[Turn]:
        """Yield the processing times for which a record waits."""
        targets = self._step.strategy.trigger.targets
        for cell in record.open:
            yield from ((target, cell.window.start) for target in targets(cell.trigger) if target > moment.clock)

    def _tick(
        self, step: Grouping, record: Record, timer: Timer, moment: Moment, key: Any
    ) -> tuple[Any, list[values.Output]]:
        targets = self._step.strategy.trigger.targets
        outputs: list[values.Output] = []
        due = [cell for cell in record.open if cell.window.start == timer.tag and timer.time in targets(cell.trigger)]
        for cell in due:
            record, found = step.step(record, values.Timer(cell.window), moment)
            outputs += found
        return record, outputs


class FunctionWork(TimedWork):
    """The work of a stateful function."""

    _step: Function

    def stored(self, record: Kept) -> Kept:
        """Return a record with the contents of cells as tuples, as `Work.stored`."""
        state, timers, hold = record
        if type(state) is not FnRecord:
            return record
        exact = [
            cell._replace(
                contents=tuple([(name, spelled(contents)) for name, contents in cell.contents]),
                alarms=spelled(cell.alarms),
            )
            for cell in state.open
        ]
        return (FnRecord(tuple(exact)), timers, hold)

    def _held(self, record: FnRecord) -> int:
        return self._step.held(record)

    def _waits_alike(self, before: FnRecord, record: FnRecord) -> bool:
        return self._step.waits_alike(before, record)

    def _timers(self, record: FnRecord, moment: Moment) -> list[Timer]:
        watermark, clock = self._step.due(record, moment)
        timers = [] if watermark is None else [Timer(watermark, 0, True)]
        if clock is not None:
            timers.append(Timer(clock, 0))
        return timers

    def _turn(self, record: FnRecord, output: Any, moment: Moment) -> Turn:
        return output.place[0], 0

    def _tick(
        self, step: Function, record: FnRecord, timer: Timer, moment: Moment, key: Any
    ) -> tuple[Any, list[values.Output]]:
        return step.step(record, Clock(moment.clock), moment, key)


def _engine(watermark: int) -> int:
    """Return a watermark of the core as one of the engine, whose bounds are narrower."""
    return max(MIN, min(watermark, MAX))


def _stamp(key: Any, output: values.Output) -> Stamp:
    """Return the payload of an output of the engine."""
    if type(output) is Firing:
        value, window, at, timing, number, _, last, retraction, _ = output
        pane: Pane[Any, Any] = Pane(key, value, window, _TIMING[timing], number, last, retraction)
        return (RETRACTION if retraction else VALUE, at, pane)
    if type(output) is Emit:
        return (VALUE, output.at, output.value)
    if type(output) is Late:
        return (LATE, output.at, output.value)
    assert type(output) is Drop
    return (DROPPED, output.at, Dropped(*output))
