"""Streams, with which a user builds a flow.

A `Stream[T]` is the output of a vertex; each method adds a vertex and returns the stream of its outputs. Using a stream
twice copies it to both uses. If the copies meet again, in a `merge`, they come in the order of its inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from flamecore.errors import GraphError
from flamecore.model.builder import GraphBuilder, Output, is_whole, require, require_name, same
from flamecore.model.drift import MISSING, Drift, DriftTypes, one_more
from flamecore.model.failure import all_shown_at_caller
from flamecore.model.hashing import refuse_unhashable
from flamecore.model.meta import Meta
from flamecore.model.ordered import Gather, Gathered
from flamecore.model.types import element, returned
from flamecore.model.vertices import (
    USABLE_KEYS,
    Broadcast,
    ByKey,
    ByTime,
    Grouping,
    KeyedLoop,
    Label,
    Labelled,
    Map,
    Merge,
    Placing,
    Route,
    Sink,
    Vertex,
    WithLabel,
    complement,
    label_key,
)

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
A = TypeVar("A")
S = TypeVar("S")
R = TypeVar("R")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


@all_shown_at_caller
class Stream(Generic[T]):
    """The output of one vertex: an ordered sequence of payloads of type T.

    Every method that adds a vertex takes `name`: its name in errors, figures and pictures, by which its state is found
    when the flow has changed. By default that is its kind and the name of the function.
    """

    def __init__(
        self, flow: GraphBuilder, vertex: Vertex, declared: Any = object, route: Route = None, copy: int = 0
    ) -> None:
        self._flow = flow
        self._vertex = vertex
        self._type: Any = declared
        self._route = route
        self._output = Output(vertex, copy)

    def _placed(self) -> Output:
        """Return this output, with the route as a step of its own if there is one.

        For a next vertex that cannot take the route itself.
        """
        if self._route is None:
            return self._output
        name = self._flow._name(None, "rebalance")
        step = Map(name, route=self._route, function=same, shape="one")
        self._flow._add(step, self._output)
        return Output(step)

    def _then(self, vertex: Vertex, declared: object = object) -> Stream[Any]:
        self._flow._add(vertex, self._output)
        return Stream(self._flow, vertex, declared)

    def _routed(self, route: Route) -> Stream[T]:
        """Return the same output with a route to workers."""
        # No vertex for a route: the next operation takes it, and only one that cannot gets a step
        # for it.
        return Stream(self._flow, self._vertex, self._type, route, self._output.copy)

    def _map(
        self, kind: str, name: str | None, function: Callable[..., object], shape: Any, declared: object
    ) -> Stream[Any]:
        require_functions(kind, self._vertex, function, generators=shape == "many")
        vertex = Map(self._flow._name(name, kind, function), route=self._route, function=function, shape=shape)
        return self._then(vertex, declared)

    def map(self, function: Callable[[T], U], *, name: str | None = None) -> Stream[U]:
        """Return a stream with one output for each item.

        `function` must be deterministic and change nothing: repairs run it again.
        """
        return self._map("map", name, function, "one", returned(function))

    def flat_map(self, function: Callable[[T], Iterable[U]], *, name: str | None = None) -> Stream[U]:
        """Return a stream with any number of outputs for each item.

        They keep the order in which `function` gives them.
        """
        return self._map("flat_map", name, function, "many", element(returned(function)))

    def filter(self, predicate: Callable[[T], object], *, name: str | None = None) -> Stream[T]:
        """Return the stream of the items for which `predicate` is true."""
        return self._map("filter", name, predicate, "filter", self._type)

    @overload
    def inspect(self, function: Callable[[T], object], *, name: str | None = None) -> Stream[T]: ...
    @overload
    def inspect(
        self, function: Callable[[T, Meta], object], *, meta: Literal[True], name: str | None = None
    ) -> Stream[T]: ...
    def inspect(self, function: Callable[..., object], *, meta: bool = False, name: str | None = None) -> Stream[T]:
        """Call `function` with each item, and pass the item on.

        For debugging: it also sees guesses that are retracted later, and their tombstones.

        Args:
            function: Function of the payload; with `meta` also of the `flamecore.Meta`, which tells a tombstone from
                the item that it cancels. The trace of a meta differs in every run.
            meta: Whether `function` takes the meta, too.
            name: Name of the operation.
        """
        return self._map("inspect", name, function, "inspect_meta" if meta else "inspect", self._type)

    def rebalance(self) -> Stream[T]:
        """Spread the items over all workers, for costly stateless work.

        All workers get the same share; straight behind the sources, busier workers get less.
        """
        return self._routed(ByTime())

    def place_by(self, function: Callable[[T], Any], *, name: str | None = None) -> Stream[T]:
        """Deal records to the workers by a key; items made of them stay there.

        A `key_by` behind it that says the `place` of its keys then sends nothing between workers, if only maps,
        filters, branches, broadcasts and labels are between. Each key made of a record must have the record's place.

        Args:
            function: A deterministic function to the record's place, a value that could be a key.
            name: Name of the operation.
        """
        require_functions("place_by", self._vertex, function)
        _require_keys("place_by", self._vertex, function)
        called = self._flow._name(name, "place_by", function)
        return self._then(Placing(called, route=ByKey(function), function=same, shape="one"), self._type)

    def key_by(
        self, key: Callable[[T], K], *, place: Callable[[K], Any] | None = None, label: str | None = None
    ) -> KeyedStream[K, T]:
        """Give each item a key; items of equal key meet on one worker, in order.

        Args:
            key: A deterministic function to text, bytes, numbers, dates, enums, or tuples and frozen dataclasses of
                these.
            place: A deterministic function from a key to its place: keys of one place are on one worker. Behind
                `place_by` the place must be that of the record of which the item is made; else the item fails. Default:
                each key is a place of its own.
            label: Name of a label that is drawn before: state is kept for each key of each labelled item apart, and
                dropped when nothing more comes of that.
        """
        return KeyedStream(self, key, place) if label is None else _LabelledKeys(self, key, place, label)

    def branch(self, *predicates: Callable[[T], object], name: str | None = None) -> tuple[Stream[T], ...]:
        """Return one stream for each predicate, and one for the rest.

        An item goes to the first predicate that is true. If a predicate fails on it, it goes nowhere, and fails once.
        """
        require_functions("branch", self._vertex, *predicates)
        base = self._flow._name(name, "branch")

        def goes(way: int) -> Callable[[T], object]:
            # Nearly all branches have one predicate: asked as it is, it costs no generator and no comparison, and the
            # compiler sees that the two ways are complements.
            if len(predicates) == 1:
                return complement(predicates[0]) if way else predicates[0]
            return _of_user(_way_of(predicates, way), *predicates[way : way + 1])

        return tuple(self.filter(goes(way), name=f"{base}.{way}") for way in range(len(predicates) + 1))

    def broadcast(self, count: int, *, name: str | None = None) -> tuple[Stream[T], ...]:
        """Copy the stream; return `count` copies.

        The i-th copy of an item sorts before the (i+1)-th and before the next item. The places in the tuple count,
        wherever and in whatever order the copies are used. An unused copy is not made.
        """
        require("broadcast", self._vertex, "count", count, fits=is_whole(count), expected="a whole number")
        fork = Broadcast(self._flow._name(name, "broadcast"))
        self._flow._add(fork, self._placed())
        return tuple(Stream(self._flow, fork, self._type, copy=place) for place in range(count))

    def merge(self, *others: Stream[Any], name: str | None = None) -> Stream[Any]:
        """Merge streams in the order of metas: by global time, not by arrival.

        Copies of one item come in the order of the inputs by which they come; those of `broadcast` in that of its
        tuple.
        """
        for other in others:
            fits = isinstance(other, Stream)
            require("merge", self._vertex, "a stream", other, fits=fits, expected="a stream, and before any key_by")
        vertex = Merge(self._flow._name(name, "merge"))
        _require_one_flow(vertex, self, *others)
        self._flow._add(vertex, self._placed(), *(other._placed() for other in others))
        return Stream(self._flow, vertex, self._type)

    def loop(self, body: Callable[[Stream[T]], tuple[Stream[T], Stream[U]]], *, name: str | None = None) -> Stream[U]:
        """Add a cycle; with keyed state it runs on one worker, its home.

        If each item keeps its key, use `KeyedStream.loop`.

        Args:
            body: Function from the stream inside the cycle (items that enter or come back) to two streams: items that
                go round again, and items that leave.
            name: Name of the cycle.

        Returns:
            The stream that leaves.
        """
        require_functions("loop", self._vertex, body)
        # A merge: what enters, and what comes back.
        head = Merge(self._flow._name(name, "loop"))
        self._flow._add(head, self._placed())
        return _closed(head, self, body(Stream(self._flow, head, self._type)))

    def label(self, name: str) -> Stream[T]:
        """Label each item: all that comes of it belongs together until a `gather`.

        Operations, routes, states and cycles between change nothing about that. Inside of a loop an item that comes
        round is labelled again; what comes of it belongs to the later label.

        Args:
            name: Name of the label, unique in the flow.
        """
        require_name("label", name)
        return Stream(self._flow, self._flow._add_label(name, self._route, self._output), self._type)

    def gather(self, label: str, *, name: str | None = None) -> Stream[Gathered[Any, T]]:
        """Return for each labelled item, once, all items here derived from it, in order.

        It comes when nothing more will, behind the last of them; without parts if there are none. Items that come of no
        labelled one fail.

        Args:
            label: Name of the label, which is drawn before.
            name: Name of the operation.
        """
        flow = self._flow
        start = flow._label_before(label, "gather", self._vertex)
        called = flow._name(name, f"gather:{label}")
        parts = self._with_label(start, label, f"{called}.parts")
        # Behind all other uses of the label, so that the labelled item comes behind what has come of it.
        alone: Stream[Any] = Stream(flow, start, copy=1)
        ends = alone._with_label(start, label, f"{called}.end", ends=True)
        both = parts.merge(ends, name=f"{called}.both")
        return both.key_by(label_key).apply(Gather, name=called, type=Gathered)

    def _with_label(self, label: Label, called: str, name: str, *, ends: bool = False) -> Stream[Any]:
        vertex = WithLabel(name, route=self._route, label=called, number=label.number, ends=ends)
        return self._then(vertex, Labelled)

    def apply(self, kind: type[Vertex], *, name: str | None = None, type: Any = object, **settings: Any) -> Stream[Any]:
        """Apply an operation that has no method here, such as one of a plugin.

        Args:
            kind: Class of its vertex. A stateful one uses the key of the stream: call `key_by` before.
            name: Name of the operation.
            type: Type of the outputs, if known.
            settings: Fields of the vertex.

        Raises:
            GraphError: A setting is unknown, or one is missing.
        """
        fits = inspect.isclass(kind) and issubclass(kind, Vertex)
        require("apply", self._vertex, "kind", kind, fits=fits, expected="a class of vertices")
        try:
            vertex = kind(self._flow._name(name, kind.kind), route=self._route, **settings)
        except TypeError as error:
            raise GraphError(f"{kind.kind} after {self._vertex.name!r}: {error}", vertex=self._vertex.name) from error
        return self._then(vertex, type)

    def through(self, function: Callable[Concatenate[Self, P], R], *args: P.args, **settings: P.kwargs) -> R:
        """Return `function(self, …)`, to chain functions with a stream's operations.

        >>> flow.source("lines", str).through(words, least=3).sink("words")  # doctest: +SKIP
        """
        return function(self, *args, **settings)

    def sink(self, name: str) -> None:
        """End the stream in a sink, which gets each item once, in order.

        Configuration and `run` refer to the name.
        """
        require_name("sink", name)
        self._flow._add(Sink(name, type=self._type), self._placed())

    if not TYPE_CHECKING:  # a type checker must not see further attributes

        def __getattr__(self, name: str) -> Any:
            raise no_method(self, name, (dir(KeyedStream), "Give its items a key first: .key_by(function).{name}(…)"))


@all_shown_at_caller
class KeyedStream(Generic[K, T]):
    """A stream whose items have keys. State is kept for each key."""

    def __init__(self, stream: Stream[T], key: Callable[[T], K], place: Callable[[K], Any] | None = None) -> None:
        require_functions("key_by", stream._vertex, key)
        _require_keys("key_by", stream._vertex, key)
        if place is not None:
            require_functions("key_by(place=…)", stream._vertex, place)
            _require_keys("key_by(place=…)", stream._vertex, place)
        self._stream = stream
        self._key = key
        self._place = place
        self._route = ByKey(key, place)

    if not TYPE_CHECKING:  # a type checker is to know of no further attributes

        def __getattr__(self, name: str) -> Any:
            raise no_method(self, name, (dir(Stream), ONE_KEY if name == "key_by" else BEFORE_KEYS))

    def _drift(
        self,
        kind: str,
        name: str | None,
        function: object,
        advance: Callable[[Any, Any], tuple[object, Iterable[object]]],
        initial: object,
        accumulate: Callable[[Any, Any], object] | None,
        declared: object,
        state: object,
        *,
        light: bool = False,
        output: object = object,
    ) -> Stream[Any]:
        vertex = Drift(
            self._stream._flow._name(name, kind, function),
            route=self._route,
            advance=advance,
            initial=initial,
            accumulate=accumulate,
            types=DriftTypes(state, output, self._stream._type),
            light=light,
            method=kind,
        )
        return self._stream._then(vertex, declared)

    def map(self, function: Callable[[T], U], *, name: str | None = None) -> Stream[U]:
        """Apply `Stream.map` on the worker that owns the key."""
        return self._keyed().map(function, name=name)

    def flat_map(self, function: Callable[[T], Iterable[U]], *, name: str | None = None) -> Stream[U]:
        """Apply `Stream.flat_map` on the worker that owns the key."""
        return self._keyed().flat_map(function, name=name)

    def through(self, function: Callable[Concatenate[Self, P], R], *args: P.args, **settings: P.kwargs) -> R:
        """Return `function(self, …)`, as `Stream.through` does."""
        return function(self, *args, **settings)

    def apply(self, kind: type[Vertex], *, name: str | None = None, type: Any = object, **settings: Any) -> Stream[Any]:
        """Apply `Stream.apply` on the worker that owns the key.

        A stateful operation keeps state for each key.
        """
        return self._keyed().apply(kind, name=name, type=type, **settings)

    def _keyed(self) -> Stream[T]:
        return self._stream._routed(self._route)

    def loop(
        self, body: Callable[[KeyedStream[K, T]], tuple[Stream[T], Stream[U]]], *, name: str | None = None
    ) -> Stream[U]:
        """Add a cycle in which each item keeps its key, shared by all workers.

        Each worker has the keys that it owns. No operation inside may lead to another key. If items change their keys,
        use `Stream.loop`, before `key_by`.

        Args:
            body: Function from the stream inside the cycle, by the same key, to two streams: items that go round again,
                which must have the key with which they entered, and items that leave.
            name: Name of the cycle.

        Returns:
            The stream that leaves.
        """
        stream, flow = self._stream, self._stream._flow
        require_functions("loop", stream._vertex, body)
        called = flow._name(name, "loop")
        entry, head = (
            Map(f"{called}.key", route=self._route, function=same, shape="one"),
            KeyedLoop(called, key=self._key, place=self._place),
        )
        flow._add(entry, stream._output)
        flow._add(head, Output(entry))
        return _closed(head, stream, body(KeyedStream(Stream(flow, head, stream._type), self._key, self._place)))

    def group(
        self,
        window: int,
        *,
        order: Callable[[T], Any] | None = None,
        undo_partial: bool = False,
        name: str | None = None,
    ) -> Stream[tuple[T, ...]]:
        """Return for each item the last `window` items of its key up to it.

        At the start there are fewer.

        Args:
            window: Size of a full window, at least 1.
            order: Sort key: items of one global time are ordered by it before their place in the stream.
            undo_partial: Group the items of each record apart: below a full window there is one result, of all items so
                far, replaced as more come; windows do not reach over records.
            name: Name of the operation.
        """
        require("group", self._stream._vertex, "window", window, fits=is_whole(window), expected="a whole number")
        if order is not None:
            require_functions("group(order=…)", self._stream._vertex, order)
        vertex = Grouping(
            self._stream._flow._name(name, "group"),
            route=self._route,
            window=window,
            order=order,
            undo_partial=undo_partial,
        )
        return self._stream._then(vertex, GenericAlias(tuple, (self._stream._type, ...)))

    def reduce(self, function: Callable[[T, T], T], *, name: str | None = None) -> Stream[tuple[K, T]]:
        """Combine the items of each key one by one; emit each update, (key, value).

        Args:
            function: (value, item) → new value. It must not change its arguments.
            name: Name of the operation.
        """
        require_functions("reduce", self._stream._vertex, function)

        def accumulate(state: Any, item: T) -> Any:
            return item if state is MISSING else function(state, item)

        _of_user(accumulate, function)
        return self._accumulate("reduce", name, function, accumulate, MISSING, self._stream._type, returned(function))

    def fold(self, initial: A, function: Callable[[A, T], A], *, name: str | None = None) -> Stream[tuple[K, A]]:
        """Fold the items of each key into a state; emit each update, (key, state).

        Args:
            initial: State before the first item of a key: an immutable value. A key with a state of the same bytes has
                none: it is not stored, and its next item is its first one.
            function: (state, item) → new state. It must not change its argument.
            name: Name of the operation.
        """
        if callable(initial) and not callable(function):
            raise GraphError(
                f"fold after {self._stream._vertex.name!r} takes the initial state first, and then the function",
                hint=f"Write fold({function!r}, function).",
                vertex=self._stream._vertex.name,
            )
        require_functions("fold", self._stream._vertex, function)
        hint = returned(function)
        declared = type(initial) if hint is object else hint
        return self._accumulate("fold", name, function, function, initial, declared, hint)

    def count(self, *, name: str | None = None) -> Stream[tuple[K, int]]:
        """Count the items of each key; emit each update, (key, count)."""
        return self._accumulate("count", name, None, one_more, 0, int, int, light=True)

    def _accumulate(
        self,
        kind: str,
        name: str | None,
        function: object,
        accumulate: Callable[[Any, Any], object],
        initial: object,
        declared: object,
        state: object,
        *,
        light: bool = False,
    ) -> Stream[Any]:
        key = self._key

        def advance(state: Any, item: Any) -> tuple[Any, tuple[tuple[Any, Any]]]:
            after = accumulate(state, item)
            return after, ((key(item), after),)

        if function is not None:
            _of_user(advance, function)
        pair = GenericAlias(tuple, (returned(key), declared))
        return self._drift(kind, name, function, advance, initial, accumulate, pair, state, light=light)

    def stateful_map(
        self, initial: S, function: Callable[[S, T], tuple[S, Iterable[U]]], *, name: str | None = None
    ) -> Stream[U]:
        """Apply a function with a state for each key, and any number of outputs.

        Args:
            initial: State before the first item of a key: an immutable value. A key with a state of the same bytes has
                none: it is not stored, and its next item is its first one.
            function: (state, item) → (new state, outputs in order). It must not change its argument.
            name: Name of the operation.
        """
        require_functions("stateful_map", self._stream._vertex, function)
        hint = returned(function)
        arguments: tuple[Any, ...] = getattr(hint, "__args__", ())
        state, outputs = (arguments[0], element(arguments[1])) if len(arguments) == 2 else (object, object)
        return self._drift("stateful_map", name, function, function, initial, None, outputs, state, output=outputs)


class _LabelledKeys(KeyedStream[K, T]):
    """A stream whose items have keys, with state for each key of each labelled item."""

    def __init__(self, stream: Stream[T], key: Callable[[T], K], place: Callable[[K], Any] | None, label: str) -> None:
        super().__init__(stream, key, place)
        self._label = label
        self._start = stream._flow._label_before(label, "key_by", stream._vertex)

    def _drift(
        self,
        kind: str,
        name: str | None,
        function: object,
        advance: Callable[[Any, Any], tuple[object, Iterable[object]]],
        initial: object,
        accumulate: Callable[[Any, Any], object] | None,
        declared: object,
        state: object,
        *,
        light: bool = False,
        output: object = object,
    ) -> Stream[Any]:
        key, place = self._key, self._place

        def key_of(item: Labelled) -> tuple[bytes, Any]:
            return item.label, key(item.payload)

        def advance_label(state: Any, item: Labelled) -> tuple[Any, Iterable[Any]]:
            return advance(state, item.payload)

        def place_of(key: tuple[bytes, Any]) -> Any:
            return place(key[1]) if place is not None else key

        _of_user(key_of, key)
        _of_user(advance_label, advance)
        called = self._stream._flow._name(name, kind, function)
        vertex = Drift(
            called,
            route=ByKey(key_of, None if place is None else _of_user(place_of, place)),
            advance=advance_label,
            initial=initial,
            types=DriftTypes(state, output, self._stream._type),
            light=light,
            method=kind,
            labelled=True,
        )
        paired = self._stream._with_label(self._start, self._label, f"{called}.label")
        return paired._then(vertex, declared)

    def _keyed(self) -> NoReturn:
        raise self._no("map, flat_map and apply keep no state for a key")

    def loop(self, body: Any, *, name: str | None = None) -> NoReturn:
        raise self._no("a loop by key is shared by key alone")

    def group(self, window: int, *, order: Any = None, undo_partial: bool = False, name: str | None = None) -> NoReturn:
        raise self._no("a group is of the last items of a key; gather returns all that are derived from an item")

    def _no(self, why: str) -> GraphError:
        vertex = self._stream._vertex
        return GraphError(
            f"key_by after {vertex.name!r} keeps state for each label {self._label!r}, and {why}",
            hint="Use count, reduce, fold or stateful_map; or leave label out.",
            vertex=vertex.name,
        )


def _closed(head: Merge, entered: Stream[Any], result: Any) -> Stream[Any]:
    """Close a cycle with the result of its body; return the stream that leaves."""
    parts = result if isinstance(result, tuple) else ()
    if not (len(parts) == 2 and all(isinstance(part, Stream) for part in parts)):
        keyed = any(isinstance(part, KeyedStream) for part in parts)
        shown = f"({', '.join(type(part).__name__ for part in parts)})" if keyed else f"{result!r:.160}"
        raise GraphError(
            f"the body of loop {head.name!r} returned {shown}",
            hint="It must return two streams: (what goes round again, what leaves)."
            + " A keyed stream becomes one by an operation that keeps state, such as stateful_map." * keyed,
            vertex=head.name,
        )
    _require_one_flow(head, entered, *result)
    feedback, exit_ = result
    entered._flow._use(feedback._placed(), head)
    return exit_  # type: ignore[no-any-return]


def require_functions(kind: str, vertex: Vertex, *functions: Any, generators: bool = False) -> None:
    """Refuse values that cannot be called, and functions whose calls only begin.

    The result of a function in place of the function cannot be called. The coroutine or generator of the others would
    be passed on in place of their results.

    Args:
        kind: Name of the method that takes them.
        vertex: The vertex before.
        functions: The arguments.
        generators: Whether generators are allowed, because their outputs are iterated.
    """
    for function in functions:
        if not callable(function):
            field = isinstance(function, str) and function.isidentifier()
            raise GraphError(
                f"{kind} after {vertex.name!r} takes a function, not {function!r}",
                hint=f"For the field of that name: lambda item: item.{function}" if field else "",
                vertex=vertex.name,
            )
        call = function if inspect.isroutine(function) or isinstance(function, partial) else type(function).__call__
        if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
            what, hint = (
                "an async function, which is never awaited",
                "Write it with def; what waits is a source or a sink.",
            )
        elif inspect.isgeneratorfunction(call) and not generators:
            what, hint = "a generator", "Return the result; for any number of outputs there is flat_map."
        else:
            continue
        raise GraphError(
            f"{kind} after {vertex.name!r} takes a function, and {function!r} is {what}", hint=hint, vertex=vertex.name
        )


def _require_keys(kind: str, vertex: Vertex, function: Callable[..., object]) -> None:
    """Refuse a function that is declared to return what cannot be a key.

    Args:
        kind: Name of the method that takes it.
        vertex: The vertex before.
        function: The argument.
    """
    if reason := refuse_unhashable(returned(function)):
        raise GraphError(
            f"{kind} after {vertex.name!r}: the key function is declared to return a type that cannot be a key: "
            f"{reason}",
            hint=USABLE_KEYS,
            vertex=vertex.name,
        )


ONE_KEY: Final = "A stream has one key: call key_by once, with the key that its state is to go by."
BEFORE_KEYS: Final = "Call {name} before key_by, or on what count, reduce, fold or another operation gives."
"""Advice for methods that streams have, and keyed streams do not."""

_IN_EVENT_TIME: Final = (
    "It needs event time, which a stream gets before its key: event_time(stream, at).key_by(function).{name}(…); see "
    "docs/how-to/windows.md."
)
_BY_KEY: Final = "Combine the items of each key: .key_by(function).reduce(function), or .fold(initial, function)."

_ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("as_of", "cogroup", "distinct", "inactive", "join", "process", "window"), _IN_EVENT_TIME),
    "event_time": "It is a function that takes the stream, before its key: event_time(stream, at); see "
    "docs/how-to/windows.md.",
    **dict.fromkeys(("aggregate", "max", "mean", "min", "sum"), _BY_KEY),
    **dict.fromkeys(("group_by", "groupby"), "Say .key_by(function)."),
    **dict.fromkeys(("concat", "union"), "Say .merge(other)."),
    **dict.fromkeys(("for_each", "foreach"), "Look at items with .inspect(function); end a stream with .sink(name)."),
    "run": "A flow is run, once its streams end in sinks: flow.run({source: records}).",
}
"""Advice for methods that streams have elsewhere, or with event time."""


def no_method(stream: object, name: str, *others: tuple[Container[str], str]) -> AttributeError:
    """Return the error of a missing attribute of a stream.

    Args:
        stream: The stream.
        name: Name of the attribute.
        others: Names of attributes elsewhere, and the advice for them: `{name}` stands for the name. The first counts.
    """
    missing = f"{type(stream).__name__!r} object has no attribute {name!r}"
    hint = next((hint for names, hint in others if name in names), _ELSEWHERE.get(name))
    if name.startswith("_") or hint is None:
        return AttributeError(missing, name=name, obj=stream)  # Python adds similar names
    return AttributeError(f"{missing}\n  {hint.replace('{name}', name)}")


def _way_of(predicates: Sequence[Callable[[T], object]], way: int) -> Callable[[T], object]:
    """Return a predicate for one way of a branch.

    It fails only if the predicate of that way does.
    """
    before, own = predicates[:way], predicates[way : way + 1]

    def goes(payload: T) -> object:
        try:
            if any(predicate(payload) for predicate in before):
                return False
        except Exception:  # noqa: BLE001 - the way of that predicate reports it
            return False
        return own[0](payload) if own else True

    return goes


def _of_user(made: F, *functions: object) -> F:
    """Note the user's function behind another one, so that errors name it."""
    if functions:
        made.user_function = functions[0]  # type: ignore[attr-defined]  # a function takes any attribute
    return made


def _require_one_flow(vertex: Vertex, stream: Stream[Any], *others: Stream[Any]) -> None:
    """Refuse to join streams of different flows."""
    for other in others:
        if other._flow is not stream._flow:
            raise GraphError(
                f"{vertex!r} joins a stream of flow {stream._flow.name!r} with one of flow {other._flow.name!r}",
                hint="Draw both in one flow; it may have several sources.",
                vertex=vertex.name,
            )
