"""A job: the common part of every run, and a run with all parts in one process.

The order matters. Sources are opened first (a missing file must not empty an output), then sinks, then the parts are
bound to the transport; fronts begin when all parts listen. A sink that would destroy output is opened with its first
batch, or when the job has ended well: the output stays if the job fails before. A job ends well when every front has
ended and every rear has stored all outputs. Any failure ends the job with its error; nothing is left running.
"""

from __future__ import annotations

import asyncio
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import MappingProxyType

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.abc.hooks import Observers
from flamecore.abc.sink import Sink, encoders_of
from flamecore.abc.source import Source
from flamecore.abc.store import Store
from flamecore.abc.transport import Transport, TransportContext
from flamecore.errors import FlameError, JobError
from flamecore.model.graph import Graph
from flamecore.model.settings import JobSettings, StateTable
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.guard import blamed
from flamecore.runtime.engine.epoch import Epoch, FaultError
from flamecore.runtime.engine.planning import (
    acker_plan,
    check_importable,
    divide_sinks,
    make_plan,
    open_history,
    open_sinks,
)
from flamecore.runtime.operators.table import Operators
from flamecore.runtime.parts.counters import JobStats, summed
from flamecore.runtime.state.restore import StateAccess
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.shutdown import Shutdown
from flamecore.runtime.tasks.stats import JobReport, check_left_out


class AnyJob(ABC):
    """One run of a job, in one process (`Job`) or on several (`cluster.job`).

    Args:
        settings: Settings of the job.
        observers: Observers of events; see `flamecore.abc.hooks.ObserverSpecs`.
        job_id: Id of the job, for its transport; default: its name.

    Attributes:
        id: Id of the job: its processes know each other by it. People are told its name.
        begun: Whether it has begun to read.
        epoch: The present epoch; None: there is none yet.
    """

    def __init__(self, settings: JobSettings, observers: Sequence[object] = (), job_id: str = "") -> None:
        self.settings = settings
        self.id = job_id or settings.name
        self.begun = False
        self.epoch: Epoch | None = None
        self._observers = Observers(observers)
        self._deadlines = Deadlines.of(settings)
        self._shutdown = Shutdown(settings.name, self._deadlines)
        self._draining = asyncio.Event()
        self._started: float | None = None
        self._ended: float | None = None
        self._ruin: BaseException | None = None

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
        error: BaseException | None = None
        try:
            async with self._shutdown.scope() as stack:
                stack.enter_context(relaxed_gc())
                await self._run(stack)
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

    @abstractmethod
    async def _run(self, stack: AsyncExitStack) -> None:
        """Open, run and close all epochs; the stack closes resources that outlive them."""

    @abstractmethod
    def stats(self) -> JobStats:
        """Return the counts of the job, now or at its end; cheap."""

    @property
    def _elapsed_s(self) -> float:
        return (self._ended or time.monotonic()) - (self._started or time.monotonic())

    def drain(self) -> None:
        """Stop reading, deliver what has been read as far as it is complete, and end.

        Safe to call from a signal handler of the event loop.
        """
        self._draining.set()
        if self.epoch is not None:
            self._stop_reading(self.epoch)

    def _begin(self, epoch: Epoch) -> None:
        """Begin to read in an epoch whose parts all listen."""
        epoch.begin()
        self.begun = True
        # A signal may have come while the job was starting.
        if self._draining.is_set():
            self._stop_reading(epoch)

    @abstractmethod
    def _stop_reading(self, epoch: Epoch, *, failing: bool = False) -> None:
        """Stop the fronts of an epoch; `failing`: because a record ends the job."""

    def _failing(self, error: FlameError) -> None:
        """Stop reading, as a record is to end the job.

        It ends once everything before the record is delivered. Until then the job may go on in another epoch, which
        reads the record again: reading stops for this epoch alone.
        """
        self._shutdown.expect(error)
        if self.epoch is not None:
            self._stop_reading(self.epoch, failing=True)

    def _end(self, error: BaseException) -> None:
        """End the job with an error that no other epoch can repair; the first one counts."""
        self._ruin = self._ruin or error
        self._shutdown.expect(self._ruin)
        if self.epoch is not None:
            self.epoch.fail(self._ruin)

    def _check(self) -> None:
        if self._ruin is not None:
            raise self._ruin


