"""The plan of a job, and the opening of its state and sinks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack

from flamecore import events
from flamecore.abc.acker import AckerPlan
from flamecore.abc.sink import Division, PartitionedSink, Sink
from flamecore.abc.source import Source
from flamecore.abc.store import Store
from flamecore.abc.transport import Transport
from flamecore.errors import GraphError, SinkError
from flamecore.logs import logger
from flamecore.model.graph import Graph
from flamecore.model.meta import MIN_TIME, FrontId
from flamecore.model.plan import Placement, Plan
from flamecore.model.settings import JobSettings, StateTable
from flamecore.model.vertices import is_local, note_declaration, user_functions, user_name
from flamecore.runtime.config import defaults
from flamecore.runtime.engine.limited_store import LimitedStore
from flamecore.runtime.engine.state_lease import StateLease
from flamecore.runtime.state.fronts import Phases
from flamecore.runtime.state.history import History
from flamecore.runtime.tasks.deadlines import Deadlines


def acker_plan(plan: Plan) -> AckerPlan:
    """Return the part of a plan that an acker strategy needs."""
    return AckerPlan(plan.workers, plan.segments.inbound, plan.tracked_fronts, plan.start)


def make_plan(
    graph: Graph,
    sources: Mapping[str, Source],
    settings: JobSettings,
    *,
    fronts: Sequence[tuple[str, int, str]] | None = None,
    history: History | None = None,
    past: Collection[int] = (),
    done: Collection[int] = (),
    unread: Collection[int] | None = None,
    start: int = 0,
    placement: Placement | None = None,
) -> Plan:
    """Return the plan of a job, with its fronts numbered.

    Args:
        graph, sources, settings: As for `Job`.
        fronts: (source, partition number, partition) in the order of front numbers, if another process found them.
        history: History of the state to continue from, after its scan.
        past, done, unread: As in the plan, if another process found them.
        start: Time at which fronts start, if another process has found it.
        placement: As in the plan.

    Raises:
        SourceError: A source cannot be found.
    """
    if history is not None:
        start = history.start
        states = history.find_fronts(graph, sources)
        for source, names in history.gone.items():
            logger().warning(
                events.PARTITION_REMOVED, job=settings.name, source=source, partitions=len(names), first=names[0]
            )
        fronts = [(front.source, front.partition, front.partition_name) for front in states]
        past, done, unread = history.past, history.done, history.unread
    elif fronts is None:
        fronts = [
            (source.name, number, partition)
            for source in graph.sources
            for number, partition in enumerate(sources[source.name].partitions())
        ]
    return Plan(
        graph,
        tuple(FrontId(source, number) for source, number, _ in fronts),
        settings,
        start,
        partitions=tuple(partition for _, _, partition in fronts),
        past=frozenset(past),
        done=frozenset(done),
        unread=frozenset(range(1, len(fronts) + 1) if unread is None else unread),
        placement=placement,
    )


async def open_history(
    stack: AsyncExitStack,
    store: Store | None,
    graph: Graph,
    settings: JobSettings,
    deadlines: Deadlines,
    *,
    lost: Callable[[BaseException], None] | None = None,
    listed: bool = False,
) -> History | None:
    """Open the store of a job that keeps state, take its lease, and scan it.

    Args:
        stack: Exit stack that releases the lease, and closes the store.
        store: The job's store; None: it keeps no state.
        graph, settings, deadlines: Those of the job.
        lost: Function called if another run takes the state; None: no lease is taken, because there is no other run.
        listed: See `StateLease.acquire`.

    Raises:
        HeldError: Another run of the job is active.
        StoreError, JobError: As `History.scan`, and if the store does not open in time.
    """
    if store is None:
        return None
    state = settings.state or StateTable()
    deadline = deadlines.store(store.name, state.commit_timeout_s)
    stack.push_async_callback(deadlines.close, deadline, store.aclose)
    await deadline.call(store.open(), "open")
    # The lease before the scan: the contents do not last while another run is active.
    if lost is not None and settings.leased and store.capabilities.durable:
        lease = await StateLease.acquire(
            store, settings.name, lease_s=state.lease_s, lost=lost, take_over=settings.take_over, listed=listed
        )
        await stack.enter_async_context(lease)
    limited = LimitedStore(store, deadlines, state.commit_timeout_s)
    history = History(limited, graph, settings.workers, Phases.of(settings), settings.clock)
    await history.scan()
    known = {front.source for front in history.fronts}
    for source in graph.sources:
        if (phase := settings.source_phases.get(source.name, 1)) > 1 and source.name not in known:
            hint = "the state holds nothing of an earlier phase; if there was one, [state] is another here"
            logger().warning(events.PHASE_SKIPPED, job=settings.name, source=source.name, phase=phase, hint=hint)
    return history


class LateOpening:
    """The opening of a sink that replaces output, with its first one.

    Args:
        name: Name of the sink.
        sink: The sink, not open.
        deadlines: The job's deadlines.
        stack: Exit stack that closes it.
    """

    def __init__(self, name: str, sink: Sink, deadlines: Deadlines, stack: AsyncExitStack) -> None:
        self._name, self._sink, self._deadlines, self._stack = name, sink, deadlines, stack
        self._turn = asyncio.Lock()
        self.done = False

    async def __call__(self) -> None:
        """Open the sink, unless it is open.

        Raises:
            SinkError: It cannot be opened in time, or another run has written output meanwhile.
        """
        async with self._turn:
            if self.done:
                return
            deadline = self._deadlines.sink(self._name)
            held = await deadline.call(self._sink.open(), "open")
            self.done = True
            self._stack.push_async_callback(self._deadlines.close, deadline, self._sink.aclose)
            if held != MIN_TIME:
                raise SinkError(
                    f"the output of sink {self._name!r} was to be replaced, and is now that of this job up to {held}: "
                    "another run has written it meanwhile",
                    hint="One job writes to a place at a time. End the other run, and start this one again.",
                    sink=self._name,
                )


async def open_sinks(
    stack: AsyncExitStack, sinks: Mapping[str, Sink], history: History | None, deadlines: Deadlines | None = None
) -> tuple[dict[str, int], dict[str, LateOpening]]:
    """Open the sinks, but for those that would destroy output.

    Args:
        stack: Exit stack that closes them.
        sinks: Sinks by name.
        history: History of the job's state, if it keeps any.
        deadlines: The job's deadlines.

    Returns:
        The time up to which each holds its outputs; and for those that are not open yet, by name, how they are opened
        with their first output, or when the job has ended well.

    Raises:
        SinkError: A sink cannot be opened in time, or has lost outputs that the state relies on.
    """
    deadlines = deadlines or Deadlines()
    delivered_up_to = {}
    late: dict[str, LateOpening] = {}
    for name, sink in sinks.items():
        snapshot = history.snapshot if history is not None else None
        # A new sink has held nothing yet.
        known = history is None or snapshot is None or history.phases.of_sink(name) in snapshot.sinks
        if history is not None:
            # Not whether there was an epoch before: it may have ended before the sink was opened.
            sink.continues(history.identity, continued=snapshot is not None and known)
        deadline = deadlines.sink(name)
        if await deadline.call(sink.replaces(), "look at its output"):
            late[name], delivered_up_to[name] = LateOpening(name, sink, deadlines, stack), MIN_TIME
        else:
            delivered_up_to[name] = await deadline.call(sink.open(), "open")
            stack.push_async_callback(deadlines.close, deadline, sink.aclose)
        if history is None or snapshot is None or not known or sink.guarantee != "exactly_once":
            continue
        # The missing outputs are below the snapshot, so no run would make them again.
        if (until := delivered_up_to[name]) < history.start:
            held = "none of its output" if until == MIN_TIME else f"its output up to {until}"
            raise SinkError(
                f"sink {name!r} holds {held}, and the state continues from {history.start}",
                hint="Bring back what the sink held, to the place it was; or delete the state, to make all outputs "
                "again. A sink of another name takes what comes from here on.",
                sink=name,
            )
    return delivered_up_to, late


async def divide_sinks(sinks: Mapping[str, Sink], workers: int, deadlines: Deadlines) -> dict[str, Division]:
    """Begin an epoch of the open sinks in partitions; return the division of each.

    Raises:
        SinkError: One cannot be divided in time.
    """
    return {
        name: await deadlines.sink(name).call(sink.divide(workers), "divide its output")
        for name, sink in sinks.items()
        if isinstance(sink, PartitionedSink)
    }


def check_importable(graph: Graph, transport: Transport) -> None:
    """Refuse a graph that workers in other processes could not import.

    Raises:
        GraphError: Workers live in other processes, and the flow is not an attribute of an importable module.
    """
    if not transport.capabilities.multi_process or graph.reference is not None:
        return
    for vertex in graph.vertices:
        for function in user_functions(vertex):
            if is_local(function):
                name = user_name(function)
                what = f"{vertex!r} is what" if name is None else f"{vertex!r} uses {name}, which"
                error = GraphError(
                    f"{what} the workers of transport {transport.name!r} cannot import",
                    hint="Make the flow a module-level variable of an importable file, or use transport "
                    f"{defaults.TRANSPORT!r}.",
                    vertex=vertex.name,
                )
                raise note_declaration(error, vertex)
