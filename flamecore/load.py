"""How busy a worker is: what rebalances go by (`flamecore.operations.dealing`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from flamecore.clock import STOPWATCH, monotonic

_PERIOD_S: Final = 0.1
"""How often a worker that has work says how busy it is."""

_QUIET: Final = 0.02
"""Whose work has taken a smaller share of the time says nothing, but once."""


class LoadMeter:
    """Tells how long a worker has worked, for as long as there is work. Enter it for each piece of work.

    Work is what keeps others waiting: also a user's function that waits for a database.

    Args:
        tell: Told (seconds worked, seconds passed) of each period.
    """

    def __init__(self, tell: Callable[[float, float], None]) -> None:
        self._tell = tell
        self._clock = STOPWATCH.get()
        self._worked = 0.0
        self._began = 0.0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._silent = True

    def __enter__(self) -> None:
        if self._timer is None:
            self._wait()
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        self._worked += self._clock() - self._began

    def _wait(self) -> None:
        self._since, self._worked = monotonic(), 0.0
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._report)

    def _report(self) -> None:
        passed = monotonic() - self._since
        worked = min(self._worked, passed)
        was_silent, self._silent = self._silent, worked < _QUIET * passed
        self._timer = None
        if not (self._silent and was_silent):
            self._wait()
            self._tell(worked, passed)

    def aclose(self) -> None:
        """Cancel what is scheduled."""
        if self._timer is not None:
            self._timer.cancel()
