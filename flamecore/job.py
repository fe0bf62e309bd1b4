"""A job: workers, ackers, fronts and rears of one run, from opening the sources to closing the sinks.

The order of things matters. Sources are opened first (a missing file must not empty an output), then sinks, then the
parts are bound to the transport; fronts begin when everybody listens. A job ends well when every front has ended and
every rear has stored all they admitted. Whatever fails ends the job with its error; nothing is left running.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from flamecore.acker import Acker, AckerPlan
from flamecore.clock import ClockName
from flamecore.codec import Codec
from flamecore.commits import Commits, StateSettings
from flamecore.control import Control
from flamecore.errors import GraphError, JobError, SinkError
from flamecore.front import Source
from flamecore.graph import Graph, is_local, user_functions
from flamecore.history import History
from flamecore.messages import Prepared
from flamecore.meta import FrontId
from flamecore.node import Node
from flamecore.observe import Observers
from flamecore.patience import Patience
from flamecore.phases import Phases
from flamecore.plan import DEAD_LETTERS, OnError, Plan
from flamecore.post import CONTROL, Post
from flamecore.rear import Sink, encoders_of
from flamecore.recovery import Kept
from flamecore.stats import JobReport, JobStats, summed
from flamecore.store import Store
from flamecore.transport import Endpoint, Transport, TransportContext


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How a job runs.

    Attributes:
        name: For errors, logs and frames.
        workers: How many share the work.
        owners: How many of them own key groups; None: see `flamecore.plan.owning_workers`.
        clock: "sequence" (replay gives the same times) or "wall" (fronts interleave by arrival).
        barrier: Whether outputs wait for the minimum time; without it there can be no grouping.
        max_in_flight: Records admitted and not yet delivered, over all fronts.
        on_error: What becomes of records a user function fails on.
        source_policies: For each source, what becomes of malformed records; "fail" where nothing is said.
        phases: Of sources and sinks.
        dead_letter: Where dead letters go.
        heartbeat_interval_s: How often an idle front of the wall clock says that time goes on.
        seed: Seed of random ids, for tests; None: unpredictable.
        sink_timeout_s, source_timeout_s: How long sinks and sources may take; see `flamecore.config.JobTable`.
        state: How state is kept; None: it is not.
    """

    name: str = "job"
    workers: int = 1
    owners: int | None = None
    clock: ClockName = "sequence"
    barrier: bool = True
    max_in_flight: int = 8192
    on_error: OnError = "fail"
    source_policies: Mapping[str, OnError] = field(default_factory=dict)
    phases: Phases = field(default_factory=Phases)
    dead_letter: Sink | None = None
    heartbeat_interval_s: float = 0.05
    seed: int | None = None
    sink_timeout_s: float = 1800.0
    source_timeout_s: float = 60.0
    state: StateSettings | None = None

    @property
    def patience(self) -> Patience:
        """New watches over what its sources and sinks take."""
        return Patience(self.name, self.sink_timeout_s, self.source_timeout_s)


class AnyJob(Protocol):
    """The face of a job, wherever it runs: `Job` in one process, `flamecore.deployment.Deployment` on several."""

    async def run(self) -> JobReport: ...

    def drain(self) -> None: ...

    def stats(self) -> JobStats: ...


