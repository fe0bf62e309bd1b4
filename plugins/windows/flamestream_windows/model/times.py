"""Instants and durations, as microseconds."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from flamecore.model.batch import extremes, in_order

MIN: Final = -(2**62)
"""Before all timestamps: the watermark at the start."""

MAX: Final = 2**62
"""Behind all timestamps: a watermark that says that no more data will ever come."""

END_OF_GLOBAL_WINDOW: Final = MAX - 86_400_000_000
"""The last instant of the global window, and the greatest timestamp."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TICK: Final = timedelta(microseconds=1)


def instant(value: Any) -> int:
    """Return a timestamp in microseconds since 1970 in UTC.

    Args:
        value: A datetime with a zone, an integer of microseconds, or a float of seconds.

    Raises:
        ValueError: It is missing, NaN, out of range, or a datetime without a zone.
        TypeError: It is none of these.
    """
    if type(value) is int and MIN < value <= END_OF_GLOBAL_WINDOW:
        return value
    if isinstance(value, datetime):
        if value != value:  # NaT of pandas, which is a datetime
            raise ValueError(f"the timestamp is missing: {value}")
        if value.utcoffset() is None:
            raise ValueError(f"the timestamp {value.isoformat()} has no zone; say which, such as tzinfo=UTC")
        return (value - EPOCH) // TICK
    if value is None:
        raise ValueError("the timestamp is missing: None")
    if isinstance(value, bool):
        raise TypeError(f"a timestamp is a datetime with a zone, microseconds or seconds, not {value!r}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"the timestamp {value!r} is not a moment in time")
        micros = round(value * 1_000_000)
    else:
        try:
            micros = operator.index(value)
        except TypeError:
            raise TypeError(
                f"a timestamp is a datetime with a zone, an int of microseconds or a float of seconds, not {value!r}"
            ) from None
    if not MIN < micros <= END_OF_GLOBAL_WINDOW:
        raise ValueError(f"the timestamp {value!r} is out of range: microseconds since 1970, between -2**62 and 2**62")
    return micros


Unit = Literal["s", "ms", "us", "ns"]
"""Seconds, milliseconds, microseconds or nanoseconds since 1970."""

_PER_S: Final[Mapping[str, int]] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_PLAUSIBLE: Final = 10**14
_LAST_YEAR: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // TICK


def reader(unit: Unit | None) -> Callable[[Any], int]:
    """Return a function that reads the timestamps of records, as `instant` does.

    A number may be of any unit. Without a word on it a float is seconds and an int is microseconds, but an int that
    would be of 1970 to 1973 then, or a number beyond the year 9999, is refused: it is of another unit nearly always.
    An int may be of any class that has an index, such as one of numpy's, but no bool.

    Args:
        unit: Unit of numbers.

    Raises:
        ValueError: There is no such unit.
    """
    if unit is None:
        return _guessed
    if unit not in _PER_S:
        raise ValueError(f"unit={unit!r} is no unit of time; say 's', 'ms', 'us' or 'ns'")
    per_s = _PER_S[unit]

    def read(value: Any) -> int:
        if type(value) is int:
            return instant(value * 1_000_000 // per_s)
        if isinstance(value, float) and math.isfinite(value):
            return instant(round(value * 1_000_000 / per_s))
        whole = None if isinstance(value, datetime) else _whole(value)
        return instant(value if whole is None else whole * 1_000_000 // per_s)

    return read


def _whole(value: Any) -> int | None:
    """Return a whole number of another class than int, such as one of numpy's, as an int; None for all else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _guessed(value: Any) -> int:
    micros = instant(value)
    # Times of today are told first. An int may be of any class, such as numpy's.
    if micros > _LAST_YEAR or (0 <= micros < _PLAUSIBLE and not isinstance(value, datetime | float)):
        raise ValueError(
            f"the timestamp {value} would be {date_of(micros):%Y-%m-%d %H:%M} in "
            f"{'seconds' if isinstance(value, float) else 'microseconds'}; if it is that, or of another unit, say "
            "unit='s', 'ms', 'us' or 'ns' in event_time"
        )
    return micros


def reader_of_many(unit: Unit | None) -> Callable[[list[Any]], Sequence[int]]:
    """Return a function that reads a list of timestamps, each as `reader` does.

    It returns `Ascending` ones if they mostly can be used as they are.
    """
    read = reader(unit)
    first, last = (_PLAUSIBLE, _LAST_YEAR) if unit is None else (MIN + 1, END_OF_GLOBAL_WINDOW)
    per_s = 1_000_000 if unit is None else _PER_S[unit]

    def read_all(values: list[Any]) -> Sequence[int]:
        if values and [*map(type, values)].count(int) == len(values):
            micros: Sequence[int] = values if per_s == 1_000_000 else [value * 1_000_000 // per_s for value in values]
            micros = in_order(micros)
            least, most = extremes(micros)
            if first <= least and most <= last:
                return micros
        return [*map(read, values)]

    return read_all


def date_of(micros: int) -> datetime:
    """Return a timestamp as a datetime in UTC, or the nearest a datetime can hold."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return (datetime.min if micros < 0 else datetime.max).replace(tzinfo=UTC)


def duration(value: timedelta | int, name: str = "a duration") -> int:
    """Return a duration in microseconds; an int is one already, within the engine.

    Raises:
        ValueError: It is negative.
        TypeError: It is neither a timedelta nor an int.
    """
    micros = value if isinstance(value, int) and not isinstance(value, bool) else _micros(value, name)
    if micros < 0:
        raise ValueError(f"{name} is negative: minus ({spell(-micros)}); give one of at least 0")
    return micros


def units_duration(call: str, units: Mapping[str, Any], name: str) -> int:
    """Return a duration in the words of a timedelta (minutes=1) in microseconds.

    Raises:
        ValueError: It is negative.
        TypeError: There is no such word, or no number after it.
    """
    try:
        return duration(timedelta(**units), name)
    except TypeError:
        given = ", ".join(f"{word}={value!r}" for word, value in units.items())
        words = "weeks, days, hours, minutes, seconds, milliseconds, microseconds"
        raise TypeError(f"{call}({given}): {name} is numbers of {words}") from None


def require_whole(call: str, argument: str, value: object) -> None:
    """Refuse a number that is not whole.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{call}: {argument} is a whole number, not {value!r}")


def user_duration(value: object, name: str) -> int:
    """Return a duration that a user says, in microseconds.

    Raises:
        ValueError: It is negative.
        TypeError: It is no timedelta: a number could be of any unit.
    """
    return duration(_micros(value, name), name)


def _micros(value: object, name: str) -> int:
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} is a timedelta, such as timedelta(seconds=60), not {value!r}")
    return value // TICK


def spell(micros: int) -> str:
    """Return a duration as the keyword of a timedelta, in its largest unit.

    >>> spell(90_000_000), spell(7_200_000_000), spell(5)
    ('seconds=90', 'hours=2', 'microseconds=5')
    """
    for name, unit in _UNITS:
        if micros % unit == 0 and micros:
            return f"{name}={micros // unit}"
    return f"seconds={micros}"


_UNITS: Final = (
    ("days", 86_400_000_000),
    ("hours", 3_600_000_000),
    ("minutes", 60_000_000),
    ("seconds", 1_000_000),
    ("milliseconds", 1_000),
    ("microseconds", 1),
)
