"""Deadlines of calls to sources and sinks: long, but finite.

A driver may hang: on a server that does not answer, on a disk that is gone. The job then warns, and later fails. A call
that timed out is not retried: its effect is unknown. This is safe: a sink that stores a batch and its time in one step
tells the next run its contents, and accepts nothing more from the former run.

`asyncio.timeout_at` with `reschedule` does not do: it cancels the waiting task, and takes effect when the driver heeds
that. A driver that does not, in a write to a dead disk, would hold the job for ever. It also says nothing before the
limit, and a call in its scope takes 9 µs of CPU time, where one here takes 2.
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


class _Call:
    """A call under way: its description, its start, and the time at which it fails."""

    __slots__ = ("_doing", "_size", "due", "shortened", "since")

    def __init__(self, doing: str, size: int, since: float, due: float) -> None:
        self._doing, self._size, self.since, self.due, self.shortened = doing, size, since, due, False

    def __str__(self) -> str:
        return f"{self._doing} of {self._size} payloads" if self._size else self._doing


class CallDeadline:
    """The deadline of the calls of one sink or reader, one at a time.

    Args:
        job: Name of the job, for the log.
        who: Description of the source or sink.
        limit_s: Longest time of a call, in seconds.
        error: Function that makes the error of a call that takes too long, from a description.

    Attributes:
        known: Function that describes its known output.
        overdue: Function called with the error.
        error: The error, once a call has taken too long.
    """

    def __init__(self, job: str, who: str, limit_s: float, error: Callable[[str], FlameError]) -> None:
        self.known: Callable[[], str] = str
        self.overdue: Callable[[FlameError], None] = _ignore
        self.error: FlameError | None = None
        self._job, self._who, self._make_error = job, who, error
        self._configured_s = self._limit_s = limit_s
        self._call: _Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failed: asyncio.Future[None] | None = None

    def concern(self, who: str, error: Callable[[str], FlameError]) -> None:
        """Set whose call is next; arguments as of the class."""
        self._who, self._make_error = who, error

    def during(self, doing: str, size: int = 0) -> CallDeadline:
        """Limit the time of a block that calls the driver: `with deadline.during(…):`.

        Args:
            doing: Description of the call, in words that follow "to".
            size: Number of its payloads, if any.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._call = _Call(doing, size, now, now + self._limit_s)
        # The timer outlives the call, and then looks at a later one: a timer for each batch costs more than the rest.
        if self._timer is None:
            self._timer = loop.call_later(self._warn_s, self._look)
        return self

    def __enter__(self) -> None:
        return

    def __exit__(self, *exc: object) -> None:
        self._call = None

    def shorten(self, limit_s: float) -> None:
        """Limit all further calls to `limit_s`, and the current one to as much from now."""
        self._limit_s = min(self._limit_s, limit_s)
        self.aclose()
        if (call := self._call) is not None:
            now = asyncio.get_running_loop().time()
            if (due := now + self._limit_s) < call.due:
                call.due, call.shortened = due, True
            self._look_at(now + self._warn_s, call)

    def restore(self) -> None:
        """Restore the configured limit, also for the current call."""
        self._limit_s = self._configured_s
        self.aclose()
        if (call := self._call) is not None:
            call.due, call.shortened = call.since + self._limit_s, False
            self._look_at(call.since, call)

    def aclose(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def pending(self) -> str:
        """Return a description of the current call and its duration; empty if none."""
        if (call := self._call) is None:
            return ""
        waited_s = asyncio.get_running_loop().time() - call.since
        return f"{self._who} has been asked for {waited_s:.1f} s to {call}"

    async def call(self, work: Coroutine[object, object, T], doing: str) -> T:
        """Await a driver's call, and return its result, before the deadline.

        If this is cancelled, so is the call, which gets the same time to end.

        Args:
            work: The call of the driver.
            doing: See `during`.

        Raises:
            SinkError, SourceError: The call takes too long.
        """
        task = asyncio.ensure_future(work)
        with self.during(doing):
            try:
                await self.wait_done(task)
            except BaseException as error:
                # Cancelled, but not awaited without a limit: a driver that does not heed it would
                # hold the job's end.
                task.cancel()
                if isinstance(error, asyncio.CancelledError):
                    with suppress(FlameError):
                        await self.wait_done(task)
                raise
        return task.result()

    async def wait_done(self, done: asyncio.Future[Any]) -> None:
        """Wait for a future that may depend on the current call; ignore its outcome.

        Raises:
            SinkError, SourceError: The call takes too long.
        """
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        if self.error is None:
            await asyncio.wait((done, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self.error is not None and not done.done():
            raise self.error

    @property
    def _warn_s(self) -> float:
        return min(_WARN_S, self._limit_s / 4)

    def _look_at(self, time: float, call: _Call) -> None:
        self._timer = asyncio.get_running_loop().call_at(min(time, call.due), self._look)

    def _look(self) -> None:
        self._timer, call = None, self._call
        if call is None:
            return None
        now = asyncio.get_running_loop().time() + 0.001  # timers may be early by as much as the clock ticks
        if now >= call.due:
            return self._fail(call)
        waited_s, next_s = now - call.since, self._warn_s
        if waited_s >= next_s:
            facts = {"waited_s": round(waited_s, 1), "limit_s": self._limit_s, "known": self.known()}
            logger().warning(events.EDGE_WAITED, job=self._job, edge=self._who, to=str(call), **facts)
        while next_s <= waited_s:
            next_s *= 2
        return self._look_at(call.since + next_s, call)

    def _fail(self, call: _Call) -> None:
        known = self.known()
        given = f"{self._limit_s:g} s more" if call.shortened else f"{call.due - call.since:g} s"
        what = f"{self._who} was given {given} to {call}, and has not done it"
        self.error = self._make_error(f"{what}; {known}" if known else what)
        # The call may be in a thread that never returns; the process ends without waiting for it
        # then.
        give_up()
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(None)
        self.overdue(self.error)


class Deadlines:
    """The deadlines of one job.

    Args:
        job: Name of the job.
        sink_s: Seconds that a call of a sink may take.
        source_s: Seconds that a source may take to stop.
        open_s: Seconds that a source may take to open.
        grace_s: Seconds that either may take once the job ends with an error.
    """

    def __init__(
        self,
        job: str = "",
        sink_s: float = 1800.0,
        source_s: float = 60.0,
        grace_s: float = 30.0,
        open_s: float = 1800.0,
    ) -> None:
        self.grace_s = grace_s
        self._job, self._sink_s, self._source_s, self._open_s = job, sink_s, source_s, open_s
        self._shared: dict[str, CallDeadline] = {}
        self._deadlines: list[CallDeadline] = []
        self._shortened = False

    @classmethod
    def of(cls, settings: JobSettings) -> Deadlines:
        """Return new deadlines for the sources and sinks of a job."""
        limits = settings.sink_timeout_s, settings.source_timeout_s, settings.grace_s, settings.open_timeout_s
        return cls(settings.name, *limits)

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

    def _share(self, who: str, limit_s: float, error: Callable[[str], FlameError]) -> CallDeadline:
        if who not in self._shared:
            self._shared[who] = self._deadline(who, limit_s, error)
        return self._shared[who]

    def _hint(self, look: str, key: str, usual_s: float) -> str:
        limit = f"job.{key} says how long it may take"
        if self._shortened and self.grace_s < usual_s:
            limit = "job.grace_s says how long it may take when the job ends with an error"
        return f"{look} If it is only slow: {limit}."

    def sink(self, name: str, partition: int | None = None) -> CallDeadline:
        """Return the deadline of a sink, or of one of its partitions, always the same."""

        def error(what: str) -> SinkError:
            look = (
                "Check its destination. An exactly-once sink loses and doubles nothing: the next run of a job that "
                "keeps state goes on."
            )
            return SinkError(what, hint=self._hint(look, "sink_timeout_s", self._sink_s), sink=name)

        who = f"sink {name!r}" + (f", partition {partition}," if partition is not None else "")
        return self._share(who, self._sink_s, error)

    def source(self, front: FrontId, *, apart: bool = False) -> CallDeadline:
        """Return the deadline of a reader.

        It is always the same; with `apart` a new one, for calls beside others.
        """

        def error(what: str) -> SourceError:
            hint = self._hint("Check its input.", "source_timeout_s", self._source_s)
            return SourceError(what, hint=hint, source=front.source, position=None)

        who = f"source {front.source!r}" + (f", partition {front.partition}," if front.partition else "")
        return (self._deadline if apart else self._share)(who, self._source_s, error)

    def opening(self, source: str, driver: str = "") -> CallDeadline:
        """Return the deadline of sources before they read, which open one after another, for the next call of one."""

        def error(what: str) -> SourceError:
            hint = self._hint("Check its input.", "open_timeout_s", self._open_s)
            return SourceError(what, hint=hint, source=source, position=None)

        who = f"source {source!r}" + (f" ({driver})" if driver else "")
        # One for all: with a timer for each, a thousand sources would keep a processor busy.
        deadline = self._share("opening", self._open_s, error)
        deadline.concern(who, error)
        return deadline

    async def find_end(self, source: str, work: Coroutine[object, object, T]) -> T:
        """Await a source's answer where a run ends.

        Raises:
            SourceError: It takes too long.
        """
        return await self.opening(source).call(work, "find where the run ends")

    def store(self, name: str, limit_s: float) -> CallDeadline:
        """Return a deadline for calls of the store of snapshots, one at a time."""

        def error(what: str) -> StoreError:
            hint = "Look at the disk or the server it is on. If it is only slow: state.commit_timeout_s says how long "
            return StoreError(what, hint=f"{hint}it may take.", store=name, blob="")

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


def _ignore(error: FlameError) -> None:
    return
