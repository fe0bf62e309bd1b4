"""Deadlines of calls to sources and sinks: long, but finite.

A driver may hang: on a server that does not answer, on a disk that is gone. The job then warns, and later fails. A call
that timed out is not retried: its effect is unknown. This is safe: a sink that stores a batch and its time in one step
tells the next run what it holds, and accepts nothing more from the former run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from flamecore import events
from flamecore.errors import FlameError, SinkError, SourceError, StoreError
from flamecore.logs import logger
from flamecore.model.meta import FrontId
from flamecore.model.settings import JobSettings
from flamecore.runtime.tasks.event_loop import give_up

T = TypeVar("T")

_WARN_S: Final = 30.0
"""Time until the first warning, at most a quarter of the limit; later warnings come after twice the time each."""


class CallDeadline:
    """The deadline of the calls of one sink or reader, one at a time.

    Args:
        job: Name of the job, for the log.
        error: Function that makes the error of a call that takes too long, from a description.
        who: Description of the source or sink.
        limit_s: Longest time of a call, in seconds.

    Attributes:
        known: Function that describes its known output.
        overdue: Function called with the error.
        error: The error, once a call has taken too long.
    """

    def __init__(self, job: str, who: str, limit_s: float, error: Callable[[str], FlameError]) -> None:
        self.known: Callable[[], str] = str
        self.overdue: Callable[[FlameError], None] = _nobody_hears
        self.error: FlameError | None = None
        self._job, self._who, self._make_error = job, who, error
        self._configured_s = self._limit_s = limit_s
        self._warn_s = min(_WARN_S, limit_s / 4)
        self._doing, self._size = "", 0
        self._since: float | None = None
        self._due = 0.0
        self._more = ""
        self._timer: asyncio.TimerHandle | None = None
        self._given_up: asyncio.Future[None] | None = None

    def begin(self, doing: str, size: int = 0) -> None:
        """Start the clock of a call; cheap, since every batch does it.

        Args:
            doing: Description of the call, in words that follow "to".
            size: Number of payloads, if any.
        """
        loop = asyncio.get_running_loop()
        self._doing, self._size, self._since = doing, size, loop.time()
        self._due, self._more = self._since + self._limit_s, ""
        if self._timer is None:
            self._timer = loop.call_later(self._warn_s, self._look)

    def end(self) -> None:
        """Stop the clock of the call."""
        self._since = None

    def shorten(self, limit_s: float) -> None:
        """Limit all further calls to `limit_s`, and the current one to as much from now."""
        self._limit_to(min(self._limit_s, limit_s))
        if self._since is None:
            return
        now = asyncio.get_running_loop().time()
        if (due := now + self._limit_s) < self._due:
            self._due, self._more = due, " more"
        self._look_by(now + self._warn_s)

    def restore(self) -> None:
        """Restore the configured limit, also for the current call."""
        self._limit_to(self._configured_s)
        if self._since is not None:
            self._due, self._more = self._since + self._limit_s, ""
            self._look_by(self._since)

    def _limit_to(self, limit_s: float) -> None:
        self._limit_s, self._warn_s = limit_s, min(_WARN_S, limit_s / 4)
        self.aclose()

    def _look_by(self, time: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(min(time, self._due), self._look)

    def aclose(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def pending(self) -> str:
        """Return a description of the current call and its duration; empty if none."""
        if self._since is None:
            return ""
        waited_s = asyncio.get_running_loop().time() - self._since
        return f"{self._who} has been asked for {waited_s:.1f} s to {self._asked}"

    @property
    def _asked(self) -> str:
        return f"{self._doing} of {self._size} payloads" if self._size else self._doing

    async def call(self, work: Coroutine[object, object, T], doing: str) -> T:
        """Await a driver's call, and return its result, before the deadline.

        If this is cancelled, so is the call, which gets the same time to end.

        Args:
            work: The call of the driver.
            doing: See `begin`.

        Raises:
            SinkError, SourceError: The call takes too long.
        """
        task = asyncio.ensure_future(work)
        self.begin(doing)
        try:
            await self.wait_done(task)
        except BaseException as error:
            task.cancel()
            if isinstance(error, asyncio.CancelledError):
                with suppress(FlameError):
                    await self.wait_done(task)
            raise
        finally:
            self.end()
        return task.result()

    async def wait_cancelled(self, task: asyncio.Future[Any], doing: str) -> None:
        """Wait for a cancelled task to end.

        Raises:
            SinkError, SourceError: The task takes too long.
        """
        self.begin(doing)
        try:
            await self.wait_done(task)
        finally:
            self.end()

    async def wait_done(self, done: asyncio.Future[Any]) -> None:
        """Wait for a future that may depend on the current call; ignore its outcome.

        Raises:
            SinkError, SourceError: The call takes too long.
        """
        if self._given_up is None:
            self._given_up = asyncio.get_running_loop().create_future()
        if self.error is None:
            await asyncio.wait((done, self._given_up), return_when=asyncio.FIRST_COMPLETED)
        if self.error is not None and not done.done():
            raise self.error

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return None
        loop = asyncio.get_running_loop()
        now = loop.time() + 0.001  # timers may be early by as much as the clock ticks
        if now >= self._due:
            return self._give_up()
        waited_s = now - self._since
        due_s = self._warn_s
        while due_s <= waited_s:
            due_s *= 2
        if due_s > self._warn_s:
            facts = {"waited_s": round(waited_s, 1), "limit_s": self._limit_s, "known": self.known()}
            logger().warning(events.EDGE_WAITED, job=self._job, edge=self._who, to=self._asked, **facts)
        self._timer = loop.call_at(min(self._since + due_s, self._due), self._look)
        return None

    def _give_up(self) -> None:
        known = self.known()
        given_s = self._limit_s if self._more or self._since is None else self._due - self._since
        what = f"{self._who} was given {given_s:g} s{self._more} to {self._asked}, and has not done it"
        self.error = self._make_error(f"{what}; {known}" if known else what)
        give_up()
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_result(None)
        self.overdue(self.error)


class Deadlines:
    """The deadlines of one job.

    Args:
        job: Name of the job.
        sink_s: Seconds that a call of a sink may take.
        source_s: Seconds that a source may take to stop.
        grace_s: Seconds that either may take once the job ends with an error.
    """

    def __init__(self, job: str = "", sink_s: float = 1800.0, source_s: float = 60.0, grace_s: float = 30.0) -> None:
        self.grace_s = grace_s
        self._job, self._sink_s, self._source_s = job, sink_s, source_s
        self._sinks: dict[str, CallDeadline] = {}
        self._readers: dict[FrontId, CallDeadline] = {}
        self._deadlines: list[CallDeadline] = []
        self._shortened = False

    @classmethod
    def of(cls, settings: JobSettings) -> Deadlines:
        """Return new deadlines for the sources and sinks of a job."""
        return cls(settings.name, settings.sink_timeout_s, settings.source_timeout_s, settings.grace_s)

    def shorten(self) -> None:
        """Shorten all deadlines to the grace, because the job ends with an error."""
        if not self._shortened:
            self._shortened = True
            for deadline in self._deadlines:
                deadline.shorten(self.grace_s)

    def restore(self) -> None:
        """Restore all deadlines, because the job continues."""
        if self._shortened:
            self._shortened = False
            for deadline in self._deadlines:
                deadline.restore()

    @property
    def pending(self) -> str:
        """Return a description of all current calls and durations; empty if none."""
        return "; ".join(deadline.pending for deadline in self._deadlines if deadline.pending)

    def _deadline(self, who: str, limit_s: float, error: Callable[[str], FlameError]) -> CallDeadline:
        deadline = CallDeadline(self._job, who, limit_s, error)
        if self._shortened:
            deadline.shorten(self.grace_s)
        self._deadlines.append(deadline)
        return deadline

    def _hint(self, look: str, key: str, usual_s: float) -> str:
        limit = f"job.{key} says how long it may take"
        if self._shortened and self.grace_s < usual_s:
            limit = "job.grace_s says how long it may take when the job ends with an error"
        return f"{look} If it is only slow: {limit}."

    def sink(self, name: str) -> CallDeadline:
        """Return the deadline of a sink, always the same."""

        def error(what: str) -> SinkError:
            look = (
                "Look at what it writes to. An exactly-once sink loses and doubles nothing: the next run of a job that "
                "keeps state goes on."
            )
            return SinkError(what, hint=self._hint(look, "sink_timeout_s", self._sink_s), sink=name)

        if name not in self._sinks:
            self._sinks[name] = self._deadline(f"sink {name!r}", self._sink_s, error)
        return self._sinks[name]

    def source(self, front: FrontId, *, apart: bool = False) -> CallDeadline:
        """Return the deadline of a reader.

        It is always the same; with `apart` a new one, for calls beside others.
        """

        def error(what: str) -> SourceError:
            hint = self._hint("Look at what it reads from.", "source_timeout_s", self._source_s)
            return SourceError(what, hint=hint, source=front.source, position=None)

        if front not in self._readers or apart:
            who = f"source {front.source!r}" + (f", partition {front.partition}," if front.partition else "")
            deadline = self._deadline(who, self._source_s, error)
            if apart:
                return deadline
            self._readers[front] = deadline
        return self._readers[front]

    def store(self, name: str, limit_s: float) -> CallDeadline:
        """Return a deadline for the store of snapshots."""

        def error(what: str) -> StoreError:
            return StoreError(what, hint="Look at the disk or the server it is on.", store=name, blob="")

        return self._deadline(f"store {name!r}", limit_s, error)

    async def close(self, deadline: CallDeadline, aclose: Callable[[], Coroutine[object, object, None]]) -> None:
        """Close a source, sink or store, unless a call of it has timed out.

        Such a call may still be running.

        Raises:
            SinkError, SourceError, StoreError: Closing takes too long.
            FlameError: As the driver raises.
        """
        if deadline.error is None:
            await deadline.call(aclose(), "close")
        deadline.aclose()


def _nobody_hears(error: FlameError) -> None:
    return
