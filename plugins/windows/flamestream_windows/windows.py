"""Windows in the words of flows: `w.fixed(minutes=1)`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flamecore.model.failure import shown_at_caller
from flamestream_windows.flows.streams import Panes, Timed, TimedKeyed, Told, Windowed, event_time
from flamestream_windows.model.cells import List, Map, OrderedList, Set, Stamped, StatefulFn, Timer, Value
from flamestream_windows.model.panes import Dropped, Pane, Timing
from flamestream_windows.model.times import require_whole, units_duration, user_duration
from flamestream_windows.model.windows import DAYS, Calendar, Fixed, Global, Sessions, Sliding, Unit, Window, WindowFn

__all__ = [
    "Dropped",
    "List",
    "Map",
    "OrderedList",
    "Pane",
    "Panes",
    "Set",
    "Stamped",
    "StatefulFn",
    "Timed",
    "TimedKeyed",
    "Timer",
    "Timing",
    "Told",
    "Value",
    "Window",
    "WindowFn",
    "Windowed",
    "calendar",
    "event_time",
    "fixed",
    "sessions",
    "sliding",
    "whole",
]

_BEGIN: Final[dict[str, tuple[Unit, ...]]] = {
    "weekday": ("weeks",),
    "month": ("months", "years"),
    "day": ("months", "years"),
}
"""Units whose first day an argument gives."""


@shown_at_caller
def whole() -> WindowFn:
    """Return the one window of everything."""
    return Global()


_MOST_WINDOWS: Final = 100_000


@shown_at_caller
def fixed(*, offset: timedelta = timedelta(0), **units: Any) -> WindowFn:
    """Return windows of one size, one after another: `fixed(minutes=1)`.

    Args:
        offset: Where they begin, counted from 1970-01-01 in UTC.
        units: Their size, as the keywords of a timedelta.

    Raises:
        ValueError: The size is not positive.
    """
    size = _positive("fixed", units, "the size of a window")
    return Fixed(size, user_duration(offset, "offset") % size)


@shown_at_caller
def sliding(*, every: timedelta, offset: timedelta = timedelta(0), **units: Any) -> WindowFn:
    """Return windows that overlap: `sliding(minutes=5, every=timedelta(minutes=1))`.

    Args:
        every: Interval between the starts of windows.
        offset: Where they begin, counted from 1970-01-01 in UTC.
        units: Their size, as the keywords of a timedelta.

    Raises:
        ValueError: The size or the period is not positive, or an element would be in more than 100,000 windows.
    """
    period = user_duration(every, "every")
    if not period:
        raise ValueError("windows begin every so often; every= has to be positive")
    size = _positive("sliding", units, "the size of a window")
    if size > _MOST_WINDOWS * period:
        raise ValueError(
            f"each element would be in {size // period:,} windows, one for each every={every!r}; at most "
            f"{_MOST_WINDOWS:,} can be"
        )
    return Sliding(size, period, user_duration(offset, "offset") % period)


@shown_at_caller
def sessions(**units: Any) -> WindowFn:
    """Return windows that end after a gap without elements: `sessions(minutes=30)`.

    Raises:
        ValueError: The time is not positive.
    """
    return Sessions(_positive("sessions", units, "the gap of a session"))


@shown_at_caller
def calendar(
    *,
    tz: str,
    days: int = 0,
    weeks: int = 0,
    months: int = 0,
    years: int = 0,
    weekday: str = "monday",
    month: int = 1,
    day: int = 1,
) -> WindowFn:
    """Return days, weeks, months or years of a zone, such as `months=1`.

    Args:
        tz: Name of the zone.
        days: Number of days in a window.
        weeks: Number of weeks.
        months: Number of months.
        years: Number of years.
        weekday: First day of a week.
        month: First month of a year, or of a period of months, such as `months=3, month=2`.
        day: First day of a month or year, at most 28, so that every month has it.

    Raises:
        ValueError: Not one of the units is given, or the zone is not known, or a first day cannot be, or means nothing
            for the unit.
    """
    units: dict[Unit, int] = {"days": days, "weeks": weeks, "months": months, "years": years}
    for argument, value in (*units.items(), ("month", month), ("day", day)):
        require_whole("calendar", argument, value)
    if not isinstance(tz, str):
        raise TypeError(f"calendar: tz is the name of a zone, such as Europe/Berlin, not {tz!r}")
    given: list[tuple[Unit, int]] = [(unit, count) for unit, count in units.items() if count]
    if len(given) != 1 or given[0][1] < 0:
        raise ValueError(f"a calendar window is a number of days, weeks, months or years, one of them; not {units}")
    if weekday not in DAYS:
        raise ValueError(f"weekday={weekday!r} is none of {', '.join(DAYS)}")
    if not (1 <= day <= 28 and 1 <= month <= 12):
        raise ValueError(f"month={month}, day={day}: months are 1 to 12, and days 1 to 28, which every month has")
    ((unit, count),) = given
    begun: dict[str, tuple[object, object]] = {
        "weekday": (weekday, "monday"),
        "month": (month, 1),
        "day": (day, 1),
    }
    for argument, (first, usual) in begun.items():
        if first != usual and unit not in _BEGIN[argument]:
            raise ValueError(
                f"{argument}={first!r} says where {' and '.join(_BEGIN[argument])} begin, and this is a window of "
                f"{unit}"
            )
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # of a folder of zones, such as Europe
        raise ValueError(f"the zone {tz!r} is not known here; names are such as Europe/Berlin") from error
    return Calendar(unit, count, tz, DAYS.index(weekday), month, day)


def _positive(call: str, units: dict[str, Any], name: str) -> int:
    micros = units_duration(call, units, name)
    if not micros:
        raise ValueError(f"{name} has to be positive; give it such as minutes=1")
    return micros
