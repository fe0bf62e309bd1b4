"""Ordered operations: vertices that take their items in the order of metas, each once.

They wait for the minimum time inbound to them, so nothing they do is ever taken back: their state is a plain fold, and
what they do may be expensive, or end windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from flamecore.errors import GraphError
from flamecore.model.hashing import canonical
from flamecore.model.meta import GlobalTime, encode_child
from flamecore.model.vertices import ByKey, Vertex

__all__ = ["MOST_PAST", "Due", "Now", "Ordered", "Outcome", "Timer", "timer_place"]


class Now(NamedTuple):
    """The place of a call of an operation's work in the order of items.

    Attributes:
        time: The global time.
    """

    time: int


class Timer(NamedTuple):
    """A moment at which the state of a key is to be worked on, if nothing else comes.

    Attributes:
        time: The global time. The call comes before all records of that time; at once, if it is past.
        tag: A number of 64 bits with a sign that tells timers of one key and time apart, and orders them.
    """

    time: int
    tag: int = 0


class Outcome(NamedTuple):
    """The state that a call of an operation's work leaves, the outputs, and the pending timers.

    Attributes:
        state: The state of the key from now on, an immutable value; None: the key has none, and is forgotten.
        outputs: The outputs, in order.
        timers: All timers of the key that are pending from now on. One that is left out is cancelled.
    """

    state: Any = None
    outputs: Iterable[Any] = ()
    timers: Iterable[Timer] = ()


class Due(NamedTuple):
    """A timer that is due, in the place of an item: errors show it."""

    key: Any
    timer: Timer

    def __repr__(self) -> str:
        return f"timer {self.timer.tag} of {self.key!r} at {self.timer.time}"


MOST_PAST: Final = 10_000
"""Most timers in a row that are past when they are set."""


def timer_place(vertex: Vertex, timer: Timer, key: Any) -> bytes:
    """Return the order at which a timer is due, before all records of its time.

    It is as the place of an item of front 0: of the operation, by tag, then by key.
    """
    hashed = xxh3_64_intdigest(canonical(key))
    numbers = vertex.index, timer.tag + 2**63, hashed
    return GlobalTime(timer.time).encode() + b"".join(map(encode_child, numbers))


@dataclass(eq=False, slots=True, repr=False)
class Ordered(Vertex):
    """An operation by key whose items come in order, in their only version.

    A plugin derives from it: the fields are the settings, and `work` returns what does the work. The engine has one
    operator for all of them, and a flow takes one by `apply`.

    Attributes:

    """

    kind: ClassVar[str] = "ordered"
    stateful: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    appends: ClassVar[bool] = True
    timers: ClassVar[bool] = False

    def work(self) -> Any:
        """Return the work on one worker, a new `flamecore.abc.operator.Work`."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define work")

    @property
    def value(self) -> Any:
        """Return the declared type of a key's state; `object` if not known."""
        return object

    @property
    def state(self) -> Any:
        """Return the type of what is stored for a key: its state, its timers and its hold."""
        value: Any = self.value
        return object if value is object else tuple[value, tuple[tuple[int, int], ...], int | None]

    def check(self) -> None:
        if not isinstance(self.route, ByKey):
            raise GraphError(
                f"{self!r} goes by a hash, and keeps its state by key", hint="Call key_by before it.", vertex=self.name
            )
