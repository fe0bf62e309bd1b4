"""The compiler of steps on cycles and behind them: waiting, entry and exit.

The walk over the graph (`flamecore.runtime.operators.compiler`) asks here at each edge and before each vertex. Only
this module knows the agenda of a vertex, whether its turns are numbered, and whether keys are noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from flamecore.abc.operator import Fail, Round, Step, Way, each
from flamecore.model.graph import Graph, cycle_name
from flamecore.model.plan import Plan
from flamecore.model.vertices import ByKey, KeyedLoop, Map, Vertex
from flamecore.runtime.operators.agenda import Agenda, NumberedAgenda
from flamecore.runtime.operators.cycles import KeyedAgenda, KeyedLoopHead, LoopHead


class _Cycles:
    """The cycles of a graph, and the vertices on them and behind them.

    Args:
        graph: The graph.

    Attributes:
        heads: The merges at which edges close cycles.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._feedback = graph.feedback()
        self.heads = frozenset([end for _, end in self._feedback])
        self._cycles = {graph.cycle_of(head) for head in self.heads}
        self._on_cycles = frozenset[Vertex]().union(*self._cycles)
        self._behind = frozenset[Vertex]().union(*map(graph.reach_of, self.heads)) - self._on_cycles

    def __contains__(self, vertex: Vertex) -> bool:
        """Return whether a vertex is on a cycle."""
        return vertex in self._on_cycles

    def __iter__(self) -> Iterator[frozenset[Vertex]]:
        """Return the cycles, each with its vertices."""
        return iter(self._cycles)

    def is_behind(self, vertex: Vertex) -> bool:
        """Return whether items come to a vertex from cycles, which it is not on."""
        return vertex in self._behind

    def closes(self, start: Vertex, end: Vertex) -> bool:
        """Return whether an edge is the feedback of a cycle."""
        return (start, end) in self._feedback

    def enters(self, start: Vertex, end: Vertex) -> bool:
        """Return whether an edge leads into a cycle from outside of it."""
        return any(end in cycle and start not in cycle for cycle in self._cycles)

    def region_of(self, cycle: frozenset[Vertex]) -> frozenset[Vertex]:
        """Return a cycle and the filters that lead out of it.

        Items that these filters drop need no turn to leave.
        """
        region, starts = set(cycle), list(cycle)
        while starts:
            for end in self._graph.successors(starts.pop()):
                if end not in region and isinstance(end, Map) and end.shape == "filter" and end.route is None:
                    region.add(end)
                    starts.append(end)
        return frozenset(region)

    def comes_alone(self, vertex: Vertex) -> bool:
        """Return whether an item at a vertex on a cycle is the only output of its turn."""
        (start,) = self._graph.predecessors(vertex)
        while isinstance(start, Map) and start.shape != "many" and start.route is None:
            (start,) = self._graph.predecessors(start)
        return start in self.heads


class _Agendas:
    """The agendas of one worker: of cycles at home, numbered ones, and those of keys.

    Args:
        plan: The job's plan.
        worker: The number of the worker.
        cycles: The cycles of the graph.
        numbers: As for `CycleCompiler`.
        turn_into: As for `CycleCompiler`.

    Attributes:
        common: Agenda of all vertices without one of their own.
        waiting: Agendas whose items wait for minimum times.
        numbered: Agenda and region of each vertex whose items are ordered by turns.
        keyed: The keyed agenda of each vertex of a loop by key; loops inside of one share its agenda.
    """

    def __init__(
        self, plan: Plan, worker: int, cycles: _Cycles, *, numbers: bool, turn_into: Callable[[Vertex], Round]
    ) -> None:
        self._turn_into = turn_into
        kind = NumberedAgenda if numbers and plan.graph.counts_rounds() else Agenda
        self.common = kind()
        self.waiting: list[Agenda] = []
        self._homes = self._homes_here(plan, worker, kind)
        self.numbered = self._numbered_here(cycles)
        self.keyed = self._keyed_here(plan.graph)

    def of(self, vertex: Vertex) -> Agenda:
        """Return the agenda of a vertex on a cycle or behind one."""
        return self._homes.get(vertex, self.common)

    def _homes_here(self, plan: Plan, worker: int, kind: type[Agenda]) -> dict[Vertex, Agenda]:
        """Return the agenda of each cycle with keyed state whose items have to be sorted.

        Such a cycle is at home on one worker; a loop by key is at home on each, with the keys that it owns. Items that
        enter on another worker go to the home before they can come back; the other worker does not number them, because
        its numbers would cover only some of them.
        """
        homes: dict[Vertex, Agenda] = {}
        for cycle in plan.graph.keyed_cycles():
            first = next(iter(cycle))  # all vertices of a cycle are in one segment, and wait or do not
            if first not in plan.sorting:
                continue
            agenda = Agenda()
            if worker in plan.owners_of(first):
                agenda = kind(plan.segments.of[first.index], cycle_name(cycle), self._turn_into(first))
                self.waiting.append(agenda)
            homes.update(dict.fromkeys(cycle, agenda))
        return homes

    def _numbered_here(self, cycles: _Cycles) -> dict[Vertex, tuple[NumberedAgenda, frozenset[Vertex]]]:
        numbered: dict[Vertex, tuple[NumberedAgenda, frozenset[Vertex]]] = {}
        for cycle in cycles:
            agenda = self.of(next(iter(cycle)))
            if isinstance(agenda, NumberedAgenda):
                region = cycles.region_of(cycle)
                numbered.update(dict.fromkeys(region, (agenda, region)))
        return numbered

    def _keyed_here(self, graph: Graph) -> dict[Vertex, KeyedAgenda]:
        keyed: dict[Vertex, KeyedAgenda] = {}
        loops = graph.keyed_loops()
        # Longest first: a loop inside of another is part of it, and has to find the agenda of the
        # outer one.
        for head in sorted(loops, key=lambda head: -len(loops[head])):
            if head not in keyed:
                agenda = KeyedAgenda(head.name, self.of(head))
                keyed.update(dict.fromkeys((head, *loops[head]), agenda))
        return keyed


