"""The order of work on one worker.

It decides which waiting items run now, and which operators learn of time.
"""

from __future__ import annotations

from typing import Final

from flamecore.abc.acker import Listener
from flamecore.model.meta import MIN_FRONT, MIN_TIME, encode_time
from flamecore.model.segments import Segments
from flamecore.runtime.operators.agenda import Agenda
from flamecore.runtime.operators.compiler import Compiled
from flamecore.runtime.operators.ordered import OrderedBuffer
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.parts.ingress import Ingress
from flamecore.runtime.parts.own_times import OwnTimes
from flamecore.runtime.state.journal import GivenTimes

_STEP_ITEMS: Final = 65_536


class Schedule:
    """The work of a worker that waits for minimum times, or records of other fronts.

    Args:
        ingress: The worker's fronts, with the records that wait for each other.
        compiled: Its operations, with the items that wait before them.
        segments: Segments of the graph.
        listener: Minimum times, from the news of the ackers.
        own: The times that the worker knows by itself; None: it waits for the ackers.

    Attributes:
        step_items: Approximate number of waiting items that run in one step; the rest is due at once.
        has_steps: Whether records or items may wait here for earlier ones.
        has_grown: Whether a minimum time has grown since operators were told of time.
        told: By segment, the last time that operators were told.
    """

    def __init__(
        self,
        ingress: Ingress,
        compiled: Compiled,
        segments: Segments,
        listener: Listener,
        own: OwnTimes | None = None,
    ) -> None:
        self.step_items = _STEP_ITEMS
        self.has_steps = bool(ingress.merges or compiled.waiting)
        self.has_grown = True
        self.told = dict.fromkeys(compiled.timed, MIN_TIME)
        self._ingress = ingress
        self._compiled = compiled
        self._segments = segments
        self._listener = listener
        self._own = own
        self._steps = (*ingress.merges, *compiled.waiting)
        self._drained = [(buffer, buffer.segment) for buffer in compiled.waiting if buffer.segment is not None]
        self._ordered = [buffer for buffer in compiled.waiting if isinstance(buffer, OrderedBuffer)]
        self._knowns: list[bytes] | None = None
        """For each of `_drained`, the time below which nothing more is to come, if it is known."""

    def grow(self) -> None:
        """Note that a minimum time has grown."""
        self.has_grown, self._knowns = True, None

    def step(self) -> bool:
        """Run some waiting items that nothing can come before; return whether more could."""
        self._ingress.run_waiting(self.step_items)
        self.learn()
        if self._knowns is None:
            self._knowns = [self._known(buffer, segment) for buffer, segment in self._drained]
        for (buffer, _), known in zip(self._drained, self._knowns, strict=True):
            buffer.drain(known, self.step_items)
        for buffer in self._ordered:
            if buffer.to_store is not None:
                self._ingress.promises.given_times.append(GivenTimes(MIN_FRONT, buffer.to_store - 1, 1))
                buffer.to_store = None
        self.learn()  # what has run may open the next operation
        return self.is_ready()

    def confirm_time(self, time: int) -> None:
        """Note that the journal says that time has passed to `time`, for which timers may wait."""
        for buffer in self._ordered:
            buffer.note_stored(time)

    def learn(self) -> None:
        """Learn how far fronts have come, by the own times."""
        if self._own is not None and self._own.update():
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
        for each in self._steps:
            if each.is_ready:
                return True
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