class Job:
    """One run of a graph.

    Args:
        graph: Checked (`Flow.graph()`).
        sources, sinks: A driver for each source and sink of the graph.
        acker: Builds the acker strategy.
        transport: Builds the transport.
        settings: How it runs.
        observers: Told of events; see `flamecore.hookspecs.ObserverSpecs`.
        store: Where snapshots go, not open; None: none are taken.
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
        store: Store | None = None,
    ) -> None:
        self.store = store
        self.graph = graph
        self.settings = settings or JobSettings()
        self._sources, self._sinks = dict(sources), dict(sinks)
        if self.settings.dead_letter is not None:
            self._sinks[DEAD_LETTERS] = self.settings.dead_letter
        self._make_acker, self._make_transport = acker, transport
        self._observers = Observers(observers)
        self._started: float | None = None
        self._ended: float | None = None
        self._node: Node | None = None
        self._draining = asyncio.Event()
        self._outcome: asyncio.Future[None] | None = None

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
            with collector_at_rest():
                await self._run(self._outcome)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._ended = time.monotonic()
            self._observers.job_ended(self.settings.name, error)
        return JobReport(self.stats(), drained=self._draining.is_set())

    def drain(self) -> None:
        """Read no more, finish what was admitted, and end. May be called from a signal handler of the event loop."""
        self._draining.set()
        if self._node is not None:
            self._node.stop.set()

    def stats(self) -> JobStats:
        """A look at the job, now or when it ended. Cheap."""
        elapsed = (self._ended or time.monotonic()) - (self._started or time.monotonic())
        return summed([self._node.stats()] if self._node is not None else (), elapsed)

    async def _run(self, outcome: asyncio.Future[None]) -> None:
        settings = self.settings
        self.graph.check(barrier=settings.barrier)
        async with AsyncExitStack() as stack:
            history = await open_history(stack, self.store, self.graph, settings)
            if history is not None:
                await history.verify()
            plan = make_plan(self.graph, self._sources, settings, history=history)
            codec = Codec.of(self.graph)
            transport = self._make_transport(TransportContext(job=settings.name, codec=codec))
            stack.push_async_callback(transport.aclose)
            check_importable(self.graph, transport)
            await transport.start()
            edges = await stack.enter_async_context(AsyncExitStack())  # sinks are closed after the node
            patience = settings.patience
            node = self._node = Node(
                plan,
                transport,
                fail=self._fail,
                observers=self._observers,
                encoders=encoders_of(self._sinks),
                patience=patience,
            )
            stack.push_async_callback(node.aclose)
            workers = range(plan.workers)
            states = [(front.position, front.ended) for front in history.fronts] if history is not None else ()
            await node.open_sources(self._sources, workers, states)
            held = await open_sinks(edges, {name: self._sinks[name] for name in plan.rears}, history, patience)
            if history is not None:
                await history.begin(held)
                most = (settings.state or StateSettings()).max_uncommitted
                node.kept = Kept(history.store, codec, history.resume(), most)
            post = Post(await transport.bind(CONTROL), self._fail)
            acker = self._make_acker(
                AckerPlan(plan.workers, self.graph.segments, tuple(range(1, len(plan.fronts) + 1)), plan.start)
            )
            for index in range(acker.trackers):
                await node.add_tracker(acker, index)
            for index in workers:
                await node.add_worker(acker, index)
            for name in plan.rears:
                await node.add_rear(name, self._sinks[name], held[name])
            control = Control(plan)
            commits = None
            if history is not None:
                commits = Commits(plan, history, control, settings.state or StateSettings(), post, node.rears)
            tasks = [asyncio.create_task(self._control(control, commits, post.endpoint, outcome))]
            if commits is not None:
                tasks.append(asyncio.create_task(self._commit(commits)))
            try:
                self._observers.job_started(settings.name, plan.workers)
                if self._draining.is_set():
                    node.stop.set()
                node.listen()
                node.begin()
                await outcome
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await post.aclose()

    async def _commit(self, commits: Commits) -> None:
        try:
            await commits.run()
        except Exception as error:  # noqa: BLE001 - ends the job
            self._fail(error)

    async def _control(
        self, control: Control, commits: Commits | None, endpoint: Endpoint, outcome: asyncio.Future[None]
    ) -> None:
        """Hear of the job's progress, to its end and beyond, for the last snapshot."""
        finishing: asyncio.Task[None] | None = None
        try:
            while True:
                if not outcome.done() and finishing is None:
                    if control.done:
                        finishing = asyncio.create_task(self._finish(commits, outcome))
                    elif (error := control.error) is not None:
                        outcome.set_exception(error)
                    elif control.failing and self._node is not None:
                        self._node.stop.set()
                message = (await endpoint.receive()).message
                if commits is not None and type(message) is Prepared:
                    commits.receive(message)
                else:
                    control.receive(message)
                    if commits is not None:
                        commits.advance()
        except Exception as error:  # noqa: BLE001 - ends the job
            self._fail(error)
        finally:
            if finishing is not None:
                finishing.cancel()
                await asyncio.wait((finishing,))

    async def _finish(self, commits: Commits | None, outcome: asyncio.Future[None]) -> None:
        """It ends well: what was delivered is in a snapshot."""
        try:
            if commits is not None:
                await commits.finish()
        except Exception as error:  # noqa: BLE001 - ends the job
            self._fail(error)
        if not outcome.done():
            outcome.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """End the job with the first error there is."""
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(error)


