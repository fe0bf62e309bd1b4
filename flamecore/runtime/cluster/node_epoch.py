"""One epoch of a node process, and the context that outlives epochs.

After a fault every surviving process ends its parts and takes on a new assignment, without starting anew: its
imports, its connections and its store stay.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec

from flamecore.abc.sink import encoders_of
from flamecore.abc.store import Store
from flamecore.abc.transport import Transport
from flamecore.errors import ConfigError
from flamecore.model.messages import Assignment, Resume
from flamecore.model.plan import Placement
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.flow_loader import load_flow, locate
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.read import decode_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.engine.limited_store import LimitedStore
from flamecore.runtime.engine.node import Node
from flamecore.runtime.engine.planning import make_plan
from flamecore.runtime.parts.counters import merged
from flamecore.runtime.state.restore import StateAccess
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.epoch_transport import EpochTransport
from flamecore.runtime.tasks.event_loop import BackgroundTasks
from flamecore.runtime.tasks.load import WorkerLoad
from flamecore.runtime.tasks.watch import told_of_calls


class NodeEpoch:
    """The parts of a node that run in one epoch.

    Args:
        context: The process's context, which outlives the epoch.
        assignment: The parts that the node is assigned.
        spec: The resolved job.
    """

    def __init__(self, context: NodeContext, assignment: Assignment, spec: JobSpec) -> None:
        self.assignment = assignment
        self._context = context
        self._spec = spec
        self._loads: list[WorkerLoad] = []
        settings = msgspec.structs.replace(spec.settings, workers=assignment.total)
        fronts = [front[:3] for front in assignment.fronts]
        self.plan = make_plan(
            spec.checked_graph,
            spec.sources,
            settings,
            fronts=fronts,
            past=assignment.past,
            done=assignment.done,
            unread=assignment.unread,
            start=assignment.start,
            placement=Placement(assignment.hosts, assignment.owners) if assignment.owners else None,
        )
        epoch_transport, encoders = EpochTransport(context.transport, assignment.epoch), encoders_of(spec.sinks)
        self.node = Node(
            self.plan,
            epoch_transport,
            fail=context.failed,
            encoders=encoders,
            operators=spec.operators,
            deadlines=Deadlines.of(settings),
            codec=context.codec,
        )

    async def open(self) -> None:
        """Open the partitions of the fronts."""
        states = [front[3:] for front in self.assignment.fronts]
        await self.node.open_sources(self._spec.sources, self.assignment.workers, states)

    async def load(self, resume: Resume | None, grants: Mapping[str, str]) -> None:
        """Bind the parts, with their state, and open the partitions that they write."""
        from flamecore.runtime.engine.planning import acker_plan

        node, spec = self.node, self._spec
        if resume is not None:
            assert spec.settings.state is not None
            store = await self._context.store(spec)
            node.state_access = StateAccess(store, self._context.codec, resume, spec.settings.state.max_uncommitted)
        acker = spec.acker(acker_plan(self.plan))
        for index in self.assignment.trackers:
            await node.add_tracker(acker, index)
        for index in self.assignment.workers:
            await node.add_worker(acker, index)
        await node.add_partitions(spec.sinks, grants)
        self._loads = [WorkerLoad(worker_task) for worker_task in node.workers]
        node.listen()

    @property
    def silence_s(self) -> float:
        """Return the time without a message after which a node is declared dead."""
        return self._spec.config.deploy.silence_timeout_s

    def stats(self, *, ended: bool = False) -> dict[str, object]:
        """Return the node's counts.

        Args:
            ended: Whether they are the last.
        """
        return asdict(merged([self.node.stats(ended=ended), *(load.counts() for load in self._loads)]))

    async def leave(self, *, orderly: bool) -> None:
        """End the epoch; if orderly, hand over first all messages that were sent."""
        if orderly:
            await self.node.aclose()
        else:
            await self.node.halt(self._context.background.add)


class NodeContext:
    """The context of a process: transport, imported flow, open store.

    It outlives the process's epochs.

    Args:
        transport: The transport, started.
        codec: The transport's codec.
        failed: Called when a part fails.
        spare: A folder with a copy of the flow's source, for where its own files are not.
    """

    def __init__(
        self,
        transport: Transport,
        codec: Codec,
        failed: Callable[[BaseException], None],
        spare: Path | None = None,
    ) -> None:
        self.transport = transport
        self.codec = codec
        self.failed = failed
        self._spare = spare
        self._specs: dict[tuple[bytes, tuple[str, str]], JobSpec] = {}
        self._store: Store | None = None
        self._close: Callable[[], Coroutine[object, object, None]] | None = None
        self.background = BackgroundTasks()

    async def assign(self, assignment: Assignment) -> NodeEpoch:
        """Make the epoch of an assignment, with its sources open.

        Raises:
            FlameError: The flow cannot be imported, or a source not be opened.
        """
        key = (assignment.config, assignment.flow)
        # Once for each version: another epoch must not import the flow again.
        if key not in self._specs:
            spec = self._specs[key] = _resolve_spec(assignment, self._spare)
            self.codec.learn(spec.checked_graph)
        node_epoch = NodeEpoch(self, assignment, self._specs[key])
        try:
            await node_epoch.open()
        except BaseException:
            await node_epoch.leave(orderly=False)
            raise
        return node_epoch

    async def store(self, spec: JobSpec) -> Store:
        """Return the job's store, open."""
        if self._store is None:
            store, state, deadlines = spec.store(), spec.settings.state, Deadlines.of(spec.settings)
            assert store is not None
            assert state is not None
            deadline = deadlines.store(store.name, state.commit_timeout_s)
            self._close = partial(deadlines.close, deadline, store.aclose)
            await deadline.call(store.open(), "open")
            self._store = LimitedStore(store, deadlines, state.commit_timeout_s)
        return self._store

    async def aclose(self) -> None:
        """Release everything but the transport."""
        await self.background.aclose()
        if self._close is not None:
            await self._close()


def _resolve_spec(assignment: Assignment, spare: Path | None) -> JobSpec:
    """Resolve the control's configuration and flow in this process."""
    reference, folder = assignment.flow[0], Path(assignment.flow[1])
    if spare is not None:
        reference, folder = locate(reference, folder, spare)
    with told_of_calls():
        flow = load_flow(reference, folder)
    spec = resolve(decode_config(assignment.config), flow)
    spec.problems.raise_first()
    if assignment.code and spec.code != assignment.code:
        raise ConfigError(
            f"flow {flow.name!r} is another version here than the one that runs: {reference} has changed since",
            hint="Put the former version back; or have the job continue with the new one: flamestream upgrade.",
            path="job.flow",
        )
    return spec
