"""Ordered operations: vertices that take items in the order of metas, each once.

They wait for the minimum time inbound to them, so nothing they do is ever taken back: their state is a plain fold, and
what they do may be expensive, or end windows.

*Marks* are numbers that go beside the items, straight to the next ordered operations. A mark says something of all
items before its place, such as that no earlier event is to come. Reports show it as a time, in microseconds since 1970.
An *origin* of marks is a front, or a partition of an ordered operation; the watermark of an ordered operation is the
least of what its origins have said last. The place of a mark is behind the record that caused it and all that comes of
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from flamecore.errors import GraphError
from flamecore.model.clock import global_time, moment
from flamecore.model.hashing import KEY_GROUPS, canonical, canonicals, key_group, stable_hash
from flamecore.model.meta import GLOBAL_TIME_BYTES, MAX_TIME, MIN_TIME, GlobalTime, encode_child
from flamecore.model.vertices import ByKey, Labelled, Vertex

T = TypeVar("T")
L = TypeVar("L")

_WIDE: Final = encode_child(2**64 - 1)[:1]
"""The first byte of the code of a number of eight bytes."""


class Now(NamedTuple):
    """The place of a call of an operation's work in the order of items.

    Attributes:
        time: The global time.
        watermark: The least of what the origins of marks have said last; `MIN_TIME` until all have.
        before: The watermark before the mark, where the call is of a timer that the mark makes due; else the watermark.
    """

    time: int
    watermark: int = MIN_TIME
    before: int = MIN_TIME


class Timer(NamedTuple):
    """A moment at which the state of a key is to be worked on, if nothing else comes.

    Attributes:
        time: The global time: the call comes before all records of that time. Or, for a mark, the watermark: the call
            comes as soon as the watermark is not below. At once, if it is past.
        tag: A number of 64 bits with a sign that tells timers of one key and time apart, and orders them.
        mark: Whether it waits for the watermark.
    """

    time: int
    tag: int = 0
    mark: bool = False


class Outcome(NamedTuple):
    """The outcome of a call of an operation's work: state, outputs, pending timers.

    Attributes:
        state: The state of the key from now on, an immutable value; None: the key has none, and is forgotten.
        outputs: The outputs, in order.
        timers: All timers of the key that are pending from now on. One that is left out is cancelled. `KEPT`, for an
            item of a key that has state: timers and hold stay as they are, which costs nothing.
        hold: The marks of the operation are no higher than this, for the sake of the key; None: it holds back none.
            From call to call of a key it must not go below the marks that it has let pass.
    """

    state: Any = None
    outputs: Iterable[Any] = ()
    timers: Iterable[Timer] = ()
    hold: int | None = None


KEPT: Final[tuple[Timer, ...]] = (Timer(MIN_TIME),)
"""Stands for timers and a hold that stay as they are; compared by identity."""


class Due(NamedTuple):
    """A timer that is due, in the place of an item: errors show it."""

    key: Any
    timer: Timer

    def __repr__(self) -> str:
        what, at = ("mark", moment) if self.timer.mark else ("timer", global_time)
        return f"{what} {self.timer.tag} of {self.key!r} at {at(self.timer.time)}"


MOST_PAST: Final = 10_000
"""Most timers in a row that are past when they are set."""


def timer_place(firing_place: int, timer: Timer, key: Any, mark: bytes | None = None) -> bytes:
    """Return the order at which a timer is due.

    By time, it is before all records of that time, as the place of an item of front 0: by operation, by tag, then by
    key. By a mark, it is among all that comes of the mark: by operation, by time, tag and key.

    Args:
        firing_place: The place of the operation among others (`flamecore.model.graph.Graph.firing_places`).
        timer: The timer.
        key: Its key.
        mark: The place of the mark, if it waits for the watermark.
    """
    numbers = [timer.tag + 2**63, rank_of(key)]
    if mark is None:
        mark = GlobalTime(timer.time).encode()
    else:
        numbers.insert(0, timer.time + 2**63)
    return mark + b"".join(map(encode_child, (firing_place, *numbers)))


def rank_of(key: Any) -> int:
    """Return a number that orders keys whose timers have one time and tag.

    It is the same in every process.
    """
    return xxh3_64_intdigest(canonical(key))


def rank_codes(keys: Sequence[Any]) -> list[bytes]:
    """Return `encode_child(rank_of(key))` for each key."""
    digests = map(xxh3_64_digest, canonicals(keys))
    # Nearly all of them have all eight bytes.
    return [_WIDE + digest if digest[0] else encode_child(int.from_bytes(digest, "big")) for digest in digests]


def tie_of(key: Any) -> bytes:
    """Return bytes that order keys whose timers have one place.

    They are the same in every process.
    """
    return canonical(key) + repr(key).encode("utf-8", "backslashreplace")


@dataclass(eq=False, slots=True, repr=False)
class Ordered(Vertex):
    """An operation by key whose items come in order, in their only version.

    A plugin derives from it: the fields are the settings, and `work` returns what does the work. The engine has one
    operator for all of them, and a flow takes one by `apply`.

    Attributes:
        passing: Whether no key has state behind the items of one time, so that snapshots hold none. It may be mutable.
    """

    kind: ClassVar[str] = "ordered"
    stateful: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    appends: ClassVar[bool] = True
    timers: ClassVar[bool] = False
    passing: ClassVar[bool] = False

    def work(self) -> Any:
        """Return the work on one worker, a new `flamecore.abc.operator.Work`."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define work")

    @property
    def awaits_end(self) -> bool:
        """Return whether nothing comes of it before a mark ends its input, `CLOSING`.

        A job that keeps state emits no such mark unless the flow asks for it, so it refuses such an operation.
        """
        return False

    def wrapped(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Ordered:
        """Return a copy with `wrap` around each user function outside of `functions`.

        Functions in the fields that `functions` names are not wrapped here. For checks, such as `job.check_mutation`.
        By default there is nothing to wrap.
        """
        return self

    @property
    def value(self) -> Any:
        """Return the declared type of a key's state; `object` if not known."""
        return object

    @property
    def state(self) -> Any:
        """Return the type of what is stored for a key: its state, its timers and its hold."""
        value: Any = self.value
        return object if value is object else tuple[value, tuple[tuple[int, int, bool], ...], int | None]

    def state_shown(self, stored: Any) -> Any:
        """Return a mapping of the state, the pending timers by time, and the hold of the marks, if there are any."""
        state, timers, hold = stored
        shown: dict[str, Any] = {"state": state}
        if timers:
            shown["timers"] = [
                {"watermark": moment(time), "tag": tag} if mark else {"time": global_time(time), "tag": tag}
                for time, tag, mark in timers
            ]
        if hold is not None:
            shown["hold"] = moment(hold)
        return shown

    def check(self) -> None:
        if not isinstance(self.route, ByKey):
            raise GraphError(
                f"{self!r} goes by a hash, and keeps its state by key", hint="Call key_by before it.", vertex=self.name
            )


# -- gathering ---------------------------------------------------------------------------------------------------------


class Gathered(NamedTuple, Generic[L, T]):
    """All that has come of a labelled item.

    Attributes:
        item: The labelled item.
        parts: All that has come of it, in order.
    """

    item: L
    parts: tuple[T, ...]


@dataclass(eq=False, slots=True, repr=False)
class Gather(Ordered):
    """All that has come of each labelled item, once.

    Its input is `Labelled`, by label. The labelled item comes behind all that has come of it, and is the only one if
    nothing has.
    """

    kind: ClassVar[str] = "gather"
    passing: ClassVar[bool] = True

    @property
    def types(self) -> tuple[Any, ...]:
        return (Labelled, Gathered)

    def work(self) -> Any:
        return _Gathering()


class _Gathering:
    """The work of a gathering.

    The state of a label is a list of parts, dropped when the labelled item comes.
    """

    def open(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass

    def process(self, key: bytes, state: list[Any] | None, item: Labelled, now: Now) -> Outcome:
        parts = [] if state is None else state
        if item.ends:
            return Outcome(None, (Gathered(item.payload, tuple(parts)),))
        parts.append(item.payload)
        return Outcome(parts)


# -- marks -------------------------------------------------------------------------------------------------------------

Origin = tuple[int, int]
"""(index of a vertex, number of the front or of the worker)."""

CLOSING: Final = MAX_TIME
"""The mark at the end of a front: nothing is to come any more."""

# A mark like others, so that it has a place in the order: a flag beside the items would take effect
# at another item in every run.
IDLE: Final = MIN_TIME
"""The mark of a front that nothing comes of at present: until its next one it holds no watermark back."""

DONE: Final = MIN_TIME + 1
"""The mark at the end of a front that had nothing new: it holds no watermark back, and moves none by itself."""

BEGUN: Final = MIN_TIME + 2
"""The mark of the first record that a front reads since the job began, or went on behind its end."""

_LAST: Final = encode_child(2**64 - 1)


class Marked(NamedTuple):
    """The outcome of a record in a fold over the records of a front.

    Attributes:
        state: The state of the front from now on, an immutable value.
        mark: The mark that holds from the record on; None: no other than before.
        counts: Whether the record counts for marks; those that do not are counted (`ahead`).
    """

    state: Any
    mark: int | None = None
    counts: bool = True


@dataclass(eq=False, slots=True, repr=False)
class Marking(Vertex):
    """A vertex that passes items on and emits marks.

    Only maps may be between it and its source.

    Attributes:
        function: Function from a payload to the mark that holds from its record on; None: no other than before. A mark
            that is not above the front's last one says nothing. It may have an attribute `many`, a function from
            several payloads to the marks of all, each a whole number, which costs less; and `less`, by how much the
            marks are less than these numbers.
        folds: Whether the function needs to know of earlier records. It is then one of the state of the front (None at
            first), the payload, and its global time where times are those of the wall clock (else None), and returns
            `Marked`.
        step: Marks are rounded down to multiples of it, so that there are few.
        closes: Whether the end of a front is a mark, `CLOSING`, at a time of its own. Otherwise the last one stays, or
            is `DONE` if the front had nothing new.
            None: it is where no state is kept, which nothing can go on from.
        option: The option of a flow that makes `closes` True, in words such as `at_end="close" of 'clicks'`, for the
            summary of a job whose input has ended and holds items back.
    """

    kind: ClassVar[str] = "marking"
    functions: ClassVar[tuple[str, ...]] = ("function",)
    marks: ClassVar[bool] = True

    function: Callable[..., Any] = field(kw_only=True)
    folds: bool = field(default=False, kw_only=True)
    step: int = field(default=1, kw_only=True)
    closes: bool | None = field(default=True, kw_only=True)
    option: str = field(default="", kw_only=True)

    def check(self) -> None:
        if self.route is not None:
            raise GraphError(
                f"{self!r} has a route, and marks are said where records are read",
                hint="Call key_by or rebalance behind it.",
                vertex=self.name,
            )
        if self.step < 1:
            raise GraphError(f"the step of {self!r} is {self.step}", hint="It must be at least 1.", vertex=self.name)


@dataclass(eq=False, slots=True, repr=False)
class IdlingMarking(Marking):
    """A marking of fronts that may be idle.

    How long nothing has come is a matter of the wall clock, so the mark is journaled as records are.

    Attributes:
        idle_us: For how many microseconds a front waits for its source until it is idle, `IDLE`.
    """

    wall: ClassVar[bool] = True

    idle_us: int = field(kw_only=True)

    def check(self) -> None:
        Marking.check(self)
        if self.idle_us < 1:
            raise GraphError(
                f"{self!r} has fronts idle after {self.idle_us} microseconds", hint="At least 1.", vertex=self.name
            )


def behind_record(order: bytes) -> bytes:
    """Return the place of a mark that a record causes.

    It is behind all items derived from the record.
    """
    return order[:GLOBAL_TIME_BYTES] + _LAST


def behind(place: bytes) -> bytes:
    """Return the place of a mark that another one causes: behind all that comes of it."""
    return place + _LAST


@cache
def shared_names() -> tuple[Any, ...]:
    """Return a name for each key group, for state that partitions share.

    The owner of the key group stores under it what all partitions of an operation share.
    """
    found: dict[int, Any] = {}
    number = 0
    while len(found) < KEY_GROUPS:
        found.setdefault(key_group(stable_hash((_SHARED, number))), (_SHARED, number))
        number += 1
    return tuple(found[group] for group in range(KEY_GROUPS))


_SHARED: Final = "\0shared"


def is_shared(name: Any) -> bool:
    """Return whether a name is one of `shared_names`."""
    return type(name) is tuple and len(name) == 2 and type(name[0]) is str and name[0] == _SHARED
