"""The compiler from the graph to the steps of one worker.

The graph is walked from its sinks back; each vertex becomes a step that calls the step of its successor, so a chain of
maps is a chain of calls. Routes, cycles and barriers meet only here. The table says how to compute each kind of vertex.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import xxhash

from flamecore.abc.operator import Fail, Operator, OutputBuffer, Run, Site, StatefulOperator, Step, Way, each
from flamecore.errors import GraphError
from flamecore.model.batch import Orders
from flamecore.model.failure import FlowMistake
from flamecore.model.graph import Graph
from flamecore.model.meta import CHILD, encode_child
from flamecore.model.plan import Plan
from flamecore.model.vertices import ByTime, Map, Merge, Source, Vertex, are_complements
from flamecore.runtime.operators.agenda import Agenda
from flamecore.runtime.operators.barrier import Outlet
from flamecore.runtime.operators.cycle_compiler import CycleCompiler
from flamecore.runtime.operators.exchange import Outboxes, PlacingOperator, RecordPlaces, routed
from flamecore.runtime.operators.map import BroadcastOperator, Leg, choice_step
from flamecore.runtime.operators.marks import MarkingOperator, MarkWays
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator
from flamecore.runtime.operators.rebalance import LoadShares
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.operators.rounds import Rounds, VertexRound
from flamecore.runtime.operators.strict import NOT_ENCODED, Encodes, early_orders, strict_vertex, unencodable
from flamecore.runtime.operators.table import OPERATORS, Operators, row_of

_FRAMES: Final = 500
"""Call depth reserved for the start of a chain of operations, and for functions of the flow at its end."""

_FRAMES_OF_STATE, _FRAMES_OF_MAP = 16, 4
"""Call depth reserved for each operation: the deepest, a state that repairs after a late item, needs less."""

_FRAMES_MOST: Final = 10_000
"""Values nested as deep as calls may be are decoded on the C stack: it overflows at some 20,000 levels, and kills the
process."""


class Entrance(NamedTuple):
    """The way of a source's records into a worker.

    Attributes:
        step: The step that single records enter.
        run: The run that several records enter.
        markings: Operators that say marks of the records.
    """

    step: Step
    run: Run
    markings: Sequence[MarkingOperator]


@dataclass(slots=True)
class Compiled:
    """The steps of one worker.

    Attributes:
        entrances: For each source, the way of its records.
        arrivals: For each vertex index, the step for items from other workers.
        arriving_runs: For each vertex index on no cycle, the run for the same.
        barriers: For each sink, its barrier.
        outlets: For each sink, the items to send at once if there is no barrier.
        stateful: The operations that keep history, by name of their vertex.
        waiting: Buffers before stateful operations, upstream ones first.
        timed: For each segment, the operators to notify when the minimum time inbound to it rises.
        shares: Shares of rebalances that follow the load of workers; None: there are no such rebalances.
        early: The order below which records are first ones, whose functions check their results; empty after them.
        ordered: The ordered operations, by name of their vertex.
    """

    entrances: dict[str, Entrance] = field(default_factory=dict)
    arrivals: dict[int, Step] = field(default_factory=dict)
    arriving_runs: dict[int, Run] = field(default_factory=dict)
    barriers: dict[str, OutputBuffer] = field(default_factory=dict)
    outlets: dict[str, list[tuple[bytes, Any]]] = field(default_factory=dict)
    stateful: dict[str, StatefulOperator] = field(default_factory=dict)
    waiting: list[ReorderBuffer | Agenda] = field(default_factory=list)
    timed: dict[int, list[Operator]] = field(default_factory=dict)
    shares: LoadShares | None = None
    early: list[bytes] = field(default_factory=list)
    ordered: dict[str, OrderedOperator] = field(default_factory=dict)


class Idents:
    """The 64-bit ids of the instances of vertices on one worker.

    They are random, so that recomputations of an item by different workers have different traces. If the order of an
    item determines its worker, or if it is never recomputed, there are no such recomputations: then all workers have
    one id, and items from several of them stay one run.

    Args:
        graph: The job's graph.
        random: Source of the random ids.
    """

    def __init__(self, graph: Graph, random: Random) -> None:
        self._random = random
        self._placed = _placed_by_order(graph)
        self._made: dict[Vertex, int] = {}

    def of(self, vertex: Vertex) -> int:
        """Return the id of a vertex's instance, always the same."""
        if vertex not in self._made:
            self._made[vertex] = self._make(vertex)
        return self._made[vertex]

    def _make(self, vertex: Vertex) -> int:
        if vertex in self._placed:
            return xxhash.xxh3_64_intdigest(f"{vertex.index} {vertex.name}".encode())
        return self._random.getrandbits(64)


