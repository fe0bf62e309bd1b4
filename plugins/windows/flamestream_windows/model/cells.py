"""Stateful functions, as users write them: classes with cells and timers.

    class Silent(StatefulFn):
        latest = Value()
        quiet = Timer("event")

        def on_element(self, key, reading, at):
            self.latest.set(reading)
            self.quiet.set(at + timedelta(minutes=15))
            return ()

        def on_quiet(self, key, at):
            yield Alert(key, self.latest.get())

A cell is empty for a key until something is put in, and again when its window expires. Instances live for one call:
what is to last belongs into a cell.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Self, TypeVar, overload

from flamecore.errors import GraphError
from flamecore.model.clock import moment
from flamestream_windows.model.contents import Change, Held, Version, are_many
from flamestream_windows.model.times import END_OF_GLOBAL_WINDOW, duration, instant

K = TypeVar("K")
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

Domain = Literal["event", "processing"]


class Stamped(NamedTuple, Generic[T]):
    """An output with a timestamp of its own, not before that of what it comes of."""

    value: T
    at: datetime | float


class Alarm(NamedTuple):
    """A timer that has been set.

    Attributes:
        at: When it is due.
        name: Name of the timer.
        tag: A name that tells it from others of that timer.
        domain: The time that it waits for.
        output: Timestamp of what comes of it.
        holds: Whether it holds the output watermark there until it has run.
    """

    at: int
    name: str
    tag: str
    domain: Domain
    output: int
    holds: bool


class Alarms:
    """Timers that are set, of one key and window. Changed in place.

    Args:
        alarms: The timers.

    Attributes:
        by_tag: The timers by name and tag.
    """

    __slots__ = ("_lines", "_outputs", "by_tag")

    def __init__(self, alarms: Iterable[Alarm]) -> None:
        self.by_tag = {(alarm.name, alarm.tag): alarm for alarm in alarms}
        # Made if they are asked for: to look at a few timers costs less than to keep them in order.
        self._lines: dict[Domain, list[Alarm]] | None = None
        self._outputs: list[int] = []

    def __len__(self) -> int:
        return len(self.by_tag)

    def put(self, alarm: Alarm) -> None:
        """Set a timer; one of its name and tag is forgotten."""
        if self._lines is not None:
            self.remove(alarm.name, alarm.tag)
            insort(self._lines[alarm.domain], alarm)
            if alarm.holds:
                insort(self._outputs, alarm.output)
        self.by_tag[alarm.name, alarm.tag] = alarm

    def remove(self, name: str, tag: str) -> None:
        """Forget a timer, if it is set."""
        alarm = self.by_tag.pop((name, tag), None)
        if alarm is not None and self._lines is not None:
            line = self._lines[alarm.domain]
            del line[bisect_left(line, alarm)]
            if alarm.holds:
                del self._outputs[bisect_left(self._outputs, alarm.output)]

    def first(self) -> Iterable[Alarm]:
        """Return timers among which are the first of each domain: all, or of many only these."""
        if self._lines is None and not are_many(len(self.by_tag)):
            return self.by_tag.values()
        return [alarm for line in self._in_order().values() for alarm in line[:1]]

    def holds(self) -> list[int]:
        """Return the least time at which a timer holds the output watermark, if there is one."""
        self._in_order()
        return self._outputs[:1]

    def _in_order(self) -> dict[Domain, list[Alarm]]:
        """Return the timers of each domain in order, after which they are kept so."""
        if self._lines is None:
            alarms = sorted(self.by_tag.values())
            self._lines = {"event": [], "processing": []}
            for alarm in alarms:
                self._lines[alarm.domain].append(alarm)
            self._outputs = sorted([alarm.output for alarm in alarms if alarm.holds])
        return self._lines


class _AlarmKind:
    """Contents that are timers. A change is a name, a tag, and the timer that is set, or None."""

    def thaw(self, frozen: Any) -> Alarms:
        return Alarms(frozen)

    def freeze(self, contents: Any) -> tuple[Alarm, ...]:
        return tuple(sorted(contents.by_tag.values()))

    def change(self, contents: Any, change: Change) -> None:
        name, tag, alarm = change
        if alarm is None:
            contents.remove(name, tag)
        else:
            contents.put(alarm)


ALARMS: Final = _AlarmKind()


class Scope:
    """The cells and timers of one key and window, during a call. Changed in place.

    Attributes:
        frozen: Contents of each cell before the call.
        contents: Those of each cell that has been asked for, to be changed.
        alarms: Timers that are set.
        at: Timestamp of what is being worked on: that of outputs.
        waiting: Elements that wait to be put in order.
        present: The event time of the present call: that of the element, or for which the timer was set.
        now: Processing time.
        limit: The latest time of an event timer: the expiry of the window.
        show: Makes a timestamp of microseconds what the function is given.
        input: The input watermark.
        is_changed: Whether the frozen contents are others than at first.
        output: The output watermark.
    """

    __slots__ = (
        "alarms",
        "at",
        "contents",
        "frozen",
        "input",
        "is_changed",
        "limit",
        "now",
        "output",
        "present",
        "show",
        "waiting",
    )

    def __init__(
        self,
        frozen: dict[str, tuple[Any, ...] | Version],
        alarms: tuple[Alarm, ...] | Version,
        limit: int,
        input: int,
        output: int,
        show: Callable[[int], Any],
    ) -> None:
        self.show = show
        self.frozen = frozen
        self.input = input
        self.contents: dict[str, Held] = {}
        self.is_changed = False
        self.alarms = Held(ALARMS, alarms)
        self.at = self.present = self.now = 0
        self.waiting: list[tuple[int, Any]] = []
        self.limit = limit
        self.output = output

    def freeze(self) -> dict[str, tuple[Any, ...] | Version] | None:
        """Freeze the contents, so that they are those before a later call; return them, or None if none has changed."""
        frozen = self.frozen
        for name, held in self.contents.items():
            now = held.freeze()
            if now is not frozen.get(name, ()):
                frozen[name] = now
                self.is_changed = True
        return frozen if self.is_changed else None

    def clear(self, name: str, tag: str) -> None:
        """Forget a timer, if it is set."""
        if (name, tag) in self.alarms.contents.by_tag:
            self.alarms.change(name, tag, None)


SCOPE: Final = "_scope"


class CellView:
    """A cell of one key, during a call."""

    __slots__ = ("_cell", "_scope")

    def __init__(self, cell: Cell[Any], scope: Scope) -> None:
        self._cell = cell
        self._scope = scope

    def _held(self) -> Held:
        contents = self._scope.contents
        name = self._cell.name
        held = contents.get(name)
        if held is None:
            held = contents[name] = Held(self._cell, self._scope.frozen.get(name, ()))
        return held

    def _thawed(self) -> Any:
        """Return the contents, to be read."""
        return self._held().contents

    def clear(self) -> None:
        """Empty it."""
        self._scope.contents[self._cell.name] = Held(self._cell, ())

    def __bool__(self) -> bool:
        return bool(self._thawed())


class Cell(Generic[V]):
    """A cell of a stateful function; a class attribute.

    Its frozen contents are a tuple, the empty one if it is empty.

    Args:
        *types: Types of what it holds, for the codec.
    """

    view: ClassVar[type[CellView]]
    name: str = ""

    def __init__(self, *types: Any) -> None:
        self.types = types

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def thaw(self, frozen: Any) -> Any:
        """Return contents that may be changed."""
        return list(frozen)

    def freeze(self, contents: Any) -> Any:
        """Return contents as a tuple."""
        return tuple(contents)

    def shown(self, frozen: Any) -> Any:
        """Return contents for people, given the frozen ones."""
        return list(frozen)

    def change(self, contents: Any, change: Change) -> None:
        """Replace a slice of a list: by its first place, the place behind it, and the new entries."""
        first, last, entries = change
        contents[first:last] = entries

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> V: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        return self.view(self, instance.__dict__.get(SCOPE) or _scope_of(instance))

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(f"{self.name} is a cell; put {value!r} into it with its methods, such as set()")


def _scope_of(instance: Any) -> Scope:
    scope: Scope | None = instance.__dict__.get(SCOPE)
    if scope is None:
        raise RuntimeError("cells and timers can be used only while on_element, a timer or on_expiry is called")
    return scope


class ValueView(CellView, Generic[T]):
    """One value, or none."""

    __slots__ = ()

    def get(self, default: Any = None) -> T:
        """Return the value; `default` if there is none."""
        held = self._thawed()
        return held[0] if held else default  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        """Replace the value."""
        self._held().change(0, 1, (value,))


class ListView(CellView, Generic[T]):
    """Values in the order in which they were added."""

    __slots__ = ()

    def add(self, value: T) -> None:
        """Add a value at the end."""
        end = len(self)
        self._held().change(end, end, (value,))

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._thawed()))

    def __len__(self) -> int:
        return len(self._thawed())


class SetView(CellView, Generic[T]):
    """Different values, in the order in which they were first added."""

    __slots__ = ()

    def add(self, value: T) -> bool:
        """Add a value; return whether it is new."""
        held = self._held()
        if value in held.contents:
            return False
        held.change(value, True)
        return True

    def discard(self, value: T) -> None:
        """Remove a value, if it is there."""
        held = self._held()
        if value in held.contents:
            held.change(value, False)

    def __contains__(self, value: object) -> bool:
        return value in self._thawed()

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._thawed()))

    def __len__(self) -> int:
        return len(self._thawed())


class MapView(CellView, Generic[K, V]):
    """Values by key, in the order in which the keys were first put in."""

    __slots__ = ()

    def get(self, key: K, default: Any = None) -> V:
        """Return the value of a key; `default` if there is none."""
        return self._thawed().get(key, default)  # type: ignore[no-any-return]

    def put(self, key: K, value: V) -> None:
        """Replace the value of a key."""
        self._held().change(key, value)

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
        held = self._held()
        if key in held.contents:
            held.change(key)

    def items(self) -> list[tuple[K, V]]:
        """Return all keys and values."""
        return list(self._thawed().items())

    def __contains__(self, key: object) -> bool:
        return key in self._thawed()

    def __len__(self) -> int:
        return len(self._thawed())


class OrderedListView(CellView, Generic[T]):
    """Values by timestamp; of one timestamp in the order in which they were added."""

    __slots__ = ()

    def add(self, at: datetime | float, value: T) -> None:
        """Add a value."""
        held, time = self._held(), instant(at)
        place = bisect_right(held.contents, time, key=_TIME)
        held.change(place, place, ((time, value),))

    def between(self, start: datetime | int, end: datetime | int) -> list[tuple[Any, T]]:
        """Return timestamps and values in `[start, end)`."""
        held, first, last = self._range(start, end)
        show = self._scope.show
        return [(show(at), value) for at, value in held[first:last]]

    def last(self, start: datetime | int, end: datetime | int) -> tuple[Any, T] | None:
        """Return the timestamp and the value of the last one in `[start, end)`, or None."""
        held, first, last = self._range(start, end)
        return (self._scope.show(held[last - 1][0]), held[last - 1][1]) if first < last else None

    def remove(self, start: datetime | int, end: datetime | int) -> list[tuple[Any, T]]:
        """Remove those in `[start, end)`, and return them."""
        gone = self.between(start, end)
        if gone:
            _, first, last = self._range(start, end)
            self._held().change(first, last, ())
        return gone

    def update(self, start: datetime | int, end: datetime | int, function: Callable[[T], T]) -> None:
        """Replace the values in `[start, end)` by what a function makes of them."""
        held, first, last = self._range(start, end)
        if first < last:
            self._held().change(first, last, [(at, function(value)) for at, value in held[first:last]])

    def _range(self, start: datetime | int, end: datetime | int) -> tuple[list[tuple[int, T]], int, int]:
        """Return all entries, and the places where `[start, end)` begins and ends."""
        held = self._thawed()
        first = bisect_left(held, _bound(start), key=_TIME)
        return held, first, max(first, bisect_left(held, _bound(end), key=_TIME))

    def first(self) -> tuple[Any, T] | None:
        """Return the first timestamp and its value, or None."""
        held = self._thawed()
        return (self._scope.show(held[0][0]), held[0][1]) if held else None

    def __iter__(self) -> Iterator[tuple[Any, T]]:
        return iter([(self._scope.show(at), value) for at, value in self._thawed()])

    def __len__(self) -> int:
        return len(self._thawed())


_TIME: Final = itemgetter(0)


def _bound(value: datetime | int) -> int:
    return value if isinstance(value, int) else instant(value)


class Value(Cell[ValueView[Any]]):
    """A cell of one value."""

    view = ValueView

    def shown(self, frozen: Any) -> Any:
        return next(iter(frozen), None)


class List(Cell[ListView[Any]]):
    """A cell of values in order."""

    view = ListView


class Set(Cell[SetView[Any]]):
    """A cell of different values."""

    view = SetView

    def thaw(self, frozen: Any) -> Any:
        return dict.fromkeys(frozen)

    def change(self, contents: Any, change: Change) -> None:
        value, is_there = change
        if is_there:
            contents[value] = None
        else:
            del contents[value]


class Map(Cell[MapView[Any, Any]]):
    """A cell of values by key."""

    view = MapView

    def thaw(self, frozen: Any) -> Any:
        return dict(frozen)

    def freeze(self, contents: Any) -> Any:
        return tuple(contents.items())

    def shown(self, frozen: Any) -> Any:
        return dict(frozen)

    def change(self, contents: Any, change: Change) -> None:
        key, *value = change
        if value:
            contents[key] = value[0]
        else:
            del contents[key]


class OrderedList(Cell[OrderedListView[Any]]):
    """A cell of values by timestamp."""

    view = OrderedListView

    def shown(self, frozen: Any) -> Any:
        return [{"at": moment(at), "value": value} for at, value in frozen]


class TimerView:
    """A timer of one key, during a call."""

    __slots__ = ("_scope", "_timer")

    def __init__(self, timer: Timer, scope: Scope) -> None:
        self._timer = timer
        self._scope = scope

    def set(self, at: datetime | float, *, output: datetime | float | None = None, tag: str = "") -> None:
        """Set it; a time that was set before is forgotten.

        One that is over already runs after the present call.

        Args:
            at: When it is due: when the watermark, or processing time, is there.
            output: Timestamp of what comes of it; it holds the output watermark until then. By default `at`, and that
                of the present element where the timer is of processing time.
            tag: A name that tells it from others of this timer, which are set beside it.

        Raises:
            TypeError: The tag is no text.
            ValueError: A timer of event time is behind the expiry of its window, or `output` is behind it.
        """
        self._check(tag)
        due = instant(at)
        event = self._timer.domain == "event"
        if event and due > self._scope.limit:
            raise ValueError(
                f"the timer {self._timer.name} is set for {moment(due)}, behind its window, which is gone after "
                f"{moment(self._scope.limit)}; use after() to end with the window"
            )
        time = (due if event else self._scope.at) if output is None else instant(output)
        if event and time > due:
            raise ValueError(
                f"the timer {self._timer.name} is due at {moment(due)}, before its output at {moment(time)}"
            )
        # Below the output watermark it could not hold it: what comes of it is as late as what it comes of.
        self._put(Alarm(due, self._timer.name, tag, self._timer.domain, time, time >= self._scope.output))

    def after(self, delay: timedelta, *, tag: str = "") -> None:
        """Set it for so long from now, in its own time.

        One of event time is set for the expiry of its window at most.

        Args:
            delay: How long after the element, or after the time for which the timer was set that runs now; a timer of
                processing time, how long after the present moment.
            tag: A name that tells it from others of this timer.
        """
        if self._timer.domain == "event":
            self.set(min(self._scope.present + duration(delay), self._scope.limit, END_OF_GLOBAL_WINDOW), tag=tag)
        else:
            self.set(self._scope.now + duration(delay), tag=tag)

    def clear(self, *, tag: str = "") -> None:
        """Forget it."""
        self._check(tag)
        self._scope.clear(self._timer.name, tag)

    def due(self, *, tag: str = "") -> Any:
        """Return the time that it is set for, or None."""
        self._check(tag)
        alarm = self._scope.alarms.contents.by_tag.get((self._timer.name, tag))
        return None if alarm is None else self._scope.show(alarm.at)

    def _check(self, tag: object) -> None:
        # At once: a tag of another type would fail only when it is stored, and could be equal to one of a third type.
        if not isinstance(tag, str):
            raise TypeError(f"the tag of the timer {self._timer.name} is a text, and not {tag!r}; use str()")

    def _put(self, alarm: Alarm) -> None:
        self._scope.alarms.change(alarm.name, alarm.tag, alarm)


class Timer:
    """A timer of a stateful function; a class attribute.

    A timer `x` has the method `on_x(self, key, at)`.

    Give each of several things that it waits for a tag of its own. When the input is over all timers that are set run;
    one that sets itself again then, under the same tag, does not, for it would run for ever.

    Args:
        domain: The time that it waits for: event time, as the watermark tells it, or processing time.
    """

    name: str = ""

    def __init__(self, domain: Domain = "event") -> None:
        if domain not in ("event", "processing"):
            raise GraphError(
                f"a timer is of 'event' or 'processing' time, not of {domain!r}", hint="Give it one of them."
            )
        self.domain: Domain = domain

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> TimerView: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        return self if instance is None else TimerView(self, _scope_of(instance))

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(f"{self.name} is a timer; set it with set(at)")


class StatefulFn(Generic[K, T, U]):
    """A function with state by key and window, to be subclassed.

    Attributes:
        lateness: Maximum distance of an element behind the watermark; later ones are dropped. None: no limit.
        ordered: Whether elements come in the order of time, each once the watermark has passed it. Late ones are
            dropped then.
        micros: Whether it is given timestamps as integers of microseconds, rather than as datetimes in UTC.
    """

    lateness: ClassVar[timedelta | int | None] = None
    ordered: ClassVar[bool] = False
    micros: ClassVar[bool] = False

    @property
    def watermark(self) -> Any:
        """Return the input watermark. It does not depend on how fast anything runs."""
        scope = _scope_of(self)
        return scope.show(scope.input)

    def on_element(self, key: K, value: T, at: Any) -> Iterable[U | Stamped[U]]:
        """Yield the outputs of an element.

        `at` is its timestamp, and by default that of the outputs.
        """
        raise NotImplementedError

    def on_expiry(self, key: K, at: Any) -> Iterable[U | Stamped[U]]:
        """Yield the outputs at the end of a window. Cells can still be read."""
        return ()

    @classmethod
    def _held(cls, contents: Mapping[str, tuple[Any, ...]], alarms: Collection[Alarm]) -> int:
        """Return the number of elements of a window whose outputs come only when the watermark rises.

        That of a user's function is not known: each of its timers of event time counts.

        Args:
            contents: The contents of its cells, by name.
            alarms: Its timers that are set.
        """
        return sum(alarm.domain == "event" for alarm in alarms)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(getattr(type(self), name, None), Cell | Timer):
            super().__setattr__(name, value)  # raises, and says what to do
        raise AttributeError(
            f"{type(self).__name__}.{name} would be forgotten after this call; make it a cell, such as {name} = Value()"
        )
