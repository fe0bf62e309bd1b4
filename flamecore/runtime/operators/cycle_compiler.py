"""The compiler of steps on cycles and behind them: waiting, entry and exit.

The walk over the graph (`flamecore.runtime.operators.compiler`) asks here at each edge and before each vertex. Only
this module knows the agenda of a vertex, whether its turns are numbered, and whether keys are noted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from flamecore.abc.operator import Fail, Step, Way, each
from flamecore.model.graph import cycle_name
from flamecore.model.plan import Plan
from flamecore.model.vertices import ByKey, KeyedLoop, Map, Vertex
from flamecore.runtime.operators.agenda import Agenda, NumberedAgenda
from flamecore.runtime.operators.cycles import KeyedAgenda, KeyedLoopHead, LoopHead


class CycleCompiler:
    """The cycles of a graph on one worker.

    Args:
        plan: The job's plan.
        worker: The number of the worker.
        fail_at: Function that returns the failure handler of a vertex.
        numbers: Whether turns may be numbered: not with operators of plugins, which may retract items that came in
            order.

    Attributes:
        agenda: Agenda of all vertices without one of their own.
        fail_of: Function that returns the failure handler of a vertex, cached: a repair must meet the same handler.
        waiting: Agendas whose items wait for minimum times, if this is one of several workers.
    """

    def __init__(self, plan: Plan, worker: int, fail_at: Callable[[Vertex], Fail], *, numbers: bool) -> None:
        graph = plan.graph
        self._plan, self._graph, self._worker, self._fail_at = plan, graph, worker, fail_at
        self._alone = plan.workers == 1
        self._kind = NumberedAgenda if numbers and graph.counts_rounds() else Agenda
        self.agenda = self._kind()
        self.fail_of = cache(self._fail_of)
        self.waiting: list[Agenda] = []
        self._homes = self._homes_here()
        self._feedback = graph.feedback()
        self._cycles = {graph.cycle_of(head) for _, head in self._feedback}
        self._on_cycles = frozenset[Vertex]().union(*self._cycles)
        self._numbered = self._numbered_here()
        self._keyed = self._keyed_agendas()
        self._heads = {head: self._head_of(head) for head in dict.fromkeys(end for _, end in self._feedback)}
        self._behind = frozenset[Vertex]().union(*map(graph.reach_of, self._heads)) - self._on_cycles

    def __contains__(self, vertex: Vertex) -> bool:
        """Return whether a vertex is on a cycle."""
        return vertex in self._on_cycles

    def is_head(self, vertex: Vertex) -> bool:
        """Return whether a vertex is the head of a cycle."""
        return vertex in self._heads

    def edge(self, start: Vertex, end: Vertex, input_of: Callable[[Vertex], Way]) -> Way:
        """Return the step and the run of an edge; items enter a cycle one by one.

        Args:
            start, end: The edge.
            input_of: Function that returns the way into a vertex.
        """
        if (start, end) in self._feedback:
            step = self._heads[end].feed_back
            return Way(step, each(step))
        way = input_of(end)
        step, fail = way.step, self._fail_at(end)
        keyed = self._keyed.get(end) if end in self._heads else None
        if keyed is not None:
            step = keyed.going_on(step)
        enters = any(end in cycle and start not in cycle for cycle in self._cycles)
        if start in self._numbered:
            # One by one, so that outputs are in order: a run would emit its failures before its outputs.
            numbers, region = self._numbered[start]
            fail = numbers.turn_to_fail(fail)
            if enters:
                step = self._agenda_of(end).entrance(step)
            if end not in region or end in self._heads:
                step = numbers.turn(step)
        elif enters or end in self._heads:
            step = self._agenda_of(end).entrance(step)
        else:
            return way
        if keyed is not None:
            step = self._heads[end].letting_in(step, fail)
        return Way(step, each(step))

    def before(self, vertex: Vertex, way: Way) -> Way:
        """Return the way to a vertex, with a queue before `way` for items that must wait."""
        keyed = self._keyed.get(vertex)
        if vertex in self._heads:  # a head is a merge
            self._heads[vertex].inside = way.step if keyed is None else keyed.going_on(way.step)
        elif self._is_gated(vertex):
            if keyed is not None:
                return keyed.gate(way)
            if vertex in self._numbered:
                return self._numbered[vertex][0].gate_inside(way)
            return self._agenda_of(vertex).gate(way)
        return way

    def keyed_way(self, vertex: Vertex, strict: Vertex, way: Way) -> Way | None:
        """Return the way to a vertex routed by the key of its loop; None: other routes.

        It checks that items still have the key.

        Args:
            vertex: The vertex.
            strict: The vertex with the key function to call.
            way: The way without the check.
        """
        keyed = self._keyed.get(vertex)
        if keyed is None or not isinstance(strict.route, ByKey):
            return None
        step = keyed.checked(vertex.name, strict.route.key, way.step, self.fail_of(vertex))
        return Way(step, each(step))

    def arrival(self, vertex: Vertex, way: Way) -> Step:
        """Return the step of items from other workers to a vertex on a cycle."""
        return self._agenda_of(vertex).entrance(way.step)

    # -- agendas of this worker -------------------------------------------------------------------------------------

    def _agenda_of(self, vertex: Vertex) -> Agenda:
        """Return the agenda of a vertex on a cycle or behind one."""
        return self._homes.get(vertex, self.agenda)

    def _homes_here(self) -> dict[Vertex, Agenda]:
        """Return the agenda of each cycle with keyed state, if there are several workers.

        Such a cycle is at home on one worker; a loop by key is at home on each, with the keys that it owns. Items that
        enter on another worker go to the home before they can come back; the other worker does not number them, because
        its numbers would cover only some of them.
        """
        homes: dict[Vertex, Agenda] = {}
        for cycle in () if self._alone else self._graph.keyed_cycles():
            agenda = Agenda()
            first = next(iter(cycle))  # all vertices of a cycle are in one segment
            if self._worker in self._plan.owners_of(first):
                agenda = self._kind(self._plan.segments.of[first.index], cycle_name(cycle))
                self.waiting.append(agenda)
            homes.update(dict.fromkeys(cycle, agenda))
        return homes

    def _numbered_here(self) -> dict[Vertex, tuple[NumberedAgenda, frozenset[Vertex]]]:
        """Return agenda and region of each vertex whose items are ordered by turns.

        A region is a cycle and the filters that lead out of it: items that these drop need no turn to leave.
        """
        numbered: dict[Vertex, tuple[NumberedAgenda, frozenset[Vertex]]] = {}
        for cycle in self._cycles:
            agenda = self._agenda_of(next(iter(cycle)))
            if not isinstance(agenda, NumberedAgenda):
                continue
            region, starts = set(cycle), list(cycle)
            while starts:
                for end in self._graph.successors(starts.pop()):
                    if end not in region and isinstance(end, Map) and end.shape == "filter" and end.route is None:
                        region.add(end)
                        starts.append(end)
            numbered.update(dict.fromkeys(region, (agenda, frozenset(region))))
        return numbered

    def _keyed_agendas(self) -> dict[Vertex, KeyedAgenda]:
        """Return the keyed agenda of each vertex of a loop by key.

        Loops inside of one share its agenda.
        """
        keyed: dict[Vertex, KeyedAgenda] = {}
        loops = self._graph.keyed_loops()
        for head in sorted(loops, key=lambda head: -len(loops[head])):
            if head not in keyed:
                agenda = KeyedAgenda(head.name, self._agenda_of(head))
                keyed.update(dict.fromkeys((head, *loops[head]), agenda))
        return keyed

    def _head_of(self, head: Vertex) -> LoopHead:
        """Make the head operator of a cycle."""
        most, fail, agenda = self._plan.settings.max_rounds, self.fail_of(head), self._agenda_of(head)
        keyed = self._keyed.get(head)
        if keyed is not None and isinstance(head, KeyedLoop):
            return KeyedLoopHead(head.name, most, fail, agenda, keyed, head.key)
        return LoopHead(head.name, most, fail, agenda, keyed)

    def _fail_of(self, vertex: Vertex) -> Fail:
        fail = self._fail_at(vertex)
        return self._numbered[vertex][0].turn_to_fail(fail) if vertex in self._numbered else fail

    def _is_gated(self, vertex: Vertex) -> bool:
        """Return whether items wait for their turn before a vertex."""
        if not vertex.stateful:
            return False
        if vertex not in self._on_cycles:
            return self._alone and vertex in self._behind
        return vertex not in self._numbered or not self._comes_alone(vertex)

    def _comes_alone(self, vertex: Vertex) -> bool:
        """Return whether an item at a vertex on a cycle is the only output of its turn."""
        (start,) = self._graph.predecessors(vertex)
        while isinstance(start, Map) and start.shape != "many" and start.route is None:
            (start,) = self._graph.predecessors(start)
        return start in self._heads
