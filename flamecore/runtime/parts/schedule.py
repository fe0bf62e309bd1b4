"""The order of work on one worker.

It decides which waiting items run now, and which operators learn of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flamecore.abc.acker import Listener
from flamecore.model.meta import MIN_FRONT, MIN_TIME, decode_time, encode_time
from flamecore.model.segments import Segments
from flamecore.runtime.operators.agenda import Agenda
from flamecore.runtime.operators.compiler import Compiled
from flamecore.runtime.operators.ordered import OrderedBuffer
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.parts.backlog import Backlog
from flamecore.runtime.parts.ingress import Ingress
from flamecore.runtime.parts.own_times import OwnTimes
from flamecore.runtime.parts.promises import NO_MORE
from flamecore.runtime.state.journal import GivenTimes

_STEP_ITEMS: Final = 65_536

_LEAST_ITEMS: Final = 1
_MOST_ITEMS: Final = 16_384
"""Items that run before the time is looked at: at first, for a function may take seconds, and at most."""

_STEP_S: Final = 0.01
"""Most seconds that they should take."""


def _no_time() -> float:
    return 0.0


class Pace:
    """The number of items that run in one step.

    Args:
        items: The number at first.
    """

    __slots__ = ("items",)

    def __init__(self, items: int) -> None:
        self.items = items

    def fit(self, took_s: float, *, more: bool) -> None:
        """Fit the number to a step.

        Args:
            took_s: Seconds that it took.
            more: Whether more items wait.
        """
        if took_s > _STEP_S:
            # Not one half after the other: a function that waits for an answer may take a million times as long as
            # before, and each half would be that much again.
            self.items = max(int(self.items * _STEP_S / took_s), _LEAST_ITEMS)
        elif more:
            self.items = min(self.items * 2, _MOST_ITEMS)


class Schedule:
    """The work of a worker that waits for its turn, for minimum times, or for records of other fronts.

    Args:
        ingress: The worker's fronts, with the records that wait for each other.
        backlog: The items that run before all others.
        compiled: Its operations, with the items that wait before them.
        segments: Segments of the graph.
        listener: Minimum times, from the news of the ackers.
        own: The times that the worker knows by itself; None: it waits for the ackers.

    Attributes:
        has_grown: Whether a minimum time has grown since operators were told of time.
        told: By segment, the last time that operators were told.
    """

    def __init__(
        self,
        ingress: Ingress,
        backlog: Backlog,
        compiled: Compiled,
        segments: Segments,
        listener: Listener,
        own: OwnTimes | None = None,
    ) -> None:
        self._time: Callable[[], float] = _no_time
        self.has_grown = True
        self.told = dict.fromkeys(compiled.timed, MIN_TIME)
        self._ingress = ingress
        self._backlog = backlog
        self._compiled = compiled
        self._segments = segments
        self._listener = listener
        self._own = own
        self._steps = (*ingress.merges, *compiled.waiting)
        self._arriving = Pace(_STEP_ITEMS)
        self._drained = [
            (buffer, buffer.segment, segments.reached_from(buffer.segment), Pace(_STEP_ITEMS))
            for buffer in compiled.waiting
            if buffer.segment is not None
        ]
        """Each buffer with its segment, the segments that it leads to, and its pace."""
        self._first = 0  # the turn that begins the next step: 0 for what came in, or the number of a buffer and one
        self._is_cut = False  # whether some had no turn in the last step: it ended with its round, or began later
        self._ordered = [buffer for buffer in compiled.waiting if isinstance(buffer, OrderedBuffer)]
        self._knowns: list[bytes] | None = None
        """For each of `_drained`, the time below which nothing more is to come, if it is known."""

    def grow(self) -> None:
        """Note that a minimum time has grown."""
        self.has_grown, self._knowns = True, None

    def run_by(self, clock: Callable[[], float]) -> None:
        """Fit the number of items of each step to the time that it takes.

        Args:
            clock: Function that returns the time in seconds.
        """
        self._time = clock
        self.set_pace(_LEAST_ITEMS)

    def set_pace(self, items: int) -> None:
        """Set the approximate number of waiting items that run in one step; the rest is due at once."""
        for pace in (self._arriving, *[pace for _, _, _, pace in self._drained]):
            pace.items = items

    def step(self) -> bool:
        """Run some waiting items that nothing can come before; return whether more could."""
        # Where the last round has ended, the next does not begin: a slow function would keep waiting what it has made.
        # Its first buffers have their turns before what was left of a round has run, which they may have to wait for.
        first, self._first, self._is_cut = self._first, 0, self._first > 0
        turns = len(self._drained) + 1
        for turn in (*range(first, turns), *range(first)) if first else range(turns):
            if turn:
                self._drain(turn - 1)
            else:
                self._take_in()
                if self._drained:
                    self.learn()  # what has run may open an operation
            if self._backlog.round_is_over:
                self._first, self._is_cut = (turn + 1) % turns, True
                break
        for buffer in self._ordered:
            if buffer.to_store is not None:
                self._ingress.promises.given_times.append(GivenTimes(MIN_FRONT, buffer.to_store - 1, 1))
                buffer.to_store = None
        if self._drained:
            self.learn()  # and what that has given, the next
        return self.is_ready()

    def _take_in(self) -> None:
        """Run items that came in, or were left of a round."""
        waiting, merges = self._backlog.waiting, self._ingress.merges
        if not waiting and not merges:
            return
        begun = self._time()
        self._backlog.run(self._arriving.items)
        more = bool(waiting)
        if merges and not waiting:
            self._ingress.run_waiting(self._arriving.items)
            more = bool(waiting) or any(merge.is_ready for merge in merges)
        self._arriving.fit(self._time() - begun, more=more)

    def _drain(self, number: int) -> None:
        """Let some items of a buffer in, unless they could pass what was left of a round."""
        if self._knowns is None:
            self._knowns = [self._known(buffer, segment) for buffer, segment, _, _ in self._drained]
        buffer, _, reached, pace = self._drained[number]
        if self._backlog.cuts(reached):
            return
        begun = self._time()
        buffer.drain(self._knowns[number], pace.items)
        self._backlog.collect()
        pace.fit(self._time() - begun, more=buffer.is_ready)

    def confirm_time(self, time: int) -> None:
        """Note that the journal says that time has passed to `time`, for which timers may wait."""
        for buffer in self._ordered:
            buffer.note_stored(time)

    def learn(self) -> None:
        """Learn how far fronts have come, by the own times."""
        if self._own is None:
            return
        left = self._backlog.lowest() if self._backlog.waiting else None
        if self._own.update(decode_time(min(left.values())) if left else NO_MORE):
            self.grow()

    def _known(self, buffer: ReorderBuffer | Agenda, segment: int) -> bytes:
        """Return the encoded time below which a buffer gets nothing more."""
        # The least of all segments that lead here: an item may come from any of them.
        known = encode_time(min(map(self._listener.min_time, self._segments.inbound[segment])))
        if self._own is not None and isinstance(buffer, ReorderBuffer):
            return max(known, self._own.before(buffer))
        return known

    def is_ready(self) -> bool:
        """Return whether another step would run items."""
        # A buffer without a turn does not know that its time has come, and nobody may tell the worker anything more.
        if self._backlog.waiting or self._is_cut:
            return True
        for each in self._steps:
            if each.is_ready:
                return True
        if not self._drained:
            return False
        # Only where times have grown since the last step. Nobody says so but the worker itself.
        return self._knowns is None and self._own is not None and self._own.opens_more()

    def tell_time(self) -> None:
        """Notify the operators of each segment whose minimum time inbound has risen."""
        self.has_grown = False
        min_time = self._listener.min_time
        if (early := self._compiled.early) and encode_time(min_time(self._segments.last)) >= early[0]:
            early.clear()  # all first records, and their derived items, are done
        for segment, operators in self._compiled.timed.items():
            time = min_time(segment)
            if time > self.told[segment]:
                self.told[segment] = time
                minimum = encode_time(time)
                for operator in operators:
                    operator.on_time(minimum)
