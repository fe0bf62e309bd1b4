"""The operators of plugins, found by the kinds of a graph's vertices."""

from __future__ import annotations

from flamecore.abc.operator import Operator
from flamecore.errors import PluginLoadError
from flamecore.model.graph import Graph
from flamecore.model.vertices import Source, Vertex
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.operators.table import OPERATORS, row_of


def plugin_operators(graph: Graph, plugins: PluginRegistry) -> dict[type[Vertex], type[Operator]]:
    """Return the operators of the vertices that the engine has none for, by class.

    Raises:
        PluginError: No plugin provides one, it cannot be used, or it is for other vertices of the same kind.
    """
    found: dict[type[Vertex], type[Operator]] = {}
    for vertex in graph.vertices:
        of = row_of(type(vertex))
        if of in OPERATORS or of in found or isinstance(vertex, Source):  # a source has none: items enter behind it
            continue
        operator = plugins.guarded("operator", vertex.kind)
        if operator.vertex is not of:
            raise PluginLoadError(
                f"operator {vertex.kind!r} computes {operator.vertex.__module__}.{operator.vertex.__qualname__}, "
                f"and {vertex!r} is a {of.__module__}.{of.__qualname__}",
                hint="Two packages use one name for their kind of vertex: use one of them, or have one renamed.",
                kind="operator",
                name=vertex.kind,
                distribution=None,
            )
        found[of] = operator
    return found
