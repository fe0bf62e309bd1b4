"""The vertices of a graph, and the routes of their input (paper 004, section 2.5)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeVar

from flamecore.errors import FlameError, GraphError
from flamecore.model.hashing import refuse_unhashable, stable_hash
from flamecore.model.types import returned

USABLE_KEYS: Final = "Use a tuple, or frozenset for a set; text, bytes and numbers are keys too."
"""The hint for mutable keys."""

Payload = Any
V = TypeVar("V", bound="Vertex")
E = TypeVar("E", bound=FlameError)


@dataclass(frozen=True, slots=True)
class ByKey:
    """A route by the hash of a key; equal keys meet on one worker.

    Attributes:
        key: The key function; it must be deterministic.
        place: Function from a key to what is hashed in place of it; None: the key itself is. Keys of one place are on
            one worker, whatever else is in them.
    """

    key: Callable[[Payload], Any]
    place: Callable[[Any], Any] | None = None

    @property
    def placed(self) -> Callable[[Payload], Any]:
        """Return the function from payloads to what is hashed."""
        if self.place is None:
            return self.key
        key, place = self.key, self.place
        return lambda payload: place(key(payload))

    def hash(self, payload: Payload) -> int:
        return stable_hash(self.placed(payload))

    def leads_as(self, other: ByKey) -> bool:
        """Return whether both lead to the owner of the same key, by the same functions."""
        return self.key is other.key and self.place is other.place


@dataclass(frozen=True, slots=True)
class ByHash:
    """A route by the paper's balancing function, from payload to signed 32-bit number."""

    function: Callable[[Payload], int]

    @property
    def placed(self) -> Callable[[Payload], Any]:
        """Return the function from payloads to what is shared out, as that of `ByKey`."""
        return self.function

    def hash(self, payload: Payload) -> int:
        return self.function(payload)


@dataclass(frozen=True, slots=True)
class ByTime:
    """A route that spreads items over the workers, for stateless work.

    It goes by their global time, or by the load of the workers if items come once (see
    `flamecore.runtime.operators.rebalance`).
    """


@dataclass(frozen=True, slots=True)
class ToAll:
    """A route that copies every item to every worker.

    The copies get the numbers of the workers as child ids. It is the only route whose output depends on the number of
    workers, for facts that each worker must know.
    """


Route = ByKey | ByHash | ByTime | ToAll | None


class Drawing(Protocol):
    """The graph that a vertex draws its meaning into: `flamecore.model.graph.Graph`."""

    def add(self, vertex: V, /) -> V: ...

    def link(self, start: Vertex, end: Vertex, /) -> None: ...

    def chain(self, *vertices: Vertex) -> Vertex: ...


