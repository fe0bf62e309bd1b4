"""The meaning of a graph: every fused vertex drawn with the generic operations."""

from __future__ import annotations

from collections.abc import Mapping

from flamecore.model.graph import Graph
from flamecore.model.vertices import Vertex


def expand(graph: Graph) -> Graph:
    """Return the graph with every vertex drawn as its meaning (`Vertex.draw`)."""
    return expanded(graph)[0]


def expanded(graph: Graph) -> tuple[Graph, Mapping[Vertex, tuple[Vertex, Vertex]]]:
    """Return the same, and for each vertex the first and the last one of its drawing."""
    drawn = Graph(graph.name)
    drawn.codecs = graph.codecs
    ends: dict[Vertex, tuple[Vertex, Vertex]] = {vertex: vertex.draw(drawn) for vertex in graph.vertices}
    for start, end in graph.edges:
        drawn.link(ends[start][1], ends[end][0])
    return drawn, ends
