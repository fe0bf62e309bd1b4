"""The segments of a graph: the tracked parts, each with its own minimum time.

See paper 002, "segment". A keyed state begins one, and so does a cycle with keyed state: items wait there for all that
leads there. The operations behind it belong to the same one until the next state. A part fed by several segments begins
one too, unless one of these is behind all the others; so nothing waits for a branch that does not lead to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flamecore.model.graph import Graph
from flamecore.model.vertices import Vertex

__all__ = ["Segments"]


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a graph; segments that feed another have lower numbers.

    Attributes:
        inbound: For each segment, the segments that feed it.
        of: For each vertex, by its index, the segment of its work and outputs.
        entered: For each vertex, by its index, the segment of hand-overs to it. If items wait there, it is the segment
            that leads there: new arrivals have not waited yet, and the waiting items wait for them.
        last: A segment behind all others.
    """

    inbound: tuple[frozenset[int], ...]
    of: tuple[int, ...]
    entered: tuple[int, ...]
    last: int

    def reached_from(self, segment: int) -> frozenset[int]:
        """Return a segment, and all those that it feeds."""
        reached = {segment}
        for number in range(segment + 1, len(self.inbound)):
            if not reached.isdisjoint(self.inbound[number]):
                reached.add(number)
        return frozenset(reached)

    @classmethod
    def number(cls, graph: Graph) -> Segments:
        """Assign numbers to the segments of a graph."""
        return _Numbering(graph).result()


class _Numbering:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._inbound: list[frozenset[int]] = []
        self._upstream: list[frozenset[int]] = []  # the same, with direct and indirect predecessors
        self._of = [-1] * len(graph.vertices)
        self._entered = [-1] * len(graph.vertices)

    def result(self) -> Segments:
        for part in self._graph.parts():
            self._place(part)
        last = self._behind({self._of[sink.index] for sink in self._graph.sinks})
        return Segments(tuple(self._inbound), tuple(self._of), tuple(self._entered), last)

    def _place(self, part: frozenset[Vertex]) -> None:
        """Assign a segment to a part, whose predecessors have one."""
        starts = {start for vertex in part for start in self._graph.predecessors(vertex)} - part
        entered = self._behind({self._of[start.index] for start in starts})
        segment = self._add({entered}) if any(vertex.stateful for vertex in part) else entered
        for vertex in part:
            self._of[vertex.index], self._entered[vertex.index] = segment, entered

    def _behind(self, segments: Iterable[int]) -> int:
        """Return a segment behind several: one that is behind the others, or a new one."""
        segments = frozenset(segments)
        # One that is behind all the others serves: a new one would be one more minimum time, and
        # wait for nothing more.
        for segment in segments:
            if segments <= self._upstream[segment]:
                return segment
        if not segments and self._inbound:  # for sources: nothing waits there
            return 0
        return self._add(segments)

    def _add(self, feeding: Iterable[int]) -> int:
        number = len(self._inbound)
        self._inbound.append(frozenset(feeding))
        self._upstream.append(frozenset((number,)).union(*(self._upstream[segment] for segment in feeding)))
        return number
