"""Window functions: the windows of an element, and those that join."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, ClassVar, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from flamecore.errors import ConsistencyError
from flamecore.model.clock import moment
from flamestream_windows.model.times import END_OF_GLOBAL_WINDOW, EPOCH, MIN, TICK, date_of, spell


class Window(NamedTuple):
    """A half-open interval of event time, `[start, end)`, in microseconds."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """Return the last instant that belongs to it."""
        return self.end - 1

    @property
    def start_time(self) -> datetime:
        """Return the start as a datetime in UTC."""
        return date_of(self.start)

    @property
    def end_time(self) -> datetime:
        """The end as a datetime in UTC: the first instant that does not belong to it."""
        return date_of(self.end)

    def __str__(self) -> str:
        return "[all of time)" if self == GLOBAL else f"[{moment(self.start)}, {moment(self.end)})"


GLOBAL: Final = Window(MIN, END_OF_GLOBAL_WINDOW + 1)
"""The window of everything."""


class WindowFn(ABC):
    """A window function.

    Subclass it for windows of your own. Its attributes are its settings: functions of one class with equal settings are
    equal, and stored state is of the class and the settings by which it was made. A frozen dataclass is a good choice.

    Attributes:
        merging: Whether windows of a key may join; then `merge` says which.
        endless: Whether a window never ends as long as data may come.
    """

    merging: ClassVar[bool] = False
    endless: ClassVar[bool] = False

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__qualname__}({settings})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @abstractmethod
    def assign(self, at: int, value: Any, windows: Sequence[Window]) -> Iterable[Window]:
        """Return the windows of an element.

        Args:
            at: Its timestamp.
            value: Its value.
            windows: Its windows so far: those of the pane that it is, or the global one.
        """

    def stretch(self, at: int) -> Window | None:
        """Return a stretch around an instant whose elements share their windows.

        Engines ask for windows once a stretch, not once an element. None: windows depend on more than time.
        """
        return None

    def merge(self, windows: Sequence[Window]) -> Iterable[tuple[Window, Sequence[Window]]]:
        """Return the groups of windows that join: what they become, and the members.

        Called only where `merging` is set. Windows in no group stay as they are.

        Args:
            windows: Windows of one key, in ascending order.
        """
        return ()

    def shift(self, window: Window, at: int) -> int:
        """Return the time at which an element holds the output watermark.

        Used where panes take the earliest time.
        """
        return at

    def side(self, window: Window) -> Window:
        """Return the window of a side input that an element of `window` looks at.

        Raises:
            ConsistencyError: No single window holds the last instant of `window`.
        """
        found = tuple(self.assign(window.max_timestamp, None, (window,)))
        if self.merging or not found:
            raise ConsistencyError(
                f"windows {self} of a side input cannot be looked up for {window}",
                hint="Give the side input fixed, sliding, calendar or whole windows.",
            )
        return max(found, key=lambda each: (each.end, each.start))


@dataclass(frozen=True)
class Global(WindowFn):
    """One window for everything."""

    endless: ClassVar[bool] = True

    def assign(self, at: int, value: Any, windows: Sequence[Window]) -> Iterable[Window]:
        return (GLOBAL,)

    def stretch(self, at: int) -> Window | None:
        return GLOBAL

    def __str__(self) -> str:
        return "whole()"


@dataclass(frozen=True)
class Fixed(WindowFn):
    """Windows of one size, one after another, from `offset` on."""

    size: int
    offset: int = 0

    def assign(self, at: int, value: Any, windows: Sequence[Window]) -> Iterable[Window]:
        start = at - (at - self.offset) % self.size
        return (Window(start, start + self.size),)

    def stretch(self, at: int) -> Window | None:
        start = at - (at - self.offset) % self.size
        return Window(start, start + self.size)

    def __str__(self) -> str:
        return f"fixed({spell(self.size)}{_offset(self.offset)})"


@dataclass(frozen=True)
class Sliding(WindowFn):
    """Windows of one size, a new one every period.

    With a period above the size some elements are in none.
    """

    size: int
    period: int
    offset: int = 0

    def assign(self, at: int, value: Any, windows: Sequence[Window]) -> Iterable[Window]:
        last = at - (at - self.offset) % self.period
        return [Window(start, start + self.size) for start in range(last, at - self.size, -self.period)]

    def stretch(self, at: int) -> Window | None:
        start = (at - self.offset) % self.period  # since the last window has begun
        end = (at - self.offset - self.size) % self.period  # since the last one has ended
        return Window(at - min(start, end), at + self.period - max(start, end))

    def shift(self, window: Window, at: int) -> int:
        # The part of the window that no earlier one covers: else the pane of the last window that holds an element
        # would hold the watermark for the size of a window, in each of several groupings in a row.
        return max(at, window.end - self.period)

    def __str__(self) -> str:
        return f"sliding({spell(self.size)}, every=({spell(self.period)}){_offset(self.offset)})"


@dataclass(frozen=True)
class Sessions(WindowFn):
    """Windows that last until nothing has come for the gap.

    Sessions that touch do not join.
    """

    gap: int
    merging: ClassVar[bool] = True

    def assign(self, at: int, value: Any, windows: Sequence[Window]) -> Iterable[Window]:
        return (Window(at, at + self.gap),)

    def merge(self, windows: Sequence[Window]) -> Iterable[tuple[Window, Sequence[Window]]]:
        groups: list[tuple[Window, list[Window]]] = []
        for window in windows:
            if groups and window.start < groups[-1][0].end:
                joined, members = groups[-1]
                groups[-1] = (Window(joined.start, max(joined.end, window.end)), [*members, window])
            else:
                groups.append((window, [window]))
        return groups

    def __str__(self) -> str:
        return f"sessions({spell(self.gap)})"


Unit = Literal["days", "weeks", "months", "years"]

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass(frozen=True)
class Calendar(WindowFn):
    """Days, weeks, months or years of a zone, from local midnight to local midnight.

    A day on which clocks are put forward or back is shorter or longer. It begins once, when the local date reaches
    it first: where clocks are put back over midnight, the rest of the day before, which comes again, belongs to it.

    Attributes:
        unit: The unit that is counted.
        count: Number of them in a window, counted from 1970-01-01, or from the first `weekday` on or after it.
        zone: Name of the zone.
        weekday: First day of a week: 0 is Monday.
        month: First month of a year, or of a period of months.
        day: First day of a month or year, at most 28.
    """

    unit: Unit
    count: int
    zone: str
    weekday: int = 0
    month: int = 1
    day: int = 1

    def assign(self, at: int, value: Any, windows: Sequence[Window]) -> Iterable[Window]:
        return (self.stretch(at),)

    def stretch(self, at: int) -> Window:
        try:
            number = self._number(_date(self.zone, at))
            while at >= (window := _period(self, number)).end:  # that day had begun already
                number += 1
            return window
        except (OverflowError, ValueError) as error:
            raise ValueError(
                f"{moment(at)} is in no window of {self}: all of it has to be in the years 1 to 9999"
            ) from error

    def _first_day(self, number: int) -> int:
        """Return the ordinal of the first day of a period."""
        if self.unit == "days" or self.unit == "weeks":
            return self._anchor + number * self._days
        months = number * self._months + self.month - 1
        return datetime(1970 + months // 12, months % 12 + 1, self.day).toordinal()

    def _number(self, ordinal: int) -> int:
        """Return the number of the period that holds a day."""
        if self.unit == "days" or self.unit == "weeks":
            return (ordinal - self._anchor) // self._days
        date = datetime.fromordinal(ordinal)
        months = (date.year - 1970) * 12 + date.month - 1 - (date.day < self.day)
        return (months - self.month + 1) // self._months

    @property
    def _anchor(self) -> int:
        first = EPOCH.toordinal()
        return first if self.unit == "days" else first + (self.weekday - EPOCH.weekday()) % 7

    @property
    def _days(self) -> int:
        return self.count * (7 if self.unit == "weeks" else 1)

    @property
    def _months(self) -> int:
        return self.count * (12 if self.unit == "years" else 1)

    def __str__(self) -> str:
        first = f", weekday={DAYS[self.weekday]!r}" if self.unit == "weeks" and self.weekday else ""
        if self.unit in ("months", "years") and self.month != 1:
            first += f", month={self.month}"
        if self.unit in ("months", "years") and self.day != 1:
            first += f", day={self.day}"
        return f"calendar({self.unit}={self.count}, tz={self.zone!r}{first})"


@lru_cache(64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(4096)
def _period(calendar: Calendar, number: int) -> Window:
    start, end = (_begin(calendar.zone, calendar._first_day(each)) for each in (number, number + 1))
    return Window(start, end)


def _begin(zone: str, day: int) -> int:
    """Return the instant at which the local date reaches a day."""
    midnight = datetime.fromordinal(day).replace(tzinfo=_zone(zone))
    after, before = ((local - EPOCH) // TICK for local in (midnight, midnight.replace(fold=1)))
    if after <= before:  # it comes once, or twice: then the first
        return after
    # Clocks skip it, at some instant between those by which the offsets after and before would have it.
    return before + bisect_left(range(before, after), day, key=lambda at: _date(zone, at))


def _date(zone: str, at: int) -> int:
    """Return the ordinal of the local date of an instant."""
    return (EPOCH + timedelta(microseconds=at)).astimezone(_zone(zone)).toordinal()


@dataclass(frozen=True)
class Same(WindowFn):
    """The windows that elements have already: those of the panes that they are."""

    def assign(self, at: int, value: Any, windows: Sequence[Window]) -> Iterable[Window]:
        return windows

    def __str__(self) -> str:
        return "same()"


def _offset(offset: int) -> str:
    return f", offset=({spell(offset)})" if offset else ""


_BY_END: Final = itemgetter(1, 0)


def ordered(windows: Iterable[Window]) -> list[Window]:
    """Return windows in the order of (last instant, start), in which they fire."""
    return sorted(windows, key=_BY_END)


def merged(function: WindowFn, windows: Sequence[Window]) -> list[tuple[Window, list[Window]]]:
    """Return the groups of `function.merge`, those that change anything, checked.

    Raises:
        ConsistencyError: Groups overlap, name other windows, or become a window that is there and not of them.
    """
    there = set(windows)
    taken: set[Window] = set()
    groups = []
    for result, some in function.merge(sorted(there)):
        members = sorted(set(some))
        if not members or not there.issuperset(members):
            raise _unsound(function, f"joins {_some(members)}, which are not all among {_some(windows)}")
        if taken.intersection(members):
            raise _unsound(function, f"has {_some(taken.intersection(members))} in two groups")
        if result not in members and result in there:
            raise _unsound(function, f"makes {result} of {_some(members)}, but that window is open and not of them")
        taken.update(members)
        groups.append((result, members))
    if len({result for result, _ in groups}) < len(groups):
        raise _unsound(function, "makes one window of two groups")
    return [(result, members) for result, members in groups if members != [result]]


def _some(windows: Iterable[Window]) -> str:
    return ", ".join(map(str, sorted(windows))) or "none"


def _unsound(function: WindowFn, text: str) -> ConsistencyError:
    return ConsistencyError(
        f"merge of {function} {text}",
        hint="Groups are disjoint sets of the windows given; what they become is one of them, or a new window.",
    )