def _placed_by_order(graph: Graph) -> frozenset[Vertex]:
    """Return the vertices whose items go to a worker determined by their order.

    The order determines it by the front or the time; items that come once may go to any worker, and count too: those of
    rebalances by load, and of ordered operations.
    """
    placed: set[Vertex] = set()
    for vertex in graph.vertices:  # upstream ones first, except feedback of cycles, which is not placed
        follows = vertex.route is None and all(start in placed for start in graph.predecessors(vertex))
        if vertex.ordered or (not vertex.stateful and (follows or isinstance(vertex.route, ByTime))):
            placed.add(vertex)
    return frozenset(placed)


class Compiler:
    """The walk over the graph for `compile_worker`, which documents the arguments."""

    def __init__(
        self,
        plan: Plan,
        worker: int,
        random: Random,
        outboxes: Outboxes,
        fail_at: Callable[[Vertex], Fail],
        operators: Operators = OPERATORS,
        encodes: Encodes = NOT_ENCODED,
        rounds: Rounds | None = None,
    ) -> None:
        rounds = rounds or Rounds()
        self.encodes = encodes
        self.plan, self.worker, self.outboxes = plan, worker, outboxes
        self.operators = operators
        self.compiled = Compiled()
        kinds = {row_of(type(vertex)) for vertex in plan.graph.vertices} - {Source}
        own = all(operators.get(kind) is OPERATORS.get(kind) for kind in kinds)
        self.rounds = rounds
        self.cycles = CycleCompiler(plan, worker, fail_at, numbers=own, turn_into=self.turn_into)
        self.compiled.waiting += self.cycles.waiting
        self.strict = cache(partial(strict_vertex, plan=plan, encodes=encodes))
        self.marks = MarkWays(plan, worker, outboxes)
        self.inputs: dict[Vertex, Way] = {}
        self.records: dict[Vertex, RecordPlaces] = {}
        self.idents = Idents(plan.graph, random)
        self.compiled.early[:] = early_orders(plan)

    def turn_at(self, vertex: Vertex) -> VertexRound:
        """Return the rounds of the worker, for the operator of a vertex."""
        return VertexRound(self.rounds, self.plan.segments.of[vertex.index])

    def turn_into(self, vertex: Vertex) -> VertexRound:
        """Return the rounds of the worker, for the way to a vertex, on which an item may go to another worker."""
        return VertexRound(self.rounds, self.plan.segments.entered[vertex.index])

    def successor(self, vertex: Vertex) -> Way:
        """Return the way to the only successor of `vertex`."""
        (only,) = self.plan.graph.successors(vertex)
        return self.way(vertex, only)

    def records_way(self, source: Vertex) -> Way:
        """Return the way of the records of a source.

        If they have to be encoded, the first is tried.
        """
        way = self.successor(source)
        if (encode := self.encodes.of_payloads(self.plan.graph, source)) is None:
            return way
        (only,) = self.plan.graph.successors(source)
        fail, run_on, unseen = self.cycles.fail_of(only), way.run, [True]

        def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
            if unseen and payloads:
                unseen.clear()
                if wrong := unencodable(encode, payloads[0]):
                    fail(orders[0], trace, True, payloads[0], FlowMistake(f"its record {wrong}"))
                    orders, payloads = orders[1:], payloads[1:]
            if payloads:
                run_on(orders, trace, payloads)

        return Way(way.step, run)

    def way(self, start: Vertex, end: Vertex) -> Way:
        """Return the step and the run of an edge."""
        # By the cycles first: an edge on a cycle or into one leads to an agenda, not straight to
        # the next step.
        return self.cycles.edge(start, end, self.input_of)

    def input_of(self, vertex: Vertex) -> Way:
        """Return the way into `vertex` from this worker: its route and its operator."""
        if vertex not in self.inputs:
            self.inputs[vertex] = self.arrange(vertex, self.operator_of(vertex))
        return self.inputs[vertex]

    def operator_of(self, vertex: Vertex) -> Operator:
        """Make the operator of a vertex on this worker, and register it in `compiled`.

        Raises:
            TypeError: The table has no row for the vertex's class.
        """
        kind = row_of(type(vertex))
        if kind not in self.operators:
            raise TypeError(f"{vertex!r} has no operator")
        graph, plan = self.plan.graph, self.plan
        # The operator is made behind its successors: it calls their steps, so that an item runs
        # through a chain without a queue or a look-up.
        ident, ends, early = self.idents.of(vertex), graph.successors(vertex), self.compiled.early
        ways = tuple([self.way(vertex, end) for end in ends])
        site = Site(
            ident,
            self.cycles.fail_of(vertex),
            ways,
            apart=self.parts(ends),
            snapshots=plan.snapshots,
            stored=self.encodes.kept,
            barrier=plan.settings.barrier,
            strict=self.strict(vertex) if early else None,
            early=early,
            round=self.turn_at(vertex),
        )
        operator = self.operators[kind](self.strict(vertex) if plan.settings.checks else vertex, site)
        if isinstance(operator, BroadcastOperator) and not plan.settings.checks:
            self.choose(operator, ends)
        if isinstance(operator, PlacingOperator):
            operator.records = self.records_of(vertex)
        if isinstance(operator, MarkingOperator):
            self.marks.add_marking(vertex, operator)
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
        """Join a broadcast with its two filters, if they are complements of each other."""
        # Otherwise the item is copied for both filters, and both ask the predicate: where items go one by one, as in a
        # search, that is a fifth of a call.
        if len(ends) != 2 or self.operators[Map] is not OPERATORS[Map]:
            return
        for one, other in (ends, ends[::-1]):
            if isinstance(one, Map) and are_complements(one, other):
                strict = self.strict(one)
                kept, left = [
                    Leg(encode_child(ends.index(end)) + CHILD[0], self.idents.of(end), self.successor(end).step)
                    for end in (one, other)
                ]
                function = strict.function if isinstance(strict, Map) else one.function
                operator.step = choice_step(operator.step, one.function, function, self.compiled.early, kept, left)
                return

    def arrange(self, vertex: Vertex, operator: Operator) -> Way:
        """Return the way into an operator by its route; register it for arrivals."""
        way = Way(operator.step, operator.run or each(operator.step, self.turn_at(vertex)))
        alone = len(self.outboxes) == 1
        strict = self.strict(vertex) if self.plan.settings.checks else vertex
        if isinstance(operator, OrderedOperator):
            operator.firing_place = self.plan.firing_places[vertex]
            ordered = OrderedBuffer(vertex.name, operator, self.plan.segments.of[vertex.index], self.turn_at(vertex))
            self.compiled.waiting.append(ordered)
            self.compiled.ordered[vertex.name] = operator
            self.marks.connect(vertex, operator, ordered)
            if vertex.timers and self.plan.snapshots and self.plan.settings.clock == "wall":
                ordered.wait_for_journal()
            way = Way(ordered.step, ordered.run)
        elif isinstance(operator, StatefulOperator) and vertex in self.plan.sorting and vertex not in self.cycles:
            # Without a barrier an output leaves at once: what went in early could not be taken back. On one worker
            # nothing is early by chance, and to wait takes no message.
            advance = self.plan.settings.advance and self.plan.settings.barrier and not alone
            segment = self.plan.segments.of[vertex.index]
            buffer = ReorderBuffer(vertex.name, operator, segment, advance=advance, turn=self.turn_at(vertex))
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
            fail=self.cycles.fail_of(vertex),
            shares=self.shares_for(vertex),
            stays=not alone and vertex in self.plan.homes,
            records=None if (placing := self.plan.graph.placing_of(vertex)) is None else self.records_of(placing),
            turn=self.turn_into(vertex),
        )

    def records_of(self, placing: Vertex) -> RecordPlaces:
        """Return the places of the records that a vertex deals to this worker."""
        return self.records.setdefault(placing, RecordPlaces(placing.name))

    def shares_for(self, vertex: Vertex) -> LoadShares | None:
        """Return the shares of a rebalance whose items come once, straight from fronts.

        Returns None for other vertices, and where the rebalance must follow the times of items.
        """
        if not (isinstance(vertex.route, ByTime) and len(self.outboxes) > 1):
            return None
        before = self.plan.graph.upstream_of(vertex)
        once = all(not other.stateful and other.route is None for other in before)
        if not once or any(map(self.cycles.is_head, before)):
            return None
        if self.compiled.shares is None:
            self.compiled.shares = LoadShares(len(self.outboxes), self.worker)
        return self.compiled.shares

    def parts(self, ends: Sequence[Vertex]) -> bool:
        """Return whether one of these ways may be ahead of another.

        It may if items on them never meet again, or if those that meet are sorted there.
        """
        seen: set[Vertex] = set()
        met: set[Vertex] = set()
        for end in ends:
            reached = self._reached_unsorted(end)
            met |= seen & reached
            seen |= reached
        return all(vertex.ordered or isinstance(vertex, Merge) for vertex in met) and not any(
            vertex in self.cycles for vertex in met
        )

    def _reached_unsorted(self, start: Vertex) -> set[Vertex]:
        """Return the vertices that items reach as they come from a vertex, and that one.

        The way ends at ordered operations, which have their items sorted, and say theirs in order.
        """
        found, waiting = {start}, [start]
        while waiting:
            vertex = waiting.pop()
            if not vertex.ordered:
                waiting += [after for after in self.plan.graph.successors(vertex) if after not in found]
                found.update(waiting)
        return found


