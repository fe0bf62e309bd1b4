"""The graph of a flow: vertices, edges, and checks that refuse impossible graphs.

Source: paper 004, sections 2.2-2.6.

Only a `Broadcast` has several successors, only a `Merge` several predecessors; a cycle is drawn by linking back to a
merge. A vertex's `route` chooses the worker for each of its items; without one an item stays on its worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from flamecore.errors import GraphError
from flamecore.model.meetings import sorted_vertices
from flamecore.model.type_codec import TypeCodec
from flamecore.model.types import hints_of
from flamecore.model.vertices import (
    Broadcast,
    ByHash,
    ByKey,
    ByTime,
    KeyedLoop,
    Label,
    Map,
    Merge,
    Placing,
    Route,
    Sink,
    Source,
    Vertex,
    WithLabel,
    check_settings,
    note_declaration,
    user_functions,
)

__all__ = ["Graph", "cycle_name", "payload_types"]

V = TypeVar("V", bound=Vertex)


class Graph:
    """Vertices and edges. Build it with `add` and `link`, then `check` it.

    Args:
        name: Name of the flow, for errors and pictures.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.reference: str | None = None
        """Location for imports by other processes, "module:name"; None if they cannot import the flow."""
        self.codecs: list[TypeCodec] = []
        """Codecs of types that have no built-in one: see `flamecore.flow.Flow.codec`."""
        self.vertices: list[Vertex] = []
        self._successors: dict[Vertex, list[Vertex]] = {}
        self._predecessors: dict[Vertex, list[Vertex]] = {}

    def add(self, vertex: V) -> V:
        """Add a vertex, and return it.

        Raises:
            GraphError: Its name is taken. An operation and a sink may share a name: they are never looked up together.
        """
        taken = next((other for other in self.vertices if other.name == vertex.name and _alike(other, vertex)), None)
        if taken is not None:
            what, hint = "vertices", "Give one of them another name (every operation takes name=…)."
            if isinstance(vertex, Sink) and isinstance(taken, Sink):
                what, hint = "sinks", f"For two streams in one sink: one.merge(other).sink({vertex.name!r})"
            elif isinstance(vertex, Source) and isinstance(taken, Source):
                what, hint = "sources", "Use the stream of the first: it may be used as often as you like."
            raise GraphError(f"two {what} are named {vertex.name!r}", hint=hint, vertex=vertex.name)
        vertex.index = len(self.vertices)
        self.vertices.append(vertex)
        self._successors[vertex] = []
        self._predecessors[vertex] = []
        return vertex

    def link(self, start: Vertex, end: Vertex) -> None:
        """Draw an edge.

        The order of links from a broadcast is that of its child ids, the order of those to a merge that of its inputs.

        Raises:
            GraphError: The edge starts at a sink, ends at a source, or exists already.
        """
        for vertex in (start, end):
            if vertex not in self._successors:
                raise GraphError(f"{vertex!r} is not in graph {self.name!r}", vertex=vertex.name)
        if isinstance(start, Sink) or isinstance(end, Source):
            raise GraphError(f"no edge can go from {start!r} to {end!r}", vertex=start.name)
        if end in self._successors[start]:
            raise GraphError(f"{start!r} and {end!r} are linked twice", hint="Put a map between.", vertex=start.name)
        self._successors[start].append(end)
        self._predecessors[end].append(start)

    def sort_inputs(self, end: Vertex, starts: Sequence[Vertex]) -> None:
        """Put the inputs of a vertex into another order than that of the links.

        Args:
            end: The vertex.
            starts: Its direct predecessors.
        """
        self._predecessors[end].sort(key=starts.index)

    def chain(self, *vertices: Vertex) -> Vertex:
        """Link each vertex to the next; return the last."""
        for start, end in pairwise(vertices):
            self.link(start, end)
        return vertices[-1]

    def successors(self, vertex: Vertex) -> tuple[Vertex, ...]:
        """Return the direct successors, in the order of the links."""
        return tuple(self._successors[vertex])

    def predecessors(self, vertex: Vertex) -> tuple[Vertex, ...]:
        """Return the direct predecessors, in the order of a merge's inputs."""
        return tuple(self._predecessors[vertex])

    @property
    def edges(self) -> Iterator[tuple[Vertex, Vertex]]:
        """Yield every (start, end), in the order of vertices and links."""
        return ((start, end) for start in self.vertices for end in self._successors[start])

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the sources by name, the order in which fronts are numbered."""
        return tuple(sorted((v for v in self.vertices if isinstance(v, Source)), key=lambda v: v.name))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Return the sinks, in the order they were added."""
        return tuple(v for v in self.vertices if isinstance(v, Sink))

    def placing_of(self, vertex: Vertex) -> Placing | None:
        """Return the vertex that dealt the records of all items at a vertex, or None.

        There is one if the vertex is routed by places, and only maps, filters, forks and labels are between: they make
        items while the record is under way, on its worker.
        """
        stays = _is_by_place(vertex.route)
        while stays:
            (vertex,) = self._predecessors[vertex]
            if isinstance(vertex, Placing):
                return vertex
            # Another route by place leads nowhere, either, if the way before it stays.
            stays = type(vertex) in (Map, Broadcast, Label, WithLabel)
            stays = stays and (vertex.route is None or _is_by_place(vertex.route))
        return None

    def feedback(self) -> frozenset[tuple[Vertex, Vertex]]:
        """Return the edges that close cycles, without which the graph has none.

        Each ends at a merge.
        """
        return self._walked()[0]

    def sinks_first(self) -> tuple[Vertex, ...]:
        """Return every vertex, each after its successors.

        Edges that close cycles do not count.
        """
        return self._walked()[1]

    def longest_way(self, length: Callable[[Vertex], int]) -> int:
        """Return the length of the longest way, with each cycle taken once."""
        closing, left = self._walked()
        lengths: dict[Vertex, int] = {}
        for vertex in left:
            ends = [end for end in self._successors[vertex] if (vertex, end) not in closing]
            lengths[vertex] = length(vertex) + max([lengths[end] for end in ends], default=0)
        return max(lengths.values(), default=0)

    def _walked(self) -> tuple[frozenset[tuple[Vertex, Vertex]], tuple[Vertex, ...]]:
        """Walk the graph from its sources.

        Returns the edges that close cycles, and the vertices in the order in which the walk leaves them.
        """
        # With a path of its own, not by recursion: that ended at some 250 maps in a row. Sources
        # come first, so a cycle is entered at the merge that is fed from outside.
        closing, left = set(), []
        state: dict[Vertex, int] = {}  # 1: on the path, 2: done
        for root in (*self.sources, *self.vertices):
            if root in state:
                continue
            state[root] = 1
            path = [(root, iter(self._successors[root]))]
            while path:
                vertex, rest = path[-1]
                for successor in rest:
                    if state.get(successor) == 1:
                        closing.add((vertex, successor))
                    elif successor not in state:
                        state[successor] = 1
                        path.append((successor, iter(self._successors[successor])))
                        break
                else:
                    state[vertex] = 2
                    left.append(vertex)
                    path.pop()
        return frozenset(closing), tuple(left)

    def reach_of(self, vertex: Vertex) -> frozenset[Vertex]:
        """Return the vertex and all direct and indirect successors."""
        return frozenset(_closure((vertex,), self._successors))

    def upstream_of(self, vertex: Vertex) -> frozenset[Vertex]:
        """Return all direct and indirect predecessors, without the vertex."""
        return frozenset(_closure((vertex,), self._predecessors) - {vertex})

    def cycle_of(self, head: Vertex) -> frozenset[Vertex]:
        """Return the vertices on cycles through `head`."""
        return frozenset(_closure((head,), self._successors) & _closure((head,), self._predecessors))

    def keyed_cycles(self) -> tuple[frozenset[Vertex], ...]:
        """Return the cycles with keyed state, each with all cycles that overlap it."""
        found: dict[frozenset[Vertex], None] = {}
        closing = self.feedback()
        for vertex in self.vertices:
            if vertex.stateful and closing:
                # The whole strongly connected component: where loops overlap, anything may meet in
                # any of their states.
                ahead = _closure(self._successors[vertex], self._successors)
                if vertex in ahead:
                    found[frozenset(ahead & _closure((vertex,), self._predecessors))] = None
        return tuple(found)

    def keyed_loops(self) -> dict[KeyedLoop, frozenset[Vertex]]:
        """Return the vertices on ways round each loop by key, by its merge."""
        heads = [vertex for vertex in self.vertices if isinstance(vertex, KeyedLoop)]
        closing = self.feedback() if heads else ()
        found = {}
        for head in heads:
            backs = [start for start, end in closing if end is head]
            ahead = _closure(self._successors[head], {**self._successors, head: []})
            found[head] = frozenset(ahead & _closure(backs, {**self._predecessors, head: []}) - {head})
        return found

    def homeless_cycles(self) -> tuple[frozenset[Vertex], ...]:
        """Return the `keyed_cycles` inside of a loop by key, which need no home."""
        loops = [{head, *inside} for head, inside in self.keyed_loops().items()]
        return tuple([cycle for cycle in self.keyed_cycles() if any(cycle <= loop for loop in loops)])

    def parts(self) -> tuple[frozenset[Vertex], ...]:
        """Return the vertices, those on overlapping cycles together, each part behind all that lead to it."""
        cycles: dict[Vertex, frozenset[Vertex]] = {}
        for _, head in self.feedback():
            if head not in cycles:
                cycles |= dict.fromkeys(cycle := self.cycle_of(head), cycle)
        walked = reversed(self.sinks_first())
        left = list(dict.fromkeys(cycles.get(vertex, frozenset((vertex,))) for vertex in walked))
        found: dict[frozenset[Vertex], None] = {}
        placed: set[Vertex] = set()
        while left:  # a part of several vertices may come before its predecessors
            for part in left:
                if self._leading_to(part) <= placed:
                    found[part] = None
                    placed |= part
            left = [part for part in left if part not in found]
        return tuple(found)

    def _leading_to(self, part: frozenset[Vertex]) -> set[Vertex]:
        return {start for vertex in part for start in self._predecessors[vertex]} - part

    def late_meetings(self) -> frozenset[Vertex]:
        """Return the keyed states, and all vertices of cycles with some, that late items and others enter.

        A lone worker takes its items in order, but the outputs of an ordered operation come late, once nothing can come
        before them: by then direct items of later records have passed, and outputs of other operations may have.
        """
        # By vertex, where its items have waited last; None: nowhere.
        late: dict[Vertex, frozenset[Vertex | None]] = {}
        found: set[Vertex] = set()
        for part in self.parts():
            waited = frozenset[Vertex | None]().union(*[late[start] for start in self._leading_to(part)])
            keyed = [vertex for vertex in part if vertex.stateful]
            if len(waited) > 1 and keyed and not keyed[0].ordered:
                found |= part
            if keyed and (keyed[0].ordered or part <= found):
                waited = frozenset(keyed[:1])
            late.update(dict.fromkeys(part, waited or frozenset((None,))))
        return frozenset(found)

    @property
    def has_timers(self) -> bool:
        """Return whether an operation waits for times at which nothing may come."""
        return any(vertex.timers for vertex in self.vertices)

    def marked_source(self, marking: Vertex) -> Source:
        """Return the source for whose records a vertex emits marks.

        Raises:
            GraphError: Not only maps and forks lead there, or one has a route.
        """
        (vertex,) = self._predecessors[marking]
        while (isinstance(vertex, (Map, Broadcast)) or vertex.marks) and vertex.route is None:
            (vertex,) = self._predecessors[vertex]
        if not isinstance(vertex, Source):
            raise GraphError(
                f"{marking!r} is behind {vertex!r}, and marks are said of the records of a source, in their order",
                hint="Put it behind the source; only maps without a key or rebalance may be between.",
                vertex=marking.name,
            )
        return vertex

    def next_ordered(self, start: Vertex) -> tuple[Vertex, ...]:
        """Return the ordered operations that are next on any way from a vertex, by index."""
        going_on = {vertex: [] if vertex.ordered else ends for vertex, ends in self._successors.items()}
        reached = _closure(self._successors[start], going_on)
        return tuple(sorted((vertex for vertex in reached if vertex.ordered), key=lambda vertex: vertex.index))

    def marks_before(self, ordered: Vertex) -> tuple[Vertex, ...]:
        """Return the vertices whose marks come to an ordered operation, by index.

        They are those that say marks themselves, and ordered operations to which marks come.
        """
        marking = [vertex for vertex in self.vertices if vertex.marks]
        speaking = frozenset(marking).union(*(self.reach_of(vertex) for vertex in marking))
        found = [vertex for vertex in speaking if (vertex.marks or vertex.ordered)]
        return tuple(
            sorted((one for one in found if ordered in self.next_ordered(one)), key=lambda vertex: vertex.index)
        )

    def firing_places(self) -> Mapping[Vertex, int]:
        """Return the place of each ordered operation among those that have outputs at one mark or time.

        Outputs of two operations that meet come in the order of the merge's inputs, as copies of an item do. So the
        places depend on the flow, and not on the order of its lines.
        """
        ordered = [vertex for vertex in self.vertices if vertex.ordered]
        inputs = {end: [(start, (start, end)) for start in starts] for end, starts in self._predecessors.items()}
        return {vertex: place for place, vertex in enumerate(sorted_vertices(ordered, inputs) if ordered else ())}

    def counts_rounds(self) -> bool:
        """Return whether rounds in cycles can be counted, and items numbered.

        The result must not depend on the number of workers. Items that came in order must never be retracted. No vertex
        on a cycle may be a label, which orders of items behind it must show. And if a round is possible without a
        state, no vertex may have a route: items would move between workers, and none would know the number of rounds.
        """
        if any(vertex.takes_back for vertex in self.vertices):
            return False
        for cycle in {self.cycle_of(head) for _, head in self.feedback()}:
            if any(isinstance(vertex, Label) for vertex in cycle):
                return False
            stateless = {vertex for vertex in cycle if not vertex.stateful}
            ways = {vertex: [end for end in self._successors[vertex] if end in stateless] for vertex in stateless}
            if any(vertex in _closure(ends, ways) for vertex, ends in ways.items()) and any(
                vertex.route is not None for vertex in cycle
            ):
                return False
        return True

    def check(self, *, barrier: bool = True) -> None:
        """Refuse a graph that cannot work.

        Args:
            barrier: Whether the job runs with the barrier.

        Raises:
            GraphError: The text names the vertex, and says what to do.
        """
        if not self.sources:
            raise GraphError(f"graph {self.name!r} has no source", hint="Start with flow.source(name).", vertex=None)
        if not self.sinks:
            raise GraphError(f"graph {self.name!r} has no sink", hint="End a stream with .sink(name).", vertex=None)
        for vertex in self.vertices:
            try:
                self._check_degree(vertex)
                check_settings(vertex, barrier=barrier)
            except GraphError as error:
                raise note_declaration(error, vertex) from error.__cause__
        self._check_reach()
        self._check_cycles()
        self._check_ordered()
        self._check_placings()
        self._check_keyed_loops()
        self._check_labels()

    def _check_degree(self, vertex: Vertex) -> None:
        outgoing, incoming = len(self._successors[vertex]), len(self._predecessors[vertex])
        if outgoing == 0 and isinstance(vertex, Map) and vertex.picks:  # a user has not drawn it, and may use others
            what, hint = f"{vertex.picks} lead nowhere", "End them with .sink(name), too, besides those told apart."
            raise GraphError(what, hint=hint, vertex=vertex.name)
        if outgoing == 0 and not isinstance(vertex, Sink):
            raise GraphError(f"{vertex!r} leads nowhere", hint="End the stream with .sink(name).", vertex=vertex.name)
        if outgoing > 1 and not isinstance(vertex, Broadcast):
            raise GraphError(
                f"{vertex!r} has {outgoing} successors", hint="Put a broadcast behind it.", vertex=vertex.name
            )
        if incoming == 0 and not isinstance(vertex, Source):
            raise GraphError(
                f"nothing flows into {vertex!r}",
                hint="Connect its input; the feedback of a loop is the first stream its body returns.",
                vertex=vertex.name,
            )
        if incoming > 1 and not isinstance(vertex, Merge):
            raise GraphError(f"{vertex!r} has {incoming} inputs", hint="Put a merge before it.", vertex=vertex.name)

    def _check_reach(self) -> None:
        fed = _closure(self.sources, self._successors)
        drained = _closure(self.sinks, self._predecessors)
        for vertex in self.vertices:
            if vertex not in fed:
                raise GraphError(
                    f"no source feeds {vertex!r}",
                    hint="A cycle needs an input besides its feedback.",
                    vertex=vertex.name,
                )
            if vertex not in drained:
                raise GraphError(
                    f"nothing that enters {vertex!r} ever reaches a sink",
                    hint="Give the cycle an exit: the second stream the body of a loop returns.",
                    vertex=vertex.name,
                )

    def _check_cycles(self) -> None:
        for start, head in self.feedback():
            if not isinstance(head, Merge):
                raise GraphError(
                    f"the cycle through {head!r} has no merge", hint="Link it back to a merge.", vertex=head.name
                )
            # Child ids must grow on every way round, or two rounds of one item would have one identity.
            without_map = {
                vertex: [] if vertex.appends else [end for end in self._successors[vertex] if not end.appends]
                for vertex in self.vertices
            }
            if not start.appends and start in _closure((head,), without_map):
                raise GraphError(
                    f"the cycle from {start!r} back to {head!r} has no map",
                    hint="Child ids must grow on every round: put a map into the cycle.",
                    vertex=head.name,
                )

    def _check_ordered(self) -> None:
        for vertex in self.vertices:
            if vertex.marks:
                try:
                    self.marked_source(vertex)
                except GraphError as error:
                    raise note_declaration(error, vertex) from None
        for _, head in sorted(self.feedback(), key=lambda edge: edge[1].index):
            for vertex in sorted(self.cycle_of(head), key=lambda vertex: vertex.index):
                if vertex.ordered:
                    raise note_declaration(
                        GraphError(
                            f"{vertex!r} lies in the cycle of {head!r}, and waits until nothing can come before an "
                            "item: what it lets go on would come round before it",
                            hint="Put it before the loop or behind it; a state in the loop may be a fold.",
                            vertex=vertex.name,
                        ),
                        vertex,
                    )

    def _check_placings(self) -> None:
        for _, head in sorted(self.feedback(), key=lambda edge: edge[1].index):
            for vertex in sorted(self.cycle_of(head), key=lambda vertex: vertex.index):
                if isinstance(vertex, Placing):
                    raise note_declaration(
                        GraphError(
                            f"{vertex!r} lies in the cycle of {head!r}: what goes round there would be dealt again in "
                            "each round, and nothing made of it would stay",
                            hint="Call place_by before the loop, or behind it.",
                            vertex=vertex.name,
                        ),
                        vertex,
                    )

    def _check_labels(self) -> None:
        numbers = {vertex.number: vertex for vertex in self.vertices if isinstance(vertex, Label)}
        for vertex in self.vertices:
            if not isinstance(vertex, WithLabel):
                continue
            between = self.reach_of(numbers[vertex.number]) & self.upstream_of(vertex)
            for other in sorted(between, key=lambda other: other.index):
                if other.timers or (other.ordered and self.marks_before(other)):
                    raise note_declaration(
                        GraphError(
                            f"{other!r} lies between the label {vertex.label!r} and {vertex!r}, and may work at a "
                            "moment at which no item comes: its outputs then come of none",
                            hint=f"Label behind {other!r}, or gather before it.",
                            vertex=other.name,
                        ),
                        other,
                    )

    def _check_keyed_loops(self) -> None:
        for head, inside in self.keyed_loops().items():
            # States inside do not ask where a key lives, since the way in has. A graph drawn by hand may lack that way,
            # and would keep state of one key on several workers.
            for vertex in self._predecessors[head]:
                if vertex not in inside and (vertex.route is None or _other_way(vertex.route, head) is not None):
                    raise note_declaration(
                        GraphError(
                            f"what enters {head!r} from {vertex!r} has not been taken to the owner of its key",
                            hint="Route that operation by the key of the loop, as key_by(key).loop(body) does.",
                            vertex=vertex.name,
                        ),
                        vertex,
                    )
            for vertex in sorted(inside, key=lambda vertex: vertex.index):
                error = None
                if (way := _other_way(vertex.route, head)) is not None:
                    error = GraphError(
                        f"{vertex!r} {way} inside of {head!r}, where all items derived from an item keep its key",
                        hint="Draw the cycle before key_by: .loop(body) lets items take any key, and has one home.",
                        vertex=vertex.name,
                    )
                elif any(start is not head and start not in inside for start in self._predecessors[vertex]):
                    error = GraphError(
                        f"{vertex!r} lies inside of {head!r}, and takes items that have not come in there",
                        hint="Merge the streams before the loop; or draw it before key_by: .loop(body) takes them.",
                        vertex=vertex.name,
                    )
                if error is not None:
                    raise note_declaration(error, vertex)


