"""A node: the parts of a job that live in one process, on one transport.

The placement chooses these parts; a node runs the parts that it is given. An embedded job is one node with all parts;
on several processes each worker process is a node with a worker, and the supervisor is one with the rears.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Protocol

from flamecore.abc.acker import Acker
from flamecore.abc.hooks import Observers
from flamecore.abc.sink import Encode, PartitionedSink, Sink
from flamecore.abc.source import Source
from flamecore.abc.transport import Endpoint
from flamecore.errors import FlameError
from flamecore.model.failure import Failure
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED
from flamecore.runtime.engine.part_tasks import PartTasks
from flamecore.runtime.engine.reading import FrontTasks, Readers
from flamecore.runtime.engine.snapshots.journal import EpochStore
from flamecore.runtime.engine.snapshots.participant import SnapshotWriter
from flamecore.runtime.operators.strict import Encodes
from flamecore.runtime.operators.table import Operators
from flamecore.runtime.parts.collector import Collector
from flamecore.runtime.parts.counters import NodeStats, merged
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.search import must_search
from flamecore.runtime.parts.tally import PartitionTally
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.state.format import Binding
from flamecore.runtime.state.journal import Journal, load_journal
from flamecore.runtime.state.restore import StateAccess, load_manifest, load_state
from flamecore.runtime.state.schema import groups_by_place, state_schema
from flamecore.runtime.state.writer import StateWriter
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.front_task import StopSignal
from flamecore.runtime.tasks.partition_task import PartitionTask
from flamecore.runtime.tasks.rear_task import Opening, RearTask, patient
from flamecore.runtime.tasks.sender import Sender
from flamecore.runtime.tasks.tracker_task import TrackerTask
from flamecore.runtime.tasks.worker_task import WorkerTask


class Bindable(Protocol):
    """The part of a transport that a node needs."""

    async def bind(self, address: str) -> Endpoint: ...


class Counting(Protocol):
    """A part that counts."""

    def counts(self) -> NodeStats: ...


class Senders:
    """The senders of the parts of a node, on one transport.

    Args:
        transport: The started transport.
        fail: Function called with errors of sending.
    """

    def __init__(self, transport: Bindable, fail: Callable[[BaseException], None]) -> None:
        self._transport, self._fail = transport, fail
        self._senders: list[Sender] = []

    def __iter__(self) -> Iterator[Sender]:
        return iter(self._senders)

    async def bind(self, address: str) -> Sender:
        """Open the address of a part of the node, which closes it."""
        sender = await self.open(address)
        self._senders.append(sender)
        return sender

    async def open(self, address: str) -> Sender:
        """Open an address beside those of the parts; the caller closes it."""
        return Sender(await self._transport.bind(address), self._fail)


class WorkerFactory:
    """The factory of the workers of a node.

    Args:
        plan: The job's plan.
        encoders: Encoders of the sinks, by name.
        operators: Operators of plugins, besides the engine's.
        codec: Codec of what leaves the process; None: nothing does.
    """

    def __init__(
        self, plan: Plan, encoders: Mapping[str, Encode], operators: Operators, codec: Codec | None = None
    ) -> None:
        self._plan, self._encoders, self._operators, self._codec = plan, encoders, operators, codec
        # From the system, unless a test sets a seed: processes that drew the same numbers would
        # cancel each other's messages in the acker.
        self._random = SystemRandom() if plan.settings.seed is None else Random(plan.settings.seed)

    def make(self, index: int, acker: Acker, fronts: Sequence[Front], state: StateAccess | None) -> Worker:
        """Make a worker, with its side of the acker."""
        encodes = Encodes(
            kept=None if state is None else partial(state.codec.encode, limits=STORED),
            sent=None if self._codec is None else self._codec.encode,
        )
        return Worker(
            index,
            self._plan,
            reporter=acker.reporter(index),
            listener=acker.listener(),
            random=Random(self._random.getrandbits(64)),
            fronts=fronts,
            encoders=self._encoders,
            operators=self._operators,
            encodes=encodes,
        )


class Node:
    """The parts of a job in one process, and their tasks.

    Args:
        plan: The job's plan, the same for all nodes.
        transport: The started transport.
        fail: Function called with the errors of parts.
        observers: Observers of events.
        encoders: Encoders of the sinks, by name.
        operators: Operators of plugins, besides the engine's.
        deadlines: The job's deadlines.
        codec: Codec of what leaves the process; None: nothing does.

    Attributes:
        state_access: Access to state, set before workers are added; None: no state is kept.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Bindable,
        *,
        fail: Callable[[BaseException], None],
        observers: Observers | None = None,
        encoders: Mapping[str, Encode] = MappingProxyType({}),
        operators: Operators = MappingProxyType({}),
        deadlines: Deadlines | None = None,
        codec: Codec | None = None,
    ) -> None:
        self.plan = plan
        self.state_access: StateAccess | None = None
        self.workers: list[WorkerTask] = []
        self.trackers: list[TrackerTask] = []
        self.rears: list[RearTask] = []
        self.senders = Senders(transport, fail)
        self._factory = WorkerFactory(plan, encoders, operators, codec)
        self._observers = observers or Observers(())
        self._deadlines = deadlines or Deadlines()
        self._readers = Readers(plan, self._deadlines)
        self._fronts = FrontTasks(plan)
        self._tasks = PartTasks(fail)

    @property
    def stop(self) -> StopSignal:
        """Return the signal that stops the fronts."""
        return self._fronts.stop

    # -- assembly ---------------------------------------------------------------------------------------------------

    async def open_sources(
        self, sources: Mapping[str, Source], workers: Sequence[int], states: Sequence[tuple[object, bool, object]] = ()
    ) -> None:
        """Open the partitions whose fronts the given workers host; see `Readers.open`."""
        await self._readers.open(sources, workers, states)

    async def add_tracker(self, acker: Acker, index: int) -> None:
        """Add one of the acker's trackers, which sends its news to every worker."""
        tracker = acker.tracker(index)
        for worker in range(self.plan.workers):
            tracker.subscribe(f"worker/{worker}")
        self.trackers.append(TrackerTask(tracker, await self.senders.bind(f"acker/{index}")))

    async def add_worker(self, acker: Acker, index: int) -> None:
        """Add one of the workers, with its fronts, whose partitions are open."""
        plan = self.plan
        numbers = [number for number in range(1, len(plan.fronts) + 1) if plan.host_of(number) == index]
        fronts = await self._make_fronts(numbers)
        worker = self._factory.make(index, acker, fronts, self.state_access)
        sender = await self.senders.bind(f"worker/{index}")
        worker_task = WorkerTask(worker, sender, self._advanced, searches=self._searches)
        self.workers.append(worker_task)
        max_uncommitted = None
        if self.state_access is not None:
            await self._add_state(self.state_access, worker, worker_task)
            max_uncommitted = self.state_access.max_uncommitted
        self._fronts.add(worker_task, self._readers.readings(fronts), max_uncommitted)

    @property
    def _searches(self) -> bool:
        return self.state_access is not None and must_search(self.plan, self.state_access.resume)

    async def _make_fronts(self, numbers: Sequence[int]) -> list[Front]:
        plan, state_access = self.plan, self.state_access
        journal = Journal({}, {})
        behind_end: frozenset[int] = frozenset()
        if state_access is not None:
            behind_end = state_access.resume.behind_end if self._searches else behind_end
            journal = await load_journal(state_access.store, state_access.resume, plan.start)
        fronts = []
        for number in numbers:
            name = plan.fronts[number - 1]
            position, start, ended, _ = (
                state_access.resume.fronts[number - 1] if state_access is not None else (None, plan.start, False, 0)
            )
            # New times of the wall clock begin above all that sinks hold, whatever the clock of
            # this machine says.
            front = Front(
                name,
                number,
                clock=plan.settings.clock,
                start=max(start, state_access.resume.floor)
                if state_access is not None and plan.settings.clock == "wall"
                else start,
                describe=self._readers[name].describe,
                original=self._readers[name].original,
                position=position,
                snapshots=state_access is not None,
                ended=ended,
                journal=journal.times.get(number, ()),
                end=journal.ends.get(number),
                is_behind_end=number in behind_end,
            )
            fronts.append(front)
        return fronts

    async def _add_state(self, state_access: StateAccess, worker: Worker, worker_task: WorkerTask) -> None:
        """Load a worker's state, and add its side of snapshots."""
        facts = state_schema(self.plan.graph)
        operations = {name: operation for name, operation in worker.compiled.stateful.items() if name in facts}
        manifest = await load_manifest(state_access.store, state_access.resume)
        placed = {vertex.name: of for vertex in self.plan.graph.vertices if (of := groups_by_place(vertex)) is not None}
        owned_alike: dict[tuple[int, ...], list[str]] = {}
        for vertex in self.plan.graph.vertices:
            # One writer for all operations with the same owners: a part names one range of key
            # groups.
            if vertex.name in operations and vertex.stateful:
                owned_alike.setdefault(self.plan.owners_of(vertex), []).append(vertex.name)
        if manifest is not None:
            for front in manifest.fronts:
                if front.marked and front.number in worker.fronts:
                    worker.restore_marked(front.number, state_access.codec.decode(front.marked, STORED))
        writers = []
        for owners, names in owned_alike.items():
            own = [group for group, owner in enumerate(owners) if owner == worker.index]
            parts = 0
            if manifest is not None and own:
                groups_of = {name: placed.get(name, operations[name].groups_of) for name in names}
                worker.restore(await load_state(state_access.store, state_access.codec, manifest, own, groups_of))
                parts = manifest.parts_of(own, names)
            span = min(own, default=0), max(own, default=-1)
            theirs = {name: operations[name] for name in names}
            writers.append(StateWriter(theirs, state_access.codec, span, parts, alone=len(owned_alike) == 1))
        resume = state_access.resume
        worker_task.snapshots = SnapshotWriter(
            worker,
            writers,
            EpochStore(state_access.store, resume.epoch, Binding(resume.identity, resume.run)),
            state_access.codec,
            worker_task.sender,
            {number: self._readers[front.name] for number, front in worker.fronts.items()},
            self._deadlines,
            flush=worker_task.flush,
            taken=self._fronts.committed,
            partitions=worker_task.partitions,
        )

    async def add_partitions(self, sinks: Mapping[str, Sink], grants: Mapping[str, str]) -> None:
        """Add the partitions that the workers here write, after the workers.

        Args:
            sinks: Sinks by name.
            grants: For each sink in partitions the grant of this epoch.

        Raises:
            SinkError: A partition cannot be opened.
        """
        for worker_task in self.workers:
            for name, grant in grants.items():
                whole, index = sinks[name], worker_task.worker.index
                assert isinstance(whole, PartitionedSink)
                sink, deadline = whole.partition(index, grant), self._deadlines.sink(name, index)
                held = await deadline.call(sink.open(), "open")
                partition = PartitionTask(name, sink, held, worker_task.sender, deadline)
                worker_task.partitions[partition.rear] = partition
                if worker_task.worker.own_times is not None:
                    worker_task.worker.own_times.leave_out(name)
                worker_task.worker.chooses = False  # all below a snapshot has to be in the partition when it is cut

    async def add_rear(
        self,
        name: str,
        sink: Sink,
        delivered_up_to: int,
        stored: Callable[[str, int], None],
        opening: Opening | None = None,
    ) -> None:
        """Add one of the rears, after the workers, if any.

        Args:
            name: Its name.
            sink: Its sink.
            delivered_up_to: Time below which the sink holds all outputs.
            stored: Function called with (rear, time) once the sink has stored all outputs below that time.
            opening: Function that opens the sink, called before each output; None: it is open.
        """
        plan, released = self.plan, self._observers.batch_released

        def delivered(rear: str, time: int, count: int) -> None:
            released(rear, time, count)
            stored(rear, time)

        here = [f"worker/{worker_task.worker.index}" for worker_task in self.workers]
        hosts = {f"worker/{plan.host_of(number)}" for number in range(1, len(plan.fronts) + 1)}
        away = sorted(hosts.difference(here))
        collector: Collector | PartitionTally
        if isinstance(sink, PartitionedSink):
            collector = PartitionTally(name, plan.workers, delivered_up_to=delivered_up_to)
        else:
            collector = Collector(
                name,
                plan.workers,
                delivered_up_to=delivered_up_to,
                barrier=plan.settings.barrier,
                orders=sink.wants_orders,
            )
        rear = RearTask(
            collector,
            sink,
            await self.senders.bind(f"rear/{name}"),
            listeners=here if patient(plan) else [*here, *away],
            away=away if patient(plan) else (),
            delivered=delivered,
            translate=Failure.letter if name == DEAD_LETTERS else None,
            deadline=self._deadlines.sink(name),
            opening=opening,
        )
        self.rears.append(rear)

    # -- running ---------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Start every part but the fronts."""
        writers = [worker_task.snapshots for worker_task in self.workers if worker_task.snapshots is not None]
        self._tasks.start([*self.trackers, *self.workers, *self.rears, *self._partitions, *writers])

    def begin(self) -> None:
        """Start the fronts; all other parts listen."""
        for worker_task in self.workers:
            worker_task.greet()
        for front_task in self._fronts.tasks:
            front_task.rears_here = bool(self.rears)
        self._tasks.start(self._fronts.parts)

    async def halt(self, rest: Callable[[asyncio.Task[None]], None]) -> None:
        """End every part at once, and close the readers, because an epoch ends early.

        Messages sent but not received may be lost; a batch that is being written to a sink is written to its end.

        Args:
            rest: Function that takes the closing tasks of endpoints, whose peers may be gone.

        Raises:
            SinkError: The contents of a sink are not known now.
            SourceError: A reader cannot be closed.
        """
        try:
            written = await self._end()
        finally:
            for sender in self.senders:
                rest(asyncio.create_task(sender.aclose()))
            await self._readers.aclose()
        for error in written:
            raise error

    async def _end(self) -> list[BaseException]:
        """End all parts, and close the partitions; return the errors of sinks."""
        for tracker in self.trackers:
            tracker.aclose()
        errors = await self._tasks.end(self.workers, self.rears)
        for worker_task in self.workers:
            partitions, worker_task.partitions = worker_task.partitions, {}
            for partition in partitions.values():
                try:
                    await self._deadlines.close(partition.writer.deadline, partition.sink.aclose)
                except FlameError as error:
                    errors.append(error)
        return errors

    @property
    def _partitions(self) -> Iterator[PartitionTask]:
        return (partition for worker_task in self.workers for partition in worker_task.partitions.values())

    def _advanced(self, worker: int, time: int) -> None:
        self._observers.minimum_time_advanced(worker, time)
        self._fronts.wake()

    async def aclose(self) -> None:
        """End every part, and close every edge; a second call does nothing.

        Raises:
            SinkError: The contents of a sink are not known now.
            FlameError: Something cannot be closed.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._readers.aclose)
            for sender in reversed(tuple(self.senders)):
                stack.push_async_callback(sender.aclose)
            for error in await self._end():
                raise error

    def stats(self, *, ended: bool = False) -> NodeStats:
        """Return the counters of this node's parts.

        Args:
            ended: Whether the job has ended, so that what is still held back is counted, too.
        """
        parts: list[Counting] = [*self.workers, *self._fronts.tasks, *self.rears, *self.senders]
        held = [worker_task.worker.held() for worker_task in self.workers] if ended else []
        return merged([*(part.counts() for part in parts), *held])
