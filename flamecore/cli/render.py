"""Pictures of a graph: Mermaid, DOT, and with Graphviz SVG and PNG.

An edge carries a label where items may change the worker; a dashed edge closes a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from flamecore import escapes
from flamecore.errors import MissingDependencyError
from flamecore.model.graph import Graph
from flamecore.model.vertices import ByHash, ByKey, ByTime, ToAll, Vertex
from flamecore.suggest import install_command

Format = Literal["mermaid", "dot", "svg", "png"]
FORMATS: Final[tuple[Format, ...]] = ("mermaid", "dot", "svg", "png")

_ROUTES: Final[Mapping[type, str]] = {ByKey: "by key", ByHash: "by hash", ByTime: "by time", ToAll: "to all"}
_MERMAID: Final = {
    "source": '(["{}"])',
    "sink": '[("{}")]',
    "broadcast": '(("{}"))',
    "merge": '(("{}"))',
    "keyed_loop": '(("{}"))',
}
_MERMAID_STATEFUL: Final = '{{{{"{}"}}}}'
_DOT: Final = {
    "source": "oval",
    "sink": "cylinder",
    "broadcast": "circle",
    "merge": "circle",
    "keyed_loop": "circle",
}


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart, from left to right.

    The same graph always gives the same text.
    """
    lines = ["flowchart LR"]
    for vertex in graph.vertices:
        shape = _MERMAID.get(vertex.kind, _MERMAID_STATEFUL if vertex.stateful else '["{}"]')
        name = vertex.name.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace("\n", " ")
        name = escapes.line(name)
        lines.append(f"    v{vertex.index}{shape.format(name)}")
    feedback = graph.feedback()
    for start, end in graph.edges:
        arrow = "-.->" if (start, end) in feedback else "-->"
        label = f"|{route}|" if (route := _route(graph, end)) else ""
        lines.append(f"    v{start.index} {arrow}{label} v{end.index}")
    return "\n".join(lines) + "\n"


def dot(graph: Graph) -> str:
    """Return the graph in the language of Graphviz, from left to right.

    The same graph always gives the same text.
    """
    lines = [f"digraph {_quoted(graph.name)} {{", "    rankdir=LR;", '    node [fontname="sans-serif"];']
    for vertex in graph.vertices:
        shape = _DOT.get(vertex.kind, "hexagon" if vertex.stateful else "box")
        lines.append(f"    v{vertex.index} [label={_quoted(vertex.name)}, shape={shape}];")
    feedback = graph.feedback()
    for start, end in graph.edges:
        attributes = ["style=dashed"] if (start, end) in feedback else []
        if route := _route(graph, end):
            attributes.append(f"label={_quoted(route)}")
        suffix = f" [{', '.join(attributes)}]" if attributes else ""
        lines.append(f"    v{start.index} -> v{end.index}{suffix};")
    return "\n".join([*lines, "}"]) + "\n"


def rendered(graph: Graph, format: Literal["svg", "png"]) -> bytes:
    """Return the graph as a picture.

    Raises:
        MissingDependencyError: The Python package `graphviz` or its program `dot` is not installed.
    """
    fields = {"kind": "drawing", "name": format, "distribution": "flamestream", "extra": "graphviz"}
    instead = "Without it there are the formats mermaid and dot."
    try:
        import graphviz
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a graph as {format} needs module 'graphviz', which is not installed",
            hint=f"{instead} Run: {install_command('flamestream', 'graphviz')}",
            module="graphviz",
            **fields,
        ) from error
    try:
        picture: bytes = graphviz.Source(dot(graph)).pipe(format=format)
    except graphviz.ExecutableNotFound as error:
        raise MissingDependencyError(
            f"a graph as {format} needs the program 'dot' of Graphviz, which is not on the PATH",
            hint=f"{instead} Install Graphviz itself, for example: apt install graphviz",
            module="dot",
            **fields,
        ) from error
    return picture


def drawn(graph: Graph, format: Format) -> bytes:
    """Return the graph in a format, as the bytes of a file. Raises as `rendered`."""
    if format == "svg" or format == "png":
        return rendered(graph, format)
    draw: Callable[[Graph], str] = mermaid if format == "mermaid" else dot
    return draw(graph).encode()


def _route(graph: Graph, vertex: Vertex) -> str:
    """Return how items find their worker; empty if they stay on one."""
    if isinstance(vertex.route, ByKey) and vertex.route.place is not None:
        return "" if graph.placing_of(vertex) else "by place"
    return _ROUTES.get(type(vertex.route), "")


def _quoted(text: str) -> str:
    return '"' + escapes.line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
