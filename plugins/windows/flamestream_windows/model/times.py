"""Instants and durations, as microseconds."""

from __future__ import annotations

import math
import operator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

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
        raise ValueError(f"the timestamp {value!r} is out of range: {MIN} < microseconds <= {END_OF_GLOBAL_WINDOW}")
    return micros


def date_of(micros: int) -> datetime:
    """Return a timestamp as a datetime in UTC; beyond the years that there are, the nearest."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return (datetime.min if micros < 0 else datetime.max).replace(tzinfo=UTC)


def duration(value: timedelta | int, name: str = "a duration") -> int:
    """Return a duration in microseconds; an int is one already.

    Raises:
        ValueError: It is negative.
        TypeError: It is neither a timedelta nor an int.
    """
    if isinstance(value, timedelta):
        micros = value // TICK
    elif isinstance(value, int) and not isinstance(value, bool):
        micros = value
    else:
        raise TypeError(f"{name} is a timedelta, or an int of microseconds, not {value!r}")
    if micros < 0:
        raise ValueError(f"{name} is negative: {value!r}")
    return micros


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
