"""The step of a stateful function: cells and timers by key and window."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from operator import itemgetter
from typing import Any, Final, NamedTuple

from flamecore.errors import ConsistencyError, GraphError
from flamecore.model.clock import moment
from flamestream_windows.engine.values import Clock, Drop, Element, Emit, Input, Late, Moment, Output, Place, Watermark
from flamestream_windows.model.cells import ALARMS, SCOPE, Alarm, Cell, Scope, Stamped, StatefulFn, Timer
from flamestream_windows.model.contents import Held, Version, spelled
from flamestream_windows.model.times import MAX, date_of, duration, instant
from flamestream_windows.model.windows import Global, Window, WindowFn, ordered

LIMIT: Final = 1_000_000
"""Most timers of a key that run in one step. One that sets itself for a time that is over runs for ever."""


_WAITING, _ALARM, _ENDS = range(3)
"""Kinds of what is due at a time, in order: an element of the instant before, a timer, the end of a window."""


Due = tuple[int, int, int, int, str, str]
"""(time, kind, end of the window, its start, name, tag) of what is due."""


class FnCell(NamedTuple):
    """The state of one window.

    Attributes:
        window: The window.
        contents: Name and contents of each cell that is not empty, by name: a tuple where they are stored, or else a
            version of many.
        alarms: Timers that are set, in the order of time, name and tag: a tuple or a version, as contents.
        waiting: Timestamps and values of elements that wait to be put in order, in the order of time.
    """

    window: Window
    contents: tuple[tuple[str, Any], ...]
    alarms: tuple[Alarm, ...] | Any
    waiting: tuple[tuple[int, Any], ...] = ()


class FnRecord(NamedTuple):
    """State of a stateful function for one key.

    Attributes:
        open: Its windows that have contents or timers, in the order of (end, start).
    """

    open: tuple[FnCell, ...] = ()


_NOTHING: Final = FnRecord()


@dataclass(frozen=True)
class Function:
    """A stateful function, its windows and how late their elements may be.

    Attributes:
        function: The class of the function.
        windows: Its windows; those that join are refused.
        lateness: Microseconds for which a window lasts behind its end.
        lenient: Whether what is due and fails is left out, and holds up nothing else.
        wrap: Put around each call, for checks of arguments. The values of the cells are arguments there, too.
    """

    function: type[StatefulFn[Any, Any, Any]]
    windows: WindowFn = field(default_factory=Global)
    lateness: int = 0
    lenient: bool = False
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def __post_init__(self) -> None:
        if self.windows.merging:
            raise GraphError(
                f"{self.function.__name__} keeps state by window, and windows {self.windows} may join",
                hint="Use windows that do not, or a fold with merge=.",
            )
        for name, timer in self.timers.items():
            if not callable(getattr(self.function, f"on_{name}", None)):
                raise GraphError(
                    f"{self.function.__name__} has a timer {name} ({timer.domain} time), and no method for it",
                    hint=f"Write `def on_{name}(self, key, at)`.",
                )
        if self.function.on_element is StatefulFn.on_element:
            raise GraphError(
                f"{self.function.__name__} has no method for elements",
                hint="Write `def on_element(self, key, value, at)`.",
            )

    @cached_property
    def timers(self) -> dict[str, Timer]:
        """Its timers by name."""
        return {name: each for name in dir(self.function) if isinstance(each := getattr(self.function, name), Timer)}

    @cached_property
    def cells(self) -> dict[str, Cell[Any]]:
        """Its cells by name."""
        return {name: each for name in dir(self.function) if isinstance(each := getattr(self.function, name), Cell)}

    @property
    def nothing(self) -> FnRecord:
        """Return the initial record of a key."""
        return _NOTHING

    @cached_property
    def patience(self) -> int | None:
        """Most microseconds of an element behind the watermark; None: no limit."""
        lateness = 0 if self.function.ordered else self.function.lateness
        return None if lateness is None else duration(lateness)

    def expiry(self, window: Window) -> int:
        """Return the greatest watermark at which a window is still there."""
        return min(window.end - 1 + self.lateness, MAX - 1)

    def step(self, record: FnRecord, given: Input, moment: Moment, key: Any = None) -> tuple[FnRecord, list[Output]]:
        """Return the record of a key after an input, and what comes of it, in order.

        If the function raises an error, the record is as it was.

        Args:
            record: The record before.
            given: The input.
            moment: The watermark and the clock before it.
            key: The key.
        """
        step = _Step(self, record, moment, key)
        match given:
            case Element():
                step.element(given)
            case Watermark(to):
                step.watermark(to)
            case Clock(to):
                step.clock(to)
            case _:
                raise TypeError(f"a stateful function has no trigger to look at: {given}")
        return step.result(), step.outputs

    def hold(self, record: FnRecord) -> int | None:
        """Return where a key holds the output watermark, or None."""
        # Elements that wait to be put in order are not behind the input watermark: they hold nothing.
        least: int | None = None
        for cell in record.open:
            alarms = cell.alarms
            if isinstance(alarms, tuple) and not alarms:
                continue
            for hold in _holds(alarms) if isinstance(alarms, tuple) else alarms.contents.holds():
                if least is None or hold < least:
                    least = hold
        return least

    def held(self, record: FnRecord) -> int:
        """Return the number of elements of a key that have not come out, as far as the function says so."""
        count = self.function._held
        return sum(
            len(cell.waiting)
            + count({name: spelled(contents) for name, contents in cell.contents}, spelled(cell.alarms))
            for cell in record.open
        )

    def waits_alike(self, record: FnRecord, other: FnRecord) -> bool:
        """Return whether two records hold and wait for the same, as far as can be told without a look at all timers."""
        if len(record.open) != len(other.open):
            return False
        for cell, after in zip(record.open, other.open, strict=True):
            # Timers that no call has changed are the same object.
            same = cell.window == after.window and cell.alarms is after.alarms
            if cell is not after and (not same or cell.waiting or after.waiting):
                return False
        return True

    def due(self, record: FnRecord, moment: Moment) -> tuple[int | None, int | None]:
        """Return the next watermark and clock at which a step may do anything."""
        at: int | None = None
        clock: int | None = None
        for window, _, alarms, waiting in record.open:
            end = self.expiry(window) + 1
            if at is None or end < at:
                at = end
            if waiting and waiting[0][0] < at:
                at = waiting[0][0] + 1
            for alarm in alarms if isinstance(alarms, tuple) else alarms.contents.first():
                if alarm.domain == "event":
                    at = min(at, alarm.at)
                elif clock is None or alarm.at < clock:
                    clock = alarm.at
        return at, clock


def _holds(alarms: tuple[Alarm, ...]) -> list[int]:
    """Return the times at which timers hold the output watermark."""
    return [alarm.output for alarm in alarms if alarm.holds]


class _Step:
    """A step at work: windows of a key, thawed."""

    def __init__(self, function: Function, record: FnRecord, moment: Moment, key: Hashable) -> None:
        self.function = function
        self.key = key
        self.input = moment.input
        self.now = moment.clock
        held = function.hold(record)
        self.output = moment.input if held is None else min(moment.input, held)
        self.before = {cell.window: cell for cell in record.open}
        self.scopes: dict[Window, Scope] = {}
        for window, contents, alarms, waiting in record.open:
            scope = self._open(window, dict(contents), alarms)
            if waiting:
                scope.waiting = list(waiting)
        self.outputs: list[Output] = []
        self.place: Place = ()
        self.ran = 0

    def _open(self, window: Window, frozen: dict[str, Any], alarms: tuple[Alarm, ...] | Version) -> Scope:
        show = int if self.function.function.micros else date_of
        scope = Scope(frozen, alarms, self.function.expiry(window), self.input, self.output, show)
        self.scopes[window] = scope
        return scope

    def result(self) -> FnRecord:
        """Return the record after the step."""
        windows = ordered(self.scopes) if len(self.scopes) > 1 else self.scopes
        kept = [cell for window in windows if (cell := self._kept(window)) is not None]
        return FnRecord(tuple(kept)) if kept else _NOTHING

    def _kept(self, window: Window) -> FnCell | None:
        """Return the state of a window after the step: the very one before it, if nothing has changed."""
        scope, before = self.scopes[window], self.before.get(window)
        contents, alarms, waiting = scope.freeze(), scope.alarms.freeze(), scope.waiting
        if before is not None and contents is None and alarms is before.alarms and not waiting and not before.waiting:
            return before
        if contents is None:
            stored = () if before is None else before.contents
        else:
            stored = tuple([(name, contents[name]) for name in sorted(contents) if contents[name]])
        return FnCell(window, stored, alarms, tuple(waiting)) if stored or alarms or waiting else None

    def element(self, element: Element) -> None:
        """Give an element to the function, in each of its windows."""
        if element.retraction:
            raise ConsistencyError(
                f"a retraction of {element.value!r} comes to {self.function.function.__name__}, which takes none back",
                hint="Use panes='accumulating' or 'discarding' before a stateful function.",
            )
        windows = [*self.function.windows.assign(element.at, element.value, element.windows)]
        if len(windows) > 1:
            windows = ordered(set(windows))
        elif not windows:
            self.outputs.append(Drop(element.value, element.at, "no window", None))
        ordered_input, patience = self.function.function.ordered, self.function.patience
        late = element.at < self.input
        too_late = late and patience is not None and element.at + patience < self.input
        for window in windows:
            scope = self.scopes.get(window)
            limit = self.function.expiry(window) if scope is None else scope.limit
            if too_late or limit < self.input:
                self.outputs.append(Drop(element.value, element.at, "lateness", window))
                continue
            if late:
                self.outputs.append(Late(element.value, element.at))
                late = False
            if scope is None:
                scope = self._open(window, {}, ())
            if ordered_input:
                insort(scope.waiting, (element.at, element.value), key=itemgetter(0))
                continue
            scope.present = element.at
            self._call(scope, "on_element", element.at, (), self.key, element.value, scope.show(element.at))
            self._run_due()

    def watermark(self, to: int) -> None:
        """Run due timers of event time and end windows, in the order of time."""
        if to <= self.input:
            return
        self.input = to
        for scope in self.scopes.values():
            scope.input = to
        self._run_due(placed=True)

    def clock(self, to: int) -> None:
        """Run the timers of processing time that are due, in the order of time."""
        self.now = to
        self._run_due(placed=True)

    def _run_due(self, *, placed: bool = False) -> None:
        """Run everything that is due, with what is set meanwhile."""
        while due := self._due():
            time, kind, end, start, *own = due
            window = Window(start, end)
            scope = self.scopes[window]
            self.ran += 1
            if self.ran > LIMIT:
                raise ConsistencyError(
                    f"{LIMIT} timers of one key have run in one step, the last one at {moment(time)}",
                    hint=f"Let {self.function.function.__name__} set a timer for a later time than that at which it "
                    "runs, or not at all.",
                )
            # A timer that is set for a time that is over comes behind its cause.
            self.place = max(self.place, (time, kind, end, start))
            place = self.place if placed else ()
            if kind == _WAITING:
                at, value = scope.waiting.pop(0)
                scope.present = at
                self._call(scope, "on_element", at, place, self.key, value, scope.show(at))
                continue
            if kind == _ENDS:
                self._call(scope, "on_expiry", window.end - 1, place, self.key, scope.show(window.end - 1))
                del self.scopes[window]
                self.before.pop(window, None)
                continue
            name, tag = own
            alarm = scope.alarms.contents.by_tag[name, tag]
            scope.clear(name, tag)
            scope.present = alarm.at if alarm.domain == "event" else alarm.output
            self._call(scope, f"on_{alarm.name}", alarm.output, place, self.key, scope.show(alarm.at))
            if self.input == MAX and alarm.domain == "event":
                scope.clear(name, tag)  # the input is over: one that sets itself again would run for ever

    def _due(self) -> Due | None:
        """Return what is due first, or None."""
        due: list[Due] = []
        for window, scope in self.scopes.items():
            if scope.waiting and scope.waiting[0][0] < self.input:
                due.append((scope.waiting[0][0] + 1, _WAITING, window.end, window.start, "", ""))
            expired = scope.limit < self.input
            due += [
                (alarm.at, _ALARM, window.end, window.start, alarm.name, alarm.tag)
                for alarm in scope.alarms.contents.first()
                if (alarm.at <= self.input if alarm.domain == "event" else alarm.at <= self.now and not expired)
            ]
            if expired:
                due.append((scope.limit + 1, _ENDS, window.end, window.start, "", ""))
        return min(due) if due else None

    def _call(self, scope: Scope, method: str, at: int, place: Place, *args: Any) -> None:
        instance = self.function.function()
        instance.__dict__[SCOPE] = scope
        scope.at, scope.now = at, self.now
        called: Callable[..., Iterable[Any] | None] = getattr(instance, method)
        lenient = self.function.lenient
        if self.function.wrap is not None:
            called = _with_values(self.function.wrap, called, scope)
        if lenient:
            alarms, count = scope.alarms.freeze(), len(self.outputs)
            scope.freeze()
        try:
            for value in called(*args) or ():
                time = at
                if isinstance(value, Stamped):
                    value, time = value.value, instant(value.at)
                    if time < at:
                        raise ValueError(
                            f"{value!r} has the timestamp {moment(time)}, before {moment(at)}, that of what it comes of"
                        )
                self.outputs.append(Emit(value, time, place))
        except Exception:
            if not lenient:
                raise
            scope.alarms, scope.contents = Held(ALARMS, alarms), {}  # the contents before the call are frozen
            del self.outputs[count:]
        del instance.__dict__[SCOPE]


def _with_values(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]], called: Callable[..., Any], scope: Scope
) -> Callable[..., Any]:
    """Return a wrapped method whose first argument, for the wrapper alone, is the values of the cells before it."""
    values = {name: frozen for name, frozen in scope.frozen.items() if isinstance(frozen, tuple)}

    @wraps(called)
    def given(_: object, *arguments: Any) -> Any:
        return called(*arguments)

    return partial(wrap(given), values)
