"""The rounds of a worker's work, which end by time as well as by items.

A function that waits for an answer may take a million times as long as the one before it. Once a round has lasted long
enough, the call at work is its last: the outputs made so far go on, messages and signals are served, and the items that
are left run in the next round, before anything else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from sys import maxsize
from typing import Any, Final, NamedTuple

from flamecore.abc.operator import Round, Run
from flamecore.model.batch import Orders

_CUT: Final = frozenset(map(type, (iter([]), iter(()), iter(range(0)))))
"""Types of iterators that can be moved to their end."""


class Rest(NamedTuple):
    """Items that have not run.

    Attributes:
        run: The run that takes them.
        segment: Segment in which they are in flight.
        orders, trace, payloads: The items.
        cut: Whether others of their run have run, or were to run before them: then all that comes there waits for them.
    """

    run: Run
    segment: int
    orders: Orders
    trace: int
    payloads: Sequence[Any]
    cut: bool = False


class Rounds:
    """The rounds of one worker.

    Attributes:
        is_over: Whether the present round has ended: no function may be called in it any more.
        left: The items that are left of it, in the sequence in which they would have run.
        behind: How many such pieces of earlier rounds have not run.
    """

    __slots__ = ("_running", "behind", "is_over", "left")

    def __init__(self) -> None:
        self.is_over = False
        self.behind = 0
        self.left: list[Rest] = []
        self._running: list[Any] = []

    def begin(self) -> None:
        """Begin a round."""
        self.is_over = False
        self._running.clear()  # of a loop that has ended with an error

    def end(self) -> None:
        """End the round with the call at work; another thread may call it."""
        self.is_over = True
        # No look at a flag or a clock before each call, which costs a cheap function some of its time: the loop over
        # the items comes to its end. A copy, because the other thread goes on.
        for left in self._running.copy():
            left.__setstate__(maxsize)

    def iterate(self, values: Sequence[Any]) -> Iterator[Any]:
        """Return an iterator over values that ends with the round."""
        left: Any = iter(() if self.is_over else values)
        if type(left) not in _CUT:
            left = iter([*left])
        self._running.append(left)
        if self.is_over:  # since the look above
            left.__setstate__(maxsize)
        return left  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Forget the last iterator, whose loop has ended."""
        self._running.pop()

    def take(self) -> list[Rest]:
        """Take out what is left of a round."""
        left, self.left = self.left, []
        return left


ROUNDS: Final[ContextVar[Callable[[], Rounds]]] = ContextVar("rounds", default=Rounds)
"""Function that makes the rounds of a worker. A simulation sets another one."""


class VertexRound(Round):
    """The rounds of a worker, for the operator of one vertex.

    Args:
        rounds: The rounds.
        segment: Segment of the vertex.
    """

    __slots__ = ("_rounds", "_segment", "finish", "iterate")

    def __init__(self, rounds: Rounds, segment: int) -> None:
        self._rounds, self._segment = rounds, segment
        self.iterate, self.finish = rounds.iterate, rounds.finish  # type: ignore[method-assign]  # without a call more

    @property
    def is_over(self) -> bool:
        return self._rounds.is_over

    @property
    def is_behind(self) -> bool:
        return bool(self._rounds.behind or self._rounds.left)

    def leave(self, run: Run, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        self._rounds.left.append(Rest(run, self._segment, orders, trace, payloads, cut=True))
