"""The hand-overs of one worker to the others and to itself.

Their acks keep the minimum time below them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from flamecore.abc.acker import Reporter
from flamecore.model.messages import Ack, Items, Outgoing, Patient
from flamecore.model.meta import MIN_TIME, decode_time
from flamecore.runtime.operators.agenda import Agenda
from flamecore.runtime.operators.exchange import Outbox
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.parts.own_times import OwnTimes


class HandOvers:
    """The hand-overs of one worker, and its reports to the acker.

    Args:
        reporter: The worker's side of the acker.
        random: Source of the numbers of acks.
        outboxes: The outbox of each worker, its own too.
        segment_of: Segment of the hand-overs under each index.
        opening: Number of the front that stands for the worker until its first flush; None: there is none.
        own: The times that the worker knows without the ackers; None: it knows none.

    Attributes:
        owed: Acks of received items, which are reported once all that came of these has been handed over, or waits.
        waiting: By segment, acks of items that wait before operations.
    """

    def __init__(
        self,
        reporter: Reporter,
        random: Random,
        outboxes: Sequence[Outbox],
        segment_of: Sequence[int],
        opening: int | None,
        own: OwnTimes | None = None,
    ) -> None:
        self.owed: list[Ack] = []
        self.waiting: dict[int, Ack] = {}
        self._reporter = reporter
        self._random = random
        self._outboxes = outboxes
        self._segment_of = segment_of
        self._opening = opening
        self._own = own
        self._until = MIN_TIME  # as the others were told
        self._patient: set[int] = set()  # trackers that were told that nothing waits
        self._at_rest = False

    def flush(self, out: Outgoing, now: float, *, at_rest: bool, patient: bool = False) -> None:
        """Append the contents of the outboxes, and the reports, to the messages to send.

        Args:
            out: The messages.
            now: Time of a monotonic clock, in seconds.
            at_rest: Whether nothing waits here for the minimum time of a segment that feeds another.
            patient: Whether nothing waits here for any.
        """
        reporter = self._reporter
        if len(self._outboxes) > 1:
            own, until = self._own, None
            if own is not None and own.until > self._until:
                until = self._until = own.until
            for target, outbox in enumerate(self._outboxes):
                told = until if own is not None and target in own.others else None
                if outbox or told is not None:
                    out.append((f"worker/{target}", self._pack(outbox, told)))
        # Only now: had an item been acknowledged before its outputs were handed over, the minimum time could pass
        # items that are on their way.
        for ack in self.owed:
            reporter.ack(*ack)
        self.owed.clear()
        if self._opening is not None:
            reporter.unregister(self._opening)
            self._opening = None
        if at_rest is not self._at_rest:
            self._at_rest = at_rest
            reporter.rest(at_rest)
        for tracker, report in reporter.flush(now):
            if patient is not (tracker in self._patient):
                (self._patient.add if patient else self._patient.discard)(tracker)
                out.append((f"acker/{tracker}", Patient(patient)))
            out.append((f"acker/{tracker}", report))

    def _pack(self, outbox: Outbox, until: int | None) -> Items:
        """Empty an outbox into a message with one ack for each segment, which has the lowest time of its items."""
        pieces = outbox.take()
        lowest: dict[int, bytes] = {}
        # One number for all items of a segment, under the lowest time: they are processed together,
        # so a number for each would say no more.
        for index, _, _, orders, _ in pieces:
            segment = self._segment_of[index]
            if segment not in lowest or orders[0] < lowest[segment]:
                lowest[segment] = orders[0]
        getrandbits = self._random.getrandbits
        acks = tuple(Ack(segment, decode_time(order), getrandbits(64)) for segment, order in sorted(lowest.items()))
        for ack in acks:
            self._reporter.ack(*ack)
        return Items(pieces, acks, until)

    def hold(self, buffers: Iterable[ReorderBuffer | Agenda], lowest: dict[int, bytes]) -> None:
        """Report items that wait: an ack for each segment, of the lowest time.

        Args:
            buffers: The buffers in which they wait.
            lowest: The lowest order of others, by segment; changed by the call.
        """
        for buffer in buffers:
            if (order := buffer.lowest) is not None and buffer.segment is not None:
                lowest[buffer.segment] = min(order, lowest.get(buffer.segment, order))
        if not lowest and not self.waiting:
            return
        for segment in lowest.keys() | self.waiting.keys():
            before = self.waiting.get(segment)
            time = decode_time(lowest[segment]) if segment in lowest else None
            if before is not None:
                # The same time waits as before: the acker need not hear of it. So a buffer costs a
                # report only when its first item changes.
                if before.time == time:
                    continue
                self.owed.append(self.waiting.pop(segment))
            if time is not None:
                ack = self.waiting[segment] = Ack(segment, time, self._random.getrandbits(64))
                self._reporter.ack(*ack)

    def due(self) -> float | None:
        """Return the latest time of the next report, or None."""
        return self._reporter.due()