def _is_by_place(route: Route) -> bool:
    return isinstance(route, ByKey) and route.place is not None


def _other_way(route: Route, head: KeyedLoop) -> str | None:
    """Describe a route that leads elsewhere than the owner of a loop's key; or None."""
    if route is None or (isinstance(route, ByKey) and route.leads_as(ByKey(head.key, head.place))):
        return None
    if isinstance(route, ByKey) and route.key is head.key:
        return "goes by the same key to another place"
    if isinstance(route, (ByKey, ByHash)):
        return "goes by another key"
    return "is rebalanced" if isinstance(route, ByTime) else "copies items to all workers"


def _alike(one: Vertex, other: Vertex) -> bool:
    """Return whether two vertices may not share a name.

    Only a sink and an operation may: neither is a source then.
    """
    # Nobody looks for an operation and a sink together, and the name that suits a count suits its sink, too.
    return isinstance(one, Sink) == isinstance(other, Sink) or isinstance(one, Source) or isinstance(other, Source)


def _closure(roots: Iterable[Vertex], step: dict[Vertex, list[Vertex]]) -> set[Vertex]:
    seen = set(roots)
    todo = list(seen)
    while todo:
        for vertex in step[todo.pop()]:
            if vertex not in seen:
                seen.add(vertex)
                todo.append(vertex)
    return seen


