"""The clocks of a job, which a simulation replaces."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Literal

ClockName = Literal["sequence", "wall"]

WALL_CLOCK: Final[ContextVar[Callable[[], int]]] = ContextVar("wall clock", default=lambda: time.time_ns() // 1000)
"""Function that returns microseconds since the epoch. A simulation sets another one."""

STOPWATCH: Final[ContextVar[Callable[[], float]]] = ContextVar("stopwatch", default=time.perf_counter)
"""Function that returns seconds, to time work. A simulation sets another one."""
