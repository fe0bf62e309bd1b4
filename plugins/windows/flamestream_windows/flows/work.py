"""The work of ordered operations on event time: steps of the engine, by key, in the order of the core.

What a watermark makes due comes in the order in which it was due: by the watermark that it waited for, then by the
start of its window, then by key. A step of the engine does all of a key at once, so what is due behind other keys waits
in the state of the key; until the mark has been worked on, and never in a snapshot.

Processing time is the global time of what is worked on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flamecore.abc.operator import Stretch, Work
from flamecore.model.ordered import KEPT, Now, Outcome, Timer
from flamestream_windows.engine import values
from flamestream_windows.engine.functions import FnRecord, Function
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.short import is_updates
from flamestream_windows.engine.stretches import Taken, stretches
from flamestream_windows.engine.values import Clock, Drop, Element, Emit, Firing, Late, Moment, Record, Watermark
from flamestream_windows.flows.stamps import DROPPED, LATE, RETRACTION, VALUE, Form
from flamestream_windows.model.panes import Dropped, Pane, Timing, made_pane
from flamestream_windows.model.times import MAX, MIN
from flamestream_windows.model.windows import GLOBAL, Sliding, Window

Stamp = tuple[int, int, Any]
Turn = tuple[int, int]
"""(watermark, tag) of a timer."""

_TIMING: Final = tuple(Timing)
_ALL: Final = (GLOBAL,)


class Waiting(NamedTuple):
    """The state of a key in the midst of a mark.

    Attributes:
        record: The record behind the mark.
        outputs: The outputs that are due behind those of other keys, with their turns, in order.
    """

    record: Any
    outputs: tuple[tuple[Turn, Stamp], ...]


class TimedWork(Work):
    """The work of a step of the engine.

    Args:
        step: The grouping or function.
        form: How payloads tell their times.
        keeps_windows: Whether elements are panes that stay in their windows.
    """

    _step: Any

    def __init__(self, step: Grouping | Function, form: Form, keeps_windows: bool = False) -> None:
        self._step = step
        self._nothing = step.nothing
        self._at, self._value, self._kind = form
        self._keeps_windows = keeps_windows

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        value = payload if self._value is None else self._value(payload)
        retraction = self._kind is not None and self._kind(payload) == RETRACTION
        windows = (value.window,) if self._keeps_windows else _ALL
        moment = Moment(_engine(now.watermark), None, now.time)
        record = self._nothing if state is None else self._spelled(state)
        element = Element(value, self._at(payload), windows, retraction)
        record, outputs = self._step.step(record, element, moment, key)
        return self._outcome(record, moment, [_stamp(key, output) for output in outputs])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        to = _engine(now.watermark)
        moment = Moment(to, None, now.time)
        state = self._spelled(state)
        if not timer.mark:
            record, outputs = self._tick(state, timer, moment, key)
            return self._outcome(record, moment, [_stamp(key, output) for output in outputs])
        waiting: Sequence[tuple[Turn, Stamp]]
        if type(state) is Waiting:
            record, waiting = state
        else:
            before = Moment(_engine(now.before), None, now.time)
            record, outputs = self._step.step(state, Watermark(to), before, key)
            turns = [self._turn(state, output, before) for output in outputs]
            waiting = [(turn, _stamp(key, output)) for turn, output in zip(turns, outputs, strict=True)]
        turn = (timer.time, timer.tag)
        due = [stamp for its, stamp in waiting if its <= turn]
        return self._outcome(record, moment, due, tuple([each for each in waiting if each[0] > turn]))

    def _outcome(
        self, record: Any, moment: Moment, outputs: Sequence[Stamp], waiting: tuple[tuple[Turn, Stamp], ...] = ()
    ) -> Outcome:
        if record is self._nothing and not waiting:
            return Outcome(None, outputs)
        timers = [Timer(*turn, True) for turn in self._turns(record, moment)]
        timers += [Timer(*turn) for turn in self._ticks(record, moment)]
        timers += [Timer(*turn, True) for turn in dict.fromkeys(turn for turn, _ in waiting)]
        stored = Waiting(record, waiting) if waiting else self._stored(record)
        return Outcome(stored, outputs, timers, self._step.hold(record))

    def _stored(self, record: Any) -> Any:
        """Return a record as the state of its key."""
        return record

    def _spelled(self, state: Any) -> Any:
        """Return the record of a state."""
        return state

    @abstractmethod
    def _turns(self, record: Any, moment: Moment) -> Iterator[Turn]:
        """Yield the watermarks for which a record waits."""

    @abstractmethod
    def _turn(self, record: Any, output: Any, moment: Moment) -> Turn:
        """Return the watermark for which an output has waited."""

    @abstractmethod
    def _ticks(self, record: Any, moment: Moment) -> Iterator[Turn]:
        """Yield the processing times for which a record waits."""

    @abstractmethod
    def _tick(self, record: Any, timer: Timer, moment: Moment, key: Any) -> tuple[Any, list[values.Output]]:
        """Return the record after a processing time that it has waited for, and what comes of it."""


class GroupingWork(TimedWork):
    """The work of a grouping. A window waits by itself: its start is the tag."""

    _step: Grouping

    def __init__(self, step: Grouping, form: Form, keeps_windows: bool = False) -> None:
        super().__init__(step, form, keeps_windows)
        # Of windows that do not overlap most items only go into one that is open, and change no timer and no hold.
        self._apart = not isinstance(step.strategy.windows, Sliding)
        self._each = is_updates(step.strategy)
        self._keeps = step.strategy.panes != "discarding"
        self._add, self._result, self._create = step.aggregate.add, step.aggregate.result, step.aggregate.create
        self._form = form
        self._stretches = None if keeps_windows else stretches(step)
        if self._stretches is not None:
            self.process_run, self.on_time_run = self._run, self._end

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        if type(state) is tuple and self._apart and (self._kind is None or self._kind(payload) == VALUE):
            at = self._at(payload)
            for place in range(len(state) - 4, -1, -4):
                if not state[place] <= at < state[place + 1]:
                    continue
                if at < now.watermark:
                    break
                start, end, accumulator, number = state[place : place + 4]
                accumulator = self._add(accumulator, payload if self._value is None else self._value(payload))
                outputs: tuple[Stamp, ...] = ()
                if self._each:
                    pane = made_pane(key, self._result(accumulator), Window(start, end), Timing.EARLY, number, False)
                    outputs = ((VALUE, end - 1, pane),)
                    if not self._keeps:
                        accumulator = self._create()
                slim = (*state[:place], start, end, accumulator, number + 1, *state[place + 4 :])
                return Outcome(slim, outputs, KEPT)
        return super().process(key, state, payload, now)

    def _run(
        self, keys: Sequence[Any], payloads: Sequence[Any], watermark: int, records: Mapping[Any, Any]
    ) -> Stretch | Sequence[int]:
        if self._kind is not None and any(kinds := [*map(self._kind, payloads)]):
            return [place for place, kind in enumerate(kinds) if kind != VALUE]
        assert self._stretches is not None
        values = payloads if self._value is None else [*map(self._value, payloads)]
        found = self._stretches.take(keys, self._form.times(payloads), values, watermark, records)
        if not isinstance(found, Taken):
            return found
        return Stretch(found.kept, found.changed, [*map(_paned, found.panes)], 1)

    def _end(
        self, keys: Sequence[Any], timer: Timer, now: Now, records: Mapping[Any, Any]
    ) -> list[tuple[Any, Sequence[Stamp]] | None]:
        assert self._stretches is not None
        ended = self._stretches.end(keys, timer.time, timer.tag, _engine(now.watermark), records)
        return [
            found if found is None else (found[0], () if (pane := found[1]) is None else (_paned(pane),))
            for found in ended
        ]

    def _stored(self, record: Record) -> Any:
        return record if self._stretches is None else self._stretches.slim(record)

    def _spelled(self, state: Any) -> Any:
        return state if self._stretches is None or type(state) is not tuple else self._stretches.spelled(state)

    def _turns(self, record: Record, moment: Moment) -> Iterator[Turn]:
        for cell in record.open:
            yield self._step.due_of(cell, moment), cell.window.start
        for window in record.closed[:1]:
            yield self._step.strategy.expiry(window) + 1, window.start

    def _turn(self, record: Record, output: Any, moment: Moment) -> Turn:
        end, start = output.place
        return next((self._step.due_of(cell, moment), start) for cell in record.open if cell.window == (start, end))

    def _ticks(self, record: Record, moment: Moment) -> Iterator[Turn]:
        targets = self._step.strategy.trigger.targets
        for cell in record.open:
            yield from ((target, cell.window.start) for target in targets(cell.trigger) if target > moment.clock)

    def _tick(self, record: Record, timer: Timer, moment: Moment, key: Any) -> tuple[Any, list[values.Output]]:
        targets = self._step.strategy.trigger.targets
        outputs: list[values.Output] = []
        due = [cell for cell in record.open if cell.window.start == timer.tag and timer.time in targets(cell.trigger)]
        for cell in due:
            record, found = self._step.step(record, values.Timer(cell.window), moment)
            outputs += found
        return record, outputs


class FunctionWork(TimedWork):
    """The work of a stateful function."""

    _step: Function

    def _turns(self, record: FnRecord, moment: Moment) -> Iterator[Turn]:
        watermark, _ = self._step.due(record, moment)
        if watermark is not None:
            yield watermark, 0

    def _turn(self, record: FnRecord, output: Any, moment: Moment) -> Turn:
        return output.place[0], 0

    def _ticks(self, record: FnRecord, moment: Moment) -> Iterator[Turn]:
        _, clock = self._step.due(record, moment)
        if clock is not None:
            yield clock, 0

    def _tick(self, record: FnRecord, timer: Timer, moment: Moment, key: Any) -> tuple[Any, list[values.Output]]:
        return self._step.step(record, Clock(moment.clock), moment, key)


def _engine(watermark: int) -> int:
    """Return a watermark of the core as one of the engine, whose bounds are narrower."""
    return max(MIN, min(watermark, MAX))


def _paned(pane: Pane[Any, Any]) -> Stamp:
    """Return the payload of a pane whose time is the end of its window."""
    return (VALUE, pane.window[1] - 1, pane)


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
