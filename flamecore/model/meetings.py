"""The order of what belongs to one moment, such as copies of one item, by the places where it meets again.

It depends on the links of a graph and on the names of its sinks, and not on the order in which vertices were added:
moving an independent line of a flow would change the output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from flamecore.model.vertices import Sink, Vertex

__all__ = ["Inputs", "above", "sorted_edges", "sorted_vertices"]

E = TypeVar("E", bound=Hashable)
T = TypeVar("T", bound=Hashable)

Inputs = Mapping[Vertex, Sequence[tuple[Vertex, E]]]
"""For each vertex its inputs in order: the start of each, and its edge. A vertex without inputs may be left out."""


def sorted_edges(start: Vertex, edges: Iterable[E], inputs: Inputs[E]) -> list[E]:
    """Return edges from one vertex in the order in which the copies that take them sort.

    Two of them come in the order of the inputs of the vertex where they meet, the last one if there are several. Copies
    that go round a cycle come before those that leave it; and copies that never meet come in the order in which a walk
    from the sinks, by name, reaches them.

    Args:
        start: The vertex.
        edges: The edges.
        inputs: Inputs of all vertices of the graph.
    """
    walked, left = _walk(inputs)
    found = sorted(edges, key=walked.__getitem__)
    return _sorted(found, _Order(len(found)), above(start, inputs), left, inputs, lambda vertices, edges: edges)


def sorted_vertices(vertices: Iterable[Vertex], inputs: Inputs[E]) -> list[Vertex]:
    """Return vertices in the order in which what they make at one moment sorts.

    One comes before those behind it. Two others come in the order of the inputs of the vertex where they meet, as
    copies do (see `sorted_edges`).

    Args:
        vertices: The vertices, none of them on a cycle.
        inputs: Inputs of all vertices of the graph.
    """
    _, left = _walk(inputs)
    places = {vertex: place for place, vertex in enumerate(left)}
    found = sorted(vertices, key=places.__getitem__)
    order = _Order(len(found))
    for place, vertex in enumerate(found):
        before = above(vertex, inputs)
        for earlier in range(place):
            if found[earlier] in before:
                order.put(earlier, place)
    return _sorted(found, order, (), left, inputs, lambda vertices, edges: vertices)


class _Order:
    """An order of the numbers below `count`, of which more and more is known."""

    def __init__(self, count: int) -> None:
        # As sets of bits: a flow may have hundreds of copies that meet in one merge.
        self._before = [0] * count
        self._behind = [0] * count

    def put(self, one: int, other: int) -> None:
        """Put a number before another one, if that is not known, nor the contrary."""
        if (self._before[one] | self._behind[one]) >> other & 1:
            return
        before, behind = self._before[one] | 1 << one, self._behind[other] | 1 << other
        for number in _bits(before):
            self._behind[number] |= behind
        for number in _bits(behind):
            self._before[number] |= before

    def sorted(self) -> Iterator[int]:
        """Yield all numbers in order, the least first of those of which it is not known."""
        left, done = list(range(len(self._before))), 0
        while left:
            place = next(place for place, number in enumerate(left) if not self._before[number] & ~done)
            done |= 1 << left[place]
            yield left.pop(place)


def _bits(number: int) -> Iterator[int]:
    while number:
        yield (number & -number).bit_length() - 1
        number &= number - 1


def _sorted(
    elements: Sequence[T],
    order: _Order,
    around: Collection[Vertex],
    left: Iterable[Vertex],
    inputs: Inputs[E],
    part: Callable[[set[Vertex], set[E]], set[T]],
) -> list[T]:
    """Return elements in their order.

    Args:
        elements: The elements, in the order of those that never meet.
        order: What is known of their order, by their numbers.
        around: Vertices by which what leads there without an element comes last.
        left: All vertices, each behind those that lead to it.
        inputs: Inputs of all vertices.
        part: Picks the elements from vertices and edges.
    """
    # The meetings that come last first: what they say of two elements, no other can change.
    for vertex in reversed([*left]):
        starts = inputs.get(vertex, ())
        if len(starts) < 2:
            continue
        ways = [part(*_ways(vertex, start, edge, inputs)) for start, edge in starts]
        slots = [next((slot for slot, way in enumerate(ways) if element in way), None) for element in elements]
        met = sorted((slot, number) for number, slot in enumerate(slots) if slot is not None)
        if vertex in around:
            met += [(len(ways), number) for number, slot in enumerate(slots) if slot is None]
        # Backwards, so that neighbours come first, and say most of what is to be known.
        for place in reversed(range(len(met))):
            for slot, number in met[place + 1 :]:
                if met[place][0] < slot:
                    order.put(met[place][1], number)
    return [elements[number] for number in order.sorted()]


def _walk(inputs: Inputs[E]) -> tuple[dict[E, int], list[Vertex]]:
    """Walk back from the sinks, by name.

    Returns:
        The number of each edge, in the order of the walk; and the vertices in the order in which the walk leaves them:
        each behind those that lead to it, unless it leads to them, too.
    """
    walked: dict[E, int] = {}
    left: list[Vertex] = []
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
                left.append(vertex)
                continue
            before, edge = step
            walked[edge] = len(walked)
            if before not in seen:
                seen.add(before)
                path.append((before, iter(inputs.get(before, ()))))
    return walked, left


def _ways(end: Vertex, start: Vertex, last: E, inputs: Inputs[E]) -> tuple[set[Vertex], set[E]]:
    """Return the vertices and edges on ways to an input of `end` that do not pass `end` before."""
    vertices = above(start, inputs, end)
    return vertices, {last, *(edge for vertex in vertices for _, edge in inputs.get(vertex, ()))}


def above(vertex: Vertex, inputs: Inputs[E], end: Vertex | None = None) -> set[Vertex]:
    """Return a vertex and all its predecessors, direct or not; not through `end`."""
    seen: set[Vertex] = set()
    todo = [vertex]
    while todo:
        one = todo.pop()
        if one not in seen and one is not end:
            seen.add(one)
            todo += [before for before, _ in inputs.get(one, ())]
    return seen
