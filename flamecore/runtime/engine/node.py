"""A node: the parts of a job that live in one process, on one transport.

The placement chooses these parts; a node runs the parts that it is given. An embedded job is one node with all parts;
on several processes each worker process is a node with a worker, and the supervisor is one with the rears.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Protocol

from flamecore.abc.acker import Acker
from flamecore.abc.hooks import Observers
from flamecore.abc.sink import Encode, Sink
from flamecore.abc.source import Reader, Source
from flamecore.abc.transport import Endpoint
from flamecore.errors import SinkError
from flamecore.model.failure import Failure, ending_error
from flamecore.model.messages import CONTROL
from flamecore.model.meta import FrontId
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.runtime.engine.snapshots.journal import EpochStore
from flamecore.runtime.engine.snapshots.participant import SnapshotWriter
from flamecore.runtime.operators.table import Operators
from flamecore.runtime.parts.collector import Collector
from flamecore.runtime.parts.counters import NodeStats, merged
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.histogram import Histogram
from flamecore.runtime.parts.room import Room
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.state.format import Binding
from flamecore.runtime.state.journal import Journal, load_journal
from flamecore.runtime.state.restore import StateAccess, load_manifest, load_state
from flamecore.runtime.state.schema import groups_by_place, state_schema
from flamecore.runtime.state.writer import StateWriter
from flamecore.runtime.tasks.deadlines import CallDeadline, Deadlines
from flamecore.runtime.tasks.front_task import Ended, FrontTask, Heartbeats, Reading, StopSignal
from flamecore.runtime.tasks.rear_task import RearTask, patient
from flamecore.runtime.tasks.sender import Sender
from flamecore.runtime.tasks.tracker_task import TrackerTask
from flamecore.runtime.tasks.worker_task import WorkerTask


class Bindable(Protocol):
    """The part of a transport that a node needs."""

    async def bind(self, address: str) -> Endpoint: ...


class Part(Protocol):
    """A part with a task of its own."""

    async def run(self) -> None: ...


class Counting(Protocol):
    """A part that counts."""

    def counts(self) -> NodeStats: ...


class Node:
    """The parts of a job in one process, and their tasks.

    Args:
        plan: The job's plan, the same for all nodes.
        transport: The started transport.
        fail: Function called with the errors of parts.
        observers: Observers of events.
        state_access: Access to state, set before workers are added; None: no state is kept.
        encoders: Encoders of the sinks, by name.
        operators: Operators of plugins, besides the engine's.
        deadlines: The job's deadlines.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Bindable,
        *,
        fail: Callable[[BaseException], None],
        observers: Observers | None = None,
        state_access: StateAccess | None = None,
        encoders: Mapping[str, Encode] = MappingProxyType({}),
        operators: Operators = MappingProxyType({}),
        deadlines: Deadlines | None = None,
    ) -> None:
        self.plan = plan
        self.state_access = state_access
        self.encoders = encoders
        self.operators = operators
        self.transport = transport
        self.workers: list[WorkerTask] = []
        self.trackers: list[TrackerTask] = []
        self.rears: list[RearTask] = []
        self.front_tasks: list[FrontTask] = []
        self.heartbeats: list[Heartbeats] = []
        self.snapshot_writers: list[SnapshotWriter] = []
        self.senders: list[Sender] = []
        self.stop = StopSignal()
        self._fail = fail
        self._observers = observers or Observers(())
        self._latency = Histogram()
        self._readers: dict[FrontId, Reader] = {}
        self._again: set[FrontId] = set()
        self._rooms: list[Room] = []
        self._edges = AsyncExitStack()
        self._deadlines = deadlines or Deadlines()
        self._tasks: dict[asyncio.Task[None], CallDeadline | None] = {}
        self._random = SystemRandom() if plan.settings.seed is None else Random(plan.settings.seed)

    # -- assembly ---------------------------------------------------------------------------------------------------

    async def open_sources(
        self, sources: Mapping[str, Source], workers: Sequence[int], states: Sequence[tuple[object, bool]] = ()
    ) -> None:
        """Open the partitions whose fronts the given workers host.

        Args:
            sources: Sources by name.
            workers: Numbers of the workers.
            states: For each front (position, whether it has ended) to continue from; default: from the start.

        Raises:
            SourceError: A partition cannot be opened.
        """
        for number, (front, partition) in enumerate(zip(self.plan.fronts, self.plan.partitions, strict=True), 1):
            if self.plan.host_of(number) not in workers:
                continue
            position, ended = states[number - 1] if states else (None, False)
            if ended:
                self._readers[front] = Ended()
                continue
            source = sources[front.source]
            again = source.capabilities.replayable
            # By the wall clock a later run would give records that were left unread other times.
            if again and self.plan.settings.clock == "sequence":
                self._again.add(front)
            reader = self._readers[front] = await source.open(partition, position if again else None)
            self._edges.push_async_callback(self._deadlines.close, self._deadlines.source(front), reader.aclose)

    async def add_tracker(self, acker: Acker, index: int) -> None:
        """Add one of the acker's trackers, which sends its news to every worker."""
        tracker = acker.tracker(index)
        for worker in range(self.plan.workers):
            tracker.subscribe(f"worker/{worker}")
        self.trackers.append(TrackerTask(tracker, await self._bind(f"acker/{index}")))

    async def add_worker(self, acker: Acker, index: int) -> None:
        """Add one of the workers, with its fronts, whose partitions are open."""
        plan = self.plan
        numbers = [number for number in range(1, len(plan.fronts) + 1) if plan.host_of(number) == index]
        fronts = await self._fronts(numbers)
        worker = Worker(
            index,
            plan,
            reporter=acker.reporter(index),
            listener=acker.listener(),
            random=Random(self._random.getrandbits(64)),
            fronts=fronts,
            encoders=self.encoders,
            operators=self.operators,
        )
        worker_task = WorkerTask(worker, await self._bind(f"worker/{index}"), self._latency, self._advanced)
        self.workers.append(worker_task)
        most, uncommitted = _share(plan.settings.max_in_flight, len(fronts), plan), None
        if self.state_access is not None:
            await self._add_state(self.state_access, worker, worker_task)
            uncommitted = _share(self.state_access.max_uncommitted, len(fronts), plan)
        room = Room(worker.fronts, most, uncommitted)
        self._rooms.append(room)
        for readings in self._group_readings(fronts):
            self.front_tasks.append(FrontTask(readings, worker_task, plan, room, self.stop))
        waits = len(plan.fronts) > 1 or plan.graph.has_timers  # a single front keeps no other waiting
        if plan.settings.clock == "wall" and fronts and waits:
            self.heartbeats.append(Heartbeats(worker_task, plan.settings.heartbeat_interval_s))

    def _group_readings(self, fronts: Sequence[Front]) -> list[list[Reading]]:
        """Return what each task of fronts reads."""
        together: list[Reading] = []
        alone: list[list[Reading]] = []
        policies = self.plan.settings.source_policies
        for front in fronts:
            reader, policy = self._readers[front.name], policies.get(front.name.source, "fail")
            deadline, again = self._deadlines.source(front.name), front.name in self._again
            reading = Reading(front, reader, policy, deadline, again=again)
            if reader.waits:
                alone.append([reading])
            else:
                together.append(reading)
        return [together, *alone] if together else alone

    async def _fronts(self, numbers: Sequence[int]) -> list[Front]:
        plan, state_access = self.plan, self.state_access
        journal = Journal({}, {})
        if state_access is not None:
            journal = await load_journal(state_access.store, state_access.resume, plan.start)
        fronts = []
        for number in numbers:
            name = plan.fronts[number - 1]
            position, start, ended = (
                state_access.resume.fronts[number - 1] if state_access is not None else (None, plan.start, False)
            )
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
            if vertex.name in operations and vertex.stateful:
                owned_alike.setdefault(self.plan.owners_of(vertex), []).append(vertex.name)
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
        snapshot_writer = worker_task.snapshots = SnapshotWriter(
            worker,
            writers,
            EpochStore(state_access.store, resume.epoch, Binding(resume.identity, resume.run)),
            state_access.codec,
            worker_task.sender,
            {number: self._readers[front.name] for number, front in worker.fronts.items()},
            self._deadlines,
            flush=worker_task.flush,
            taken=self._wake,
        )
        self.snapshot_writers.append(snapshot_writer)

    async def add_rear(self, name: str, sink: Sink, delivered_up_to: int) -> None:
        """Add one of the rears, after the workers, if any.

        Its sink is open, and holds all outputs below `delivered_up_to`.
        """
        plan = self.plan
        here = [f"worker/{worker_task.worker.index}" for worker_task in self.workers]
        hosts = {f"worker/{plan.host_of(number)}" for number in range(1, len(plan.fronts) + 1)}
        away = sorted(hosts.difference(here))
        rear = RearTask(
            Collector(
                name,
                plan.workers,
                delivered_up_to=delivered_up_to,
                barrier=plan.settings.barrier,
                orders=sink.wants_orders,
            ),
            sink,
            await self._bind(f"rear/{name}"),
            listeners=[*here, CONTROL] if patient(plan) else [*here, *away, CONTROL],
            away=away if patient(plan) else (),
            delivered=self._observers.batch_released,
            translate=Failure.letter if name == DEAD_LETTERS else None,
            deadline=self._deadlines.sink(name),
        )
        self.rears.append(rear)

    async def _bind(self, address: str) -> Sender:
        sender = Sender(await self.transport.bind(address), self._fail)
        self.senders.append(sender)
        return sender

    # -- running ---------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Start every part but the fronts."""
        self._start([*self.trackers, *self.workers, *self.rears, *self.snapshot_writers])

    def begin(self) -> None:
        """Start the fronts; all other parts listen."""
        for worker_task in self.workers:
            worker_task.greet()
        self._start([*self.front_tasks, *self.heartbeats])

    async def halt(self, rest: Callable[[asyncio.Task[None]], None]) -> None:
        """End every part at once, and close the readers, because an epoch ends early.

        Messages sent but not received may be lost; a batch that is being written to a sink is written to its end.

        Args:
            rest: Function that takes the closing tasks of endpoints, whose peers may be gone.

        Raises:
            SinkError: The contents of a sink are not known now.
            SourceError: A reader cannot be closed.
        """
        written = await self._end_parts()
        for sender in self.senders:
            rest(asyncio.create_task(sender.aclose()))
        await self._edges.aclose()
        for error in written:
            raise error

    async def _end_parts(self) -> list[BaseException]:
        """End all parts; the rears finish the batch that is being written.

        Calls that timed out are left behind.

        Returns:
            The errors of sinks whose contents are not known.
        """
        for worker_task in self.workers:
            worker_task.aclose()
        for task, deadline in self._tasks.items():
            if deadline is None:
                task.cancel()
        written = await asyncio.gather(*[rear.writer.halt() for rear in self.rears], return_exceptions=True)
        for rear in self.rears:
            rear.aclose()
        for task, deadline in self._tasks.items():
            if deadline is None:
                await asyncio.wait((task,))
            else:
                task.cancel()
                with suppress(SinkError):  # already in `written`
                    await deadline.wait_done(task)
        for worker_task in self.workers:
            worker_task.worker.close()
        return [error for error in written if error is not None]

    def _start(self, parts: Sequence[Part]) -> None:
        for part in parts:
            task = asyncio.create_task(_run(part), name=type(part).__name__)
            task.add_done_callback(self._part_ended)
            self._tasks[task] = part.writer.deadline if isinstance(part, RearTask) else None

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _advanced(self, worker: int, time: int) -> None:
        self._observers.minimum_time_advanced(worker, time)
        self._wake()

    def _wake(self) -> None:
        for room in self._rooms:
            room.note()
        for front_task in self.front_tasks:
            front_task.wake()

    async def aclose(self) -> None:
        """End every part, and close every edge; a second call does nothing.

        Raises:
            SinkError: The contents of a sink are not known now.
            FlameError: Something cannot be closed.
        """
        written = await self._end_parts()
        for sender in self.senders:
            await sender.aclose()
        await self._edges.aclose()
        for error in written:
            raise error

    def stats(self) -> NodeStats:
        """Return the counters of this node's parts."""
        workers = [worker_task.worker for worker_task in self.workers]
        parts: list[Counting] = [*workers, *self.front_tasks, *self.rears, *self.senders]
        return merged([*(part.counts() for part in parts), NodeStats(latency=self._latency.buckets())])


def _share(most: int, fronts: int, plan: Plan) -> int:
    """Return the share of some fronts in a limit of all fronts of a job."""
    return most * fronts // max(len(plan.fronts), 1)


async def _run(part: Part) -> None:
    """Run a part.

    User code that raises `SystemExit` or `MemoryError` ends the job, like any other error.
    """
    try:
        await part.run()
    except (SystemExit, MemoryError) as error:
        raise ending_error(error, f"the work of a {type(part).__name__}") from error
