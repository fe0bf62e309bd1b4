"""The graph under construction, and the edges from the uses of a stream."""

from __future__ import annotations

import copy
import sys
from types import FrameType
from typing import Final, NamedTuple

from flamecore.errors import GraphError
from flamecore.model.failure import shorten_repr
from flamecore.model.graph import Graph
from flamecore.model.meta import MOST_LABELS
from flamecore.model.vertices import Broadcast, Label, Map, Route, Sink, Vertex

_PACKAGE: Final = __name__.partition(".")[0]


VERBS: Final = "__flow_verbs__"
"""A global of modules of verbs on streams: the line that declares a vertex is the one that calls the verb."""


class Output(NamedTuple):
    """The output of a vertex; for a broadcast the copy at one place."""

    vertex: Vertex
    copy: int = 0


class Use(NamedTuple):
    """An edge to be drawn: the copy, the vertex that uses it, and the input's number."""

    copy: int
    end: Vertex
    slot: int


class GraphBuilder:
    """The graph of a flow while streams add to it.

    Args:
        name: Name of the flow.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._graph = Graph(name)
        self._uses: dict[Vertex, list[Use]] = {}
        self._inputs: dict[Vertex, list[tuple[Vertex, Use]]] = {}
        self._labels: dict[str, Label] = {}
        self._unfinished: dict[object, GraphError] = {}

    def _linked(self) -> Graph:
        """Return a graph with a broadcast wherever a stream is used more than once."""
        graph = Graph(self._graph.name)
        graph.codecs = self._graph.codecs
        # A new graph each time: the flow may be added to after it was run.
        made = {vertex: graph.add(copy.copy(vertex)) for vertex in self._graph.vertices}
        for start, uses in self._uses.items():
            ends = [use.end for use in sorted_uses(start, uses, self._inputs)]
            fork = made[start]
            if len(ends) > 1 and not isinstance(start, Broadcast):
                fork = graph.add(Broadcast(f"{start.name}.fork"))
                graph.link(made[start], fork)
            for number, end in enumerate(ends):
                if end in ends[:number]:  # a copy merged with another: a step on one edge tells the two apart
                    copy_ = Map(f"{start.name}.copy-{number}", function=same, shape="one")
                    graph.chain(fork, graph.add(copy_), made[end])
                else:
                    graph.link(fork, made[end])
        return graph

    def _expect(self, begun: object, error: GraphError) -> None:
        """Note something that is begun, and the error if nothing is made of it."""
        if declared := _caller():
            error.add_note(f"  declared  {declared}")
        self._unfinished[begun] = error

    def _finish(self, begun: object) -> None:
        """Note that something is made of what was begun."""
        self._unfinished.pop(begun, None)

    def _add(self, vertex: Vertex, *inputs: Output) -> None:
        vertex.declared = _caller()
        self._graph.add(vertex)
        for output in inputs:
            self._use(output, vertex)

    def _add_label(self, name: str, route: Route, output: Output) -> Label:
        """Add a label.

        Raises:
            GraphError: There is one of the name, or there are too many.
        """
        if name in self._labels:
            raise GraphError(
                f"two labels are named {name!r}",
                hint="Give one another name; the stream of the first may be used as often as you like.",
                vertex=self._labels[name].name,
            )
        if len(self._labels) == MOST_LABELS:
            raise GraphError(f"flow {self.name!r} has more than {MOST_LABELS} labels", vertex=output.vertex.name)
        label = self._labels[name] = Label(f"label:{name}", route=route, number=len(self._labels))
        self._add(label, output)
        return label

    def _label_before(self, name: str, what: str, vertex: Vertex) -> Label:
        """Return a label that leads to a vertex.

        Args:
            name: Name of the label.
            what: The operation that needs it, for errors.
            vertex: The vertex that the operation is behind.

        Raises:
            GraphError: It is unknown, or leads elsewhere.
        """
        label = self._labels.get(name)
        if label is None:
            known = f"The flow has {', '.join(map(repr, self._labels))}." if self._labels else "The flow has none."
            raise GraphError(
                f"{what} after {vertex.name!r}: there is no label {name!r}",
                hint=f"{known} Call .label({name!r}) on the stream whose items are to be told apart.",
                vertex=vertex.name,
            )
        if label not in _above(vertex, self._inputs):
            raise GraphError(
                f"{what} after {vertex.name!r}: no item there is derived from an item with the label {name!r}",
                hint=f"Draw it behind {label!r}, on what comes of the stream that .label({name!r}) returns.",
                vertex=vertex.name,
            )
        return label

    def _use(self, output: Output, end: Vertex) -> None:
        before = self._inputs.setdefault(end, [])
        use = Use(output.copy, end, len(before))
        before.append((output.vertex, use))
        self._uses.setdefault(output.vertex, []).append(use)

    def _name(self, wish: str | None, kind: str, function: object = None) -> str:
        """Return the wished name, or a unique one of the kind and the function's name."""
        if wish is not None:
            return require_name(kind, wish)
        label = getattr(function, "__name__", "")
        base = f"{kind}:{label}" if label and label != "<lambda>" else kind
        # A branch has no vertex of its own; its ways are named after it.
        taken = {vertex.name for vertex in self._graph.vertices}
        taken |= {name.rpartition(".")[0] for name in taken}
        number, name = 1, base
        # Numbered in the order of the lines, so the names of state are the same in every process;
        # name operations that keep some.
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        return name


