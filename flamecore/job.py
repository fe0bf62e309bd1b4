"""A job: workers, ackers, fronts and rears of one run, from opening the sources to closing the sinks.

The order of things matters. Sources are opened first (a missing file must not empty an output), then sinks, then the
parts are bound to the transport; fronts begin when everybody listens. A job ends well when every front has ended and
every rear has stored all they admitted. Whatever fails ends the job with its error; nothing is left running.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

from flamecore.acker import Acker, AckerPlan
from flamecore.clock import ClockName, Front
from flamecore.codec import Codec
from flamecore.collect import Collector
from flamecore.errors import GraphError, JobError
from flamecore.failure import Failure
from flamecore.front import Reader, Source
from flamecore.graph import Graph, is_local, payload_types, user_functions
from flamecore.host import Post, RearHost, TrackerHost, WorkerHost
from flamecore.meta import FrontId
from flamecore.observe import Observers
from flamecore.plan import DEAD_LETTERS, OnError, Plan
from flamecore.pump import FrontPump
from flamecore.rear import Sink
from flamecore.stats import Histogram, JobReport, JobStats
from flamecore.transport import Transport, TransportContext
from flamecore.worker import Worker


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How a job runs.

    Attributes:
        name: For errors, logs and frames.
        workers: How many share the work.
        clock: "sequence" (replay gives the same times) or "wall" (fronts interleave by arrival).
        barrier: Whether outputs wait for the minimum time; without it there can be no grouping.
        max_in_flight: Records admitted and not yet delivered, over all fronts.
        on_error: What becomes of records a user function fails on.
        source_policies: For each source, what becomes of malformed records; "fail" where nothing is said.
        dead_letter: Where dead letters go.
        heartbeat_interval_s: How often an idle front of the wall clock says that time goes on.
        seed: Seed of random ids, for tests; None: unpredictable.
    """

    name: str = "job"
    workers: int = 1
    clock: ClockName = "sequence"
    barrier: bool = True
    max_in_flight: int = 4096
    on_error: OnError = "fail"
    source_policies: Mapping[str, OnError] = field(default_factory=dict)
    dead_letter: Sink | None = None
    heartbeat_interval_s: float = 0.05
    seed: int | None = None


