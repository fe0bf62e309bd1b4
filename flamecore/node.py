"""A node: the parts of a job that live in one process, on one transport.

Which parts these are is the placement's business; a node runs whatever it is given. An embedded job is one node with
everything; on several processes each worker process is a node with a worker, and the supervisor one with the rears.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Any, Protocol

from flamecore.acker import Acker
from flamecore.clock import Front
from flamecore.collect import Collector
from flamecore.errors import SinkError
from flamecore.facts import state_facts
from flamecore.failure import Failure, exit_error
from flamecore.front import Reader, Source
from flamecore.host import TrackerHost, WorkerHost
from flamecore.keeper import Keeper
from flamecore.messages import CONTROL
from flamecore.meta import FrontId
from flamecore.observe import Observers
from flamecore.patience import Patience, Watch
from flamecore.plan import DEAD_LETTERS, Plan
from flamecore.post import Post
from flamecore.pump import Ended, FrontPump
from flamecore.rear import Encode, Sink
from flamecore.rear_host import RearHost, patient
from flamecore.recovery import Journal, Kept, load_journal, load_manifest, load_state
from flamecore.stats import Histogram, NodeStats
from flamecore.transport import Endpoint
from flamecore.worker import Worker
from flamecore.worker_commits import WorkerCommits


class Binds(Protocol):
    """What a node needs of its transport."""

    async def bind(self, address: str) -> Endpoint: ...


class Runs(Protocol):
    """A part: it has a task of its own."""

    async def run(self) -> None: ...


class Node:
    """Runs parts of a job.

    Args:
        plan: What all nodes agree on.
        transport: Carries their messages; it has been started.
        fail: Told of the first error of any part.
        observers: Told of events.
        kept: How state is kept, as far as that is known before workers are added; None: it is not.
        encoders: Of the sinks, by name.
        patience: Of the job, with its sources and sinks.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Binds,
        *,
        fail: Callable[[BaseException], None],
        observers: Observers | None = None,
        kept: Kept | None = None,
        encoders: Mapping[str, Encode] = MappingProxyType({}),
        patience: Patience | None = None,
    ) -> None:
        self.plan = plan
        self.kept = kept
        self.encoders = encoders
        self.transport = transport
        self.workers: list[WorkerHost] = []
        self.trackers: list[TrackerHost] = []
        self.rears: list[RearHost] = []
        self.pumps: list[FrontPump] = []
        self.commits: list[WorkerCommits] = []
        self.posts: list[Post] = []
        self.stop = asyncio.Event()
        self._fail = fail
        self._observers = observers or Observers(())
        self._latency = Histogram()
        self._readers: dict[FrontId, Reader] = {}
        self._edges = AsyncExitStack()
        self._patience = patience or Patience()
        self._tasks: dict[asyncio.Task[None], Watch | None] = {}
        self._random = SystemRandom() if plan.seed is None else Random(plan.seed)

    # -- putting together ------------------------------------------------------------------------------------------

    async def open_sources(
        self, sources: Mapping[str, Source], workers: Sequence[int], states: Sequence[tuple[Any, bool]] = ()
    ) -> None:
        """Open the partitions whose fronts the given workers host.

        Args:
            sources: By name.
            workers: Their numbers.
            states: For each front, where it goes on: (position, whether it has ended); default: from the start.

        Raises:
            SourceError: One cannot be opened.
        """
        for number, (front, partition) in enumerate(zip(self.plan.fronts, self.plan.partitions, strict=True), 1):
            if self.plan.host_of(number) not in workers:
                continue
            position, ended = states[number - 1] if states else (None, False)
            if ended:
                self._readers[front] = Ended()
                continue
            source = sources[front.source]
            again = position is not None and source.capabilities.replayable
            reader = self._readers[front] = await source.open(partition, position if again else None)
            self._edges.push_async_callback(self._patience.close, self._patience.source(front), reader.aclose)

    async def add_tracker(self, acker: Acker, index: int) -> None:
        """Run one of the acker's trackers. Every worker is told of its news."""
        tracker = acker.tracker(index)
        for worker in range(self.plan.workers):
            tracker.subscribe(f"worker/{worker}")
        self.trackers.append(TrackerHost(tracker, await self._post(f"acker/{index}")))

    async def add_worker(self, acker: Acker, index: int) -> None:
        """Run one of the workers, with the fronts it hosts, whose partitions are open."""
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
        )
        host = WorkerHost(worker, await self._post(f"worker/{index}"), self._latency, self._advanced)
        self.workers.append(host)
        most = None
        if self.kept is not None:
            await self._keep(self.kept, worker, host)
            most = max(self.kept.max_uncommitted // len(plan.fronts), 1)
        for front in fronts:
            watch = self._patience.source(front.name)
            self.pumps.append(FrontPump(front, self._readers[front.name], host, plan, self.stop, most, watch))

    async def _fronts(self, numbers: Sequence[int]) -> list[Front]:
        plan, kept = self.plan, self.kept
        journal = Journal({}, {})
        if kept is not None:
            journal = await load_journal(kept.store, kept.resume.journals, plan.start)
        fronts = []
        for number in numbers:
            name = plan.fronts[number - 1]
            position, start, ended = kept.resume.fronts[number - 1] if kept is not None else (None, plan.start, False)
            front = Front(
                name,
                number,
                clock=plan.clock,
                start=max(start, kept.resume.floor) if kept is not None and plan.clock == "wall" else start,
                describe=self._readers[name].describe,
                position=position,
                kept=kept is not None,
                ended=ended,
                journal=journal.given.get(number, ()),
                end=journal.ends.get(number),
            )
            fronts.append(front)
        return fronts

    async def _keep(self, kept: Kept, worker: Worker, host: WorkerHost) -> None:
        """Give a worker the state it goes on from, and its side of snapshots."""
        facts = state_facts(self.plan.graph)
        operations = {name: operation for name, operation in worker.compiled.stateful.items() if name in facts}
        manifest = await load_manifest(kept.store, kept.resume)
        own = [group for group, owner in enumerate(self.plan.owners) if owner == worker.index]
        parts = 0
        if manifest is not None:
            groups_of = {name: operation.groups_of for name, operation in operations.items()}
            worker.restore(await load_state(kept.store, kept.codec, manifest, own, groups_of))
            parts = manifest.parts_of(own)
        commits = host.commits = WorkerCommits(
            worker,
            Keeper(operations, kept.codec, (min(own, default=0), max(own, default=-1)), parts),
            kept.store,
            kept.codec,
            kept.resume.epoch,
            host.post,
            {number: self._readers[front.name] for number, front in worker.fronts.items()},
            self._patience,
            flush=host.flush,
            taken=self._wake,
        )
        self.commits.append(commits)

    async def add_rear(self, name: str, sink: Sink, held: int) -> None:
        """Run one of the rears, whose sink is open and holds everything below `held`. After the workers, if any."""
        plan = self.plan
        here = [f"worker/{host.worker.index}" for host in self.workers]
        hosts = {f"worker/{plan.host_of(number)}" for number in range(1, len(plan.fronts) + 1)}
        away = sorted(hosts.difference(here))
        rear = RearHost(
            Collector(name, plan.workers, held=held, barrier=plan.barrier, orders=sink.wants_orders),
            sink,
            await self._post(f"rear/{name}"),
            listeners=[*here, CONTROL] if patient(plan) else [*here, *away, CONTROL],
            away=away if patient(plan) else (),
            delivered=self._observers.batch_released,
            translate=Failure.letter if name == DEAD_LETTERS else None,
            watch=self._patience.sink(name),
        )
        self.rears.append(rear)

    async def _post(self, address: str) -> Post:
        post = Post(await self.transport.bind(address), self._fail)
        self.posts.append(post)
        return post

    # -- running ---------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Start every part but the fronts."""
        self._start([*self.trackers, *self.workers, *self.rears, *self.commits])

    def begin(self) -> None:
        """Start the fronts: everybody listens."""
        for host in self.workers:
            host.greet()
        self._start(self.pumps)

    async def halt(self, rest: Callable[[asyncio.Task[None]], None]) -> None:
        """End every part at once, and close what was read, because an epoch ends before its time. What was sent and not
        taken need not arrive; what is being written to a sink is written to its end.

        Args:
            rest: Given what is still to be done for endpoints whose other side may be gone.

        Raises:
            SinkError: Nobody knows what a sink holds now.
            SourceError: A reader cannot be closed.
        """
        written = await self._end_parts()
        for post in self.posts:
            rest(asyncio.create_task(post.aclose()))
        await self._edges.aclose()
        for error in written:
            raise error

    async def _end_parts(self) -> list[BaseException]:
        """End them all, the rears behind the batch that is being written. What was given up is left behind.

        Returns:
            Why it is not known what sinks hold.
        """
        for host in self.workers:
            host.aclose()
        for task, watch in self._tasks.items():
            if watch is None:
                task.cancel()
        written = await asyncio.gather(*[rear.halt() for rear in self.rears], return_exceptions=True)
        for rear in self.rears:
            rear.aclose()
        for task, watch in self._tasks.items():
            if watch is None:
                await asyncio.wait((task,))
            else:
                task.cancel()
                with suppress(SinkError):  # which is known by now
                    await watch.until(task)
        return [error for error in written if error is not None]

    def _start(self, parts: Sequence[Runs]) -> None:
        for part in parts:
            task = asyncio.create_task(_run(part), name=type(part).__name__)
            task.add_done_callback(self._part_ended)
            self._tasks[task] = part.watch if isinstance(part, RearHost) else None

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _advanced(self, worker: int, time: int) -> None:
        self._observers.minimum_time_advanced(worker, time)
        self._wake()

    def _wake(self) -> None:
        for pump in self.pumps:
            pump.wake()

    async def aclose(self) -> None:
        """End every part, close every edge. Twice is once.

        Raises:
            SinkError: Nobody knows what a sink holds now.
            FlameError: Something cannot be closed.
        """
        written = await self._end_parts()
        for post in self.posts:
            await post.aclose()
        await self._edges.aclose()
        for error in written:
            raise error

    def stats(self) -> NodeStats:
        """Counts of the parts of this node."""
        workers = [host.worker for host in self.workers]
        messages: Counter[str] = Counter()
        for post in self.posts:
            messages.update(post.sent)
        return NodeStats(
            at=time.time(),
            items_in=sum(worker.admitted for worker in workers),
            items_out={rear.collector.name: rear.count for rear in self.rears},
            in_flight=sum(pump.front.in_flight for pump in self.pumps),
            held_back=sum(pump.held_back for pump in self.pumps),
            min_times={worker.index: worker.min_time for worker in workers},
            replays=sum(worker.retracted for worker in workers),
            rejected=sum(worker.rejected for worker in workers),
            failed=sum(worker.failed for worker in workers),
            latency=self._latency.buckets(),
            messages=dict(messages),
        )


async def _run(part: Runs) -> None:
    """Run a part. User code that wants to end the program ends the job, like all else that it raises."""
    try:
        await part.run()
    except SystemExit as error:  # asyncio would let it through, and nobody would hear why the process is gone
        raise exit_error(error) from error
