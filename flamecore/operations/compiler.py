"""From the graph to the steps of one worker.

The graph is walked from its sinks back; each vertex becomes a step that calls the step of its successor, so a chain
of maps is a chain of calls. Only here do routes, cycles and barriers meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, ClassVar, Protocol

import xxhash

from flamecore.barrier import Barrier, Columns
from flamecore.graph import Broadcast, ByTime, Drift, Grouping, Map, Merge, Sink, Source, Vertex
from flamecore.operations import Fail, Run, Step, each
from flamecore.operations.dealing import Shares
from flamecore.operations.drift import DriftStep
from flamecore.operations.grouping import GroupingStep
from flamecore.operations.intake import Intake, Origin
from flamecore.operations.map import broadcast_run, broadcast_step, map_run, map_step
from flamecore.operations.routing import LoopHead, Outboxes, arriving, routed
from flamecore.plan import MAX_LOOP_BYTES, Plan


class Stateful(Protocol):
    """What the worker needs of an operation that keeps history."""

    retracted: int

    @property
    def names(self) -> list[Any]: ...

    @property
    def step(self) -> Step: ...

    def forget(self, before: bytes) -> None: ...

    def settle(self, before: bytes) -> None: ...

    def cut(self, before: bytes) -> Sequence[Mapping[Any, Any]]: ...

    def held(self, names: Sequence[Any]) -> Mapping[Any, Any]: ...

    def restore(self, held: Mapping[Any, Any]) -> None: ...

    def groups_of(self, names: Sequence[Any]) -> Sequence[int]: ...


class Holding(Protocol):
    """What the worker needs of a barrier."""

    @property
    def step(self) -> Step: ...

    def release(self, time: int) -> list[tuple[bytes, Any]]: ...

    def columns(self, time: int) -> Columns: ...


@dataclass(slots=True)
class Compiled:
    """The steps of one worker.

    Attributes:
        entries: For each source, the step its records enter.
        runs: For each source, the run its records enter.
        arrivals: For each vertex index, the step for items that come from another worker.
        arriving_runs: For each vertex index that is on no cycle, the run for the same.
        barriers: For each sink, what holds its items.
        outlets: For each sink, what it is sent at once when the barrier is off.
        stateful: The operations that keep history, by name of their vertex.
        intakes: What waits to go into stateful operations, upstream ones first.
        origin: To be told by which way items come.
        forgetters: To be called with the encoded minimum time whenever it has grown.
        shares: What rebalances go by, as far as they go by how busy workers are; None: there are none.
    """

    entries: dict[str, Step] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    arrivals: dict[int, Step] = field(default_factory=dict)
    arriving_runs: dict[int, Run] = field(default_factory=dict)
    barriers: dict[str, Holding] = field(default_factory=dict)
    outlets: dict[str, list[tuple[bytes, Any]]] = field(default_factory=dict)
    stateful: dict[str, Stateful] = field(default_factory=dict)
    intakes: list[Intake] = field(default_factory=list)
    origin: Origin = field(default_factory=Origin)
    forgetters: list[Callable[[bytes], None]] = field(default_factory=list)
    shares: Shares | None = None


class Compiler:
    """Walks the graph; `flamecore.operations.local_times` compiles to another model by overriding `operation`.

    Attributes:
        sorts: Whether items may be put in order before they go into an operation.
    """

    sorts: ClassVar[bool] = True

    def __init__(
        self,
        plan: Plan,
        worker: int,
        random: Random,
        outboxes: Outboxes,
        fail_at: Callable[[Vertex], Fail],
    ) -> None:
        self.plan, self.worker, self.random, self.outboxes = plan, worker, random, outboxes
        self.fail_at = cache(fail_at)  # one for each vertex: a repair must fail as what it repairs, step or run
        self.compiled = Compiled()
        self.owners = plan.owners
        self.feedback = plan.graph.feedback()
        self.heads = {
            head: LoopHead(head.name, MAX_LOOP_BYTES, fail_at(head))
            for head in plan.graph.vertices
            if any(end is head for _, end in self.feedback)
        }
        self.cycles = {head: plan.graph.cycle_of(head) for head in self.heads}
        self.placed = self.placed_by_order()
        self.inputs: dict[Vertex, Step] = {}
        self.runs: dict[Vertex, Run] = {}  # of the vertices that take them
        self.undos: dict[Vertex, Run] = {}  # of those that take several tombstones at once

    def successor(self, vertex: Vertex) -> Step:
        """The step that takes what `vertex` emits."""
        (only,) = self.plan.graph.successors(vertex)
        return self.way(vertex, only)

    def successor_run(self, vertex: Vertex) -> Run:
        """The run that takes what `vertex` emits."""
        (only,) = self.plan.graph.successors(vertex)
        return self.way_run(vertex, only)

    def way(self, start: Vertex, end: Vertex) -> Step:
        """The step that an edge stands for."""
        if (start, end) in self.feedback:
            return self.heads[end].feed_back
        return self.input_of(end)

    def way_run(self, start: Vertex, end: Vertex) -> Run:
        """The run that an edge stands for; into a cycle the items go one by one."""
        step = self.way(start, end)
        return each(step) if (start, end) in self.feedback or end in self.heads else self.runs[end]

    def input_of(self, vertex: Vertex) -> Step:
        """The step that takes items for `vertex` from this worker: its route and what is behind it."""
        if vertex not in self.inputs:
            here = self.operation(vertex)
            run_here = self.runs.get(vertex, each(here))
            self.inputs[vertex], self.runs[vertex] = self.arrange(vertex, here, run_here)
        return self.inputs[vertex]

    def arrange(self, vertex: Vertex, here: Step, run_here: Run) -> tuple[Step, Run]:
        """Make the vertex's own step and run reachable: for what arrives from other workers, and by its route."""
        heads = [head for at, head in self.heads.items() if vertex in self.cycles[at]]
        if not heads and self.sorts and len(self.outboxes) > 1 and isinstance(vertex, (Drift, Grouping)):
            ways = self.ways_to(vertex)
            late, undo = self.plan.late_per_s, self.undos.get(vertex)
            intake = Intake(here, run_here, self.compiled.origin, vertex.segment, late, ways, undo)
            self.compiled.intakes.insert(0, intake)  # the walk comes from the sinks
            here, run_here = intake.step, intake.run
        self.compiled.arrivals[vertex.index] = arriving(here, heads)
        if not heads:
            self.compiled.arriving_runs[vertex.index] = run_here
        return routed(
            vertex,
            here,
            run_here,
            worker=self.worker,
            owners=self.owners,
            outboxes=self.outboxes,
            fail=self.fail_at(vertex),
            shares=self.shares_for(vertex),
        )

    def shares_for(self, vertex: Vertex) -> Shares | None:
        """What a rebalance goes by whose items come once, straight from the fronts; None: it must go by their times."""
        if not (self.sorts and isinstance(vertex.route, ByTime) and len(self.outboxes) > 1):
            return None
        graph = self.plan.graph
        before = [other for other in graph.vertices if other is not vertex and vertex in graph.reach_of(other)]
        once = all(isinstance(other, (Source, Map, Broadcast, Merge)) and other.route is None for other in before)
        if not once or any(other in self.heads for other in before):
            return None
        if self.compiled.shares is None:
            self.compiled.shares = Shares(len(self.outboxes), self.worker)
        return self.compiled.shares

    def ways_to(self, vertex: Vertex) -> list[str]:
        """The other workers from which items may come to a vertex."""
        plan = self.plan
        others = [other for other in plan.graph.vertices if other is not vertex]
        before = [other for other in others if vertex in plan.graph.reach_of(other)]
        senders = set(range(plan.workers))
        if all(other.route is None for other in before):  # its route is the first on the way from the fronts
            sources = {other.name for other in before if isinstance(other, Source)}
            senders = {plan.host_of(at) for at, front in enumerate(plan.fronts, 1) if front.source in sources}
        return [f"worker/{index}" for index in sorted(senders) if index != self.worker]

    def operation(self, vertex: Vertex) -> Step:
        """The vertex's own work on this worker."""
        ident = self.ident_of(vertex)
        if isinstance(vertex, Map):
            self.runs[vertex] = map_run(vertex, ident, self.successor_run(vertex), self.fail_at(vertex))
            return map_step(vertex, ident, self.successor(vertex), self.fail_at(vertex))
        if isinstance(vertex, Broadcast):
            ends = self.plan.graph.successors(vertex)
            if self.parts(ends):
                self.runs[vertex] = broadcast_run([self.way_run(vertex, end) for end in ends])
            return broadcast_step([self.way(vertex, end) for end in ends])
        if isinstance(vertex, Merge):
            return self.merge(vertex)
        if isinstance(vertex, Drift):
            emit, emit_run = self.successor(vertex), self.successor_run(vertex)
            drift = DriftStep(vertex, ident, emit, self.fail_at(vertex), emit_run, kept=self.plan.kept)
            self.runs[vertex], self.undos[vertex] = drift.run, drift.undo
            return self.stateful(vertex, drift)
        if isinstance(vertex, Grouping):
            emit, emit_run = self.successor(vertex), self.successor_run(vertex)
            grouping = GroupingStep(vertex, ident, emit, self.fail_at(vertex), emit_run, kept=self.plan.kept)
            self.runs[vertex] = grouping.run
            return self.stateful(vertex, grouping)
        if isinstance(vertex, Sink):
            return self.sink(vertex)
        raise TypeError(f"{vertex!r} is no operation")

    def ident_of(self, vertex: Vertex) -> int:
        """The 64-bit id of a vertex's instance on this worker.

        It is random, so that two recomputations of an item that came by different workers have different traces. Where
        an item's order alone says which worker it goes to, or it is never recomputed, there are no such two: there all
        workers have one id, and what comes from several of them stays one run.
        """
        if vertex in self.placed:
            return xxhash.xxh3_64_intdigest(f"{vertex.index} {vertex.name}".encode())
        return self.random.getrandbits(64)

    def placed_by_order(self) -> frozenset[Vertex]:
        """The vertices whose items go to the worker that their order says, of their front or of their time; or whose
        items come once, and may go anywhere."""
        graph = self.plan.graph
        placed: set[Vertex] = set()
        for vertex in graph.vertices:  # upstream ones first, but for what comes back in a cycle, which is not placed
            if isinstance(vertex, (Map, Broadcast, Merge)):
                before = graph.predecessors(vertex)
                follows = vertex.route is None and all(start in placed for start in before)
                if follows or isinstance(vertex.route, ByTime):
                    placed.add(vertex)
            elif isinstance(vertex, Source):
                placed.add(vertex)
        return frozenset(placed)

    def stateful(self, vertex: Vertex, operation: Stateful) -> Step:
        """Note an operation that keeps history. Where snapshots are taken, history goes with them, not before."""
        self.compiled.stateful[vertex.name] = operation
        if not self.plan.kept:
            self.compiled.forgetters.append(operation.forget)
        return operation.step

    def parts(self, ends: Sequence[Vertex]) -> bool:
        """Whether what goes these ways never meets again, so that one may be ahead of the other."""
        reached = [self.plan.graph.reach_of(end) for end in ends]
        return len(frozenset().union(*reached)) == sum(map(len, reached))

    def merge(self, vertex: Merge) -> Step:
        """A merge changes nothing, so it is the step behind it; the head of a cycle also keeps the rounds in order."""
        head = self.heads.get(vertex)
        if head is None:
            self.runs[vertex] = self.successor_run(vertex)
            return self.successor(vertex)
        self.inputs[vertex], self.runs[vertex] = head.enter, each(head.enter)
        head.inside = self.successor(vertex)
        return head.enter

    def sink(self, vertex: Sink) -> Step:
        """Into the barrier; or straight out when there is none."""
        if self.plan.barrier:
            barrier = Barrier(vertex.name)
            self.compiled.barriers[vertex.name] = barrier
            self.runs[vertex] = barrier.run
            return barrier.step
        outlet = self.compiled.outlets.setdefault(vertex.name, [])

        def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            outlet.append((order, payload))

        def run(orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
            outlet.extend(zip(orders, payloads, strict=True))

        self.runs[vertex] = run
        return step
