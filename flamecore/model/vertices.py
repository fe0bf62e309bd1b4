"""The vertices of a graph: the operations of the model (paper 004, section 2.5), and the routes of their input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

from flamecore.errors import GraphError
from flamecore.model.hashing import refuse_unhashable, stable_hash
from flamecore.model.types import returned

USABLE_KEYS: Final = "Use a tuple, or frozenset for a set; text, bytes and numbers are keys too."
"""The advice to whoever has a key that can be changed."""

Payload = Any
V = TypeVar("V", bound="Vertex")


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
    items come once (see `flamecore.runtime.operators.rebalance`)."""


@dataclass(frozen=True, slots=True)
class ToAll:
    """Copy every item to every worker; the copies get the workers' ordinals as child ids.

    The only route whose output depends on the number of workers: for what each worker must know.
    """


Route = ByKey | ByHash | ByTime | ToAll | None


class Drawing(Protocol):
    """The graph that a vertex draws its meaning into: `flamecore.model.graph.Graph`."""

    def add(self, vertex: V, /) -> V: ...

    def link(self, start: Vertex, end: Vertex, /) -> None: ...

    def chain(self, *vertices: Vertex) -> Vertex: ...


@dataclass(eq=False, slots=True)
class Vertex:
    """One operation of a graph. `name` is unique in the graph.

    Its class is a *kind*. Whatever another room must know of a kind, the class says here; how it is computed says the
    operator that stands beside it in a table (`flamecore.abc.operator`).

    Attributes:
        kind: Name of the kind, in pictures and in stored state.
        functions: Names of the fields that hold the user's functions; None in such a field: there is none.
        stateful: Whether an output depends on earlier items. Such a vertex needs a key, asks for it itself, and repairs
            its output, so it needs the barrier.
        appends: Whether each output appends a child id that no other output of the same item has. A cycle needs one
            such vertex, or two rounds of one item would have one identity.
    """

    kind: ClassVar[str] = "vertex"
    functions: ClassVar[tuple[str, ...]] = ()
    stateful: ClassVar[bool] = False
    appends: ClassVar[bool] = False

    name: str
    route: Route = None
    index: int = -1
    declared: str = field(default="", kw_only=True)
    """File and line of the flow's source that has added it; empty if that is not known."""

    @property
    def takes_back(self) -> bool:
        """Return whether it takes back some of what it has emitted although its items come in order."""
        return False

    @property
    def light(self) -> bool:
        """Whether an item costs it less than sending the item to another worker does."""
        return False

    @property
    def keeps_state(self) -> bool:
        """Whether a snapshot holds anything of it."""
        return self.stateful

    @property
    def state(self) -> Any:
        """Declared type of its states, as far as it is known; `object`: it is not."""
        return object

    @property
    def begins(self) -> Any:
        """Type of its states as their first one tells it, where none is declared; `object`: it does not tell."""
        return object

    @property
    def form(self) -> str:
        """How its states come about, in words; empty where the kind says it all.

        State of another form is gone on with if its values fit.
        """
        return ""

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        """Settings without which its stored state cannot be used: a flow that has others does not go on with it.

        `by` is what tells the entries of the state apart: "key" (the default), "hash", or "equality" (a hash and a
        rank).
        """
        return {}

    def check(self) -> None:
        """Find a setting that cannot work, as far as the vertex alone shows it.

        Raises:
            GraphError: Names the vertex.
        """

    def draw(self, graph: Drawing) -> tuple[Vertex, Vertex]:
        """Add what the vertex means to `graph`, in maps, broadcasts, merges and groupings.

        The reference interpreter computes the drawing, and holds the operator against it. A generic vertex means
        itself.

        Returns:
            The vertex where items enter the drawing, and the one where they leave it.
        """
        alone = graph.add(copy.copy(self))
        return alone, alone

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"


@dataclass(eq=False, slots=True, repr=False)
class Source(Vertex):
    """Where items enter. `type` is the declared type of payloads."""

    kind: ClassVar[str] = "source"

    type: Any = object


MapShape = Literal["many", "one", "filter", "inspect", "inspect_meta"]


@dataclass(eq=False, slots=True, repr=False)
class Map(Vertex):
    """From one payload to many. The i-th output appends child id i.

    `shape` says what `function` returns: "many" an iterable of outputs, "one" the only output, "filter" whether the
    payload itself goes on, "inspect" nothing (the payload goes on). With "inspect_meta" it takes the meta as well, and
    returns nothing.
    """

    kind: ClassVar[str] = "map"
    functions: ClassVar[tuple[str, ...]] = ("function",)
    appends: ClassVar[bool] = True

    function: Callable[..., Any] = field(kw_only=True)
    shape: MapShape = "many"


@dataclass(eq=False, slots=True, repr=False)
class Broadcast(Vertex):
    """Copies each item to all successors; the copy to the i-th (in the order of links) appends child id i.

    Attributes:
        resorted: Whether earlier versions linked the successors of this flow in another order, that of its lines.
    """

    kind: ClassVar[str] = "broadcast"

    resorted: bool = False


