"""The graph under construction: what streams add to, and how the uses of a stream become edges."""

from __future__ import annotations

import copy
import sys
from types import FrameType
from typing import Any, Final

from flamecore.model.graph import Graph
from flamecore.model.vertices import Broadcast, Map, Vertex

_PACKAGE: Final = __name__.partition(".")[0]


class GraphBuilder:
    """The graph of a flow while streams add to it.

    Args:
        name: The name of the flow.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._graph = Graph(name)
        self._uses: dict[Vertex, list[Vertex]] = {}

    def _linked(self) -> Graph:
        """A graph with a broadcast wherever a stream is used more than once."""
        graph = Graph(self._graph.name)
        graph.codecs = self._graph.codecs
        made = {vertex: graph.add(copy.copy(vertex)) for vertex in self._graph.vertices}
        for start, ends in self._uses.items():
            fork = made[start]
            if len(ends) > 1 and not isinstance(start, Broadcast):
                fork = graph.add(Broadcast(f"{start.name}.fork", segment=start.segment))
                graph.link(made[start], fork)
            for number, end in enumerate(ends):
                if end in ends[:number]:  # a copy merged with another copy: two edges, told apart by a step on one
                    copy_ = Map(f"{start.name}.copy-{number}", function=same, shape="one", segment=start.segment)
                    graph.chain(fork, graph.add(copy_), made[end])
                else:
                    graph.link(fork, made[end])
        return graph

    def _add(self, vertex: Vertex, *inputs: Vertex) -> None:
        vertex.declared = _caller()
        self._graph.add(vertex)
        for start in inputs:
            self._use(start, vertex)

    def _use(self, start: Vertex, end: Vertex) -> None:
        self._uses.setdefault(start, []).append(end)

    def _name(self, wish: str | None, kind: str, function: Any = None) -> str:
        """A unique name: the one wished for, or the kind and the name of the user's function, numbered if taken."""
        if wish is not None:
            return wish
        label = getattr(function, "__name__", "")
        base = f"{kind}:{label}" if label and label != "<lambda>" else kind
        # A branch has no vertex of its own; its ways are named after it.
        taken = {vertex.name for vertex in self._graph.vertices}
        taken |= {name.rpartition(".")[0] for name in taken}
        number, name = 1, base
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        return name


def _caller() -> str:
    """Return file and line of the innermost call that is not of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def same(payload: Any) -> Any:
    """Return the payload: the function of a vertex that only stands for an edge."""
    return payload
