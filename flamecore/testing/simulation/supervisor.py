"""The supervisor of a job on several processes of the simulated world.

It does the work of `flamecore.runtime.cluster.job`, without the processes: it has the rears and the control, a node for
each worker, and begins a new epoch after every fault. Nodes, epochs, histories, and the context that goes from epoch to
epoch are the job's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from flamecore.abc.hooks import Observers
from flamecore.abc.sink import Sink
from flamecore.abc.source import Source
from flamecore.errors import FlameError, JobError
from flamecore.model.graph import Graph
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings
from flamecore.runtime.cluster.context import JobContext
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.engine.epoch import Epoch, FaultError
from flamecore.runtime.engine.node import Node
from flamecore.runtime.engine.planning import acker_plan, open_history
from flamecore.runtime.state.restore import StateAccess
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.epoch_transport import EpochTransport
from flamecore.runtime.tasks.event_loop import BackgroundTasks
from flamecore.testing.simulation.job import Start
from flamecore.testing.simulation.network import SimulatedTransport
from flamecore.testing.simulation.placements import drawn_placement
from flamecore.testing.simulation.store import SimulatedStore
from flamecore.testing.simulation.world import Process

_HALT_S = 5.0
_MAY_MEND = ("CorruptError", "PeerGoneError", "TransportClosedError")


@dataclass(frozen=True)
class _Spec:
    """The part of a job's specification that its context uses."""

    settings: JobSettings
    checked_graph: Graph
    sources: Mapping[str, Source]
    all_sinks: Mapping[str, Sink]
    code: str = ""
    place: tuple[str, str] = "", ""

    def rescaled(self, workers: int) -> _Spec:
        return replace(self, settings=msgspec.structs.replace(self.settings, workers=workers))


