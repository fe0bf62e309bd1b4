"""From the graph to the steps of one worker.

The graph is walked from its sinks back; each vertex becomes a step that calls the step of its successor, so a chain
of maps is a chain of calls. Only here do routes, cycles and barriers meet. How a kind of vertex is computed is not
known here: the table says it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from operator import xor
from random import Random
from types import MappingProxyType
from typing import Any, Final

import xxhash

from flamecore.abc.operator import Fail, Operator, OutputBuffer, Run, Site, StatefulOperator, Step, Way, each
from flamecore.errors import GraphError
from flamecore.model.meta import CHILD, encode_child
from flamecore.model.plan import Plan
from flamecore.model.vertices import ByTime, Map, Source, Vertex, are_complements
from flamecore.runtime.operators.agenda import Agenda
from flamecore.runtime.operators.barrier import Outlet
from flamecore.runtime.operators.cycle_compiler import CycleCompiler
from flamecore.runtime.operators.exchange import Outboxes, routed
from flamecore.runtime.operators.map import BroadcastOperator, Leg, choice_step
from flamecore.runtime.operators.rebalance import LoadShares
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.operators.strict import early_orders, strict_vertex
from flamecore.runtime.operators.table import OPERATORS, Operators

_FRAMES: Final = 500
"""How deep calls may be where a chain of operations begins, and in functions of the flow at its end."""

_FRAMES_OF_STATE, _FRAMES_OF_MAP = 16, 4
"""How much deeper they may be for each operation: the deepest, a state that meets a late item, needs fewer."""

_FRAMES_MOST: Final = 10_000
"""What is nested as deep as calls may be is decoded on the machine's own stack: from some 20,000 levels on that is too
small, and the process dies."""


@dataclass(slots=True)
class Compiled:
    """The steps of one worker.

    Attributes:
        entries: For each source, the step its records enter.
        runs: For each source, the run its records enter.
        behind: For each source with a prefix, the trace of what comes out of that, and the run that this enters.
        arrivals: For each vertex index, the step for items that come from another worker.
        arriving_runs: For each vertex index that is on no cycle, the run for the same.
        barriers: For each sink, what holds its items.
        outlets: For each sink, what it is to be sent at once when the barrier is off.
        stateful: The operations that keep history, by name of their vertex.
        waiting: Where items wait to go into stateful operations, upstream ones first.
        timed: For each segment, the operators to be told whenever the minimum time inbound to it has risen.
        shares: What rebalances go by, as far as they go by how busy workers are; None: there are none.
        early: While there are first records, whose functions check their results, the order below which they are.
    """

    entries: dict[str, Step] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    behind: dict[str, tuple[int, Run]] = field(default_factory=dict)
    arrivals: dict[int, Step] = field(default_factory=dict)
    arriving_runs: dict[int, Run] = field(default_factory=dict)
    barriers: dict[str, OutputBuffer] = field(default_factory=dict)
    outlets: dict[str, list[tuple[bytes, Any]]] = field(default_factory=dict)
    stateful: dict[str, StatefulOperator] = field(default_factory=dict)
    waiting: list[ReorderBuffer | Agenda] = field(default_factory=list)
    timed: dict[int, list[Operator]] = field(default_factory=dict)
    shares: LoadShares | None = None
    early: list[bytes] = field(default_factory=list)


class Compiler:
    """The walk over the graph that makes the steps of one worker. Arguments: see `compile_worker`."""

    def __init__(
        self,
        plan: Plan,
        worker: int,
        random: Random,
        outboxes: Outboxes,
        fail_at: Callable[[Vertex], Fail],
        operators: Operators = OPERATORS,
    ) -> None:
        self.plan, self.worker, self.random, self.outboxes = plan, worker, random, outboxes
        self.operators = operators
        self.compiled = Compiled()
        kinds = {type(vertex) for vertex in plan.graph.vertices} - {Source}
        own = all(operators.get(kind) is OPERATORS.get(kind) for kind in kinds)
        self.cycles = CycleCompiler(plan, worker, fail_at, numbers=own)
        self.compiled.waiting += self.cycles.waiting
        self.fail_at = self.cycles.fail_of
        self.checks = plan.check_types or plan.check_mutation
        self.strict = cache(partial(strict_vertex, plan=plan))
        self.at_home = frozenset(plan.homes)
        self.placed = self.placed_by_order()
        self.inputs: dict[Vertex, Way] = {}
        self.idents: dict[Vertex, int] = {}
        self.compiled.early[:] = early_orders(plan)

    def successor(self, vertex: Vertex) -> Way:
        """Return the way of what `vertex` emits, which has one successor."""
        (only,) = self.plan.graph.successors(vertex)
        return self.way(vertex, only)

    def way(self, start: Vertex, end: Vertex) -> Way:
        """Return the step and the run that an edge stands for."""
        return self.cycles.edge(start, end, self.input_of)

    def input_of(self, vertex: Vertex) -> Way:
        """Return what takes items for `vertex` from this worker: its route and what is behind it."""
        if vertex not in self.inputs:
            self.inputs[vertex] = self.arrange(vertex, self.operator_of(vertex))
        return self.inputs[vertex]

    def operator_of(self, vertex: Vertex) -> Operator:
        """Make the operator of a vertex on this worker, with what is behind it, and note what the worker needs of it.

        Raises:
            TypeError: The table has no row for its class.
        """
        if type(vertex) not in self.operators:
            raise TypeError(f"{vertex!r} has no operator")
        graph, plan = self.plan.graph, self.plan
        ident, ends, early = self.ident_of(vertex), graph.successors(vertex), self.compiled.early
        ways = tuple([self.way(vertex, end) for end in ends])
        site = Site(
            ident,
            self.fail_at(vertex),
            ways,
            apart=self.parts(ends),
            snapshots=plan.snapshots,
            barrier=plan.barrier,
            strict=self.strict(vertex) if early else None,
            early=early,
        )
        operator = self.operators[type(vertex)](self.strict(vertex) if self.checks else vertex, site)
        if isinstance(operator, BroadcastOperator) and not self.checks:
            self.choose(operator, ends)
        if isinstance(operator, StatefulOperator):
            self.compiled.stateful[vertex.name] = operator
        elif isinstance(operator, OutputBuffer):
            self.compiled.barriers[vertex.name] = operator
        elif isinstance(operator, Outlet):
            self.compiled.outlets[vertex.name] = operator.items
        if type(operator).on_time is not Operator.on_time:
            self.compiled.timed.setdefault(plan.segments.of[vertex.index], []).append(operator)
        return operator

    def choose(self, operator: BroadcastOperator, ends: Sequence[Vertex]) -> None:
        """Join a broadcast with its two filters, if they part what comes between them."""
        if len(ends) != 2 or self.operators[Map] is not OPERATORS[Map]:
            return
        for one, other in (ends, ends[::-1]):
            if isinstance(one, Map) and are_complements(one, other):
                strict = self.strict(one)
                kept, left = [
                    Leg(encode_child(ends.index(end)) + CHILD[0], self.ident_of(end), self.successor(end).step)
                    for end in (one, other)
                ]
                function = strict.function if isinstance(strict, Map) else one.function
                operator.step = choice_step(operator.step, one.function, function, self.compiled.early, kept, left)
                return

    def arrange(self, vertex: Vertex, operator: Operator) -> Way:
        """Make an operator reachable: for what arrives from other workers, and by the vertex's route."""
        way = Way(operator.step, operator.run or each(operator.step))
        alone = len(self.outboxes) == 1
        strict = self.strict(vertex) if self.checks else vertex
        if isinstance(operator, StatefulOperator) and not (alone or vertex in self.cycles):
            advance = self.plan.advance and self.plan.barrier
            segment = self.plan.segments.of[vertex.index]
            buffer = ReorderBuffer(vertex.name, operator, segment, advance=advance)
            self.compiled.waiting.append(buffer)
            way = Way(buffer.step, buffer.run)
        else:
            way = self.cycles.before(vertex, way)
        if (by_key := self.cycles.keyed_way(vertex, strict, way)) is not None:
            return by_key
        if vertex in self.cycles:
            self.compiled.arrivals[vertex.index] = self.cycles.arrival(vertex, way)
        else:
            self.compiled.arrivals[vertex.index], self.compiled.arriving_runs[vertex.index] = way
        return routed(
            strict,
            *way,
            worker=self.worker,
            owners=self.plan.owners_of(vertex),
            outboxes=self.outboxes,
            fail=self.fail_at(vertex),
            shares=self.shares_for(vertex),
            stays=not alone and vertex in self.at_home,
        )

    def shares_for(self, vertex: Vertex) -> LoadShares | None:
        """What a rebalance goes by whose items come once, straight from the fronts; None: it must go by their times."""
        if not (isinstance(vertex.route, ByTime) and len(self.outboxes) > 1):
            return None
        before = self.plan.graph.upstream_of(vertex)
        once = all(not other.stateful and other.route is None for other in before)
        if not once or any(map(self.cycles.is_head, before)):
            return None
        if self.compiled.shares is None:
            self.compiled.shares = LoadShares(len(self.outboxes), self.worker)
        return self.compiled.shares

    def ident_of(self, vertex: Vertex) -> int:
        """The 64-bit id of a vertex's instance on this worker.

        It is random, so that two recomputations of an item that came by different workers have different traces. Where
        an item's order alone says which worker it goes to, or it is never recomputed, there are no such two: there all
        workers have one id, and what comes from several of them stays one run.
        """
        if vertex not in self.idents:
            self.idents[vertex] = self.new_ident(vertex)
        return self.idents[vertex]

    def new_ident(self, vertex: Vertex) -> int:
        if vertex in self.placed:
            return xxhash.xxh3_64_intdigest(f"{vertex.index} {vertex.name}".encode())
        return self.random.getrandbits(64)

    def placed_by_order(self) -> frozenset[Vertex]:
        """The vertices whose items go to the worker that their order says, of their front or of their time; or whose
        items come once, and may go anywhere."""
        graph = self.plan.graph
        placed: set[Vertex] = set()
        for vertex in graph.vertices:  # upstream ones first, but for what comes back in a cycle, which is not placed
            follows = vertex.route is None and all(start in placed for start in graph.predecessors(vertex))
            if not vertex.stateful and (follows or isinstance(vertex.route, ByTime)):
                placed.add(vertex)
        return frozenset(placed)

    def parts(self, ends: Sequence[Vertex]) -> bool:
        """Whether what goes these ways never meets again, so that one may be ahead of the other."""
        reached = [self.plan.graph.reach_of(end) for end in ends]
        return len(frozenset().union(*reached)) == sum(map(len, reached))