def compile_worker(
    plan: Plan,
    worker: int,
    random: Random,
    outboxes: Outboxes,
    fail_at: Callable[[Vertex], Fail],
    operators: Operators = MappingProxyType({}),
    encodes: Encodes = NOT_ENCODED,
    rounds: Rounds | None = None,
) -> Compiled:
    """Compile the graph for one worker.

    Args:
        plan: The job's plan.
        worker: Number of the worker.
        random: Source of the 64-bit ids of physical instances.
        outboxes: Outbox of each worker, which steps fill.
        fail_at: Function that returns the failure handler of a vertex.
        operators: Operators of plugins, besides the engine's.
        encodes: Functions that encode values which snapshots store, and which go to other processes.
        rounds: Rounds of the worker; None: they never end.
    """
    compiler = Compiler(plan, worker, random, outboxes, fail_at, {**OPERATORS, **operators}, encodes, rounds)
    # Each step calls the next, and making an operator makes its successors first: long chains need deep stacks.
    frames = _FRAMES + plan.graph.longest_way(lambda vertex: _FRAMES_OF_STATE if vertex.stateful else _FRAMES_OF_MAP)
    if frames > _FRAMES_MOST:
        raise GraphError(
            f"there are too many operations in a row in {plan.graph.name!r}: calls would be {frames:,} deep, "
            f"and may be {_FRAMES_MOST:,}",
            hint="Put several functions into one map: a row may have some 2,000 maps, or 500 states.",
            vertex=None,
        )
    sys.setrecursionlimit(max(sys.getrecursionlimit(), frames))
    # Not by recursion from the sources, which ends at some 60 states or 250 maps in a row.
    for vertex in plan.graph.sinks_first():
        if not isinstance(vertex, Source):
            compiler.input_of(vertex)
    for source in plan.graph.sources:
        markings = compiler.marks.markings.get(source.name, ())
        compiler.compiled.entrances[source.name] = Entrance(*compiler.records_way(source), markings)
    compiler.compiled.arrivals.update(compiler.marks.arrivals())
    # Upstream first: what a buffer lets in may reach the next one within the same flush.
    compiler.compiled.waiting.sort(key=lambda one: one.segment or 0)  # buffers upstream have lower segments
    return compiler.compiled