class SimulatedSupervisor:
    """Supervisor of a job on several processes.

    Args:
        start: The start of the job; the supervisor lives in its control process.
        began: Called when a reader is asked for records.

    Attributes:
        processes: All processes with workers, dead ones too, in the order of their start.
    """

    def __init__(self, start: Start, began: Callable[[], None]) -> None:
        self.processes: list[Process] = []
        self._start, self._job, self._began = start, start.job, began
        self._trackers = self._job.random.choice(("supervisor", "worker"))
        self._draining = False
        self._epoch: Epoch | None = None
        self._nodes: dict[int, tuple[Process, Node]] = {}
        self._turned_to: int | None = None
        self._background = BackgroundTasks()

    async def run(self) -> None:
        """Run to the end of the job."""
        job, control = self._job, self._start.control
        async with AsyncExitStack() as stack:
            settings = self._start.settings
            history = await open_history(stack, SimulatedStore(control), job.graph, settings, Deadlines())
            spec: Any = _Spec(settings, job.graph, job.sources(control, self._began), job.sinks(control))
            edges = await stack.enter_async_context(AsyncExitStack())
            context = JobContext(spec, Codec.of(job.graph), history, edges, Deadlines())
            for number in range(1, 1000):
                name = f"{self._start.name}.{number}"
                transport = EpochTransport(SimulatedTransport(control, self._start.network), name)
                epoch = self._epoch = Epoch(context.plan, transport, Observers(()), name=name, deadlines=Deadlines())
                try:
                    await self._live(epoch, context)
                except FaultError as fault:
                    await self._recover(epoch, context, fault)
                else:
                    return

    async def _live(self, epoch: Epoch, context: JobContext) -> None:
        """Run one epoch, to the end of the job or a fault."""
        plan, history = context.plan, context.history
        assert history is not None
        self._make_nodes(epoch, plan)
        nodes = dict(self._nodes)
        await context.find_ends()
        states = [front[3:] for front in context.fronts]
        sources = {index: self._job.sources(process, self._began) for index, (process, _) in nodes.items()}
        await self._all(
            epoch,
            [
                process.start(node.open_sources(sources[index], [index], states))
                for index, (process, node) in nodes.items()
            ],
        )
        await context.open_sinks()
        await history.begin(context.delivered_up_to)
        loading = [process.start(self._load(index, process, node, context)) for index, (process, node) in nodes.items()]
        await self._all(epoch, loading)
        acker = self._start.acker(acker_plan(plan)) if self._trackers == "supervisor" else None
        await epoch.open(
            context.sinks, context.delivered_up_to, history, late=context.late, acker=acker, failing=self._failing
        )
        for process, node in nodes.values():
            if self._draining:
                node.stop.set()
            process.start(_begin(node))
        epoch.begin()
        await epoch.outcome
        await epoch.aclose()
        await context.open_late()
        await self._halt()

    def _make_nodes(self, epoch: Epoch, plan: Plan) -> None:
        """Make a node for each worker, in the process it had before or in a new one."""
        for index in range(plan.workers):
            process, _ = self._nodes.get(index, (None, None))
            if process is None or not process.alive:
                process = Process(self._job.world, f"{epoch.name}/worker-{index}")
                self.processes.append(process)
            seed = self._job.random.getrandbits(32)
            seeded = replace(plan, settings=msgspec.structs.replace(plan.settings, seed=seed))
            transport = EpochTransport(SimulatedTransport(process, self._start.network), epoch.name)
            self._nodes[index] = (
                process,
                Node(seeded, transport, fail=partial(self._failed, epoch, process), operators=self._job.operators),
            )

    async def _load(self, index: int, process: Process, node: Node, context: JobContext) -> None:
        history = context.history
        assert history is not None
        state = self._start.settings.state
        assert state is not None
        codec = Codec.of(self._job.graph)
        node.state_access = StateAccess(SimulatedStore(process), codec, history.resume(), state.max_uncommitted)
        acker = self._start.acker(acker_plan(node.plan))
        if self._trackers == "worker":
            for tracker in range(index, acker.trackers, node.plan.workers):
                await node.add_tracker(acker, tracker)
        await node.add_worker(acker, index)
        await node.add_partitions(self._job.sinks(process), context.grants)
        node.listen()

    async def _all(self, epoch: Epoch, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for all nodes, or for the epoch to end."""
        try:
            while not all(task.done() for task in tasks):
                left = [task for task in tasks if not task.done()]
                await asyncio.wait([*left, epoch.outcome], return_when=asyncio.FIRST_COMPLETED)
                if epoch.outcome.done():
                    await epoch.outcome
            if any(task.cancelled() for task in tasks):  # its process died; the supervisor will get a report
                await epoch.outcome
            for task in tasks:
                task.result()
        except FlameError as error:
            raise _fault_of(error) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _recover(self, epoch: Epoch, context: JobContext, fault: FaultError) -> None:
        """End an epoch, and find the state for the next one."""
        assert context.history is not None
        context.note_delivered(await epoch.halt(self._background.add))
        await self._halt()
        if fault.blob and not context.history.refuse(fault.blob):
            raise fault.error from fault
        workers, self._turned_to = self._turned_to, None
        if workers is None:
            await context.rewind()
        elif workers == context.plan.workers:
            await context.move(drawn_placement(context.plan, self._job.random))
        else:
            await context.rescale(workers)
        self._nodes = {index: each for index, each in self._nodes.items() if index < context.plan.workers}

    async def _halt(self) -> None:
        """End the nodes of an epoch; those that do not answer are declared dead."""
        tasks = {
            index: process.start(node.halt(self._background.add)) for index, (process, node) in self._nodes.items()
        }
        if tasks:
            await asyncio.wait(tasks.values(), timeout=_HALT_S)
        for index, task in tasks.items():
            if not task.done():
                self._nodes.pop(index)[0].kill()

    # -- reports -------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Iterator[Node]:
        """Return the nodes of the epoch."""
        return (node for _, node in self._nodes.values())

    def some_worker(self) -> Process | None:
        """Return a random living process with a worker, or None."""
        there = [process for process, _ in self._nodes.values() if process.alive]
        return self._job.random.choice(there) if there else None

    def some_pair(self) -> frozenset[Process] | None:
        """Return two random processes, or None if there are too few."""
        there = [self._start.control, *(process for process, _ in self._nodes.values())]
        return frozenset(self._job.random.sample(there, 2)) if len(there) > 1 else None

    def stop(self) -> None:
        """Stop reading."""
        for node in self.nodes:
            node.stop.set()

    def _failing(self, _: FlameError) -> None:
        for node in self.nodes:
            node.stop.fail()

    def drain(self) -> None:
        """Stop reading, in later epochs too, and end the job in order."""
        self._draining = True
        self.stop()

    def lose(self, process: Process) -> None:
        """Handle the loss of a process, which may still live."""
        for index, (other, _) in tuple(self._nodes.items()):
            if other is process:
                del self._nodes[index]
        self._fault(FaultError(JobError(f"{process.name} is gone")))

    def disconnect(self) -> None:
        """Handle a lost connection between two processes."""
        self._fault(FaultError(JobError("a connection is lost")))

    def turn(self, workers: int) -> None:
        """Continue with another number of workers, from a snapshot that is taken now.

        With the same number another placement is drawn.
        """
        if self._epoch is not None and self._turned_to is None:
            self._start.control.start(self._turn(self._epoch, workers))

    async def _turn(self, epoch: Epoch, workers: int) -> None:
        try:
            await epoch.commit()
        except Exception as error:  # noqa: BLE001 - ends the epoch
            epoch.fail(error)
        self._turned_to = workers
        epoch.fail(FaultError(JobError("the job is being changed")))

    def _failed(self, epoch: Epoch, process: Process, error: BaseException) -> None:
        """Handle the error of a node that cannot go on."""
        if process.alive and isinstance(error, FlameError):
            asyncio.get_running_loop().call_later(self._job.world.delay(), epoch.fail, _fault_of(error))
        elif process.alive:
            epoch.fail(error)

    def _fault(self, error: BaseException) -> None:
        if self._epoch is not None and self._start.control.alive:
            self._epoch.fail(error)


def _fault_of(error: FlameError) -> BaseException:
    """Return an error as the supervisor sees it: a FaultError if a new epoch may help."""
    return FaultError(error, getattr(error, "blob", "")) if type(error).__name__ in _MAY_MEND else error


async def _begin(node: Node) -> None:
    node.begin()
