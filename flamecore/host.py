"""Brings the parts of a job to life on a transport: one task for each address, which receives, calls, sends.

The parts themselves (worker, tracker, collector) are plain state. Sending never waits here: what finds no room is
kept in order and sent by a task of its own, so a cycle of workers cannot block itself; the fronts' credit bounds how
much that is.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, Protocol

from flamecore.acker import MinTime, Report, Tracker
from flamecore.clock import monotonic
from flamecore.collect import Collector, Complete, joined
from flamecore.errors import CodecError, JobError
from flamecore.front import Batch
from flamecore.load import LoadMeter
from flamecore.messages import Busy, Committed, Delivered, Items, Prepare, Reached, Released
from flamecore.meta import MIN_TIME
from flamecore.moments import Moments
from flamecore.patience import Patience, Watch
from flamecore.plan import Plan
from flamecore.rear import Sink, encoders_of
from flamecore.stats import Histogram
from flamecore.transport import Delivery, Endpoint
from flamecore.worker import Outgoing, Worker

CONTROL: Final = "job"
"""Address of the job's control."""

_BURST: Final = 64
_BURST_S: Final = 0.005
"""Most messages handled before what they cause is sent, and the longest that this may take: others wait for it."""

_BACKLOG: Final = 1_000_000
"""Most messages kept for one address that gives no room."""

_PATIENCE_S: Final = 0.005
"""How long word of what is delivered may wait for more, on its way to another process."""

_BATCH: Final = 16_384
"""Most payloads to which the rest of what is there is added before they are given to a sink."""

_PLENTY: Final = 1024
"""A front with that much credit never stands still for the wait."""


class Post:
    """Sends from one endpoint without waiting, each channel in order.

    Args:
        endpoint: Where from.
        fail: Told of an error in what happens later.
    """

    def __init__(self, endpoint: Endpoint, fail: Callable[[Exception], None]) -> None:
        self.endpoint = endpoint
        self.fail = fail
        self.sent: Counter[str] = Counter()
        self._backlog: dict[str, deque[Any]] = {}
        self._senders: set[asyncio.Task[None]] = set()

    def send(self, to: str, message: Any) -> None:
        """Send now if there is room, later if not; never before what was sent to that address earlier.

        Raises:
            JobError: The receiver has given no room for too much.
            TransportError: As `Endpoint.send_nowait`.
        """
        self.sent[type(message).__name__] += 1
        waiting = self._backlog.get(to)
        if waiting is None:
            try:
                if self.endpoint.send_nowait(to, message):
                    return
            except CodecError as error:
                raise _on_the_way(error, to) from error
            waiting = self._backlog[to] = deque()
            task = asyncio.get_running_loop().create_task(self._drain(to, waiting))
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)
        elif len(waiting) >= _BACKLOG:
            raise JobError(
                f"{self.endpoint.address} has {_BACKLOG} messages waiting for {to}, which takes none",
                hint="Lower max_in_flight, or look at why that worker is stuck.",
            )
        waiting.append(message)

    async def _drain(self, to: str, waiting: deque[Any]) -> None:
        try:
            while waiting:
                await self.endpoint.send(to, waiting[0])
                waiting.popleft()
        except CodecError as error:
            self.fail(_on_the_way(error, to))
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.fail(error)
        finally:  # after an error this is not for whoever has the address next
            del self._backlog[to]

    def send_all(self, outgoing: Outgoing) -> None:
        """Send in order."""
        for to, message in outgoing:
            self.send(to, message)

    async def aclose(self) -> None:
        """Stop sending what still waits, and close the endpoint."""
        for task in tuple(self._senders):
            task.cancel()
        if self._senders:
            await asyncio.wait(self._senders)
        await self.endpoint.aclose()


def _on_the_way(error: CodecError, to: str) -> CodecError:
    """The error of a message that cannot be encoded, with where its payload was to go, if it does not say so itself."""
    kind, _, name = to.partition("/")
    return error.going_to(name, f"sink {name!r}") if kind == "rear" and error.vertex is None else error


class TakesPart(Protocol):
    """What a worker's host needs of its side of snapshots (`flamecore.commits.WorkerCommits`)."""

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