def cycle_name(cycle: Iterable[Vertex]) -> str:
    """Return the name of a cycle: that of its first vertex in the flow."""
    return min(cycle, key=lambda vertex: vertex.index).name


def payload_types(graph: Graph) -> Iterator[object]:
    """Yield every payload type that the graph declares.

    Types come from sources and sinks, and from the hints of user functions.
    """
    for vertex in graph.vertices:
        yield getattr(vertex, "type", object)
        yield from vertex.types
        for function in user_functions(vertex):
            yield from hints_of(function).values()


def crossing_types(graph: Graph) -> Iterator[tuple[Vertex, object]]:
    """Yield the declared types of items that go from worker to worker or to a rear, each with where they go to.

    They are those of a sink, of the parameters of a key function or of a map before which items change the worker, and
    of the results of a map right before that.
    """
    for vertex in graph.vertices:
        takes: list[Callable[..., object]] = []
        if isinstance(vertex, Sink):
            yield vertex, vertex.type
        elif vertex.route is None:
            continue
        if isinstance(vertex.route, ByKey):
            takes.append(vertex.route.key)
        if isinstance(vertex, Map) and vertex.shape in ("many", "one", "filter", "inspect"):
            takes.append(vertex.function)
        for function in takes:
            yield from ((vertex, hint) for name, hint in hints_of(function).items() if name != "return")
        for before in graph.predecessors(vertex):
            if isinstance(before, Map) and before.shape == "one":
                yield vertex, hints_of(before.function).get("return", object)
