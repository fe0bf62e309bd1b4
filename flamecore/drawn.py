"""The cycle that a drifting state means, drawn with the generic operations (paper 004, section 2.7).

A grouping of window 2 meets each entry with the state that its predecessor left, a combining map makes the new state
and the outputs, and the state goes round to be grouped with the next entry. `flamecore.operations.drift` runs the
same as one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flamecore.vertices import Broadcast, ByKey, Drift, Grouping, Map, Merge, Vertex

if TYPE_CHECKING:
    from flamecore.graph import Graph


class State(NamedTuple):
    """A state on its way round a drawn cycle."""

    key: Any
    value: Any


class Failed(NamedTuple):
    """What combine hands on in place of outputs when the user's function fails: the state stays as it was."""

    error: Exception


def draw_cycle(graph: Graph, vertex: Drift) -> tuple[Vertex, Vertex]:
    """Add the cycle that a fused vertex means; returns where it is entered and left."""
    key_of = route_key(vertex)
    advance, initial = vertex.advance, vertex.initial

    def bucket(payload: Any) -> Any:
        return payload.key if type(payload) is State else key_of(payload)

    def combine(window: tuple[Any, ...]) -> list[Any]:
        # Only an entry that has its predecessor's state before it, or is the first, is worked on. Other windows stand
        # for states on their way, or are about to be retracted.
        entry, before = window[-1], window[0]
        if type(entry) is State or (len(window) == 2 and type(before) is not State):
            return []
        state = initial if len(window) == 1 else before.value
        try:
            after, outputs = advance(state, entry)
            return [State(key_of(entry), after), *outputs]
        except Exception as error:  # noqa: BLE001 - raised again on the way out, where it is attributed
            return [State(key_of(entry), state), Failed(error)]

    def outputs_only(payload: Any) -> list[Any]:
        if type(payload) is Failed:
            raise payload.error
        return [] if type(payload) is State else [payload]

    def states_only(payload: Any) -> list[Any]:
        return [payload] if type(payload) is State else []

    name, segment = vertex.name, vertex.segment
    entry = graph.add(Merge(f"{name}/entry", segment=segment))
    grouping = graph.add(Grouping(f"{name}/grouping", route=ByKey(bucket), window=2, segment=segment))
    combined = graph.add(Map(f"{name}/combine", function=combine, segment=segment))
    fork = graph.add(Broadcast(f"{name}/fork", segment=segment))
    out = graph.add(Map(f"{name}/outputs", function=outputs_only, segment=segment))
    back = graph.add(Map(f"{name}/states", function=states_only, segment=segment))
    graph.chain(entry, grouping, combined, fork, out)
    graph.chain(fork, back, entry)
    return entry, out


def route_key(vertex: Drift) -> Callable[[Any], Any]:
    """The key function of a drifting state."""
    assert isinstance(vertex.route, ByKey)
    return vertex.route.key