class RearHost:
    """Runs a rear: releases in, merged batches to the sink, word of it back to the fronts.

    Args:
        collector: Merges the releases.
        sink: Takes the batches.
        post: Its endpoint.
        listeners: Addresses told of what is delivered.
        away: Addresses in other processes told of it a little later, of several deliveries at once.
        delivered: Called with (rear, time, count) after each delivery.
        translate: Turns what is collected into what the sink takes; for dead letters.
        watch: Of the sink.
    """

    def __init__(
        self,
        collector: Collector,
        sink: Sink,
        post: Post,
        *,
        listeners: Sequence[str],
        away: Sequence[str] = (),
        delivered: Callable[[str, int, int], None],
        translate: Callable[[Any], Any] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.collector = collector
        self.watch = watch or Patience().sink(collector.name)
        self.watch.known, self.watch.overdue = self._known, post.fail
        self.sink = sink
        self.post = post
        self.count = 0
        self.reached = collector.held
        """Everything below this time is in the sink."""
        self._writing = asyncio.Lock()
        self._halting: asyncio.Task[Any] | None = None
        self._failed: Exception | None = None
        self._listeners = listeners
        self._away = away
        self._untold: list[tuple[int, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._delivered = delivered
        self._translate = translate
        encoded = translate is None and collector.name in encoders_of({collector.name: sink})
        self._store = sink.write_encoded if encoded else sink.write

    async def run(self) -> None:
        """Until cancelled, or a failed record is reached."""
        endpoint = self.post.endpoint
        while True:
            complete = self._receive(await endpoint.receive())
            # What has come while the last batch was written makes one batch: a slow sink has fewer and larger ones.
            while complete is None or (complete.failure is None and len(complete.payloads) < _BATCH):
                delivery = endpoint.receive_nowait()
                if delivery is None:
                    break
                complete = joined(complete, self._receive(delivery))
            if complete is None:
                continue
            payloads = complete.payloads
            if payloads:
                if self._translate is not None:
                    payloads = [self._translate(payload) for payload in payloads]
                async with self._writing:
                    await self._write(complete.time, complete.orders, payloads)
                self.count += len(payloads)
            self.reached = max(self.reached, complete.time)
            if complete.failure is not None:
                return self.post.send(CONTROL, Reached(self.collector.name, complete.failure))
            word = Delivered(self.collector.name, complete.time)
            for address in self._listeners:
                self.post.send(address, word)
            if self._away:
                self._untold.append((complete.time, monotonic()))
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._tell)
            self._delivered(self.collector.name, complete.time, len(payloads))

    def _receive(self, delivery: Delivery) -> Complete | None:
        if type(delivery.message) is not Released:
            raise JobError(f"{self.post.endpoint.address} was sent a {type(delivery.message).__name__}")
        return self.collector.receive(delivery.message)

    async def _write(self, time: int, orders: Sequence[bytes] | None, payloads: Sequence[Any]) -> None:
        if self.watch.error is not None:
            raise self.watch.error
        self.watch.begin("write a batch", len(payloads))
        try:
            if orders is None:
                await self._store(time, payloads)
            else:
                await self.sink.write_ordered(time, orders, payloads)
        except Exception as error:
            self._failed = error
            raise
        finally:
            self.watch.end()

    def _known(self) -> str:
        return f"its output is stored below time {self.reached}" if self.reached > MIN_TIME else "it has stored nothing"

    async def sync(self, time: int) -> None:
        """Make durable what is below `time`, between two batches."""
        async with self._writing:
            await self.watch.call(self.sink.sync(time), "make its output durable")

    async def halt(self) -> None:
        """Wait for the batch that is being written. No other will be. Several times, also at once, is once.

        Raises:
            SinkError: A batch has failed, or takes too long. It may be there all the same: only opening the sink anew
                can tell.
        """
        if self._halting is None:
            self._halting = asyncio.create_task(self._writing.acquire())
        await self.watch.until(self._halting)
        if self._failed is not None:
            raise self._failed

    def _tell(self) -> None:
        """Tell those in other processes what they have not been told yet."""
        self._timer = None
        now = monotonic()
        word = Delivered(self.collector.name, self._untold[-1][0], tuple([(t, now - at) for t, at in self._untold]))
        self._untold.clear()
        try:
            for address in self._away:
                self.post.send(address, word)
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.post.fail(error)

    def aclose(self) -> None:
        """Cancel what is scheduled."""
        if self._timer is not None:
            self._timer.cancel()


def patient(plan: Plan) -> bool:
    """Whether fronts have so much credit that word of what is delivered may wait a little."""
    return plan.max_in_flight >= _PLENTY * len(plan.fronts)
