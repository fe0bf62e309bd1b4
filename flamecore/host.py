"""Brings workers and trackers to life on a transport: one task for each address, which receives, calls, sends.

The parts themselves are plain state, driven by calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final, Protocol

from flamecore.acker import MinTime, Report, Tracker
from flamecore.clock import monotonic
from flamecore.errors import JobError
from flamecore.front import Batch
from flamecore.load import LoadMeter
from flamecore.messages import Busy, Committed, Delivered, Items, Prepare
from flamecore.meta import MIN_TIME
from flamecore.moments import Moments
from flamecore.post import Post
from flamecore.stats import Histogram
from flamecore.transport import Delivery
from flamecore.worker import Worker

_BURST: Final = 64
_BURST_S: Final = 0.005
"""Most messages handled before what they cause is sent, and the longest that this may take: others wait for it."""


class TakesPart(Protocol):
    """What a worker's host needs of its side of snapshots (`flamecore.worker_commits.WorkerCommits`)."""

    def prepare(self, message: Prepare) -> None: ...

    def committed(self, message: Committed) -> None: ...

    def wake(self) -> None: ...


class WorkerHost:
    """Runs a worker: messages in, calls, messages out.

    Args:
        worker: What is run.
        post: Its endpoint.
        latency: Told how long each record took from its admission to the delivery of all that came of it.
        advanced: Called with (worker, minimum time) whenever more has been delivered.
    """

    def __init__(self, worker: Worker, post: Post, latency: Histogram, advanced: Callable[[int, int], None]) -> None:
        self.worker = worker
        self.post = post
        self._latency = latency
        self._advanced = advanced
        self.commits: TakesPart | None = None
        self._seen = MIN_TIME
        self._moments = Moments(worker.plan.rears)
        self._timer: asyncio.TimerHandle | None = None
        dealing = worker.compiled.shares is not None
        self._load = LoadMeter(self._tell_load) if dealing else None
        self._working = self._load or nullcontext()

    def greet(self) -> None:
        """Have the ways to the other workers opened, so that nothing waits for that which others wait for."""
        plan = self.worker.plan
        if all(vertex.route is None for vertex in plan.graph.vertices):
            return
        for index in range(plan.workers):
            if index != self.worker.index:
                self.post.send(f"worker/{index}", Items([], ()))

    def flush(self) -> None:
        """Send what the worker has to send, and see to it that what it keeps back is sent when it is due."""
        now = monotonic()
        self.post.send_all(self.worker.flush(now))
        if self.commits is not None:
            self.commits.wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.worker.due()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due - now, 0), self._flush_due)

    def admit(self, number: int, batch: Batch, at: float, policy: str) -> None:
        """Have the worker admit records of a front it hosts, and send what comes of them. See `Worker.admit`."""
        with self._working:
            self.worker.admit(number, batch, at, policy)
            self.flush()

    def _tell_load(self, worked_s: float, passed_s: float) -> None:
        """Tell those who deal out items, the hosts of fronts, how busy this worker is."""
        plan, word = self.worker.plan, Busy(self.worker.index, worked_s, passed_s)
        try:
            self.worker.receive(self.post.endpoint.address, word)
            for index in {plan.host_of(number) for number in range(1, len(plan.fronts) + 1)} - {word.worker}:
                self.post.send(f"worker/{index}", word)
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.post.fail(error)

    def _flush_due(self) -> None:
        self._timer = None
        try:
            with self._working:
                self.flush()
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.post.fail(error)

    async def run(self) -> None:
        """Until cancelled."""
        endpoint = self.post.endpoint
        while True:
            delivery: Delivery | None = await endpoint.receive()
            now = monotonic()
            end = now + _BURST_S
            taken = 0
            with self._working:
                while delivery is not None:
                    self._take(delivery)
                    taken += 1
                    now = monotonic()
                    delivery = endpoint.receive_nowait() if taken < _BURST and now < end else None
                self.flush()
                self._settle()
            if taken == _BURST or now >= end:
                await asyncio.sleep(0)  # there may be more; but first what has been sent is to go

    def _take(self, delivery: Delivery) -> None:
        kind = type(delivery.message)
        if self.commits is not None and kind is Prepare:
            self.commits.prepare(delivery.message)
        elif self.commits is not None and kind is Committed:
            self.commits.committed(delivery.message)
        else:
            if kind is Delivered:
                self._moments.note(delivery.message, monotonic())
            self.worker.receive(*delivery)

    def _settle(self) -> None:
        """Give back the credit of what has been delivered."""
        delivered = self.worker.delivered()
        if delivered <= self._seen:
            return
        self._seen = delivered
        for limit, moment in self._moments.until(delivered):
            for front in self.worker.fronts.values():
                for at, count in front.delivered(limit):
                    self._latency.add(moment - at, count)
        self._advanced(self.worker.index, self.worker.min_time)

    def aclose(self) -> None:
        """Cancel what is scheduled."""
        if self._timer is not None:
            self._timer.cancel()
        if self._load is not None:
            self._load.aclose()


class TrackerHost:
    """Runs a tracker: reports in, news out to every subscriber."""

    def __init__(self, tracker: Tracker, post: Post) -> None:
        self.tracker = tracker
        self.post = post

    async def run(self) -> None:
        """Until cancelled."""
        tracker, post = self.tracker, self.post
        while True:
            delivery: Delivery | None = await post.endpoint.receive()
            latest: dict[int, MinTime] = {}
            while delivery is not None:
                if type(delivery.message) is not Report:
                    raise JobError(f"{post.endpoint.address} was sent a {type(delivery.message).__name__}")
                for news in tracker.receive(delivery.message):
                    if news.vector:  # its listeners must hear of every step
                        self._tell(news)
                    else:
                        latest.pop(news.segment, None)
                        latest[news.segment] = news
                delivery = post.endpoint.receive_nowait()
            for news in latest.values():
                self._tell(news)

    def _tell(self, news: MinTime) -> None:
        for subscriber in self.tracker.subscribers:
            self.post.send(subscriber, news)
