"""One tracker for the whole job; every step of a worker is reported at once."""

from __future__ import annotations

from flamecore.abc.acker import Acker, Listener, Reporter, SingleListener, Tracker
from flamecore.abc.hooks import hookimpl
from flamecore.model.messages import Ack, Report
from flamestream_ackers.reporter import Heartbeats, SteppingReporter
from flamestream_ackers.tracker import XorTracker


class CentralizedReporter(SteppingReporter):
    """One report a step, to the only tracker."""

    def _reports(
        self, tick: int, acks: tuple[Ack, ...], heartbeats: Heartbeats, ended: tuple[int, ...]
    ) -> list[tuple[int, Report]]:
        if not (acks or heartbeats or ended):
            return []
        return [(0, Report(self._worker, tick, acks, heartbeats, ended, self._at_rest))]


class Centralized(Acker):
    """The simplest strategy, with the lowest latency.

    See paper 002, "Interface of the tracker".
    """

    name = "centralized"

    def tracker(self, index: int) -> Tracker:
        return XorTracker(self.plan)

    def reporter(self, worker: int) -> Reporter:
        return CentralizedReporter(worker, self.plan)

    def listener(self) -> Listener:
        return SingleListener(len(self.plan.segments), self.plan.start)


@hookimpl
def flamestream_acker() -> type[Acker]:
    """Return the acker class of this module."""
    return Centralized
