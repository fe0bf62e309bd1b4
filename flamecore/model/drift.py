"""Drifting state: the vertex, and its meaning as a cycle of generic operations.

See paper 004, section 2.7. A grouping of window 2 pairs each entry with the state that its predecessor left, a
combining map makes the new state and the outputs, and the state goes round to be grouped with the next entry.
`flamecore.runtime.operators.drift` runs the same as one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, ClassVar, Final, NamedTuple

from flamecore.errors import GraphError
from flamecore.model.vertices import Broadcast, ByKey, Drawing, Grouping, Map, Merge, Payload, Vertex


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final[object] = _Missing()
"""The state of a key before its first item, for a reduce: it has none."""


class DriftTypes(NamedTuple):
    """The declared types of a drifting state; `object` where one is unknown.

    Attributes:
        state: Type of states.
        output: Type of outputs that are not (key, state).
        items: Type of payloads; the states of a reduce have it.
    """

    state: object = object
    output: object = object
    items: object = object


@dataclass(eq=False, slots=True, repr=False)
class Drift(Vertex):
    """Drifting state: a cycle of grouping (window 2), combine and feedback in one.

    `draw` adds the cycle it means; both forms emit the same items (paper 004, section 2.7).

    Attributes:
        advance: (state, payload) → (new state, outputs). States are immutable values: a repair passes old ones again.
        initial: The state of a key before its first item.
        accumulate: For the common shape whose only output is (key, new state): (state, payload) → new state.
        types: The declared types.
        method: The method of a stream that has made it, such as "fold".
        light: Whether an item costs it less than sending the item to another worker does.
        labelled: Whether payloads are `Labelled`, and keys begin with the label: state is dropped with it.
    """

    kind: ClassVar[str] = "drift"
    functions: ClassVar[tuple[str, ...]] = ("advance", "accumulate")
    stateful: ClassVar[bool] = True
    appends: ClassVar[bool] = True

    advance: Callable[[Any, Payload], tuple[object, Iterable[Payload]]] = field(kw_only=True)
    initial: object = field(kw_only=True)
    accumulate: Callable[[Any, Payload], object] | None = None
    types: DriftTypes = field(default_factory=DriftTypes)
    light: bool = False
    method: str = ""
    labelled: bool = False

    @property
    def keeps_state(self) -> bool:
        return not self.labelled

    @property
    def state(self) -> object:
        return self.types.state

    @property
    def form(self) -> str:
        begins = "" if self.initial is MISSING else f" from {type(self.initial).__qualname__}"
        return f"{self.method or 'drifting state'}{begins}"

    @property
    def begins(self) -> object:
        if self.initial is MISSING:
            return self.types.items
        if isinstance(self.initial, Number):
            return Number  # from 0 on to 0.5
        return object if self.initial is None else type(self.initial)

    def check(self) -> None:
        if isinstance(self.initial, (list, dict, set, bytearray)):
            raise GraphError(
                f"the initial state of {self!r} is a {type(self.initial).__name__}, which can be changed in place",
                hint="Use an immutable value (number, text, tuple, frozen dataclass): "
                "a repair hands old states out again.",
                vertex=self.name,
            )

    def draw(self, graph: Drawing) -> tuple[Vertex, Vertex]:
        return _draw_cycle(graph, self)


def one_more(count: int, _: object) -> int:
    """Count an item: the `accumulate` of a count."""
    return count + 1


class DriftState(NamedTuple):
    """A state on its way round a drawn cycle."""

    key: object
    value: object


class DriftFailure(NamedTuple):
    """The item in place of outputs if the user's function fails; the state stays.

    Its `repr` is that of the failed entry, since errors and dead letters show the payload of the failing vertex.
    """

    entry: object
    error: Exception

    def __repr__(self) -> str:
        return repr(self.entry)


def _draw_cycle(graph: Drawing, vertex: Drift) -> tuple[Vertex, Vertex]:
    """Draw the cycle that a drifting state means; return its entry and exit."""
    key_of = route_key(vertex)
    advance, initial = vertex.advance, vertex.initial

    def bucket(payload: object) -> object:
        return payload.key if type(payload) is DriftState else key_of(payload)

    def combine(window: tuple[Any, ...]) -> list[object]:
        # Only an entry with its predecessor's state before it, or a first entry, is processed. Other windows end in a
        # state, or are about to be retracted.
        entry, before = window[-1], window[0]
        if type(entry) is DriftState or (len(window) == 2 and type(before) is not DriftState):
            return []
        state = initial if len(window) == 1 else before.value
        try:
            after, outputs = advance(state, entry)
            return [DriftState(key_of(entry), after), *outputs]
        except Exception as error:  # noqa: BLE001 - raised again on the way out, where it is attributed
            return [DriftState(key_of(entry), state), DriftFailure(entry, error)]

    def outputs_only(payload: object) -> list[object]:
        if type(payload) is DriftFailure:
            raise payload.error
        return [] if type(payload) is DriftState else [payload]

    def states_only(payload: object) -> list[object]:
        return [payload] if type(payload) is DriftState else []

    name = vertex.name
    entry = graph.add(Merge(f"{name}/entry"))
    grouping = graph.add(Grouping(f"{name}/grouping", route=ByKey(bucket), window=2))
    combined = graph.add(Map(f"{name}/combine", function=combine))
    fork = graph.add(Broadcast(f"{name}/fork"))
    out = graph.add(Map(f"{name}/outputs", function=outputs_only))
    back = graph.add(Map(f"{name}/states", function=states_only))
    graph.chain(entry, grouping, combined, fork, out)
    graph.chain(fork, back, entry)
    return entry, out


def route_key(vertex: Drift) -> Callable[[object], object]:
    """Return the key function of a drifting state."""
    assert isinstance(vertex.route, ByKey)
    return vertex.route.key