class Job(AnyJob):
    """One run of a graph in one process, in one epoch.

    Args:
        graph: The checked graph (`Flow.graph()`).
        sources, sinks: A driver for each source and sink of the graph, and for dead letters, if there are any.
        acker: Function that makes the acker strategy.
        transport: Function that makes the transport.
        settings, observers: As for `AnyJob`.
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
        super().__init__(settings or JobSettings(), observers)
        self._graph, self._store, self._operators = graph, store, operators
        self._sources, self._sinks = sources, sinks
        self._make_acker, self._make_transport = acker, transport

    def stats(self) -> JobStats:
        return summed(
            [self.epoch.node.stats(ended=self._ended is not None)] if self.epoch is not None else (), self._elapsed_s
        )

    def _stop_reading(self, epoch: Epoch, *, failing: bool = False) -> None:
        if failing:
            epoch.node.stop.fail()
        else:
            epoch.node.stop.set()

    async def _run(self, stack: AsyncExitStack) -> None:
        graph, settings, deadlines = self._graph, self.settings, self._deadlines
        graph.check(barrier=settings.barrier)
        history = await open_history(stack, self._store, graph, settings, deadlines, lost=self._end)
        if history is not None:
            # While nothing is open: there is no other epoch, in which a part that turns out damaged
            # later could be answered.
            await history.verify()
        plan = make_plan(graph, self._sources, settings, history=history)
        codec = Codec.of(graph)
        transport = self._make_transport(TransportContext(job=settings.name, codec=codec))
        stack.push_async_callback(transport.aclose)
        check_importable(graph, transport)
        await transport.start()
        edges = await stack.enter_async_context(AsyncExitStack())  # sinks are closed after the epoch
        epoch = self.epoch = Epoch(
            plan,
            transport,
            self._observers,
            deadlines=deadlines,
            encoders=encoders_of(self._sinks),
            operators=self._operators,
            codec=codec if transport.capabilities.serialises else None,
        )
        stack.push_async_callback(epoch.aclose)
        workers = range(plan.workers)
        states: Sequence[tuple[object, bool, object]] = ()
        if history is not None:
            await history.find_ends(self._sources, deadlines.find_end)
            states = [(front.position, front.ended, front.end) for front in history.fronts]
        await epoch.node.open_sources(self._sources, workers, states)
        sinks = {name: self._sinks[name] for name in plan.rears}
        delivered_up_to, late = await open_sinks(edges, sinks, history, deadlines)
        divisions = await divide_sinks(sinks, plan.workers, deadlines)
        delivered_up_to |= {name: division.time for name, division in divisions.items()}
        if history is not None:
            await history.begin(delivered_up_to)
            most = (settings.state or StateTable()).max_uncommitted
            epoch.node.state_access = StateAccess(history.store, codec, history.resume(), most)
        acker = self._make_acker(acker_plan(plan))
        grants = {name: division.grant for name, division in divisions.items()}
        await epoch.open(
            sinks,
            delivered_up_to,
            history,
            late=late,
            acker=acker,
            workers=workers,
            grants=grants,
            failing=self._failing,
        )
        self._observers.job_started(settings.name, plan.workers)
        self._begin(epoch)
        self._check()
        try:
            await epoch.outcome
        except FaultError as fault:  # no other process could be replaced
            raise fault.error from fault.error.__cause__
        for opening in late.values():
            await opening()


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Run the cyclic garbage collector rarely on young objects within the block.

    Long-lived state is many small containers that form no cycles; scanning them repeatedly can cost more than the
    engine does. Existing objects are excluded from scans, and the thresholds are restored at the end.
    """
    # Young objects while the processor's cache still holds them, so not after 100,000: outputs of cheap maps and counts
    # then take a tenth to a quarter more. Old ones as rarely as with that, after two million new objects.
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20_000, 100, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
