"""Streams with event time, and the verbs on them.

`event_time` is the door: everything chains from the `Timed` stream that it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar, get_origin, overload

from flamecore.errors import GraphError
from flamecore.model.builder import Output
from flamecore.model.failure import all_shown_at_caller, shown_at_caller
from flamecore.model.meta import Meta
from flamecore.model.ordered import Gathered, IdlingMarking, Marked, Marking
from flamecore.model.stream import BEFORE_KEYS, ONE_KEY, KeyedStream, Stream, no_method, require_functions
from flamecore.model.types import element, returned
from flamecore.model.vertices import ByKey, Map, Route, Sink, Vertex
from flamestream_windows import aggregates as agg
from flamestream_windows.engine import joins
from flamestream_windows.engine.functions import Function
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.sides import Shape, Side
from flamestream_windows.flows.sides import Sided, shard_of, to_all_shards, to_shard
from flamestream_windows.flows.stamps import (
    STAMPED,
    VALUE,
    Form,
    flat_mapped,
    is_dropped,
    is_late,
    is_pane,
    mapped,
    named_after,
    recorded,
    stamp_type,
    value_of,
)
from flamestream_windows.flows.vertices import grouped, stateful
from flamestream_windows.model.aggregates import (
    LEFT,
    RIGHT,
    Aggregate,
    Cogroup,
    Extreme,
    How,
    Joined,
    Mean,
    Reduce,
    Sum,
    named,
)
from flamestream_windows.model.cells import StatefulFn
from flamestream_windows.model.panes import Dropped, Pane
from flamestream_windows.model.strategy import Emit, Strategy, check_aggregate, check_emits, strategy
from flamestream_windows.model.strategy import Panes as Mode
from flamestream_windows.model.times import MIN, Unit, spell, user_duration
from flamestream_windows.model.watermarks import (
    Arrival,
    Bounded,
    Estimate,
    Estimator,
    Folded,
    Monotonic,
    WatermarkStrategy,
    default_step,
)
from flamestream_windows.model.windows import Calendar, Fixed, Same, Sessions, Sliding, Window, WindowFn

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
E = TypeVar("E")

Time = datetime | float | int
AtEnd = Literal["close", "keep"]
SideForm = Literal["single", "list", "dict"]

__flow_verbs__ = True  # errors name the line that calls a verb

_SECONDS: Final = 10_000_000
"""Assumed size of windows after functions whose times are not known: watermarks come each second."""

_QUARTER: Final = 15 * 60 * 1_000_000
"""Local midnights of all zones are multiples of it."""


_IN_WINDOWS: Final = "window(w.fixed(minutes=1)).{name}(…)"
_OF_PANES: Final = "It is of what an operation on windows gives, such as .count().{name}"


class Origin(NamedTuple):
    """A vertex that says watermarks, and what its step depends on.

    Attributes:
        vertex: The vertex.
        at_end: Meaning of the end of a front.
        sizes: Distances of marks that suit the windows and times it feeds; None: the step is the user's.
    """

    vertex: Marking
    at_end: AtEnd | None
    sizes: list[int] | None

    def feed(self, *sizes: int, instants: tuple[int, ...] = ()) -> None:
        """Note windows or times that it feeds: marks are as far apart as they allow.

        Args:
            sizes: Sizes, periods and gaps.
            instants: Times at which a mark has to be exact: the step divides them.
        """
        if self.sizes is not None:
            self.sizes.extend([*map(default_step, sizes), *instants])
            if self.sizes:
                self.vertex.step = math.gcd(*self.sizes)

    def feed_windows(self, strategy: Strategy) -> None:
        """Note windows that it feeds.

        A mark comes exactly when one ends, and when it accepts no more items: otherwise it would still accept items
        up to the next mark. Sessions end at any time.
        """
        windows = strategy.windows
        offset = windows.offset if isinstance(windows, (Fixed, Sliding)) else 0
        instants = (
            () if windows.merging or isinstance(windows, Same) or windows.endless else (offset, strategy.lateness)
        )
        self.feed(*_sizes(windows), instants=instants)


def _sizes(windows: WindowFn) -> list[int]:
    if isinstance(windows, Fixed):
        return [windows.size]
    if isinstance(windows, Sliding):
        return [windows.size, windows.period]
    if isinstance(windows, Sessions):
        return [windows.gap]
    if isinstance(windows, Calendar):
        return [10 * _QUARTER]
    return [] if windows.endless or isinstance(windows, Same) else [1]


@shown_at_caller
def event_time(
    stream: Stream[T],
    at: Callable[[T], Time] | None = None,
    *,
    unit: Unit | None = None,
    watermark: WatermarkStrategy | None = None,
    idle_after: timedelta | None = None,
    max_ahead: timedelta | None = None,
    at_end: AtEnd | None = None,
    step: timedelta | None = None,
    name: str | None = None,
) -> Timed[T]:
    """Return the stream with event time: each record at its own time, and watermarks.

    Only maps may be between it and the source, for the watermark of a front follows its records in their order.

    Args:
        stream: The stream.
        at: Returns the time of a record: a datetime with a zone, or a number since 1970. Left out with
            `watermarks.arrival()` alone.
        unit: Unit of numbers: "s", "ms", "us" or "ns". Without it a float is seconds, and an int microseconds: one
            that would be of 1970 to 1973 fails, as it is of another unit nearly always. An integer of numpy is an int.
        watermark: The strategy by which times below are believed complete; by default times never fall.
        idle_after: For how long a partition waits for its source until it holds no watermark back, as long as nothing
            comes. It needs the wall clock. One that waits because the job is slower is not idle.
        max_ahead: How far ahead a time may be to move the watermark: of the time at which its record came, or, where
            the job's clock counts records, of the greatest time before it. Records beyond are counted (`ahead`).
        at_end: Meaning of the end of the input. `close`: nothing will come any more, so all windows end. `keep`:
            windows that are open wait for records that are appended, or for the next phase. Default: `keep` in
            jobs that keep state, else `close`.
        step: How far apart watermarks are said; by default a tenth of the smallest window, or less where the end of a
            window, its offset or its lateness is no multiple of that, so that no window of fixed times is delayed.
        name: The name of the operation.

    Raises:
        GraphError: A setting cannot work.
    """
    if not isinstance(stream, Stream):
        raise GraphError(
            f"event_time takes a stream, not {stream!r:.80}",
            hint="Put it behind the source, and key_by behind it: w.event_time(stream, at).key_by(key).",
            vertex=None,
        )
    before = stream._vertex
    chosen = Bounded(0) if watermark is None else watermark
    if isinstance(stream, Timed):
        raise _refused(before, "event_time is behind another one", "Give a stream event time once, at its source.")
    if not isinstance(chosen, WatermarkStrategy):
        raise _refused(before, f"watermark={chosen!r} is no strategy", "Say such as bounded_disorder(seconds=5).")
    if isinstance(chosen, Arrival):
        if at is not None or unit is not None or max_ahead is not None:
            raise _refused(
                before,
                "by watermarks.arrival() the time of a record is that at which it came",
                "Leave out at, unit= and max_ahead=; or give another watermark=.",
            )
    elif at is None:
        raise _refused(
            before,
            "nothing says the times of records",
            "Say such as event_time(stream, lambda record: record.at); or watermark=watermarks.arrival().",
        )
    else:
        require_functions("event_time", before, at)
    if at_end not in (None, "close", "keep"):
        raise _refused(before, f"at_end={at_end!r} says nothing about the end of the input", "Say 'close' or 'keep'.")
    try:
        micros = None if step is None else user_duration(step, "step")
        most = None if max_ahead is None else user_duration(max_ahead, "max_ahead")
        idle = None if idle_after is None else user_duration(idle_after, "idle_after")
    except (TypeError, ValueError) as error:
        raise _refused(before, str(error), "Say such as timedelta(seconds=1).") from None
    if idle == 0:
        raise _refused(before, "idle_after is 0: partitions always wait a little", "Say such as timedelta(seconds=30).")
    if micros == 0:
        raise _refused(before, "the step of watermarks is 0", "A step is positive, such as timedelta(seconds=1).")
    called = stream._flow._name(name, "event_time")
    if at is None:
        form, declared = STAMPED, stamp_type(stream._type)
        arrived = f"{called}.arrival"
        entered = stream.apply(Map, name=arrived, type=declared, function=_arrived(stream._type), shape="timed")
    else:
        try:
            form, entered, declared = recorded(at, unit), stream, stream._type
        except ValueError as error:
            raise _refused(before, str(error), "Say the unit of the numbers, such as unit='ms'.") from None
    folds = most is not None or isinstance(chosen, Folded)
    idling: dict[str, Any] = {} if idle is None else {"idle_us": idle}
    made = entered.apply(
        Marking if idle is None else IdlingMarking,
        **idling,
        name=called,
        type=declared,
        function=_folded(Estimator(chosen, max_ahead=most), form) if folds else _said(chosen, form),
        folds=folds,
        closes=None if at_end is None else at_end == "close",
        option=f'at_end="close" of {called!r}',
        step=_QUARTER if micros is None else micros,
    )
    vertex = made._vertex
    assert isinstance(vertex, Marking)
    return Timed(made, form, (Origin(vertex, at_end, [] if micros is None else None),), stream._type)


def _said(strategy: WatermarkStrategy, form: Form) -> Callable[[Any], int | None]:
    """Return the watermark that follows a record, as a function."""
    time_of = form.at
    if isinstance(strategy, (Bounded, Monotonic)):
        bound = strategy.bound if isinstance(strategy, Bounded) else 0

        def below(record: Any) -> int | None:
            return time_of(record) - bound

        made = named_after(below, time_of, object)
        made.many, made.less = form.times, bound  # type: ignore[attr-defined]  # a function takes any attribute
        made.noted = form.noted  # type: ignore[attr-defined]  # as above
        return made

    def observed(record: Any) -> int | None:
        return strategy.observe(None, record, time_of(record))[1]

    return named_after(observed, time_of, object)


def _folded(estimator: Estimator, form: Form) -> Callable[[Any, Any, int | None], Marked]:
    """Return a fold of a watermark strategy over the records of a front.

    Its state is the state of the strategy and the greatest time.
    """
    time_of, initial = form.at, estimator.strategy.start()

    def folded(state: tuple[Any, int] | None, record: Any, wall: int | None) -> Marked:
        own, greatest = (initial, MIN) if state is None else state
        found, said = estimator.observe(Estimate(own, MIN, greatest), record, time_of(record), wall)
        # By the wall clock the greatest time is not looked at.
        return Marked((found.state, greatest if wall is not None else found.greatest), said, not found.ahead)

    return named_after(folded, time_of, object)


def _arrived(declared: Any) -> Callable[[Any, int], tuple[int, int, Any]]:
    """Return the function that stamps records with the times at which they came."""

    def arrived(record: Any, time: int) -> tuple[int, int, Any]:
        return (VALUE, time, record)

    arrived.__annotations__ = {} if declared is object else {"return": stamp_type(declared)}
    return arrived


def _refused(vertex: Vertex, what: str, hint: str) -> GraphError:
    return GraphError(f"event_time after {vertex.name!r}: {what}", hint=hint, vertex=vertex.name)


@all_shown_at_caller
class Timed(Stream[T]):
    """A stream with event time. An item derived from another has its time.

    It is a stream of its values everywhere else: at sinks, in states, and merged with a stream that has no times.
    """

    def __init__(
        self, stream: Stream[Any], form: Form, origins: tuple[Origin, ...], declared: Any, *, retracts: bool = False
    ) -> None:
        super().__init__(stream._flow, stream._vertex, declared, stream._route, stream._output.copy)
        self._form = form
        self._origins = origins
        self._retracts = retracts

    if not TYPE_CHECKING:  # a type checker must not see further attributes

        def __getattr__(self, name: str) -> Any:
            raise no_method(
                self,
                name,
                (dir(TimedKeyed), "Give its items a key first: .key_by(function).{name}(…)"),
                (dir(Windowed), f"Give its items a key and windows first: .key_by(function).{_IN_WINDOWS}"),
                (dir(Panes), _OF_PANES),
            )

    def _next(self, made: Stream[Any], form: Form | None = None, declared: Any = None) -> Timed[Any]:
        """Return the stream of what comes of this one: of stamps, or of the same payloads."""
        form, declared = form or self._form, self._type if declared is None else declared
        return Timed(made, form, self._origins, declared, retracts=self._retracts)

    def _bare(self) -> Stream[Any]:
        """Return the stream of payloads."""
        declared = self._type if self._form.value is None else stamp_type(self._type)
        return Stream(self._flow, self._vertex, declared, self._route, self._output.copy)

    def _plain(self) -> Stream[T]:
        """Return the stream of values, without times."""
        if self._form.value is None:
            return self._bare()
        return Stream(self._flow, self._bare().map(value_of)._vertex, self._type)

    def _untimed(self, word: str, *, panes: bool = False) -> Stream[T]:
        """Return the stream of values for an operation that knows no times.

        Args:
            word: The operation, for the error.
            panes: Whether it may be given panes: they tell by themselves whether they are retractions.

        Raises:
            GraphError: Retractions are among them that the operation would take for other items.
        """
        if self._retracts and not (panes and _has_panes(self)):
            more = ", or give it the panes themselves, which have `retraction`" if panes else ""
            raise GraphError(
                f"{word} after {self._vertex.name!r}: retractions come to it, and without times nothing would tell "
                "them from other items",
                hint=f"Use panes='accumulating' or 'discarding' before it, or windows instead of it{more}.",
                vertex=self._vertex.name,
            )
        return self._plain()

    def _placed(self) -> Output:
        return self._untimed("merge")._placed()  # with streams that have no times; all else is here

    def _routed(self, route: Route) -> Timed[T]:
        return self._next(self._bare()._routed(route))

    def _stamped(self) -> Timed[T]:
        """Return the same stream with stamps as payloads."""
        if self._form is STAMPED:
            return self
        made = self._bare().map(mapped(self._form, _itself), name=self._flow._name(None, "stamp"))
        return self._next(made, STAMPED)

    def map(self, function: Callable[[T], U], *, name: str | None = None) -> Timed[U]:
        """Return a stream with one output for each item, at its time."""
        require_functions("map", self._vertex, function)
        made = self._bare().map(mapped(self._form, function), name=name)
        return self._next(made, STAMPED, returned(function))

    def flat_map(self, function: Callable[[T], Iterable[U]], *, name: str | None = None) -> Timed[U]:
        """Return a stream with any number of outputs for each item, at its time."""
        require_functions("flat_map", self._vertex, function, generators=True)
        declared = element(returned(function))
        made = self._bare().flat_map(flat_mapped(self._form, function, declared), name=name)
        return self._next(made, STAMPED, declared)

    def filter(self, predicate: Callable[[T], object], *, name: str | None = None) -> Timed[T]:
        """Return the stream of the items for which `predicate` is true."""
        require_functions("filter", self._vertex, predicate)
        made = self._bare().filter(self._form.lifted(predicate), name=name)
        return self._next(made)

    @overload
    def inspect(self, function: Callable[[T], object], *, name: str | None = None) -> Timed[T]: ...
    @overload
    def inspect(
        self, function: Callable[[T, Meta], object], *, meta: Literal[True], name: str | None = None
    ) -> Timed[T]: ...
    def inspect(self, function: Callable[..., object], *, meta: bool = False, name: str | None = None) -> Timed[T]:
        """Call `function` with each item, and pass the item on, as `Stream.inspect` does."""
        require_functions("inspect", self._vertex, function)
        lifted, bare = self._form.lifted(function, more=meta), self._bare()
        made = bare.inspect(lifted, meta=True, name=name) if meta else bare.inspect(lifted, name=name)
        return self._next(made)

    def rebalance(self) -> Timed[T]:
        """Spread the items over all workers, as `Stream.rebalance` does."""
        return self._next(self._bare().rebalance())

    def branch(self, *predicates: Callable[[T], object], name: str | None = None) -> tuple[Timed[T], ...]:
        """Return a stream per predicate, and one for the rest, as `Stream.branch` does."""
        ways = super().branch(*predicates, name=name)
        return tuple(way for way in ways if isinstance(way, Timed))

    def broadcast(self, count: int, *, name: str | None = None) -> tuple[Timed[T], ...]:
        """Copy the stream; return `count` copies, as `Stream.broadcast` does."""
        copies = self._bare().broadcast(count, name=name)
        return tuple(self._next(copy) for copy in copies)

    @overload
    def merge(self, *others: Timed[Any], name: str | None = None) -> Timed[Any]: ...
    @overload
    def merge(self, *others: Stream[Any], name: str | None = None) -> Stream[Any]: ...
    def merge(self, *others: Stream[Any], name: str | None = None) -> Stream[Any]:
        """Merge streams as `Stream.merge` does.

        The watermark of the result is the least of theirs. With a stream without times the result has none.
        """
        timed = [other for other in others if isinstance(other, Timed)]
        if len(timed) < len(others):
            return self._untimed("merge").merge(*others, name=name)
        called = self._flow._name(name, "merge")
        made = self._stamped()._bare().merge(*(other._stamped()._bare() for other in timed), name=called)
        known = {each.vertex.name: each for stream in (self, *timed) for each in stream._origins}
        retracts = any(stream._retracts for stream in (self, *timed))
        # Values among panes do not tell whether they are retractions, so these are no stream of panes.
        declared = self._type if all(map(_has_panes, (self, *timed))) or not _has_panes(self) else object
        return Timed(made, STAMPED, tuple(known.values()), declared, retracts=retracts)

    def loop(  # type: ignore[override]  # inside are streams with event time
        self, body: Callable[[Timed[T]], tuple[Timed[T], Timed[U]]], *, name: str | None = None
    ) -> Timed[U]:
        """Add a cycle, as `Stream.loop` does; what goes round keeps its time.

        Raises:
            GraphError: The body returns a stream without times, such as that of a state by key.
        """
        require_functions("loop", self._vertex, body)
        declared: list[Any] = []

        def inside(entered: Stream[Any]) -> Any:
            found: Any = body(self._next(entered, STAMPED))
            if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, Stream) for each in found)):
                return found  # refused
            for each in found:
                if not isinstance(each, Timed):
                    raise self._no_times(each)
            declared.append(found[-1]._type)
            return tuple(each._stamped()._bare() for each in found)

        made = self._stamped()._bare().loop(inside, name=name)
        return self._next(made, STAMPED, declared[0])

    def _no_times(self, returned: Stream[Any]) -> GraphError:
        """Return the error of a stream that the body of a loop returned."""
        return GraphError(
            f"loop after {self._vertex.name!r}: the body returned {returned._vertex.name!r}, a stream without times: "
            "after a state by key, as after all operations that know no times, there are only values",
            hint="Draw the loop from the stream before event_time; or, if items keep their keys, as a loop by key: "
            ".key_by(key).loop(body).",
            vertex=self._vertex.name,
        )

    def apply(self, kind: type[Vertex], *, name: str | None = None, type: Any = object, **settings: Any) -> Stream[Any]:
        """Apply an operation without a method here to the values, as `Stream.apply` does."""
        return self._untimed(name or kind.kind, panes=True).apply(kind, name=name, type=type, **settings)

    def sink(self, name: str, *, retractions: bool = False) -> None:
        """End the stream in a sink, as `Stream.sink` does.

        Args:
            name: The name of the sink.
            retractions: Whether those who read the output look for panes that take earlier ones back
                (`Pane.retraction`). Otherwise a job is refused in which such panes come to a sink, unless its driver
                keeps them apart.
        """
        self._flow._add(
            Sink(name, type=self._type, retracts=self._retracts and not retractions), self._plain()._placed()
        )

    def label(self, name: str) -> Stream[T]:
        """Label each item, as `Stream.label` does; the results have no times."""
        return self._untimed("label").label(name)

    def gather(self, label: str, *, name: str | None = None) -> Stream[Gathered[Any, T]]:
        """Return the results of each labelled item, without times; see `Stream.gather`."""
        return self._untimed("gather").gather(label, name=name)

    def window(self, *windows: object, **settings: object) -> Any:
        """Refuse windows without a key.

        Raises:
            GraphError: Always.
        """
        raise GraphError(
            f"window after {self._vertex.name!r} needs a key: windows are cut for each key apart",
            hint="Call key_by before, such as .key_by(lambda item: None) for one key of all.",
            vertex=self._vertex.name,
        )

    def place_by(self, function: Callable[[T], Any], *, name: str | None = None) -> Timed[T]:
        """Deal items to the workers by a place of theirs, as `Stream.place_by` does."""
        require_functions("place_by", self._vertex, function)
        return self._next(self._bare().place_by(self._form.lifted(function, returned(function)), name=name))

    @overload
    def key_by(
        self, key: Callable[[T], K], *, place: Callable[[K], Any] | None = None, label: None = None
    ) -> TimedKeyed[K, T]: ...
    @overload
    def key_by(
        self, key: Callable[[T], K], *, place: Callable[[K], Any] | None = None, label: str | None = ...
    ) -> KeyedStream[K, T]: ...
    def key_by(
        self, key: Callable[[T], K], *, place: Callable[[K], Any] | None = None, label: str | None = None
    ) -> KeyedStream[K, T]:
        """Give each item a key, as `Stream.key_by` does.

        With a label the items have no times.
        """
        if label is None:
            return TimedKeyed(self, key, place)
        return self._untimed("key_by(…, label=…)", panes=True).key_by(key, place=place, label=label)


def _itself(value: Any) -> Any:
    return value


@all_shown_at_caller
class TimedKeyed(KeyedStream[K, T]):
    """A stream with event time whose items have keys.

    The operations of a `KeyedStream` take its values, and what comes of them has no times.
    """

    def __init__(self, timed: Timed[T], key: Callable[[T], K], place: Callable[[K], Any] | None = None) -> None:
        KeyedStream(timed._bare(), key, place)  # refuses what cannot be a key
        self._timed = timed
        self._key, self._place = key, place
        self._route = ByKey(key, place)
        self._values: Stream[T] | None = None

    if not TYPE_CHECKING:  # a type checker must not see further attributes

        def __getattr__(self, name: str) -> Any:
            raise no_method(
                self,
                name,
                (dir(Timed), ONE_KEY if name == "key_by" else BEFORE_KEYS),
                (dir(Windowed), f"Cut its items into windows first: .{_IN_WINDOWS}"),
                (dir(Panes), _OF_PANES),
            )

    @property
    def _stream(self) -> Stream[T]:  # type: ignore[override]  # made when it is asked for: unused it would lead nowhere
        if self._values is None:
            self._values = self._timed._untimed("a state by key", panes=True)
        return self._values

    def _with_times(self) -> Timed[T]:
        """Return the stream with times on the workers that own the keys."""
        return self._timed._routed(ByKey(self._timed._form.lifted(self._key, returned(self._key)), self._place))

    def map(self, function: Callable[[T], U], *, name: str | None = None) -> Timed[U]:
        """Apply `Timed.map` on the worker that owns the key."""
        return self._with_times().map(function, name=name)

    def flat_map(self, function: Callable[[T], Iterable[U]], *, name: str | None = None) -> Timed[U]:
        """Apply `Timed.flat_map` on the worker that owns the key."""
        return self._with_times().flat_map(function, name=name)

    def window(
        self,
        windows: WindowFn,
        *,
        lateness: timedelta = timedelta(0),
        emit: Emit = "final",
        panes: Mode | None = None,
        time: Literal["end", "earliest", "latest"] = "end",
    ) -> Windowed[K, T]:
        """Cut the items of each key into windows.

        Args:
            windows: Which windows an item is in, such as `w.fixed(minutes=1)`.
            lateness: Time after its end for which a window still accepts items.
            emit: Time at which a window emits a pane: once, when it accepts no more items (`final`), with each item
                (`updates`), or by a trigger.
            panes: Contents of a pane, needed where a window may give several: all of the window (`accumulating`), what
                is new (`discarding`), or all, with the pane before it taken back (`retracting`).
            time: The time of a pane: the last instant of its window, or that of its first or last item.

        Raises:
            GraphError: The windows can never give a pane, or may lose items; or it is not said what a pane holds.
        """
        vertex = self._timed._vertex
        if not isinstance(windows, WindowFn):
            raise GraphError(
                f"window after {vertex.name!r} takes windows, not {windows!r:.80}",
                hint="Say such as w.fixed(minutes=1), or w.sessions(minutes=30).",
                vertex=vertex.name,
            )
        endless = all(origin.at_end == "keep" for origin in self._timed._origins)
        try:
            user_duration(lateness, "lateness")
            made = strategy(windows, lateness=lateness, emit=emit, panes=panes, time=time)
            check_emits(made, endless=endless)
        except (TypeError, ValueError) as error:
            raise GraphError(f"window after {vertex.name!r}: {error}", vertex=vertex.name) from None
        except GraphError as error:
            raise _named("window", vertex, error) from None
        for origin in self._timed._origins:
            origin.feed_windows(made)
        return Windowed(self, made)

    def process(self, function: type[StatefulFn[K, T, U]], *, name: str | None = None) -> Told[U, T]:
        """Apply a function with cells and timers to the items of each key, in order.

        Args:
            function: A class with `on_element`, and `on_…` for each of its timers.
            name: The name of the operation.
        """
        vertex = self._timed._vertex
        if not (isinstance(function, type) and issubclass(function, StatefulFn)):
            raise GraphError(
                f"process after {vertex.name!r} takes a class with on_element, not {function!r:.80}",
                hint="Derive it from w.StatefulFn.",
                vertex=vertex.name,
            )
        return self._processed("process", name, function, element(returned(function.on_element)), _SECONDS)

    def distinct(self, *, within: timedelta, name: str | None = None) -> Told[T, T]:
        """Return the first item of each key within a time, on either side of it."""
        micros = self._micros("distinct", "within", within)
        return self._processed("distinct", name, joins.distinct(micros), self._timed._type, micros, within=micros)

    def inactive(self, *, after: timedelta, name: str | None = None) -> Told[tuple[K, T], T]:
        """Return each key with its last item, once the key has had no item for a time."""
        micros = self._micros("inactive", "after", after)
        return self._processed("inactive", name, joins.inactive(micros), tuple, micros, after=micros)

    def as_of(
        self, other: TimedKeyed[K, U], *, keep: timedelta, name: str | None = None
    ) -> Told[tuple[T, U | None], tuple[int, T | U]]:
        """Return each item with the last one of `other` that is not later, or None.

        Items of either stream that are late by more than `keep` are dropped: what they belong to is no longer known.

        Args:
            other: The other stream, by the same key.
            keep: Maximum age of that one.
            name: The name of the operation.
        """
        micros = self._micros("as_of", "keep", keep)
        both = self._with("as_of", other)
        return both._processed("as_of", name, joins.as_of(micros), tuple, _SECONDS, keep=micros)

    @overload
    def with_side(
        self, side: Panes[Any, V, Any], *, form: Literal["single"] = "single", name: str | None = None
    ) -> Told[tuple[T, V | None], T]: ...
    @overload
    def with_side(
        self, side: Panes[Any, V, Any], *, form: Literal["single"] = "single", default: V, name: str | None = None
    ) -> Told[tuple[T, V], T]: ...
    @overload
    def with_side(
        self, side: Panes[Any, V, Any], *, form: Literal["list"], name: str | None = None
    ) -> Told[tuple[T, list[V]], T]: ...
    @overload
    def with_side(
        self, side: Panes[A, V, Any], *, form: Literal["dict"], name: str | None = None
    ) -> Told[tuple[T, dict[A, V]], T]: ...
    def with_side(
        self, side: Panes[Any, Any, Any], *, form: SideForm = "single", default: Any = None, name: str | None = None
    ) -> Told[Any, T]:
        """Return each item with the values of the side's panes in the window of its time.

        An item waits until that window has had a pane, or until the watermark says that it will have none; for a list
        or a dict until the window is over, unless there are panes before. A pane takes the place of the one before it
        of its key and window; with `panes="discarding"` it is put behind it.

        Args:
            side: The panes. All keys see all of them.
            form: Form of the values beside an item: the only value (`single`), a list of those of all keys (`list`), or
                a dict by key (`dict`).
            default: The value of a window that has none, for `single`.
            name: The name of the operation.
        """
        timed = self._timed
        vertex = timed._vertex
        if not isinstance(side, Panes):
            raise GraphError(
                f"with_side after {vertex.name!r} takes panes, not {side!r:.80}",
                hint="Give it what a verb of windows returns, as it is: …window(w.fixed(minutes=1)).count().",
                vertex=vertex.name,
            )
        if form not in ("single", "list", "dict"):
            raise GraphError(
                f"with_side after {vertex.name!r}: form={form!r} is none",
                hint="Say 'single', 'list' or 'dict'.",
                vertex=vertex.name,
            )
        if default is not None and form != "single":
            raise GraphError(
                f"with_side after {vertex.name!r}: a {form} of nothing is empty, and default= is for a single value",
                hint="Leave it out.",
                vertex=vertex.name,
            )
        if timed._retracts:
            raise _takes_none_back("with_side", vertex)
        strategy = side._strategy
        if strategy.windows.merging or isinstance(strategy.windows, Same):
            raise GraphError(
                f"with_side after {vertex.name!r}: in {strategy.windows} nothing says which window an item looks at",
                hint="Give the side fixed, sliding, calendar or whole windows, and not per_window().",
                vertex=vertex.name,
            )
        whole = form != "single" and not strategy.trigger.early()
        mode: Mode = strategy.panes if strategy.several else "accumulating"
        shape: Shape = "singleton" if form == "single" else form
        called = timed._flow._name(name, "with_side")
        items = timed.map(to_shard(self._key), name=f"{called}.items")
        panes = side.flat_map(to_all_shards, name=f"{called}.panes")
        both = Timed.merge(items, panes, name=f"{called}.both").key_by(shard_of)
        for origin in both._timed._origins:
            origin.feed_windows(strategy)
        told = (
            both._with_times()
            ._bare()
            .apply(
                Sided,
                name=called,
                side=Side(strategy.windows, shape, mode, default, whole),
                lateness=strategy.lateness,
            )
        )
        return Told(told, both._timed._origins, tuple, timed._type)

    @overload
    def join(
        self,
        other: TimedKeyed[K, U],
        *,
        before: timedelta,
        after: timedelta,
        how: Literal["inner"] = "inner",
        name: str | None = None,
    ) -> Told[tuple[T, U], tuple[int, T | U]]: ...
    @overload
    def join(
        self, other: TimedKeyed[K, U], *, before: timedelta, after: timedelta, how: How, name: str | None = None
    ) -> Told[tuple[T | None, U | None], tuple[int, T | U]]: ...
    def join(
        self,
        other: TimedKeyed[K, U],
        *,
        before: timedelta,
        after: timedelta,
        how: How = "inner",
        name: str | None = None,
    ) -> Told[Any, Any]:
        """Return pairs of an item and one of the other stream whose times are close.

        Args:
            other: The other stream, by the same key.
            before: Maximum distance of an earlier other item.
            after: Maximum distance of a later one.
            how: Whether an item without another comes with None: none (`inner`), one of this stream (`left`), or one of
                either (`outer`).
            name: The name of the operation.
        """
        least, most = (self._micros("join", word, time, 0) for word, time in (("before", before), ("after", after)))
        function = joins.interval_join(least, most, self._how("join", how))
        both = self._with("join", other)
        size = least + most or _SECONDS
        return both._processed("join", name, function, tuple, size, before=least, after=most)

    def _processed(
        self,
        word: str,
        name: str | None,
        function: type[StatefulFn[Any, Any, Any]],
        declared: Any,
        size: int,
        **settings: int,
    ) -> Told[Any, Any]:
        """Apply a function to the items of each key.

        Args:
            word: The verb.
            name: The name of the operation.
            function: The function.
            declared: The type of its outputs.
            size: The least of its times, in microseconds.
            settings: The times, in microseconds, by which its state was made.
        """
        timed = self._timed
        if timed._retracts:
            raise _takes_none_back(word, timed._vertex)
        try:
            made = Function(function)
        except GraphError as error:
            raise _named(word, timed._vertex, error) from None
        for origin in timed._origins:
            origin.feed(size)
        told = (
            self._with_times()
            ._bare()
            .apply(
                stateful(made),
                name=timed._flow._name(name, word),
                function=made,
                times=timed._form,
                settings=", ".join(f"{argument}=({spell(micros)})" for argument, micros in settings.items()),
            )
        )
        return Told(told, timed._origins, declared, timed._type)

    def _with(self, word: str, other: TimedKeyed[Any, Any]) -> TimedKeyed[Any, Any]:
        """Return the items of both streams by their keys, each with its side."""
        if not isinstance(other, TimedKeyed):
            raise GraphError(
                f"{word} after {self._timed._vertex.name!r} takes a stream with event time and a key, not "
                f"{other!r:.80}",
                hint="Give it both: w.event_time(stream, at).key_by(key).",
                vertex=self._timed._vertex.name,
            )
        names = [self._timed._flow._name(None, f"{word}.{side}") for side in ("left", "right")]
        left = self._timed.map(_on_the_left, name=names[0])
        right = other._timed.map(_on_the_right, name=names[1])
        keys = (self._key, other._key)

        def key(pair: tuple[int, Any]) -> Any:
            return keys[pair[0]](pair[1])

        def keys_of(pairs: Sequence[tuple[int, Any]]) -> list[Any]:
            return [keys[side](value) for side, value in pairs]

        both: Timed[Any] = left.merge(right)
        made = named_after(key, self._key, returned(self._key))
        made.many = keys_of  # type: ignore[attr-defined]  # a function takes any attribute
        return both.key_by(made)

    def _micros(self, word: str, argument: str, time: timedelta, least: int = 1) -> int:
        vertex = self._timed._vertex
        try:
            micros = user_duration(time, argument)
        except (TypeError, ValueError) as error:
            raise GraphError(f"{word} after {vertex.name!r}: {error}", vertex=vertex.name) from None
        if micros < least:
            raise GraphError(f"{word} after {vertex.name!r}: {argument} has to be a positive time", vertex=vertex.name)
        return micros

    def _how(self, word: str, how: How) -> How:
        if how not in ("inner", "left", "outer"):
            vertex = self._timed._vertex
            raise GraphError(
                f"{word} after {vertex.name!r}: how={how!r} is no join",
                hint="Say 'inner', 'left' or 'outer'.",
                vertex=vertex.name,
            )
        return how


def _on_the_left(value: Any) -> tuple[int, Any]:
    return (LEFT, value)


def _on_the_right(value: Any) -> tuple[int, Any]:
    return (RIGHT, value)


def _all_on(side: int, values: Sequence[Any]) -> list[tuple[int, Any]]:
    return [*zip(repeat(side), values, strict=False)]


_on_the_left.many = partial(_all_on, LEFT)  # type: ignore[attr-defined]  # a function takes any attribute
_on_the_right.many = partial(_all_on, RIGHT)  # type: ignore[attr-defined]  # as above


def _has_panes(stream: Timed[Any]) -> bool:
    """Return whether the items of a stream are declared to be panes."""
    return (get_origin(stream._type) or stream._type) is Pane


def _takes_none_back(word: str, vertex: Vertex) -> GraphError:
    return GraphError(
        f"{word} after {vertex.name!r}: retractions come to it, and it takes none back",
        hint="Use panes='accumulating' or 'discarding' before it.",
        vertex=vertex.name,
    )


def _named(word: str, vertex: Vertex, error: GraphError) -> GraphError:
    """Return an error that names the vertex behind which the mistake is."""
    return GraphError(f"{word} after {vertex.name!r}: {error.what}", hint=error.hint, vertex=vertex.name)


@all_shown_at_caller
class Windowed(Generic[K, T]):
    """The windows of a stream by key: its verbs say what a pane holds."""

    def __init__(self, keyed: TimedKeyed[K, T], strategy: Strategy) -> None:
        self._keyed = keyed
        self._strategy = strategy
        vertex = keyed._timed._vertex
        error = GraphError(
            f"window after {vertex.name!r}: nothing is made of the items in the windows {strategy.windows}",
            hint="Say what a pane holds, such as .count() or .collect(); or leave the windows out.",
            vertex=vertex.name,
        )
        keyed._timed._flow._expect(self, error)

    if not TYPE_CHECKING:  # a type checker must not see further attributes

        def __getattr__(self, name: str) -> Any:
            raise no_method(
                self,
                name,
                (dir(Panes), "Say first what a pane holds, such as .count(), then .{name}"),
                (dir(TimedKeyed), "It takes the items themselves: leave the windows out, ….key_by(function).{name}(…)"),
            )

    def _finished(self) -> None:
        self._keyed._timed._flow._finish(self)

    def __repr__(self) -> str:
        return f"<Windowed {self._strategy}>"

    def count(self, *, name: str | None = None) -> Panes[K, int, T]:
        """Return the number of items of each window."""
        return self._grouped("count", name, agg.count(), int)

    def sum(self, of: Callable[[T], V], *, name: str | None = None) -> Panes[K, V, T]:
        """Return the sum of what `of` makes of each item."""
        return self._grouped("sum", name, Sum(of), returned(of), of)

    def mean(self, of: Callable[[T], V], *, name: str | None = None) -> Panes[K, V, T]:
        """Return the mean of what `of` makes of each item."""
        return self._grouped("mean", name, Mean(of), object, of)

    def min(self, of: Callable[[T], V], *, name: str | None = None) -> Panes[K, V, T]:
        """Return the least of what `of` makes of each item."""
        return self._grouped("min", name, Extreme(of, min), returned(of), of)

    def max(self, of: Callable[[T], V], *, name: str | None = None) -> Panes[K, V, T]:
        """Return the greatest of what `of` makes of each item."""
        return self._grouped("max", name, Extreme(of, max), returned(of), of)

    def top(self, n: int, by: Callable[[T], Any], *, name: str | None = None) -> Panes[K, list[T], T]:
        """Return the `n` items of which `by` makes most, the first one first."""
        return self._grouped("top", name, self._checked("top", lambda: agg.top(n, by)), list, by)

    def fold(
        self,
        initial: A,
        step: Callable[[A, T], A],
        *,
        merge: Callable[[A, A], A] | None = None,
        name: str | None = None,
    ) -> Panes[K, A, T]:
        """Return the items of each window folded into a value.

        Args:
            initial: The value of no item: an immutable value.
            step: Value, item → next value. It must not change its argument.
            merge: Value of two, for windows that join, such as sessions.
            name: The name of the operation.
        """
        functions = (step,) if merge is None else (step, merge)
        made = self._checked("fold", lambda: agg.fold(initial, step, merge=merge))
        return self._grouped("fold", name, made, type(initial), *functions)

    def reduce(self, function: Callable[[T, T], T], *, name: str | None = None) -> Panes[K, T, T]:
        """Return the items of each window reduced, two to one."""
        return self._grouped("reduce", name, Reduce(function), self._keyed._timed._type, function)

    def aggregate(self, *, name: str | None = None, **aggregates: Aggregate) -> Panes[K, dict[str, Any], T]:
        """Return several aggregates of the same items, each under its name."""
        vertex = self._keyed._timed._vertex
        for word, each in aggregates.items():
            if not isinstance(each, Aggregate):
                raise GraphError(
                    f"aggregate after {vertex.name!r}: {word}={each!r:.80} is no aggregate",
                    hint="Say such as total=agg.sum(function), n=agg.count().",
                    vertex=vertex.name,
                )
        if not aggregates:
            raise GraphError(
                f"aggregate after {vertex.name!r} has nothing to make of the items of a window",
                hint="Say such as total=agg.sum(function), n=agg.count().",
                vertex=vertex.name,
            )
        return self._grouped("aggregate", name, named(aggregates), dict)

    def collect(self, *, name: str | None = None) -> Panes[K, list[T], T]:
        """Return a list of the items of each window, in the order in which they came.

        Windows that an item merges, such as sessions, are put together one behind the other: first those that had a
        pane, each group by time; the item comes last.
        """
        return self._grouped("collect", name, agg.collect(), list)

    def join(
        self, other: Windowed[K, U], *, how: How = "inner", name: str | None = None
    ) -> Panes[K, list[tuple[T | None, U | None]], tuple[int, T | U]]:
        """Return the pairs of the items of two streams in one window.

        Args:
            other: The other stream, by the same key, in the same windows.
            how: Whether an item without another comes with None: none (`inner`), one of this stream (`left`), or one of
                either (`outer`).
            name: The name of the operation.
        """
        return self._both("join", other)._grouped("join", name, Joined(self._keyed._how("join", how)), list)

    def cogroup(
        self, other: Windowed[K, U], *, name: str | None = None
    ) -> Panes[K, tuple[list[T], list[U]], tuple[int, T | U]]:
        """Return the items of two streams in one window, as two lists."""
        return self._both("cogroup", other)._grouped("cogroup", name, Cogroup(), tuple)

    def _both(self, word: str, other: Windowed[Any, Any]) -> Windowed[Any, Any]:
        vertex = self._keyed._timed._vertex
        if not isinstance(other, Windowed) or other._strategy != self._strategy:
            raise GraphError(
                f"{word} after {vertex.name!r} takes a stream in the windows {self._strategy}, not {other!r:.160}",
                hint="Give window the same words on both sides.",
                vertex=vertex.name,
            )
        self._finished()
        other._finished()
        return Windowed(self._keyed._with(word, other._keyed), self._strategy)

    def _checked(self, word: str, make: Callable[[], Aggregate]) -> Aggregate:
        vertex = self._keyed._timed._vertex
        try:
            return make()
        except (TypeError, ValueError) as error:
            raise GraphError(f"{word} after {vertex.name!r}: {error}", vertex=vertex.name) from None

    def _grouped(
        self, word: str, name: str | None, aggregate: Aggregate, declared: Any, *functions: Callable[..., Any]
    ) -> Panes[K, Any, T]:
        timed = self._keyed._timed
        require_functions(word, timed._vertex, *functions)
        try:
            check_aggregate(self._strategy, aggregate, retractions=self._keyed._timed._retracts)
        except GraphError as error:
            raise _named(word, timed._vertex, error) from None
        grouping = Grouping(self._strategy, aggregate)
        self._finished()
        made = (
            self._keyed._with_times()
            ._bare()
            .apply(
                grouped(grouping),
                name=timed._flow._name(name, word, *functions[:1]),
                grouping=grouping,
                times=timed._form,
            )
        )
        return Panes(made, timed._origins, self._strategy, timed._type)


@all_shown_at_caller
class Told(Timed[U], Generic[U, E]):
    """Result of an operation on event time, and the items that it reports separately."""

    def __init__(
        self,
        told: Stream[Any],
        origins: tuple[Origin, ...],
        declared: Any,
        elements: Any,
        *,
        word: str = "outputs",
        retracts: bool = False,
    ) -> None:
        self._told = told
        self._elements = elements
        self._apart: dict[str, Timed[Any]] = {}
        outputs = told.filter(is_pane, name=told._flow._name(None, f"{told._vertex.name}.{word}"))
        vertex = outputs._vertex
        assert isinstance(vertex, Map)
        vertex.picks = f"the {word} of {told._vertex.name!r}"
        super().__init__(outputs, STAMPED, origins, declared, retracts=retracts)

    @property
    def late(self) -> Stream[E]:
        """Return the items that came behind the watermark, and were taken."""
        return self._beside("late", is_late, self._elements)

    @property
    def dropped(self) -> Stream[Dropped[E]]:
        """Return the items that were not taken, each with the reason."""
        return self._beside("dropped", is_dropped, Dropped)

    def _beside(self, word: str, is_it: Callable[[Any], bool], declared: Any) -> Stream[Any]:
        if word not in self._apart:
            self._apart[word] = _Beside(self._told, word, is_it, self._origins, declared)
        return self._apart[word]


class _Beside(Timed[T]):
    """The items that an operation reports separately.

    The operation that tells them apart is added where they are first used: a look at them changes no flow.
    """

    def __init__(
        self, told: Stream[Any], word: str, is_it: Callable[[Any], bool], origins: tuple[Origin, ...], declared: Any
    ) -> None:
        self._told, self._word, self._is_it = told, word, is_it
        self._found: Stream[Any] | None = None
        self._flow, self._type, self._route = told._flow, declared, None
        self._form, self._origins, self._retracts = STAMPED, origins, False

    def __repr__(self) -> str:
        return f"<{self._word} of {self._told!r}>"

    def _filtered(self) -> Stream[Any]:
        if self._found is None:
            name = self._flow._name(None, f"{self._told._vertex.name}.{self._word}")
            self._found = self._told.filter(self._is_it, name=name)
        return self._found

    @property
    def _vertex(self) -> Vertex:  # type: ignore[override]  # made when it is asked for
        return self._filtered()._vertex

    @property
    def _output(self) -> Output:  # type: ignore[override]
        return self._filtered()._output


@all_shown_at_caller
class Panes(Told[Pane[K, V], E], Generic[K, V, E]):
    """The panes of windows, each at the time that its strategy says."""

    def __init__(self, told: Stream[Any], origins: tuple[Origin, ...], strategy: Strategy, elements: Any) -> None:
        self._strategy = strategy
        retracts = strategy.panes == "retracting"
        super().__init__(told, origins, Pane, elements, word="panes", retracts=retracts)

    if not TYPE_CHECKING:  # a type checker must not see further attributes

        def __getattr__(self, name: str) -> Any:
            if name in Pane.__annotations__:
                raise no_method(
                    self, name, (Pane.__annotations__, "Its items are panes: .map(lambda pane: pane.{name})")
                )
            return super().__getattr__(name)

    def values(self) -> Timed[V]:
        """Return the values of the panes alone."""
        return self.map(_value, name=self._flow._name(None, "values"))

    def per_window(self) -> Windowed[Window, Pane[K, V]]:
        """Group the panes again by window, as early and as late as they come."""
        return Windowed(self.key_by(_window), self._strategy.again())


def _value(pane: Pane[Any, Any]) -> Any:
    return pane.value


def _window(pane: Pane[Any, Any]) -> Window:
    return pane.window
