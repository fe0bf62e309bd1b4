"""The graph under construction, and the edges from the uses of a stream."""

from __future__ import annotations

import copy
import sys
from types import FrameType
from typing import Final, NamedTuple

from flamecore.errors import GraphError
from flamecore.model.failure import shorten_repr
from flamecore.model.graph import Graph
from flamecore.model.meetings import Inputs, above, sorted_edges
from flamecore.model.meta import MOST_LABELS
from flamecore.model.vertices import Broadcast, Label, Map, Route, Vertex

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
        self.name = require_name("Flow", name)
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
        starts: dict[Use, Vertex] = {}  # from where each use is linked
        for start, uses in self._uses.items():
            sorted_ = _sorted_uses(start, uses, self._inputs)
            ends = [use.end for use in sorted_]
            fork = made[start]
            if len(ends) > 1 and not isinstance(start, Broadcast):
                fork = graph.add(Broadcast(f"{start.name}.fork"))
                graph.link(made[start], fork)
            for number, use in enumerate(sorted_):
                starts[use] = fork
                if use.end in ends[:number]:  # a copy merged with another: a step on one edge tells the two apart
                    starts[use] = graph.add(Map(f"{start.name}.copy-{number}", function=same, shape="one"))
                    graph.link(fork, starts[use])
                graph.link(starts[use], made[use.end])
        for end, inputs in self._inputs.items():
            graph.sort_inputs(made[end], [starts[use] for _, use in inputs])
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
        if label not in above(vertex, self._inputs):
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


def _sorted_uses(start: Vertex, uses: list[Use], inputs: Inputs[Use]) -> list[Use]:
    """Return the uses of one stream in the order in which their copies sort.

    The places of a broadcast's copies come first, then where copies meet (see `flamecore.model.meetings`).

    Args:
        start: The vertex whose output the stream is.
        uses: All uses of the stream.
        inputs: Inputs of all vertices of the flow.
    """
    copies = sorted({use.copy for use in uses})
    if len(copies) == len(uses):
        return sorted(uses, key=lambda use: use.copy)
    alike = [[use for use in uses if use.copy == copy] for copy in copies]
    return [use for some in alike for use in sorted_edges(start, some, inputs)]


def require_name(verb: str, name: str) -> str:
    """Return a name, if it is one.

    Raises:
        GraphError: It is no text, empty, or cannot be written.
    """
    if not isinstance(name, str) or not name:
        raise GraphError(f"{verb}: its name is {shorten_repr(name)}, and has to be a text", vertex=None)
    if not is_writable(name):
        raise GraphError(f"{verb}: its name is {shorten_repr(name)}, which no encoding can write", vertex=None)
    return name


def is_writable(text: str) -> bool:
    """Return whether a text has no halves of letters, such as stand for bytes of a file's name that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