@dataclass(eq=False, slots=True, repr=False)
class Merge(Vertex):
    """Several inputs become one stream, ordered by meta like every stream. Nothing is added to the meta."""

    kind: ClassVar[str] = "merge"


@dataclass(eq=False, slots=True, repr=False)
class KeyedLoop(Merge):
    """The merge that a cycle goes back to whose items keep the key that they enter with.

    So what goes round one key never meets what goes round another, and each key group can be on the worker that owns
    it. No vertex inside has a route, unless it is by the same key.

    Attributes:
        key: The function that tells the key of what enters, and of what comes back.
    """

    kind: ClassVar[str] = "keyed_loop"

    key: Callable[[Payload], Any] = field(kw_only=True)


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

    kind: ClassVar[str] = "grouping"
    functions: ClassVar[tuple[str, ...]] = ("equal", "order")
    stateful: ClassVar[bool] = True

    window: int = field(kw_only=True)
    equal: Callable[[Payload, Payload], bool] | None = None
    order: Callable[[Payload], Any] | None = None
    undo_partial: bool = False

    @property
    def takes_back(self) -> bool:
        return self.undo_partial or self.order is not None

    @property
    def keeps_state(self) -> bool:
        return not self.undo_partial and self.window > 1

    @property
    def begins(self) -> Any:
        """Type of its states as their first one tells it, where none is declared; `object`: it does not tell."""
        return object

    @property
    def form(self) -> str:
        """How its states come about, in words; empty where the kind says it all.

        State of another form is gone on with if its values fit.
        """
        return ""

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        by = "key" if isinstance(self.route, ByKey) else "hash" if self.equal is None else "equality"
        return {"window": self.window, "by": by}

    def check(self) -> None:
        if self.window < 1:
            raise GraphError(
                f"the window of {self!r} is {self.window}", hint="It must be at least 1.", vertex=self.name
            )


@dataclass(eq=False, slots=True, repr=False)
class Sink(Vertex):
    """Where items leave, through the barrier. `type` is the type of payloads, as far as it is known."""

    kind: ClassVar[str] = "sink"

    type: Any = object


def complement(predicate: Callable[[Any], object]) -> Callable[[Any], bool]:
    """Return a predicate that holds of what another one does not, and says of which."""

    def holds(payload: Any) -> bool:
        return not predicate(payload)

    holds.complement_of = predicate  # type: ignore[attr-defined]  # a function takes any attribute
    return holds


def are_complements(one: Vertex, other: Vertex) -> bool:
    """Return whether one of two filters lets pass just what the other does not."""
    if not (isinstance(one, Map) and isinstance(other, Map) and one.shape == other.shape == "filter"):
        return False
    return one.route is other.route is None and getattr(other.function, "complement_of", None) is one.function


def user_functions(vertex: Vertex) -> Iterator[Callable[..., Any]]:
    """Return the functions that the user gave to a vertex: those of its kind, and that of its route."""
    yield from filter(None, (getattr(vertex, name) for name in vertex.functions))
    if isinstance(vertex.route, ByKey):
        yield vertex.route.key
    elif isinstance(vertex.route, ByHash):
        yield vertex.route.function


def note_declaration(error: GraphError, vertex: Vertex) -> GraphError:
    """Add to an error where the flow declares the vertex, and return it."""
    if vertex.declared:
        error.add_note(f"  declared  {vertex.declared}")
    return error


def user_name(function: Callable[..., Any]) -> str | None:
    """Return what the user calls a function; None of one that the engine has made of none of the user's."""
    own: Any = function
    while hasattr(own, "user_function"):
        own = own.user_function
    if str(getattr(own, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]:
        return None
    return getattr(own, "__qualname__", None) or repr(own)


def is_local(function: Callable[..., Any]) -> bool:
    """Whether a function has no name it could be imported by: a lambda, or one defined inside another."""
    name = getattr(function, "__qualname__", "")
    return "<lambda>" in name or "<locals>" in name


def check_settings(vertex: Vertex, *, barrier: bool) -> None:
    """Find what one vertex says that cannot work.

    Raises:
        GraphError: Names the vertex.
    """
    if vertex.stateful:
        if not isinstance(vertex.route, (ByKey, ByHash)):
            raise GraphError(f"{vertex!r} has no key", hint="Call key_by before it.", vertex=vertex.name)
        if isinstance(vertex.route, ByKey):
            reason = refuse_unhashable(returned(vertex.route.key))
            if reason:
                raise GraphError(
                    f"the key function of {vertex!r} is declared to return a type that cannot be a key: {reason}",
                    hint=USABLE_KEYS,
                    vertex=vertex.name,
                )
        if not barrier:
            raise GraphError(
                f"{vertex!r} repairs its output, and the barrier, which takes back what was wrong, is off",
                hint="Leave the barrier on.",
                vertex=vertex.name,
            )
    if isinstance(vertex, (Source, Sink, Broadcast, Merge)) and vertex.route is not None:
        raise GraphError(f"{vertex!r} cannot have a route", hint="Route a map, grouping or reduce.", vertex=vertex.name)
    vertex.check()