def make_plan(
    graph: Graph,
    sources: Mapping[str, Source],
    settings: JobSettings,
    *,
    fronts: Sequence[tuple[str, int, str]] | None = None,
    history: History | None = None,
    start: int = 0,
) -> Plan:
    """The plan of a job: numbers its fronts.

    Args:
        graph, sources, settings: As for `Job`.
        fronts: (source, partition number, partition) in the order of numbers, if another process has found them.
        history: Of the state that the job goes on from, which has looked at its store.
        start: The time fronts start from, if another process has found it.

    Raises:
        SourceError: A source cannot be found.
    """
    if history is not None:
        start = history.start
        states = history.find_fronts(graph, sources)
        fronts = [(front.source, front.partition, front.partition_name) for front in states]
    elif fronts is None:
        fronts = [
            (source.name, number, partition)
            for source in graph.sources
            for number, partition in enumerate(sources[source.name].partitions())
        ]
    return Plan(
        graph,
        settings.workers,
        tuple(FrontId(source, number) for source, number, _ in fronts),
        partitions=tuple(partition for _, _, partition in fronts),
        barrier=settings.barrier,
        on_error=settings.on_error,
        dead_letters=settings.dead_letter is not None,
        policies=settings.source_policies,
        clock=settings.clock,
        max_in_flight=settings.max_in_flight,
        heartbeat_interval_s=settings.heartbeat_interval_s,
        start=start,
        kept=settings.state is not None,
        seed=settings.seed,
        owning=settings.owners,
    )


async def open_history(
    stack: AsyncExitStack, store: Store | None, graph: Graph, settings: JobSettings
) -> History | None:
    """Open the store of a job that keeps state, and look what is there.

    Raises:
        StoreError, JobError: As `History.look`.
    """
    if store is None:
        return None
    stack.push_async_callback(store.aclose)
    await store.open()
    history = History(store, graph, settings.workers, settings.phases)
    await history.look()
    return history


async def open_sinks(
    stack: AsyncExitStack, sinks: Mapping[str, Sink], history: History | None, patience: Patience | None = None
) -> dict[str, int]:
    """Open the sinks; returns up to which time each holds its output already.

    Args:
        stack: Closes them.
        sinks: By name.
        history: Of the job's state, if it keeps any.
        patience: Of the job, with its sinks.

    Raises:
        SinkError: One cannot be opened, or not in time, or has lost what the state relies on.
    """
    patience = patience or Patience()
    held = {}
    for name, sink in sinks.items():
        snapshot = history.snapshot if history is not None else None
        # One that is new has held nothing yet.
        known = history is None or snapshot is None or history.phases.of_sink(name) in snapshot.sinks
        if history is not None:
            sink.continues(history.identity, continued=history.continued and known)
        watch = patience.sink(name)
        held[name] = await watch.call(sink.open(), "open")
        stack.push_async_callback(patience.close, watch, sink.aclose)
        if history is None or snapshot is None or not known or sink.guarantee != "exactly_once":
            continue
        if held[name] < history.start:
            raise SinkError(
                f"sink {name!r} holds its output up to {held[name]}, and the state goes on from {history.start}",
                hint="Bring back what the sink held; or delete the state, to make all outputs again.",
                sink=name,
            )
    return held


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
def collector_at_rest() -> Iterator[None]:
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