# A plain record, not an operator: pictures, checks and the reference interpreter read it, too, and
# it is the same in every process.
@dataclass(eq=False, slots=True)
class Vertex:
    """One operation of a graph. `name` is unique in the graph.

    Its class is a *kind*. The class holds all facts of the kind that other rooms need; the operator beside it in a
    table computes it (`flamecore.abc.operator`).

    Attributes:
        kind: Name of the kind, in pictures and in stored state.
        functions: Names of the fields that hold the user's functions; such a field may be None.
        stateful: Whether an output depends on earlier items. Such a vertex needs a key, calls the key function itself,
            and repairs its output, so it needs the barrier.
        appends: Whether each output appends a child id that no other output of the same item has. A cycle needs one
            such vertex, or two rounds of one item would have one identity.
        ordered: Whether it takes items in order only, each in its only version. Such a vertex is stateful, repairs
            nothing, and cannot be in a cycle.
        timers: Whether it waits for times at which nothing may come.
        wall: Whether its times have to be those of the wall clock.
        marks: Whether it says marks of the records of a source (see `flamecore.model.ordered`).
    """

    kind: ClassVar[str] = "vertex"
    functions: ClassVar[tuple[str, ...]] = ()
    stateful: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    timers: ClassVar[bool] = False
    wall: ClassVar[bool] = False
    marks: ClassVar[bool] = False
    appends: ClassVar[bool] = False

    name: str
    route: Route = None
    index: int = -1
    declared: str = field(default="", kw_only=True)
    """File and line of the flow's source that added it; empty if not known."""

    @property
    def takes_back(self) -> bool:
        """Return whether it may retract outputs even if its items come in order."""
        return False

    @property
    def light(self) -> bool:
        """Return whether an item costs it less than sending the item to another worker."""
        return False

    @property
    def keeps_state(self) -> bool:
        """Return whether it has state in snapshots."""
        return self.stateful

    @property
    def state(self) -> object:
        """Return the declared type of its states; `object` if not known."""
        return object

    @property
    def begins(self) -> object:
        """Return the type of its initial states, if none is declared; `object`: unknown."""
        return object

    def shown(self, payload: object) -> object:
        """Return the part of a payload that errors show.

        A function that stands for a user's, and takes more than this, has an attribute `shown` that returns it.
        """
        for name in self.functions:
            if (shown := getattr(getattr(self, name), "shown", None)) is not None:
                return shown(payload)
        return payload

    def state_shown(self, stored: Any) -> Any:
        """Return the state of a key for people, given what is stored of it.

        A plain value: mappings with names in the place of fields of the engine, times as text. By default it is what is
        stored.
        """
        return stored

    @property
    def types(self) -> tuple[Any, ...]:
        """Return types of states and outputs that no hint of its functions names."""
        return ()

    @property
    def form(self) -> str:
        """Return how its states are made; empty if the kind determines it.

        A flow may continue with state of another form if its values fit.
        """
        return ""

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        """Return the settings on which its stored state depends.

        A flow with other settings cannot use the state. `by` is what tells the entries of the state apart: "key" (the
        default), "hash", or "equality" (a hash and a rank).
        """
        return {}

    def check(self) -> None:
        """Refuse settings that cannot work, as far as the vertex alone shows it.

        Raises:
            GraphError: The text names the vertex.
        """

    def draw(self, graph: Drawing) -> tuple[Vertex, Vertex]:
        """Draw the meaning of the vertex into `graph`; a generic vertex means itself.

        The drawing has maps, broadcasts, merges and groupings only. The reference interpreter computes it, and compares
        the operator with it.

        Returns:
            The vertex by which items enter the drawing, and the one by which they leave it.
        """
        # A copy: a vertex is in one graph only, which sets its index.
        alone = graph.add(copy.copy(self))
        return alone, alone

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"


@dataclass(eq=False, slots=True, repr=False)
class Source(Vertex):
    """The entry of items; `type` is the declared type of payloads."""

    kind: ClassVar[str] = "source"

    type: Any = object


MapShape = Literal["many", "one", "timed", "filter", "inspect", "inspect_meta"]


@dataclass(eq=False, slots=True, repr=False)
class Map(Vertex):
    """A function from one payload to many; the i-th output appends child id i.

    `shape` is the kind of result of `function`: "many" an iterable of outputs, "one" the only output, "filter" whether
    to pass on the payload itself, "inspect" nothing (the payload is passed on). With "timed" it takes the global time
    as well, and returns the only output; with "inspect_meta" it takes the meta as well, and returns nothing.

    Attributes:
        picks: Name of the outputs that it picks from those of the operation before, for errors: "the panes of 'sum'".
            Empty unless it was drawn together with that operation.
    """

    kind: ClassVar[str] = "map"
    functions: ClassVar[tuple[str, ...]] = ("function",)
    appends: ClassVar[bool] = True

    function: Callable[..., Any] = field(kw_only=True)
    shape: MapShape = "many"
    picks: str = field(default="", kw_only=True)


@dataclass(eq=False, slots=True, repr=False)
class Placing(Map):
    """A vertex that deals records to workers by a key of theirs; it passes them on.

    Items made of a record stay on its worker up to the next route. If that route gives the places of its keys
    (`ByKey.place`), they stay there, too: each of these places must be the place of the record
    (`flamecore.model.graph.Graph.placing_of`).
    """

    kind: ClassVar[str] = "place_by"

    def check(self) -> None:
        if not isinstance(self.route, ByKey) or self.route.place is not None:
            raise GraphError(
                f"{self!r} has no key of records", hint="Draw it with place_by(function).", vertex=self.name
            )