class CycleCompiler:
    """The compiler of the cycles of a graph on one worker.

    Args:
        plan: The job's plan.
        worker: The number of the worker.
        fail_at: Function that returns the failure handler of a vertex.
        numbers: Whether turns may be numbered: not with operators of plugins, which may retract items that came in
            order.
        turn_into: Function that returns the rounds of the worker, for the way to a vertex.

    Attributes:
        fail_of: Function that returns the failure handler of a vertex, cached: a repair must meet the same handler.
    """

    def __init__(
        self,
        plan: Plan,
        worker: int,
        fail_at: Callable[[Vertex], Fail],
        *,
        numbers: bool,
        turn_into: Callable[[Vertex], Round],
    ) -> None:
        self._plan, self._fail_at, self._turn_into = plan, fail_at, turn_into
        self._cycles = _Cycles(plan.graph)
        self._agendas = _Agendas(plan, worker, self._cycles, numbers=numbers, turn_into=turn_into)
        self.fail_of = cache(self._fail_of)
        self._heads = {vertex: self._head_of(vertex) for vertex in plan.graph.vertices if vertex in self._cycles.heads}

    @property
    def waiting(self) -> Sequence[Agenda]:
        """Return the agendas whose items wait for minimum times."""
        return self._agendas.waiting

    def __contains__(self, vertex: Vertex) -> bool:
        """Return whether a vertex is on a cycle."""
        return vertex in self._cycles

    def is_head(self, vertex: Vertex) -> bool:
        """Return whether a vertex is the head of a cycle."""
        return vertex in self._heads

    def edge(self, start: Vertex, end: Vertex, input_of: Callable[[Vertex], Way]) -> Way:
        """Return the step and the run of an edge; items enter a cycle one by one.

        Args:
            start, end: The edge.
            input_of: Function that returns the way into a vertex.
        """
        if self._cycles.closes(start, end):
            step = self._heads[end].feed_back
            return Way(step, each(step))
        way = input_of(end)
        step, fail = way.step, self._fail_at(end)
        keyed = self._agendas.keyed.get(end) if end in self._heads else None
        if keyed is not None:
            step = keyed.going_on(step)
        enters, numbered = self._cycles.enters(start, end), self._agendas.numbered.get(start)
        if numbered is not None:
            # One by one, so that outputs are in order: a run would emit its failures before its outputs.
            numbers, region = numbered
            fail = numbers.turn_to_fail(fail)
            if enters:
                step = self._agendas.of(end).entrance(step, self._turn_into(end))
            if end not in region or end in self._heads:
                step = numbers.turn(step)
        elif enters or end in self._heads:
            step = self._agendas.of(end).entrance(step, self._turn_into(end))
        else:
            return way
        if keyed is not None:
            step = self._heads[end].letting_in(step, fail)
        return Way(step, each(step, self._turn_into(end)))

    def before(self, vertex: Vertex, way: Way) -> Way:
        """Return the way to a vertex, with a queue before `way` for items that must wait."""
        keyed = self._agendas.keyed.get(vertex)
        if vertex in self._heads:  # a head is a merge
            self._heads[vertex].inside = way.step if keyed is None else keyed.going_on(way.step)
        elif self._is_gated(vertex):
            if keyed is not None:
                return keyed.gate(way)
            if vertex in self._agendas.numbered:
                return self._agendas.numbered[vertex][0].gate_inside(way)
            return self._agendas.of(vertex).gate(way)
        return way

    def keyed_way(self, vertex: Vertex, strict: Vertex, way: Way) -> Way | None:
        """Return the way to a vertex routed by the key of its loop; None: other routes.

        It checks that items still have the key.

        Args:
            vertex: The vertex.
            strict: The vertex with the key function to call.
            way: The way without the check.
        """
        keyed = self._agendas.keyed.get(vertex)
        if keyed is None or not isinstance(strict.route, ByKey):
            return None
        step = keyed.checked(vertex.name, strict.route.key, way.step, self.fail_of(vertex))
        return Way(step, each(step))

    def arrival(self, vertex: Vertex, way: Way) -> Step:
        """Return the step of items from other workers to a vertex on a cycle."""
        return self._agendas.of(vertex).entrance(way.step, self._turn_into(vertex))

    def _head_of(self, head: Vertex) -> LoopHead:
        """Make the head operator of a cycle."""
        most, fail, agenda = self._plan.settings.max_rounds, self.fail_of(head), self._agendas.of(head)
        keyed = self._agendas.keyed.get(head)
        if keyed is not None and isinstance(head, KeyedLoop):
            return KeyedLoopHead(head.name, most, fail, agenda, keyed, head.key)
        return LoopHead(head.name, most, fail, agenda, keyed)

    def _fail_of(self, vertex: Vertex) -> Fail:
        fail, numbered = self._fail_at(vertex), self._agendas.numbered.get(vertex)
        return fail if numbered is None else numbered[0].turn_to_fail(fail)

    def _is_gated(self, vertex: Vertex) -> bool:
        """Return whether items wait for their turn before a vertex."""
        if not vertex.stateful:
            return False
        if vertex not in self._cycles:
            # A state behind a cycle may have a reorder buffer, which sorts what comes anyway.
            return vertex not in self._plan.sorting and self._cycles.is_behind(vertex)
        return vertex not in self._agendas.numbered or not self._cycles.comes_alone(vertex)
