"""The reading of a node: its open partitions, and the tasks of their fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from flamecore.abc.source import Reader, Source
from flamecore.model.meta import FrontId
from flamecore.model.plan import Plan
from flamecore.runtime.engine.part_tasks import Part
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.room import Room
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.front_task import Ended, FrontTask, Heartbeats, Reading, StopSignal
from flamecore.runtime.tasks.worker_task import WorkerTask


class Readers:
    """The readers of the partitions that a node reads.

    Args:
        plan: The job's plan.
        deadlines: The job's deadlines.
    """

    def __init__(self, plan: Plan, deadlines: Deadlines) -> None:
        self._plan, self._deadlines = plan, deadlines
        self._readers: dict[FrontId, Reader] = {}
        self._again: set[FrontId] = set()
        self._edges = AsyncExitStack()

    def __getitem__(self, front: FrontId) -> Reader:
        """Return the reader of a front's partition."""
        return self._readers[front]

    async def open(
        self, sources: Mapping[str, Source], workers: Sequence[int], states: Sequence[tuple[object, bool, object]] = ()
    ) -> None:
        """Open the partitions whose fronts the given workers host.

        Args:
            sources: Sources by name.
            workers: Numbers of the workers.
            states: For each front (position to continue from, whether it has ended, the end that its source has found);
                default: from the start.

        Raises:
            SourceError: A partition cannot be opened, or not in time.
        """
        plan = self._plan
        for number, (front, partition) in enumerate(zip(plan.fronts, plan.partitions, strict=True), 1):
            if plan.host_of(number) not in workers:
                continue
            position, ended, end = states[number - 1] if states else (None, False, None)
            if ended:
                # Not opened: an accepted loss counts as an end, too, and its partition may be gone.
                self._readers[front] = Ended()
                continue
            source = sources[front.source]
            again = source.capabilities.replayable
            # By the wall clock a later run would give records that were left unread other times.
            if again and plan.settings.clock != "wall":
                self._again.add(front)
            position = position if again else None
            opening = source.open(partition, position) if end is None else source.open_until(partition, position, end)
            doing = f"open {partition!r}" if partition else "open"
            deadline = self._deadlines.opening(front.source, source.name)
            reader = self._readers[front] = await deadline.call(opening, doing)
            # With a limit of its own for each: one reader that hangs does not keep the others open.
            self._edges.push_async_callback(self._deadlines.close, self._deadlines.source(front), reader.aclose)

    def readings(self, fronts: Sequence[Front]) -> list[list[Reading]]:
        """Return the partitions that each task of fronts reads.

        They are several whose readers never wait, or one.
        """
        # One task for all that never wait, since a thousand files then need no thousand tasks; one
        # that waits would hold up the others.
        together: list[Reading] = []
        alone: list[list[Reading]] = []
        policies = self._plan.settings.source_policies
        for front in fronts:
            reader, policy = self._readers[front.name], policies.get(front.name.source, "fail")
            deadline, again = self._deadlines.source(front.name), front.name in self._again
            reading = Reading(front, reader, policy, deadline, again=again)
            if reader.waits:
                alone.append([reading])
            else:
                together.append(reading)
        return [together, *alone] if together else alone

    async def aclose(self) -> None:
        """Close all readers."""
        await self._edges.aclose()


class FrontTasks:
    """The tasks of the fronts of a node, and their credit.

    Args:
        plan: The job's plan.

    Attributes:
        stop: Signal that stops reading.
        tasks: The tasks that read.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.stop = StopSignal()
        self.tasks: list[FrontTask] = []
        self._heartbeats: list[Heartbeats] = []
        self._rooms: list[Room] = []

    @property
    def parts(self) -> list[Part]:
        """Return all of them, to be started when everybody listens."""
        return [*self.tasks, *self._heartbeats]

    def add(self, worker_task: WorkerTask, readings: Sequence[Sequence[Reading]], max_uncommitted: int | None) -> None:
        """Add the tasks of a worker's fronts.

        Args:
            worker_task: The task of the worker.
            readings: The partitions that each task reads.
            max_uncommitted: Most records of the job that no snapshot covers; None: there are no snapshots.
        """
        plan, worker = self._plan, worker_task.worker
        fronts = worker.fronts
        uncommitted = None if max_uncommitted is None else plan.share_of(worker.index, max_uncommitted)
        room = Room(fronts, plan.share_of(worker.index, plan.settings.max_in_flight), uncommitted)
        self._rooms.append(room)
        self.tasks += [FrontTask(each, worker_task, plan, room, self.stop) for each in readings]
        waits = len(plan.fronts) > 1 or plan.graph.has_timers  # a single front keeps no other waiting
        if plan.settings.clock == "wall" and fronts and waits:
            self._heartbeats.append(Heartbeats(worker_task, plan.settings.heartbeat_interval_s))

    def wake(self) -> None:
        """Continue reading where there is room, after records were delivered."""
        for room in self._rooms:
            room.note()
        for task in self.tasks:
            task.wake()

    def committed(self) -> None:
        """Continue reading where there is room, after records have come into a snapshot."""
        for room in self._rooms:
            room.committed()
        for task in self.tasks:
            task.wake()