def compile_worker(
    plan: Plan,
    worker: int,
    random: Random,
    outboxes: Outboxes,
    fail_at: Callable[[Vertex], Fail],
    operators: Operators = MappingProxyType({}),
) -> Compiled:
    """Compile the graph for one worker.

    Args:
        plan: The job's plan.
        worker: Which worker.
        random: Draws the 64-bit ids of physical instances.
        outboxes: What is to be sent to each worker; steps put it there.
        fail_at: Gives the step a vertex calls when user code fails.
        operators: Those of plugins, besides the engine's.
    """
    compiler = Compiler(plan, worker, random, outboxes, fail_at, {**OPERATORS, **operators})
    # Each step calls the next, and each operator is made with those behind it: a long chain must not be walked so.
    frames = _FRAMES + plan.graph.longest_way(lambda vertex: _FRAMES_OF_STATE if vertex.stateful else _FRAMES_OF_MAP)
    if frames > _FRAMES_MOST:
        raise GraphError(
            f"there are too many operations in a row in {plan.graph.name!r}: calls would be {frames:,} deep, "
            f"and may be {_FRAMES_MOST:,}",
            hint="Put several functions into one map: a row may have some 2,000 maps, or 500 states.",
            vertex=None,
        )
    sys.setrecursionlimit(max(sys.getrecursionlimit(), frames))
    for vertex in plan.graph.sinks_first():
        if not isinstance(vertex, Source):
            compiler.input_of(vertex)
    for source in plan.graph.sources:
        compiler.compiled.entries[source.name], compiler.compiled.runs[source.name] = compiler.successor(source)
        if prefix := plan.graph.prefix_of(source):
            trace = reduce(xor, map(compiler.ident_of, prefix))
            compiler.compiled.behind[source.name] = trace, compiler.successor(prefix[-1]).run
    compiler.compiled.waiting.sort(key=lambda one: one.segment or 0)  # what leads to another is of a lower segment
    return compiler.compiled