class Job:
    """One run of a graph.

    Args:
        graph: Checked (`Flow.graph()`).
        sources, sinks: A driver for each source and sink of the graph.
        acker: Builds the acker strategy.
        transport: Builds the transport.
        settings: How it runs.
        observers: Told of events; see `flamecore.hookspecs.ObserverSpecs`.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        sources: Mapping[str, Source],
        sinks: Mapping[str, Sink],
        acker: Callable[[AckerPlan], Acker],
        transport: Callable[[TransportContext], Transport],
        settings: JobSettings | None = None,
        observers: Sequence[object] = (),
    ) -> None:
        self.graph = graph
        self.settings = settings or JobSettings()
        self._sources, self._sinks = dict(sources), dict(sinks)
        if self.settings.dead_letter is not None:
            self._sinks[DEAD_LETTERS] = self.settings.dead_letter
        self._make_acker, self._make_transport = acker, transport
        self._observers = Observers(observers)
        self._latency = Histogram()
        self._started: float | None = None
        self._ended: float | None = None
        self._readers: dict[FrontId, Reader] = {}
        self._trackers: list[TrackerHost] = []
        self._workers: list[WorkerHost] = []
        self._rears: list[RearHost] = []
        self._pumps: list[FrontPump] = []
        self._posts: list[Post] = []
        self._stop = asyncio.Event()
        self._outcome: asyncio.Future[None] | None = None
        self._failed_rears = 0

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> JobReport:
        """Run to the end of all sources, or until drained.

        Raises:
            SourceError, SinkError: An edge failed.
            OperationError: A user function failed on a record.
            GraphError: The graph cannot run in this deployment.
            ConsistencyError: A law was broken: a bug.
        """
        if self._started is not None:
            raise JobError("a job runs once", hint="Make another one from the same flow.")
        self._started = time.monotonic()
        self._outcome = asyncio.get_running_loop().create_future()
        error: BaseException | None = None
        try:
            with _collector_at_rest():
                async with AsyncExitStack() as stack:
                    await self._assemble(stack)
                    await self._live(self._outcome)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._ended = time.monotonic()
            self._observers.job_ended(self.settings.name, error)
        return JobReport(self.stats(), drained=self._stop.is_set())

    def drain(self) -> None:
        """Read no more, finish what was admitted, and end. May be called from a signal handler of the event loop."""
        self._stop.set()

    async def _live(self, outcome: asyncio.Future[None]) -> None:
        """Run every part until the outcome is known, then stop them all."""
        parts: list[TrackerHost | WorkerHost | RearHost | FrontPump]
        parts = [*self._trackers, *self._workers, *self._rears, *self._pumps]
        tasks = [asyncio.create_task(part.run(), name=type(part).__name__) for part in parts]
        for task in tasks:
            task.add_done_callback(self._part_ended)
        try:
            await outcome
        finally:
            for host in self._workers:
                host.aclose()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for post in self._posts:
                await post.aclose()

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(error)
        else:
            self._check_done()

    def _fail(self, error: BaseException) -> None:
        """End the job with the first error there is."""
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(error)

    def _record_failed(self, failure: Failure) -> None:
        """A rear has reached the record that failed. The job ends once all have: each gets what comes before it."""
        self._stop.set()
        self._failed_rears += 1
        if self._failed_rears == len(self._rears):
            self._fail(self._placed(failure).raised())

    def _check_done(self) -> None:
        """The job is done when every front has ended and every rear has stored all that they sent."""
        if self._outcome is None or self._outcome.done() or self._failed_rears:
            return
        if any(pump.ended is None for pump in self._pumps):
            return
        end = max((pump.ended or 0 for pump in self._pumps), default=0)
        if end > 0 and any(rear.time < end for rear in self._rears):
            return
        self._outcome.set_result(None)

    def _delivered(self, rear: str, time: int, count: int) -> None:
        self._observers.batch_released(rear, time, count)
        self._check_done()

    def _advanced(self) -> None:
        for pump in self._pumps:
            pump.wake()

    # -- putting together ------------------------------------------------------------------------------------------

    async def _assemble(self, stack: AsyncExitStack) -> None:
        """Open the edges, make every part and bind it to its address."""
        settings = self.settings
        self.graph.check(barrier=settings.barrier)
        transport = self._make_transport(self._transport_context())
        stack.push_async_callback(transport.aclose)
        check_importable(self.graph, transport)
        for source in self.graph.sources:
            driver = self._sources[source.name]
            for number, partition in enumerate(driver.partitions()):
                reader = self._readers[FrontId(source.name, number)] = await driver.open(partition)
                stack.push_async_callback(reader.aclose)
        plan = Plan(
            self.graph,
            settings.workers,
            tuple(self._readers),
            barrier=settings.barrier,
            on_error=settings.on_error,
            dead_letters=DEAD_LETTERS in self._sinks,
        )
        held = {}
        for name in plan.rears:
            held[name] = await self._sinks[name].open()
            stack.push_async_callback(self._sinks[name].aclose)
        random: Random = SystemRandom() if settings.seed is None else Random(settings.seed)
        fronts = tuple(Front(name, number, clock=settings.clock) for number, name in enumerate(plan.fronts, 1))
        acker = self._make_acker(AckerPlan(plan.workers, self.graph.segments, tuple(front.number for front in fronts)))
        await self._bind_trackers(plan, acker, transport)
        await self._bind_workers(plan, acker, fronts, random, transport)
        await self._bind_rears(plan, held, transport)
        for front in fronts:
            self._pumps.append(
                FrontPump(
                    front,
                    self._readers[front.name],
                    self._workers[plan.host_of(front.number)],
                    credit=max(settings.max_in_flight // len(fronts), 1),
                    policy=settings.source_policies.get(front.name.source, "fail"),
                    heartbeat_interval_s=settings.heartbeat_interval_s if settings.clock == "wall" else None,
                    stop=self._stop,
                )
            )
        self._observers.job_started(settings.name, plan.workers)

    def _transport_context(self) -> TransportContext:
        return TransportContext(job=self.settings.name, codec=Codec(payload_types(self.graph)))

    async def _post(self, transport: Transport, address: str) -> Post:
        post = Post(await transport.bind(address), self._fail)
        self._posts.append(post)
        return post

    async def _bind_trackers(self, plan: Plan, acker: Acker, transport: Transport) -> None:
        for index in range(acker.trackers):
            tracker = acker.tracker(index)
            for worker in range(plan.workers):
                tracker.subscribe(f"worker/{worker}")
            self._trackers.append(TrackerHost(tracker, await self._post(transport, f"acker/{index}")))

    async def _bind_workers(
        self, plan: Plan, acker: Acker, fronts: Sequence[Front], random: Random, transport: Transport
    ) -> None:
        for index in range(plan.workers):
            worker = Worker(
                index,
                plan,
                reporter=acker.reporter(index),
                listener=acker.listener(),
                random=Random(random.getrandbits(64)),
                fronts=[front for front in fronts if plan.host_of(front.number) == index],
            )
            post = await self._post(transport, f"worker/{index}")
            self._workers.append(WorkerHost(worker, post, self._latency, self._advanced))

    async def _bind_rears(self, plan: Plan, held: Mapping[str, int], transport: Transport) -> None:
        for name in plan.rears:
            rear = RearHost(
                Collector(name, plan.workers, held=held[name], barrier=plan.barrier),
                self._sinks[name],
                await self._post(transport, f"rear/{name}"),
                listeners=[f"worker/{index}" for index in range(plan.workers)],
                delivered=self._delivered,
                failed=self._record_failed,
                translate=self._letter if name == DEAD_LETTERS else None,
            )
            self._rears.append(rear)

    # -- what is asked of it -----------------------------------------------------------------------------------------

    def _placed(self, failure: Failure) -> Failure:
        """The failure with the position of its record in words."""
        for host in self._workers:
            found = host.worker.position_of(failure.at)
            if found is not None:
                front, position = found
                return failure._replace(position=self._readers[front.name].describe(position))
        return failure

    def _letter(self, failure: Failure) -> dict[str, Any]:
        return self._placed(failure).letter()

    def stats(self) -> JobStats:
        """A look at the job, now or when it ended. Cheap."""
        workers = [host.worker for host in self._workers]
        messages: Counter[str] = Counter()
        for post in self._posts:
            messages.update(post.sent)
        p50, p99 = self._latency.percentile(0.50), self._latency.percentile(0.99)
        return JobStats(
            items_in=sum(worker.admitted for worker in workers),
            items_out={rear.collector.name: rear.count for rear in self._rears},
            min_time=min((worker.min_time for worker in workers), default=0),
            replays=sum(worker.retracted for worker in workers),
            rejected=sum(worker.rejected for worker in workers),
            failed=sum(worker.failed for worker in workers),
            latency_p50_ms=None if p50 is None else p50 * 1000,
            latency_p99_ms=None if p99 is None else p99 * 1000,
            elapsed_s=(self._ended or time.monotonic()) - (self._started or time.monotonic()),
            messages=dict(messages),
        )


def check_importable(graph: Graph, transport: Transport) -> None:
    """Refuse a graph that the workers of this transport could not get hold of.

    Raises:
        GraphError: They live in other processes, and the flow is not an attribute of a module they could import.
    """
    if not transport.capabilities.multi_process or graph.reference is not None:
        return
    for vertex in graph.vertices:
        for function in user_functions(vertex):
            if is_local(function):
                raise GraphError(
                    f"{vertex!r} uses {function.__qualname__}, which the workers of transport "
                    f"{transport.name!r} cannot import",
                    hint="Make the flow a module-level variable of an importable file, or use transport 'inproc'.",
                    vertex=vertex.name,
                )


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Let the cyclic garbage collector look at the young rarely while a job runs.

    Long-lived state is many small containers that form no cycles; scanning them again and again can cost more than the
    engine does. What is there already is left out of the scans, and the thresholds are put back in the end.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
