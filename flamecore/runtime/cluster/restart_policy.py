"""The restart policy of a job: how many faults it survives, and its pauses."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from flamecore.errors import FlameError, JobError

_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
"""First and longest pause before the next attempt after several fruitless ones; each is twice the one before."""


class RestartPolicy:
    """The restart policy of one job, with the faults that it has met.

    Args:
        most: Most faults within the window after which the job goes on.
        window_s: Time during which a fault counts, in seconds.
        clock: A monotonic clock, in seconds.

    Attributes:
        faults: Number of faults since the job began.
    """

    def __init__(self, most: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.faults = 0
        self._most, self._window_s, self._clock = most, window_s, clock
        # As many as decide: with one more than `most` in the window the job ends.
        self._times: deque[float] = deque(maxlen=most + 1)
        self._fruitless = 0  # attempts in turn that have come to nothing

    def note(self, error: FlameError) -> None:
        """Count a fault.

        Raises:
            JobError: There were too many within the window.
        """
        now = self._clock()
        self.faults += 1
        self._times.append(now)
        recent = sum(at > now - self._window_s for at in self._times)
        if recent > self._most:
            raise JobError(
                f"{error.what}\n  the job gives up: {recent} faults within {self._window_s:g} s "
                f"(deploy.restarts is {self._most})",
                hint="All delivered outputs are right, and the state is kept: correct the mistake that the last lines "
                "show, and run the job again.",
            )

    def pause_s(self, *, fruitless: bool) -> float:
        """Return the pause before the next attempt, in seconds.

        An obstacle may be gone soon: a server that starts again, a host that is full.

        Args:
            fruitless: Whether the last attempt has delivered nothing.
        """
        self._fruitless = self._fruitless + 1 if fruitless else 0
        return min(_PAUSE_S * 2**self._fruitless, _LONGEST_PAUSE_S) if self._fruitless > 1 else 0.0
