"""Reports of a worker, merged until they are sent: the base of all reporters here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from flamecore.abc.acker import AckerPlan, Reporter
from flamecore.errors import TimeRegressionError
from flamecore.model.messages import Ack, Report

Heartbeats = tuple[tuple[int, int], ...]


class MergingReporter(Reporter):
    """An XOR for each (segment, time), latest heartbeats, and ended fronts, unsent."""

    def __init__(self, plan: AckerPlan) -> None:
        self._acks: list[dict[int, int]] = [{} for _ in plan.segments]
        self._heartbeats: dict[int, int] = {}
        self._ended: dict[int, None] = {}  # in order; of many files that end together each is looked up
        self._promises: dict[int, int] = {}  # latest heartbeat of each front, sent or not
        self._at_rest = False

    def ack(self, segment: int, time: int, xor: int) -> None:
        acks = self._acks[segment]
        if time in acks:
            acks[time] ^= xor
        else:
            acks[time] = xor

    def heartbeat(self, front: int, time: int) -> None:
        last = self._promises.get(front)
        if last is not None and time <= last:
            if time < last:
                raise TimeRegressionError(
                    f"front {front} gave heartbeat {time} after {last}",
                    hint="The global times of a front must grow.",
                    time=time,
                    limit=last,
                )
            return  # promised already
        if front in self._ended:
            raise TimeRegressionError(
                f"front {front} gave heartbeat {time} after it had ended",
                hint="End a front after everything else it does.",
                time=time,
                limit=last,
            )
        self._promises[front] = self._heartbeats[front] = time

    def unregister(self, front: int) -> None:
        self._ended[front] = None
        self._promises.pop(front, None)  # registered again, it may go on from any time the tracker allows

    def rest(self, at_rest: bool) -> None:
        self._at_rest = at_rest

    def _take_acks(self) -> tuple[Ack, ...]:
        """Empty the buffer, highest (segment, time) first.

        Paper 002 asks for this order: items sent before those that caused them. Checksums that are zero are left out:
        they would change nothing.
        """
        taken: list[Ack] = []
        for segment in range(len(self._acks) - 1, -1, -1):
            acks = self._acks[segment]
            if acks:
                taken += [Ack(segment, time, acks[time]) for time in sorted(acks, reverse=True) if acks[time]]
                acks.clear()
        return tuple(taken)

    def _take_heartbeats(self) -> Heartbeats:
        taken = tuple(self._heartbeats.items())
        self._heartbeats.clear()
        return taken


class SteppingReporter(MergingReporter):
    """Reporter that sends everything at every flush: acks, heartbeats, ended fronts.

    Fronts never end in a report that carries acks. If there are acks in the flush they wait for the next, which is due
    at once and sends them ahead of anything else, so a worker that is never idle does not keep them waiting.
    """

    def __init__(self, worker: int, plan: AckerPlan) -> None:
        super().__init__(plan)
        self._worker = worker
        self._tick = 0
        self._held: tuple[int, ...] = ()
        self._held_since: float | None = None

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        if not (self._heartbeats or self._ended or self._held or any(self._acks)):
            return ()
        acks = self._take_acks()
        heartbeats = self._take_heartbeats()
        ended = tuple(self._ended)
        self._ended.clear()
        held, self._held, self._held_since = self._held, (), None
        if not acks:
            return self._reports(0, acks, heartbeats, held + ended)
        if ended:
            self._held, self._held_since = ended, now
        self._tick += 1
        reports = self._reports(self._tick, acks, heartbeats, ())
        return [*self._reports(0, (), (), held), *reports] if held else reports

    def due(self) -> float | None:
        return self._held_since

    @abstractmethod
    def _reports(
        self, tick: int, acks: tuple[Ack, ...], heartbeats: Heartbeats, ended: tuple[int, ...]
    ) -> list[tuple[int, Report]]:
        """Address one report, which has at least one part, to the trackers."""