@dataclass(eq=False, slots=True, repr=False)
class Broadcast(Vertex):
    """A copy of each item to all successors.

    The copy to the i-th, in the order of links, appends child id i.
    """

    kind: ClassVar[str] = "broadcast"


@dataclass(eq=False, slots=True, repr=False)
class Merge(Vertex):
    """A merge of several inputs into one stream, ordered by meta like every stream.

    It adds nothing to the meta.
    """

    kind: ClassVar[str] = "merge"


@dataclass(eq=False, slots=True, repr=False)
class KeyedLoop(Merge):
    """The merge at the head of a cycle whose items keep the key they enter with.

    So items of different keys never meet in the cycle, and each key group can be on the worker that owns it. No vertex
    inside has a route, unless it is by the same key.

    Attributes:
        key: Function that returns the key of items that enter or come back.
        place: Function that returns the place of a key (`ByKey.place`).
    """

    kind: ClassVar[str] = "keyed_loop"

    key: Callable[[Payload], Any] = field(kw_only=True)
    place: Callable[[Any], Any] | None = None


def payloads_of(stored: Iterable[tuple[Any, ...]]) -> tuple[Payload, ...]:
    """Return the payloads of what is stored of a bucket of a grouping."""
    return tuple([entry[-1] for entry in stored])


@dataclass(eq=False, slots=True, repr=False)
class Grouping(Vertex):
    """The only operation that keeps state: windows of consecutive items of a bucket.

    The route separates buckets: by a key (`ByKey`), or by a hash and `equal` (`ByHash`), which is called only for
    payloads of equal hash and must imply it.

    Attributes:
        window: Number of items in a full window, at least 1.
        equal: With `ByHash`: whether two payloads belong to one bucket. Default: equal hashes are enough.
        order: Optional sort key of payloads: orders items of one global time inside a bucket before their meta does.
        undo_partial: While a bucket is smaller than the window its content is one provisional result, retracted when
            the next item comes. A result can only be retracted by its own record, so buckets are then kept for each
            record (global time) apart: this collects the items of one record, for example to rejoin its parts.
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
    def begins(self) -> object:
        """Return `object`: the type of its initial states is not known."""
        return object

    @property
    def form(self) -> str:
        """Return an empty text: the kind determines how its states are made."""
        return ""

    def state_shown(self, stored: Any) -> tuple[Payload, ...]:
        """Return the payloads that the next windows begin with, oldest first."""
        return payloads_of(stored)

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
class Label(Vertex):
    """A vertex whose items tie together all that comes of each of them.

    Its output appends a child id of its own (`flamecore.model.meta.label_code`). So the order of whatever comes of an
    item, through any operations, routes, states and cycles, begins with that of the labelled item, and items carry
    nothing more.

    Attributes:
        number: Number of the label in its flow.
    """

    kind: ClassVar[str] = "label"
    appends: ClassVar[bool] = True

    number: int = field(kw_only=True)


class Labelled(NamedTuple):
    """An item with its label.

    Attributes:
        label: The order of the labelled item.
        payload: The payload of the item.
        ends: Whether the item is the labelled one itself, behind all that comes of it.
    """

    label: bytes
    payload: Any
    ends: bool = False


def label_key(item: Labelled) -> bytes:
    """Return the label, as a key."""
    return item.label


@dataclass(eq=False, slots=True, repr=False)
class WithLabel(Vertex):
    """A vertex that pairs each item with the label it derives from, a `Labelled`.

    Attributes:
        label: Name of the label.
        number: Number of the label in its flow.
        ends: Whether its items are the labelled ones.
    """

    kind: ClassVar[str] = "with_label"

    label: str = field(kw_only=True)
    number: int = field(kw_only=True)
    ends: bool = False

    @property
    def types(self) -> tuple[Any, ...]:
        return (Labelled,)

    def no_label(self) -> str:
        """Return why an item fails that derives from no labelled one."""
        return (
            f"it is derived from no item with the label {self.label!r}: leave such items out before, or label them, too"
        )


@dataclass(eq=False, slots=True, repr=False)
class Sink(Vertex):
    """The exit of items, through the barrier.

    Attributes:
        type: The type of payloads, if known.
        retracts: Whether payloads may take earlier ones back, which the sink's driver has to allow.
    """

    kind: ClassVar[str] = "sink"

    type: Any = object
    retracts: bool = field(default=False, kw_only=True)


def complement(predicate: Callable[[Any], object]) -> Callable[[object], bool]:
    """Return the negation of a predicate, marked with the predicate.

    An item that the predicate fails on does not pass: the filter by the predicate reports it.
    """

    def holds(payload: object) -> bool:
        try:
            return not predicate(payload)
        except Exception:  # noqa: BLE001 - reported once
            return False

    holds.complement_of = predicate  # type: ignore[attr-defined]  # a function takes any attribute
    return holds


def are_complements(one: Vertex, other: Vertex) -> bool:
    """Return whether one of two filters passes just the items that the other drops."""
    if not (isinstance(one, Map) and isinstance(other, Map) and one.shape == other.shape == "filter"):
        return False
    return one.route is other.route is None and getattr(other.function, "complement_of", None) is one.function


def user_functions(vertex: Vertex) -> Iterator[Callable[..., object]]:
    """Yield the user's functions of a vertex: those of its kind, and of its route."""
    yield from filter(None, (getattr(vertex, name) for name in vertex.functions))
    if isinstance(vertex.route, ByKey):
        yield from filter(None, (vertex.route.key, vertex.route.place))
    elif isinstance(vertex.route, ByHash):
        yield vertex.route.function


