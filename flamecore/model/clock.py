"""The clocks of a job, which a simulation replaces, and their times as text."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

ClockName = Literal["sequence", "wall"]

WALL_CLOCK: Final[ContextVar[Callable[[], int]]] = ContextVar("wall clock", default=lambda: time.time_ns() // 1000)
"""Function that returns microseconds since the epoch. A simulation sets another one."""

STOPWATCH: Final[ContextVar[Callable[[], float]]] = ContextVar("stopwatch", default=time.perf_counter)
"""Function that returns seconds, to time work. A simulation sets another one."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_COUNTED: Final = 10**14
"""Times below it are numbers of the sequence clock, which counts records; as microseconds they end in March of 1973."""


def moment(micros: int) -> str:
    """Return an event time, or a mark, as ISO text.

    Beyond the years 1 to 9999 it is "beginning" or "end": the time before all records, or behind the last.

    >>> moment(1_700_000_000_000_000), moment(2**63 - 1)
    ('2023-11-14T22:13:20+00:00', 'end')
    """
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return "beginning" if micros < 0 else "end"


def global_time(time: int) -> int | str:
    """Return a global time for people: ISO text, or the number of a job whose clock counts records.

    >>> global_time(1_700_000_000_000_000), global_time(7)
    ('2023-11-14T22:13:20+00:00', 7)
    """
    return time if -_COUNTED < time < _COUNTED else moment(time)
