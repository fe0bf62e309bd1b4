"""Aggregation on each worker (paper 002, "local tracker").

It sends fewer and larger reports to the strategy inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from flamecore.abc.acker import Acker, AckerPlan, Listener, Reporter, Tracker
from flamecore.abc.hooks import hookimpl
from flamecore.errors import ConfigError
from flamecore.model.messages import Report
from flamestream_ackers.reporter import MergingReporter


class LocalReporter(MergingReporter):
    """Reporter that holds reports for an interval or a count, then passes them on.

    Args:
        inner: The reporter that sends them.
        plan: The plan of the acker.
        interval: Longest delay of a report, in seconds. Intervals end at multiples of it on the clock: the reporters of
            one machine send together. Items in flight on several workers are then done at one time, not when the last
            report comes round, and the tracker sends one update for them.
        count: Most acks that may wait.
    """

    def __init__(self, inner: Reporter, plan: AckerPlan, interval: float, count: int) -> None:
        super().__init__(plan)
        self._inner = inner
        self._interval = interval
        self._limit = count
        self._count = 0
        self._deadline: float | None = None

    def ack(self, segment: int, time: int, xor: int) -> None:
        self._count += 1
        acks = self._acks[segment]
        if time in acks:
            acks[time] ^= xor
        else:
            acks[time] = xor

    def rest(self, at_rest: bool) -> None:
        self._inner.rest(at_rest)

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        if self._count or self._heartbeats or self._ended:
            if self._deadline is None:
                self._deadline = now + (self._interval - now % self._interval if self._interval else 0.0)
            if now >= self._deadline or self._count >= self._limit:
                return self._pass_on(now)
        due = self._inner.due()
        return self._inner.flush(now) if due is not None and due <= now else ()

    def due(self) -> float | None:
        inner = self._inner.due()
        if inner is None or self._deadline is None:
            return inner if self._deadline is None else self._deadline
        return min(inner, self._deadline)

    def _pass_on(self, now: float) -> Sequence[tuple[int, Report]]:
        # In this order; that no front ends beside acks is the duty of the reporter inside, which may be any other.
        inner = self._inner
        for ack in self._take_acks():
            inner.ack(*ack)
        for front, time in self._take_heartbeats():
            inner.heartbeat(front, time)
        for front in self._ended:
            inner.unregister(front)
        self._ended.clear()
        self._count = 0
        self._deadline = None
        return inner.flush(now)


class Local(Acker):
    """Wrapper of another strategy's reporters, up to `flush_interval_ms` slower."""

    name = "local"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Options of the driver.

        Attributes:
            inner: Name of the strategy inside.
            inner_options: Its options.
            flush_interval_ms: Maximum delay of a report. 0: no longer than the step of the worker that made it.
            flush_count: Maximum number of waiting acks.
        """

        inner: str = "centralized"
        inner_options: dict[str, Any] = {}
        flush_interval_ms: Annotated[float, msgspec.Meta(ge=0)] = 5.0
        flush_count: Annotated[int, msgspec.Meta(ge=1)] = 1000

    def __init__(self, options: Options, plan: AckerPlan) -> None:
        super().__init__(options, plan)
        if plan.make is None:
            raise ConfigError(
                f"acker 'local' is to wrap acker {options.inner!r}, but nothing here can build that",
                hint="Give the plan its `make`.",
                path="acker.local.inner",
            )
        self.inner = plan.make(options.inner, options.inner_options)

    @property
    def trackers(self) -> int:
        return self.inner.trackers

    def tracker(self, index: int) -> Tracker:
        return self.inner.tracker(index)

    def reporter(self, worker: int) -> Reporter:
        options = self.options
        inner = self.inner.reporter(worker)
        return LocalReporter(inner, self.plan, options.flush_interval_ms / 1000, options.flush_count)

    def listener(self) -> Listener:
        return self.inner.listener()


@hookimpl
def flamestream_acker() -> type[Acker]:
    """Return the acker class of this module."""
    return Local