def _caller() -> str:
    """Return file and line of the innermost call outside of this package.

    Modules of verbs are skipped, too.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE or VERBS in frame.f_globals
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def same(payload: object) -> object:
    """Return the payload; the function of a vertex that stands for an edge."""
    return payload


Inputs = dict[Vertex, list[tuple[Vertex, Use]]]
"""For each vertex its inputs in order: the start of each, and its use."""


def sorted_uses(start: Vertex, uses: list[Use], inputs: Inputs) -> list[Use]:
    """Return the uses of one stream in the order in which their copies sort.

    The places of a broadcast's copies come first. Copies of one place come in the order of the inputs of the vertex
    where they meet, the last one if there are several; copies that go round a cycle come before those that leave it;
    and copies that never meet come in the order in which a walk from the sinks, by name, reaches them. So the order
    depends on the flow, and not on the order of its lines.

    Args:
        start: The vertex whose output the stream is.
        uses: All uses of the stream.
        inputs: Inputs of all vertices of the flow.
    """
    if len({use.copy for use in uses}) == len(uses):
        return sorted(uses, key=lambda use: use.copy)
    walked, joints = _walk(inputs)
    above = _above(start, inputs)
    slots: dict[Use, list[int]] = {use: [] for use in uses}
    for vertex in joints:
        reached = [_reach(vertex, source, use, inputs) for source, use in inputs[vertex]]
        found = [[slot for slot, those in enumerate(reached) if use in those] for use in uses]
        if vertex in above or sum(map(bool, found)) > 1:
            for use, entered in zip(uses, found, strict=True):
                slots[use].append(min(entered, default=len(reached)))
    # Not in the order of the flow's lines: moving an independent line would change the output.
    return sorted(uses, key=lambda use: (use.copy, slots[use], walked[use]))


def _walk(inputs: Inputs) -> tuple[dict[Use, int], list[Vertex]]:
    """Walk back from the sinks, by name.

    Returns:
        The number of each use, in the order of the walk; and the vertices with several inputs, each before those that
        feed it.
    """
    walked: dict[Use, int] = {}
    done: list[Vertex] = []
    seen: set[Vertex] = set()
    sinks = sorted((vertex for vertex in inputs if isinstance(vertex, Sink)), key=lambda vertex: vertex.name)
    for root in [*sinks, *inputs]:  # vertices that lead to no sink are refused later
        path = [] if root in seen else [(root, iter(inputs[root]))]
        seen.add(root)
        while path:
            vertex, rest = path[-1]
            step = next(rest, None)
            if step is None:
                path.pop()
                done.append(vertex)
                continue
            before, use = step
            walked[use] = len(walked)
            if before not in seen:
                seen.add(before)
                path.append((before, iter(inputs.get(before, ()))))
    return walked, [vertex for vertex in reversed(done) if len(inputs.get(vertex, ())) > 1]


def _reach(end: Vertex, source: Vertex, last: Use, inputs: Inputs) -> set[Use]:
    """Return the uses on ways to an input of `end` that do not pass `end` before."""
    above = _above(source, inputs, end)
    return {last, *(use for vertex in above for _, use in inputs.get(vertex, ()))}


def _above(vertex: Vertex, inputs: Inputs, end: Vertex | None = None) -> set[Vertex]:
    """Return a vertex and all its predecessors, direct or not; not through `end`."""
    seen: set[Vertex] = set()
    todo = [vertex]
    while todo:
        one = todo.pop()
        if one not in seen and one is not end:
            seen.add(one)
            todo += [before for before, _ in inputs.get(one, ())]
    return seen


def require_name(verb: str, name: str) -> str:
    """Return a name, if it is one.

    Raises:
        GraphError: It is no text, or empty.
    """
    if not isinstance(name, str) or not name:
        raise GraphError(f"{verb}: its name is {shorten_repr(name)}, and has to be a text", vertex=None)
    return name


def require(verb: str, after: Vertex, argument: str, value: object, *, fits: bool, expected: str) -> None:
    """Refuse an argument that does not fit.

    Args:
        verb: The method, for the error.
        after: The vertex that it comes after.
        argument: The argument.
        value: Its value.
        fits: Whether that fits.
        expected: Words for one that would.

    Raises:
        GraphError: It does not.
    """
    if not fits:
        what = f"{verb} after {after.name!r}: {argument} is {shorten_repr(value)}, and has to be {expected}"
        raise GraphError(what, vertex=after.name)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
