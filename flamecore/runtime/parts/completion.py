"""The completion of a job, known from ended fronts and stored outputs.

Plain state, driven by messages like every part. A job is done when all its fronts have ended and every rear has stored
all their outputs; it has failed when every rear has stored the outputs before the first failed record. If some fronts
were stopped, for the next run to continue them, it is done below the least time that these have reached.
"""

from __future__ import annotations

from flamecore.errors import FlameError, JobError
from flamecore.model.failure import Failure
from flamecore.model.messages import Delivered, Failing, FrontEnded, Reached
from flamecore.model.meta import MIN_TIME
from flamecore.model.plan import Plan


class Completion:
    """The decision when a job is over.

    Args:
        plan: The job's plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._open = set(range(1, len(plan.fronts) + 1))
        self._end = plan.start
        self._stopped: int | None = None  # the least time that a stopped front has reached
        self._start = plan.start
        self._stored = dict.fromkeys(plan.rears, MIN_TIME)
        self._reached: dict[str, Failure] = {}
        self._failing: Failure | None = None
        self._announced = False

    def receive(self, message: object) -> None:
        """Process a message of a front or a rear."""
        if isinstance(message, Delivered):
            self._stored[message.rear] = max(self._stored[message.rear], message.time)
        elif isinstance(message, FrontEnded):
            self._open.discard(message.front)
            if message.stopped:
                self._stopped = message.end if self._stopped is None else min(self._stopped, message.end)
            self._end = max(self._end, message.end)
        elif isinstance(message, Reached):
            self._reached[message.rear] = message.failure
            # A snapshot may wait for just that while another sink is still on its way to the record.
            self._stored[message.rear] = max(self._stored[message.rear], message.failure.at.time)
        elif isinstance(message, Failing):
            self._failing = self._failing or message.failure
        else:
            raise JobError(f"the job's control does not know what to do with a {type(message).__name__}")

    @property
    def done(self) -> bool:
        """Return whether all outputs are stored.

        If fronts were stopped, these are the outputs that can be complete in this run.
        """
        if self._open or self.failing:
            return False
        # A stopped front may go on in the next run: what is behind it is left to that, so that
        # sinks miss nothing.
        end = self._end if self._stopped is None else self._stopped
        return end <= self._start or all(time >= end for time in self._stored.values())

    @property
    def stopped(self) -> bool:
        """Return whether a front was stopped before its end."""
        return self._stopped is not None

    @property
    def stored(self) -> int:
        """Return the time below which every rear has stored everything."""
        return min(self._stored.values())

    @property
    def failing(self) -> bool:
        """Return whether a record is known to end the job, so reading on is useless."""
        return self._failing is not None or self.reached

    @property
    def reached(self) -> bool:
        """Return whether a rear has reached such a record."""
        return bool(self._reached)

    @property
    def expected(self) -> FlameError | None:
        """Return the error that the job will probably fail with, or None.

        A record before this one may still fail.
        """
        failure = self._first or self._failing
        return None if failure is None else failure.raised()

    def announce(self) -> FlameError | None:
        """Return the first error that is expected, once; None before and after that."""
        error = None if self._announced or not self.failing else self.expected
        self._announced |= error is not None
        return error

    @property
    def error(self) -> FlameError | None:
        """Return the job's error, once every rear has delivered all outputs before it.

        A rear that is not behind the failed operation goes past the record. A rear that has reached another failed
        record stops there, which is not before the first one.
        """
        if not self._reached or (first := self._first) is None:
            return None
        left = (time for rear, time in self._stored.items() if rear not in self._reached)
        return first.raised() if all(time > first.at.time for time in left) else None

    @property
    def _first(self) -> Failure | None:
        """Return the first failed record that a rear has reached, or None.

        If several failures are of one record, the first rear's counts.
        """
        reached = [self._reached[rear] for rear in self._stored if rear in self._reached]
        return min(reached, key=lambda failure: failure.at, default=None)
