"""The job's control: hears which fronts have ended and what the rears have stored, and so knows when the job is done.

Plain state, driven by messages like every part. A job is done when all its fronts have ended and every rear has
stored all that they sent; it has failed when every rear has stored what comes before the first record that failed.
Where some were stopped for another run to go on with them, it is done with what is below the least time they have come
to.
"""

from __future__ import annotations

from typing import Any

from flamecore.errors import FlameError, JobError
from flamecore.model.failure import Failure
from flamecore.model.messages import Delivered, Failing, FrontEnded, Reached
from flamecore.model.meta import MIN_TIME
from flamecore.model.plan import Plan


class Completion:
    """Decides when a job is over.

    Args:
        plan: The job's plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._open = set(range(1, len(plan.fronts) + 1))
        self._end = plan.start
        self._stopped: list[int] = []
        self._start = plan.start
        self._stored = dict.fromkeys(plan.rears, MIN_TIME)
        self._reached: dict[str, Failure] = {}
        self._failing: Failure | None = None

    def receive(self, message: Any) -> None:
        """Take a message of a front or a rear."""
        if isinstance(message, Delivered):
            self._stored[message.rear] = max(self._stored[message.rear], message.time)
        elif isinstance(message, FrontEnded):
            self._open.discard(message.front)
            if message.stopped:
                self._stopped.append(message.end)
            self._end = max(self._end, message.end)
        elif isinstance(message, Reached):
            self._reached[message.rear] = message.failure
        elif isinstance(message, Failing):
            self._failing = self._failing or message.failure
        else:
            raise JobError(f"the job's control does not know what to do with a {type(message).__name__}")

    @property
    def done(self) -> bool:
        """Whether all that was admitted is stored; or, where fronts were stopped, all that can be in this run."""
        if self._open or self.failing:
            return False
        end = min(self._stopped, default=self._end)
        return end <= self._start or all(time >= end for time in self._stored.values())

    @property
    def stopped(self) -> bool:
        """Whether some front was stopped before its end."""
        return bool(self._stopped)

    @property
    def stored(self) -> int:
        """Everything below this time is stored by every rear."""
        return min(self._stored.values())

    @property
    def failing(self) -> bool:
        """Whether some record is known to end the job: there is no use in reading on."""
        return self._failing is not None or self.reached

    @property
    def reached(self) -> bool:
        """Whether some rear has come to such a record."""
        return bool(self._reached)

    @property
    def expected(self) -> FlameError | None:
        """The error that the job is going to fail with, as far as is known: another record may come before that one."""
        failure = self._first or self._failing
        return None if failure is None else failure.raised()

    @property
    def error(self) -> FlameError | None:
        """The error that the job has failed with, once every rear has delivered what comes before it.

        A rear that the operation which failed does not lead to goes past the record. One that has come to another, of
        an operation that does lead there, has gone no further: so none of these is before the first.
        """
        first = self._first
        if first is None:
            return None
        left = (time for rear, time in self._stored.items() if rear not in self._reached)
        return first.raised() if all(time > first.at.time for time in left) else None

    @property
    def _first(self) -> Failure | None:
        """The first record that some rear has come to; of its failures, that which the first of the rears has met."""
        reached = [self._reached[rear] for rear in self._stored if rear in self._reached]
        return min(reached, key=lambda failure: failure.at, default=None)
