"""The way of outputs out of a worker.

Sinks open for them as far as minimum times have come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flamecore.abc.acker import Listener
from flamecore.abc.operator import Columns
from flamecore.abc.sink import Encode
from flamecore.model.messages import CONTROL, Delivered, Failing, Outgoing, Released
from flamecore.model.meta import MIN_TIME
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.runtime.operators.compiler import Compiled
from flamecore.runtime.parts.failures import Failures
from flamecore.runtime.parts.own_times import OwnTimes


class Egress:
    """The outputs of one worker that wait for minimum times, and its failures.

    Args:
        index: Number of the worker.
        plan: The job's plan.
        listener: Minimum times, from the news of the ackers.
        compiled: The worker's barriers and outlets.
        failures: Its failures.
        encoders: Encoders of payloads, for sinks that have one.
        own: The times that the worker knows by itself; None: it waits for the ackers.

    Attributes:
        opens: The segment of each rear.
        released: For each rear, the time below which outputs have been released.
    """

    def __init__(
        self,
        index: int,
        plan: Plan,
        listener: Listener,
        compiled: Compiled,
        failures: Failures,
        encoders: Mapping[str, Encode],
        own: OwnTimes | None = None,
    ) -> None:
        segments = plan.segments
        self.opens = {sink.name: segments.of[sink.index] for sink in plan.graph.sinks}
        if plan.settings.dead_letters:
            self.opens[DEAD_LETTERS] = segments.last
        self.released = {rear: min(listener.min_time(segment), 0) for rear, segment in self.opens.items()}
        self._index = index
        self._heard = dict(self.released)
        self._own = own
        self._listener = listener
        self._barriers = compiled.barriers
        self._outlets = compiled.outlets
        self._failures = failures
        # The rear turns a failure into the letter that its sink stores: the sink's encoder is not made for failures.
        self._encoders = {rear: encode for rear, encode in encoders.items() if rear != DEAD_LETTERS}
        self._delivered = dict.fromkeys(plan.rears, MIN_TIME)

    def release(self, out: Outgoing) -> None:
        """Append the items below minimum times to the messages to send.

        The minimum time of a sink is that of its segment.
        """
        min_time = self._listener.min_time
        ending, letters = self._failures.release(min_time)
        if ending is not None:  # a sink may take long to reach the failed record
            out.append((CONTROL, Failing(ending)))
        # Each sink opens by its own segment: one on a short branch does not wait for a long one.
        # While it holds a failure, it does not go ahead of the ackers: it may be that of the next record. Those that it
        # has not heard of are left to the rears.
        own = self._own if self._failures.is_empty else None
        for rear, segment in self.opens.items():
            time = heard = min_time(segment)
            if own is not None:
                time = max(time, own.at_sink(rear))
            outlet = self._outlets.get(rear)  # outlets exist only without the barrier
            if time > self.released[rear]:
                self.released[rear] = time
            elif not outlet and not (self._failures.may_end and heard > self._heard[rear]):
                continue
            time, self._heard[rear] = self.released[rear], heard
            if rear == DEAD_LETTERS:
                columns = _columns(letters)
            elif outlet is None:
                columns = self._barriers[rear].columns(time)
            else:
                columns = _columns(outlet)
                outlet.clear()
            out.append((f"rear/{rear}", self._released_to(rear, time, heard, columns)))

    def _released_to(self, rear: str, time: int, heard: int, columns: Columns) -> Released:
        orders, payloads = columns
        encode = self._encoders.get(rear)
        # Outputs behind a record that ends the job are cut off where they are stored: not all workers hear of it.
        fatal = self._failures.for_rear(rear)
        payloads = payloads if encode is None else encode(payloads)
        away = self._failures.away_from(rear)
        return Released(self._index, time, orders, payloads, fatal, None if heard == time else heard, away)

    def note(self, word: Delivered) -> None:
        """Note how far a rear has stored outputs."""
        self._delivered[word.rear] = max(word.time, self._delivered[word.rear])

    def delivered(self) -> int:
        """Return the time below which every rear has stored all, as far as known here."""
        return min(self._delivered.values())


def _columns(items: Sequence[tuple[bytes, object]]) -> Columns:
    """Return the orders of items, and their payloads."""
    return [order for order, _ in items], [payload for _, payload in items]
