"""A worker: its key groups, its steps, its barriers, and the fronts it hosts.

A worker is plain state driven by calls. Records are admitted and messages received; `flush` returns the messages to
send. It knows no sockets, tasks or clocks, so a simulation drives it as a transport does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from flamecore.abc.acker import Listener, Reporter
from flamecore.abc.sink import Encode
from flamecore.abc.source import Batch
from flamecore.errors import JobError
from flamecore.model.messages import Busy, Delivered, Items, MinTimes, Outgoing, Settled
from flamecore.model.meta import MIN_FRONT, MIN_TIME, encode_time
from flamecore.model.ordered import CLOSING, Marking
from flamecore.model.plan import Plan
from flamecore.model.vertices import Vertex
from flamecore.runtime.operators.compiler import compile_worker
from flamecore.runtime.operators.exchange import Outbox
from flamecore.runtime.operators.rounds import ROUNDS
from flamecore.runtime.operators.strict import NOT_ENCODED, Encodes
from flamecore.runtime.operators.table import Operators
from flamecore.runtime.parts.backlog import Backlog
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.parts.egress import Egress
from flamecore.runtime.parts.failures import Failures, FailureWays
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.hand_overs import HandOvers
from flamecore.runtime.parts.ingress import Ingress
from flamecore.runtime.parts.own_times import OwnTimes
from flamecore.runtime.parts.schedule import Schedule
from flamecore.runtime.state.journal import GivenTimes

_MANY: Final = 1024
"""Records after which a single worker trims at once, and does not wait for word of the control."""


class Cut(NamedTuple):
    """A worker's contribution to a snapshot.

    Attributes:
        time: The snapshot's time.
        fronts: For each front it hosts: (number, position, next time, whether it has ended).
        changes: For each stateful operation, by name of its vertex, the pieces of changes since the last cut.
        marked: For each of these fronts that has any, the states of its markings, by name.
    """

    time: int
    fronts: tuple[tuple[int, object, int, bool], ...]
    changes: dict[str, Sequence[Mapping[object, object]]]
    marked: Mapping[int, Mapping[str, object]] = MappingProxyType({})


class Worker:
    """The execution of the graph on one share of the data.

    Args:
        index: Its number, from 0.
        plan: The job's plan, the same for all workers.
        reporter: Its side of the acker.
        listener: Minimum times, from the news of the ackers.
        random: Source of the ids of physical instances and the numbers of acks; a new seed for every incarnation.
        fronts: The fronts it hosts.
        encoders: Encoders of payloads, for sinks that have one.
        operators: Operators of plugins, besides the engine's.
        encodes: Functions that encode values which snapshots store, and which go to other processes.

    Attributes:
        rounds: The rounds of its work: between two of them it has to `flush`.
        backlog: The items that run before all others.
        chooses: Whether it may choose a later time for a snapshot than the control does.
    """

    def __init__(
        self,
        index: int,
        plan: Plan,
        *,
        reporter: Reporter,
        listener: Listener,
        random: Random,
        fronts: Sequence[Front] = (),
        encoders: Mapping[str, Encode] = MappingProxyType({}),
        operators: Operators = MappingProxyType({}),
        encodes: Encodes = NOT_ENCODED,
    ) -> None:
        self.index = index
        self.plan = plan
        self.listener = listener
        self.fronts = {front.number: front for front in fronts}
        self._failures = Failures(plan, self.fronts)
        self.outboxes = [Outbox() for _ in range(plan.workers)]
        ways = FailureWays(index, plan, random=random, outboxes=self.outboxes, held=self._failures)
        self.rounds = ROUNDS.get()()
        self.compiled = compile_worker(
            plan, index, random, self.outboxes, ways.fail_at, operators, encodes, self.rounds
        )
        self.compiled.arrivals.update(self._failures.arrivals())
        entered = plan.segments.entered
        segment_of = (*entered, *self._failures.segments, *entered)
        compiled = self.compiled
        self.backlog = Backlog(compiled.arrivals, compiled.arriving_runs, segment_of, self.rounds, self._have_run)
        self.ingress = Ingress(plan, self.fronts, compiled.entrances, self.backlog, self._failures, reporter)
        # A single worker hears of its fronts as soon as it asks.
        self.own_times = (
            OwnTimes(index, plan, self.ingress.promises, self.compiled.waiting) if plan.workers > 1 else None
        )
        self.schedule = Schedule(self.ingress, self.backlog, compiled, plan.segments, listener, self.own_times)
        own, opening = self.own_times, plan.opening_of(index)
        self._hand_overs = HandOvers(reporter, random, self.outboxes, segment_of, opening, own)
        self.egress = Egress(index, plan, listener, self.compiled, self._failures, encoders, own)
        # Timers and marks wait for minimum times without an item, and so do barriers before the last segments.
        feeding = frozenset().union(*plan.segments.inbound)
        opens = {*self.egress.opens.values(), plan.segments.last}
        self._may_rest = not self.compiled.ordered and feeding.isdisjoint(opens)
        # All workers have to cut at one time. A single one needs none that others know, too.
        self.chooses = plan.workers == 1 and plan.snapshots
        self._earliest = MIN_TIME  # the least time at which it cuts
        self._released = MIN_TIME  # the time up to which it had released in the flush before
        self._trimmed = 0  # number of records admitted when it trimmed last

    # -- input -----------------------------------------------------------------------------------------------------

    def admit(self, number: int, batch: Batch, at: float, policy: str = "fail") -> None:
        """Admit a batch of a front: give times, run the records, promise the next time.

        Args:
            number: Number of the front.
            batch: The batch that its reader returned.
            at: Arrival of the batch, on a monotonic clock in seconds.
            policy: Treatment of malformed records: "fail", "skip" or "dead_letter".
        """
        self.ingress.admit(number, batch, at, policy)

    def heartbeat(self, number: int) -> None:
        """Promise the next time of a front that has nothing to send now."""
        self.ingress.heartbeat(number)

    def idle_front(self, number: int, waited_us: float) -> None:
        """Make a front idle for its markings if it has waited long enough for its source.

        A second run would not find the same wait, so the time of the mark is stored like that of a record, at the last
        position.
        """
        self.ingress.idle(number, waited_us)

    def end_front(self, number: int) -> int:
        """End a front; return the time below which all its items are.

        If snapshots are taken, a front whose clock counts has its end stored before the minimum time passes it: if
        the source grows until the job restarts after a fault, new records must not get times that others have passed.
        """
        return self.ingress.end(number)

    def stop_front(self, number: int) -> int:
        """Stop a front before its end: the next run continues it.

        Returns:
            The time below which all its items are; the minimum time will not pass it.
        """
        return self.ingress.stop(number)

    def confirm_times(self, given_times: Sequence[GivenTimes]) -> None:
        """Promise the times after the oldest given ones, which are now stored.

        Outputs of their records may be released. The times of front 0 are those that have passed, for timers.
        """
        for given in given_times:
            if given.front == MIN_FRONT:
                self.schedule.confirm_time(given.end)
            else:
                self.ingress.promises.confirm(given.front, given.end)

    def receive(self, sender: str, message: Any) -> None:
        """Process news of an acker or a rear, or take items of another worker, which run in the next steps."""
        kind = type(message)
        if kind is Items:
            self.backlog.receive(sender, message)
            self._hand_overs.owed.extend(message.acks)
        elif kind is MinTimes:
            if self.listener.receive(int(sender.rpartition("/")[2]), message):
                self.schedule.grow()
        elif kind is Settled:
            self.trim(max(message.time, self._earliest))
        elif kind is Busy:
            if self.compiled.shares is not None:
                self.compiled.shares.note(message)
        elif kind is Delivered:
            self.egress.note(message)
        else:
            raise JobError(f"worker {self.index} does not know what to do with a {kind.__name__}")

    def _have_run(self, sender: str, message: Items) -> None:
        """Note that all items of a message have run."""
        if message.until is not None and self.own_times is not None:
            self.own_times.note(sender, message.until)

    # -- output ----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run some waiting items that nothing can come before; return whether more could."""
        return self.schedule.step()

    def flush(self, now: float, *, stepped: bool = False) -> Outgoing:
        """Return the messages to send after the last calls, in order.

        Sent items are reported before received ones: reports leave in one flush, the highest times first.

        Args:
            now: Time of a monotonic clock, in seconds.
            stepped: Whether the caller has called `step` last, so that waiting items need no other step.
        """
        out: Outgoing = []
        schedule, hand_overs = self.schedule, self._hand_overs
        if not stepped:
            schedule.step()
        # Items that wait for their turn, or before a state, are in flight, too. They are reported before the owed acks,
        # so no minimum time passes them.
        arriving = bool(self.backlog.waiting)
        if arriving or self.compiled.waiting or hand_overs.waiting:
            hand_overs.hold(self.compiled.waiting, self.backlog.lowest())
        self.ingress.promises.tell()
        schedule.learn()
        failing = not self._failures.is_empty
        own = self.own_times
        hand_overs.flush(
            out,
            now,
            at_rest=self._may_rest and not arriving and not hand_overs.waiting and not failing,
            patient=own is not None and not arriving and not self._failures.may_end and own.suffice,
        )
        # A failure that comes has passed no minimum time: it is released by the growth of one, as outputs are.
        if schedule.has_grown or self.compiled.outlets:
            self.egress.release(out)
        if schedule.has_grown:
            schedule.tell_time()
            # The sinks get no further than a record that ends the job: no snapshot is to wait for more.
            if self.chooses and not self._failures.may_end:
                self._choose()
        return out

    def due(self) -> float | None:
        """Return the latest time of the next `flush`, on the clock of `now`, or None.

        None means that nothing waits; 0.0 that items are ready now.
        """
        return 0.0 if self.schedule.is_ready() else self._hand_overs.due()

    def close(self) -> None:
        """Close the works of ordered operations; a second call does nothing.

        Raises:
            JobError: One cannot be closed.
        """
        for operation in self.compiled.ordered.values():
            operation.close()

    # -- snapshots -------------------------------------------------------------------------------------------------

    def trim(self, time: int) -> None:
        """Drop history below `time`, a little at a time: no snapshot will be earlier."""
        # Between two snapshots, because history is kept for them: summed up bit by bit it costs no
        # pause when the next one is due.
        limit = encode_time(time)
        self.ingress.trim(time)
        for operation in self.compiled.stateful.values():
            operation.trim(limit)

    def _choose(self) -> None:
        """Choose the least time at which this worker cuts, if it is the only one: that up to which it has released.

        Its history below is dropped at once. Kept until the sinks hold the outputs, it would leave the caches of the
        processor, and the garbage collector would look at all of it. But a snapshot waits until the sinks hold all
        below its time: only while they keep up, which is if they hold all that was released before.
        """
        released, before = self.listener.min_time(self.plan.segments.last), self._released
        self._released = released
        if self.delivered() < before:
            return
        self._earliest = released
        if self.ingress.admitted - self._trimmed >= _MANY:
            self._trimmed = self.ingress.admitted
            self.trim(self._earliest)

    def cut(self, time: int) -> Cut:
        """Return this worker's contribution to a snapshot at `time`, or later if it is the only one.

        The sinks hold all outputs below `time`. The call is cheap: the changes are encoded and stored later. The next
        cut is no earlier.
        """
        time = max(time, self._earliest)
        limit = encode_time(time)
        changes = {name: operation.cut(limit) for name, operation in self.compiled.stateful.items()}
        changed = {name: pieces for name, pieces in changes.items() if pieces}
        return Cut(time, self.ingress.cut(time), changed, self.ingress.marks.states(time))

    def restore_marked(self, number: int, states: Mapping[str, object]) -> None:
        """Load the states of a front, by marking; call it before anything else."""
        self.ingress.marks.restore(number, states)

    def restore(self, states: Mapping[str, dict[object, object]]) -> None:
        """Load the state of a snapshot, by operation; call it before anything else."""
        for name, values in states.items():
            self.compiled.stateful[name].restore(values)

    # -- progress --------------------------------------------------------------------------------------------------

    def delivered(self) -> int:
        """Return the time below which every rear has stored all, as far as known here."""
        return self.egress.delivered()

    def counts(self) -> NodeStats:
        """Return this worker's share of the counters."""
        stateful, buffers = self.compiled.stateful.items(), self.compiled.waiting
        ordered = self.compiled.ordered.items()
        watermarks = {name: operation.watermark for name, operation in self.compiled.ordered.items()}
        holding = {name: held for name, watermark in watermarks.items() if (held := watermark.holding) is not None}
        return NodeStats(
            items_in=self.ingress.admitted,
            min_times={self.index: self.min_time},
            waiting={buffer.name: len(buffer) for buffer in buffers if buffer},
            replays=sum(operation.retracted for _, operation in stateful),
            calls={name: operation.calls for name, operation in stateful if operation.calls},
            calls_in_vain={buffer.name: buffer.in_vain for buffer in buffers if buffer.in_vain},
            watermarks={name: watermarks[name].value for name in holding if watermarks[name].value > MIN_TIME},
            marks={name: watermarks[name].said for name in holding if watermarks[name].said > MIN_TIME},
            held_by={
                name: vertex.name if vertex.ordered else str(self.plan.fronts[number - 1])
                for name, (vertex, number) in holding.items()
            },
            pending={name: pending for name, operation in ordered if (pending := operation.pending)},
            late={name: late for name, operation in ordered if (late := getattr(operation.work, "late", 0))},
            dropped={name: count for name, operation in ordered if (count := getattr(operation.work, "dropped", 0))},
            ahead=self.ingress.marks.ahead(),
            rejected=self.ingress.rejected,
            failed=self._failures.passed,
            first_failed=dict(self._failures.first_passed),
        )

    def held(self) -> NodeStats:
        """Return what inputs that have ended hold back here; it looks at all states of ordered operations."""
        operations = self.compiled.ordered
        held = {
            name: count
            for name, operation in operations.items()
            if operation.watermark.value < CLOSING and (count := operation.held())
        }
        inputs = {name: found for name in held if (found := self._holding(name)) is not None}
        return NodeStats(
            held={name: held[name] for name in inputs},
            held_for={name: str(self.plan.fronts[number - 1]) for name, (_, number) in inputs.items()},
            released_by={
                name: vertex.option
                for name, (vertex, _) in inputs.items()
                if isinstance(vertex, Marking) and vertex.option
            },
        )

    def _holding(self, name: str) -> tuple[Vertex, int] | None:
        """Return the marking and the front that hold back the watermark of an ordered operation; None: none does."""
        found = self.compiled.ordered[name].watermark.holding
        while found is not None and found[0].ordered:  # an operation before it, which waits itself
            found = self.compiled.ordered[found[0].name].watermark.holding
        return found

    @property
    def min_time(self) -> int:
        """Return the time below which all sinks are open, as known here."""
        # Where workers open them by themselves, the news of deliveries come before those of ackers.
        return max(self.listener.min_time(self.plan.segments.last), self.delivered())
