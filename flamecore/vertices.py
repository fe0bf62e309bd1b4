"""The vertices of a graph: the operations of the model (paper 004, section 2.5), and the routes of their input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from flamecore.errors import GraphError
from flamecore.hashing import refuse_unhashable, stable_hash
from flamecore.hints import returned

Payload = Any


@dataclass(frozen=True, slots=True)
class ByKey:
    """Route by the hash of a key. `key` must be deterministic; equal keys meet on one worker."""

    key: Callable[[Payload], Any]

    def hash(self, payload: Payload) -> int:
        return stable_hash(self.key(payload))


@dataclass(frozen=True, slots=True)
class ByHash:
    """Route by a function from payload to a signed 32-bit number, the paper's balancing function."""

    function: Callable[[Payload], int]

    def hash(self, payload: Payload) -> int:
        return self.function(payload)


@dataclass(frozen=True, slots=True)
class ByTime:
    """Spread items over the workers, for stateless work: by their global time, or by how busy the workers are where
    items come once (see `flamecore.operations.dealing`)."""


@dataclass(frozen=True, slots=True)
class ToAll:
    """Copy every item to every worker; the copies get the workers' ordinals as child ids.

    The only route whose output depends on the number of workers: for what each worker must know.
    """


Route = ByKey | ByHash | ByTime | ToAll | None


@dataclass(eq=False, slots=True)
class Vertex:
    """One operation of a graph. `name` is unique in the graph; `segment` is the tracked part it belongs to."""

    name: str
    route: Route = None
    segment: int = 0
    index: int = -1

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"


@dataclass(eq=False, slots=True, repr=False)
class Source(Vertex):
    """Where items enter. `type` is the declared type of payloads."""

    type: Any = object


MapShape = Literal["many", "one", "filter", "inspect"]


@dataclass(eq=False, slots=True, repr=False)
class Map(Vertex):
    """From one payload to many. The i-th output appends child id i.

    `shape` says what `function` returns: "many" an iterable of outputs, "one" the only output, "filter" whether the
    payload itself goes on, "inspect" nothing (the payload goes on).
    """

    function: Callable[[Payload], Any] = field(kw_only=True)
    shape: MapShape = "many"


@dataclass(eq=False, slots=True, repr=False)
class Broadcast(Vertex):
    """Copies each item to all successors; the copy to the i-th (in the order of links) appends child id i."""


@dataclass(eq=False, slots=True, repr=False)
class Merge(Vertex):
    """Several inputs become one stream, ordered by meta like every stream. Nothing is added to the meta."""


@dataclass(eq=False, slots=True, repr=False)
class Grouping(Vertex):
    """The only operation that keeps state: windows of consecutive items of a bucket.

    Buckets are told apart by `route`: a key (`ByKey`), or a hash and `equal` (`ByHash`), which is asked only about
    payloads of equal hash and must imply it.

    Attributes:
        window: Number of items in a full window, at least 1.
        equal: With `ByHash`: whether two payloads belong to one bucket. Default: equal hashes are enough.
        order: Optional sort key of payloads: orders items of one global time inside a bucket before their meta does.
        undo_partial: While a bucket is smaller than the window its content is one provisional result, retracted when
            the next item comes. A result can only be taken back by its own record, so buckets are then kept for each
            record (global time) apart: this collects what comes of one record, as rejoining what was split.
    """

    window: int = field(kw_only=True)
    equal: Callable[[Payload, Payload], bool] | None = None
    order: Callable[[Payload], Any] | None = None
    undo_partial: bool = False


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final[Any] = _Missing()
"""The state of a key before its first item, for a reduce: it has none."""


@dataclass(eq=False, slots=True, repr=False)
class Drift(Vertex):
    """Drifting state: the cycle of grouping (window 2), combine and feedback, run as one operation.

    `expand` draws the cycle it means; both forms emit the same items (paper 004, section 2.7).

    Attributes:
        advance: (state, payload) → (new state, outputs). States are immutable values: a repair hands old ones out
            again.
        initial: The state of a key before its first item.
        accumulate: For the common shape whose only output is (key, new state): (state, payload) → new state.
        state: Declared type of states, as far as it is known.
        light: Whether an item costs it less than sending the item to another worker does.
    """

    advance: Callable[[Any, Payload], tuple[Any, Iterable[Payload]]] = field(kw_only=True)
    initial: Any = field(kw_only=True)
    accumulate: Callable[[Any, Payload], Any] | None = None
    state: Any = object
    light: bool = False


@dataclass(eq=False, slots=True, repr=False)
class Sink(Vertex):
    """Where items leave, through the barrier. `type` is the type of payloads, as far as it is known."""

    type: Any = object


def user_functions(vertex: Vertex) -> Iterator[Callable[..., Any]]:
    """The functions a user gave to a vertex."""
    names = ("function", "advance", "accumulate", "equal", "order")
    yield from (getattr(vertex, name) for name in names if getattr(vertex, name, None) is not None)
    if isinstance(vertex.route, ByKey):
        yield vertex.route.key
    elif isinstance(vertex.route, ByHash):
        yield vertex.route.function


def is_local(function: Callable[..., Any]) -> bool:
    """Whether a function has no name it could be imported by: a lambda, or one defined inside another."""
    name = getattr(function, "__qualname__", "")
    return "<lambda>" in name or "<locals>" in name


def check_settings(vertex: Vertex, *, barrier: bool) -> None:
    """Find what one vertex says that cannot work.

    Raises:
        GraphError: Names the vertex.
    """
    if isinstance(vertex, (Grouping, Drift)):
        if not isinstance(vertex.route, (ByKey, ByHash)):
            raise GraphError(f"{vertex!r} has no key", hint="Call key_by before it.", vertex=vertex.name)
        if isinstance(vertex.route, ByKey):
            reason = refuse_unhashable(returned(vertex.route.key))
            if reason:
                raise GraphError(
                    f"the key function of {vertex!r} is declared to return a type that cannot be a key: {reason}",
                    hint="Return text, a number, or a tuple of these.",
                    vertex=vertex.name,
                )
        if not barrier:
            raise GraphError(
                f"{vertex!r} repairs its output, and the barrier, which takes back what was wrong, is off",
                hint="Leave the barrier on.",
                vertex=vertex.name,
            )
    if isinstance(vertex, Grouping) and vertex.window < 1:
        raise GraphError(
            f"the window of {vertex!r} is {vertex.window}", hint="It must be at least 1.", vertex=vertex.name
        )
    if isinstance(vertex, Drift) and isinstance(vertex.initial, (list, dict, set, bytearray)):
        raise GraphError(
            f"the initial state of {vertex!r} is a {type(vertex.initial).__name__}, which can be changed in place",
            hint="Use an immutable value (number, text, tuple, frozen dataclass): a repair hands old states out again.",
            vertex=vertex.name,
        )
    if isinstance(vertex, (Source, Sink, Broadcast, Merge)) and vertex.route is not None:
        raise GraphError(f"{vertex!r} cannot have a route", hint="Route a map, grouping or reduce.", vertex=vertex.name)
