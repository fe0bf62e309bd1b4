"""A job: workers, ackers, fronts and rears of one run, in one process.

The order matters. Sources are opened first (a missing file must not empty an output), then sinks, then the parts are
bound to the transport; fronts begin when all parts listen. A job ends well when every front has ended and every rear
has stored all outputs. Any failure ends the job with its error; nothing is left running.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import MappingProxyType
from typing import Protocol

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.abc.hooks import Observers
from flamecore.abc.sink import Sink, encoders_of
from flamecore.abc.source import Source
from flamecore.abc.store import Store
from flamecore.abc.transport import Endpoint, Transport, TransportContext
from flamecore.errors import FlameError, JobError
from flamecore.model.graph import Graph
from flamecore.model.messages import CONTROL, Prepared
from flamecore.model.settings import JobSettings, StateTable
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.guard import blamed
from flamecore.runtime.engine.node import Node
from flamecore.runtime.engine.planning import acker_plan, check_importable, make_plan, open_history, open_sinks
from flamecore.runtime.engine.snapshots.coordinator import SnapshotCoordinator
from flamecore.runtime.operators.table import Operators
from flamecore.runtime.parts.completion import Completion
from flamecore.runtime.parts.counters import JobStats, summed
from flamecore.runtime.state.restore import StateAccess
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.sender import Sender
from flamecore.runtime.tasks.shutdown import Shutdown
from flamecore.runtime.tasks.stats import JobReport, check_left_out


class AnyJob(Protocol):
    """A job in one process (`Job`), or on several (`flamecore.runtime.cluster.job`).

    Attributes:
        begun: Whether it has begun to read.
    """

    begun: bool

    async def run(self) -> JobReport: ...

    def drain(self) -> None: ...

    def stats(self) -> JobStats: ...


class Job:
    """One run of a graph.

    Args:
        graph: The checked graph (`Flow.graph()`).
        sources, sinks: A driver for each source and sink of the graph, and for dead letters, if there are any.
        acker: Function that makes the acker strategy.
        transport: Function that makes the transport.
        settings: Settings of the job.
        observers: Observers of events; see `flamecore.abc.hooks.ObserverSpecs`.
        store: Store of snapshots, not open; None: none are taken.
        operators: Operators of plugins, besides the engine's.
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
        operators: Operators = MappingProxyType({}),
    ) -> None:
        self.store = store
        self._operators = operators
        self.graph = graph
        self.settings = settings or JobSettings()
        self._sources, self._sinks = dict(sources), dict(sinks)
        self._make_acker, self._make_transport = acker, transport
        self._observers = Observers(observers)
        self._started: float | None = None
        self._ended: float | None = None
        self.begun = False
        self._node: Node | None = None
        self._draining = asyncio.Event()
        self._deadlines = Deadlines.of(self.settings)
        self._shutdown = Shutdown(self.settings.name, self._deadlines)
        self._outcome: asyncio.Future[None] | None = None

    async def run(self) -> JobReport:
        """Run to the end of all sources, or until drained.

        Raises:
            SourceError, SinkError: An edge failed.
            TooManyFailedError: It has ended, and has left out more records than it may.
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
            with relaxed_gc():
                await self._run(self._outcome)
            check_left_out(self.settings.name, self.stats(), self.settings.max_failed)
        except BaseException as caught:
            error = blamed(caught)
            if isinstance(error, FlameError):
                error.before_start = not self.begun
            if error is not caught:
                raise error  # noqa: B904 - its cause is set
            raise
        finally:
            self._ended = time.monotonic()
            self._observers.job_ended(self.settings.name, error)
        return JobReport(self.stats(), drained=self._draining.is_set())

    def drain(self) -> None:
        """Stop reading, deliver what has been read as far as it is complete, and end.

        Safe to call from a signal handler of the event loop.
        """
        self._draining.set()
        if self._node is not None:
            self._node.stop.set()

    def stats(self) -> JobStats:
        """Return the counts of the job, now or at its end; cheap."""
        elapsed = (self._ended or time.monotonic()) - (self._started or time.monotonic())
        return summed([self._node.stats()] if self._node is not None else (), elapsed)

    async def _run(self, outcome: asyncio.Future[None]) -> None:
        settings, deadlines = self.settings, self._deadlines
        self.graph.check(barrier=settings.barrier)
        async with self._shutdown.scope() as stack:
            history = await open_history(stack, self.store, self.graph, settings, deadlines, lost=self._fail)
            if history is not None:
                await history.verify()
            plan = make_plan(self.graph, self._sources, settings, history=history)
            codec = Codec.of(self.graph)
            transport = self._make_transport(TransportContext(job=settings.name, codec=codec))
            stack.push_async_callback(transport.aclose)
            check_importable(self.graph, transport)
            await transport.start()
            edges = await stack.enter_async_context(AsyncExitStack())  # sinks are closed after the node
            node = self._node = Node(
                plan,
                transport,
                fail=self._fail,
                observers=self._observers,
                encoders=encoders_of(self._sinks),
                operators=self._operators,
                deadlines=deadlines,
            )
            stack.push_async_callback(node.aclose)
            workers = range(plan.workers)
            states = [(front.position, front.ended) for front in history.fronts] if history is not None else ()
            await node.open_sources(self._sources, workers, states)
            delivered_up_to = await open_sinks(
                edges, {name: self._sinks[name] for name in plan.rears}, history, deadlines
            )
            if history is not None:
                await history.begin(delivered_up_to)
                most = (settings.state or StateTable()).max_uncommitted
                node.state_access = StateAccess(history.store, codec, history.resume(), most)
            sender = Sender(await transport.bind(CONTROL), self._fail)
            stack.push_async_callback(sender.aclose)
            acker = self._make_acker(acker_plan(plan))
            for index in range(acker.trackers):
                await node.add_tracker(acker, index)
            for index in workers:
                await node.add_worker(acker, index)
            for name in plan.rears:
                await node.add_rear(name, self._sinks[name], delivered_up_to[name])
            completion = Completion(plan)
            coordinator = None
            if history is not None:
                coordinator = SnapshotCoordinator(
                    plan, history, completion, settings.state or StateTable(), sender, node.rears
                )
            tasks = [asyncio.create_task(self._control(completion, coordinator, sender.endpoint, outcome))]
            if coordinator is not None:
                tasks.append(asyncio.create_task(self._commit(coordinator)))
            stack.push_async_callback(_cancelled, tasks)
            self._observers.job_started(settings.name, plan.workers)
            if self._draining.is_set():
                node.stop.set()
            node.listen()
            node.begin()
            self.begun = True
            await outcome

    async def _commit(self, coordinator: SnapshotCoordinator) -> None:
        try:
            await coordinator.run()
        except Exception as error:  # noqa: BLE001 - ends the job
            self._fail(error)

    async def _control(
        self,
        completion: Completion,
        coordinator: SnapshotCoordinator | None,
        endpoint: Endpoint,
        outcome: asyncio.Future[None],
    ) -> None:
        """Process messages about progress, to the job's end and its last snapshot."""
        finishing: asyncio.Task[None] | None = None
        failing = False
        try:
            while True:
                if not outcome.done() and finishing is None:
                    if completion.done:
                        finishing = asyncio.create_task(self._finish(coordinator, outcome))
                    elif (error := completion.error) is not None:
                        self._shutdown.expect(error)
                        outcome.set_exception(error)
                    elif completion.failing and not failing and (error := completion.expected) is not None:
                        failing = True
                        self._shutdown.expect(error)
                        if self._node is not None:
                            self._node.stop.fail()
                message = (await endpoint.receive()).message
                if coordinator is not None and type(message) is Prepared:
                    coordinator.receive(message)
                else:
                    completion.receive(message)
                    if coordinator is not None:
                        coordinator.advance()
        except Exception as error:  # noqa: BLE001 - ends the job
            self._fail(error)
        finally:
            if finishing is not None:
                finishing.cancel()
                await asyncio.wait((finishing,))

    async def _finish(self, coordinator: SnapshotCoordinator | None, outcome: asyncio.Future[None]) -> None:
        """Take the last snapshot, and end well."""
        try:
            if coordinator is not None:
                await coordinator.finish()
        except Exception as error:  # noqa: BLE001 - ends the job
            self._fail(error)
        if not outcome.done():
            outcome.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """End the job with the first error."""
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(error)


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Run the cyclic garbage collector rarely on young objects within the block.

    Long-lived state is many small containers that form no cycles; scanning them repeatedly can cost more than the
    engine does. Existing objects are excluded from scans, and the thresholds are restored at the end.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
