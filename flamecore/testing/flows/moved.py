"""Flows with the lines of another one in another order."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from random import Random

from flamecore.flow import Flow
from flamecore.model.vertices import Sink, Source, Vertex

__all__ = ["moved"]


def moved(flow: Flow, random: Random) -> Flow:
    """Return a flow with the lines of another one in another order, by chance.

    Each operation stays behind those that its line uses. Names that a flow gives by itself, with a number, are given in
    the new order. The outputs must be the same.
    """
    made, new = Flow(flow.name), dict[Vertex, Vertex]()
    left = list(flow._graph.vertices)
    names = defaultdict[tuple[type[Vertex], str], list[str]](list)
    for vertex in left:
        names[_base(vertex)].append(vertex.name)
    while left:
        ready = [vertex for vertex in left if all(start in new for start in _used(flow, vertex))]
        vertex = random.choice(ready)
        left.remove(vertex)
        its_copy = copy.copy(vertex)
        its_copy.name = names[_base(vertex)].pop(0)
        new[vertex] = made._graph.add(its_copy)
    # A stream is used where the line of the user is, or, of a loop, where its body ends.
    for end in new:
        for start, use in flow._inputs.get(end, ()):
            its = use._replace(end=new[end])
            made._inputs.setdefault(new[end], []).append((new[start], its))
            made._uses.setdefault(new[start], []).append(its)
    return made


def _used(flow: Flow, vertex: Vertex) -> list[Vertex]:
    """Return the vertices whose output the line of a vertex uses; what comes round a loop is drawn later."""
    return [start for start, _ in flow._inputs.get(vertex, ()) if start.index < vertex.index]


def _base(vertex: Vertex) -> tuple[type[Vertex], str]:
    """Return the name of a vertex without the number that tells it from its like."""
    if isinstance(vertex, (Source, Sink)):
        return type(vertex), vertex.name
    return Vertex, re.sub(r"-[0-9]+$", "", vertex.name)