def note_declaration(error: E, vertex: Vertex) -> E:
    """Add the place where the flow declares the vertex to an error; return the error."""
    if vertex.declared:
        error.add_note(f"  declared  {vertex.declared}")
    return error


def user_name(function: Callable[..., object]) -> str | None:
    """Return the user's name of a function; None for functions of the engine."""
    own: object = function
    while hasattr(own, "user_function"):
        own = own.user_function
    if str(getattr(own, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]:
        return None
    return getattr(own, "__qualname__", None) or repr(own)


def is_local(function: Callable[..., object]) -> bool:
    """Return whether a function cannot be imported: a lambda, or a nested function."""
    name = getattr(function, "__qualname__", "")
    return "<lambda>" in name or "<locals>" in name


def check_settings(vertex: Vertex, *, barrier: bool) -> None:
    """Refuse settings of one vertex that cannot work.

    Raises:
        GraphError: The text names the vertex.
    """
    if vertex.stateful:
        if not isinstance(vertex.route, (ByKey, ByHash)):
            raise GraphError(f"{vertex!r} has no key", hint="Call key_by before it.", vertex=vertex.name)
        if isinstance(vertex.route, ByKey):
            for function in filter(None, (vertex.route.key, vertex.route.place)):
                if reason := refuse_unhashable(returned(function)):
                    raise GraphError(
                        f"the key function of {vertex!r} is declared to return a type that cannot be a key: {reason}",
                        hint=USABLE_KEYS,
                        vertex=vertex.name,
                    )
        if not barrier:
            why = "repairs its output, and the barrier, which retracts wrong outputs, is off"
            if vertex.ordered:
                why = "waits for the minimum time, and the barrier, which does so, too, is off"
            raise GraphError(
                f"{vertex!r} {why}",
                hint="Leave the barrier on.",
                vertex=vertex.name,
            )
    if isinstance(vertex, (Source, Sink, Broadcast, Merge)) and vertex.route is not None:
        raise GraphError(f"{vertex!r} cannot have a route", hint="Route a map, grouping or reduce.", vertex=vertex.name)
    vertex.check()
