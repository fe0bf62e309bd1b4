"""A worker: its key groups, its steps, its barriers, and the fronts it hosts.

A worker is plain state driven by calls. Records are admitted and messages received; `flush` returns the messages to
send. It knows no sockets, tasks or clocks, so a simulation drives it as a transport does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from flamecore.abc.acker import Listener, Reporter
from flamecore.abc.operator import Columns
from flamecore.abc.sink import Encode
from flamecore.abc.source import Batch
from flamecore.errors import JobError
from flamecore.model.batch import Orders, stamped
from flamecore.model.failure import Failure
from flamecore.model.messages import (
    CONTROL,
    Ack,
    Busy,
    Delivered,
    Failing,
    Items,
    MinTimes,
    Outgoing,
    Released,
    Settled,
)
from flamecore.model.meta import MIN_FRONT, MIN_TIME, decode_time, encode_time
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.runtime.operators.compiler import compile_worker
from flamecore.runtime.operators.exchange import Outbox, arrive
from flamecore.runtime.operators.marks import MarkingOperator
from flamecore.runtime.operators.prefix import Ahead, runs_of
from flamecore.runtime.operators.strict import NOT_ENCODED, Encodes
from flamecore.runtime.operators.table import Operators
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.parts.failures import Failures, FailureWays
from flamecore.runtime.parts.front import Front, LatestTime, Malformed, merge_rejected, split
from flamecore.runtime.parts.front_merge import merges
from flamecore.runtime.state.journal import IDLE_MARK, LAST_MARK, GivenTimes

_STEP_ITEMS: Final = 65_536


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
        self.reporter = reporter
        self.listener = listener
        self.random = random
        self.encoders = encoders
        self.fronts = {front.number: front for front in fronts}
        self.rejected = 0
        self.admitted = 0
        self.given_times: list[GivenTimes] = []  # not stored yet
        self._held: dict[int, int] = {}  # promises of fronts that wait for their records to run
        self._promised: dict[int, int] = {}  # for each front with given times, the time after the last
        self._opening = plan.opening_of(index)
        self._unread = set(plan.unread)
        self._closing: set[int] = set()  # fronts that end once their times are stored and their records have run
        self._merge_of = merges(plan.graph, self.fronts) if plan.settings.barrier else {}
        self._merges = tuple(dict.fromkeys(self._merge_of.values()))
        self.step_items = _STEP_ITEMS
        """Approximate number of waiting items that run in one step; the rest is due at once."""
        # One for all fronts: of two records read one after the other the second then has the later time, and is not
        # late for a state.
        latest = LatestTime()
        for front in fronts:
            front.latest = latest
        self.outboxes = [Outbox() for _ in range(plan.workers)]
        self._owed: list[Ack] = []
        self._waiting: dict[int, Ack] = {}  # by segment: acks of items in buffers before operations
        self._at_rest = False
        self._grew = True  # whether a minimum time has grown since the last release
        self._knowns: list[bytes] | None = None
        """For each of `_drained`, the time below which nothing more is to come, if it is known."""
        self._rears = plan.rears
        segments = plan.segments
        self._inbound = segments.inbound
        self._last = segments.last
        self._opens = {sink.name: segments.of[sink.index] for sink in plan.graph.sinks}  # segment of each rear
        if plan.settings.dead_letters:
            self._opens[DEAD_LETTERS] = self._last
        self._released = {rear: min(listener.min_time(segment), 0) for rear, segment in self._opens.items()}
        self._delivered: dict[str, int] = {}
        self._failures = Failures(plan, self.fronts)
        ways = FailureWays(index, plan, random=random, outboxes=self.outboxes, held=self._failures)
        self._segment_of = (*segments.entered, *self._failures.segments, *segments.entered)
        self.compiled = compile_worker(plan, index, random, self.outboxes, ways.fail_at, operators, encodes)
        self._steps = (*self._merges, *self.compiled.waiting)
        self._drained = [waiting for waiting in self.compiled.waiting if waiting.segment is not None]
        # Timers and marks wait for minimum times without an item, and so do barriers before the last segments.
        feeding = frozenset().union(*segments.inbound)
        self._may_rest = not self.compiled.ordered and feeding.isdisjoint({*self._opens.values(), self._last})
        self._told = dict.fromkeys(self.compiled.timed, MIN_TIME)  # by segment, the last time passed to operators
        self.compiled.arrivals.update(self._failures.arrivals())
        self._folding = [
            (number, marking)
            for number, front in self.fronts.items()
            for marking in self._markings_of(front)
            if marking.folds is not None
        ]

    # -- input -----------------------------------------------------------------------------------------------------

    def admit(self, number: int, batch: Batch, at: float, policy: str = "fail") -> None:
        """Admit a batch of a front: give times, run the records, promise the next time.

        Args:
            number: Number of the front.
            batch: The batch that its reader returned.
            at: Arrival of the batch, on a monotonic clock in seconds.
            policy: Treatment of malformed records: "fail", "skip" or "dead_letter".
        """
        front = self.fronts[number]
        self._idle_again(front)
        values, positions = batch.values, batch.positions
        times_left = front.times_left
        most = front.most
        if most is not None and len(values) + len(batch.rejected) > most:
            for piece in split(batch, most):
                self.admit(number, piece, at, policy)
            return
        if batch.rejected:
            self.rejected += len(batch.rejected)
            if policy != "skip":
                values, positions = merge_rejected(batch)
        first = front.stamp(positions, at)
        self.admitted += len(batch.values)
        if len(values):
            # One time after the other for one batch, not a reading of the clock for each record: what is
            # consecutive stays a run, and a journal holds it in two numbers.
            if number in self._unread:
                self._unread.remove(number)
                for marking in self._markings_of(front):
                    marking.begin(encode_time(first) + front.suffix)
            # The driver may return any sequence, and may reuse it; a run is kept, and encoded like a list.
            values = list(values)
            malformed = bool(batch.rejected) and policy != "skip"
            if malformed:
                for place, value in enumerate(values):
                    if isinstance(value, Malformed):
                        values[place] = value.failure(front, first + place, fatal=policy == "fail")
            merge = self._merge_of.get(number)
            mixed = malformed or batch.ahead
            if merge is None:
                self._run(front.name.source, stamped(first, len(values), front.suffix), values, mixed)
            else:
                merge.add(number, first, values, mixed=mixed)
        # Times of the wall clock are not the same in a second run, so they are stored before an
        # output may depend on them. Those of the other clocks follow from positions.
        if times_left is None and self.plan.snapshots and self.plan.settings.clock == "wall" and positions:
            # Nothing is released before the front promises the next time: until then these can be stored.
            self.given_times.append(GivenTimes(number, first, len(positions)))
            self._promised[number] = front.next_time
        elif number in self._held and times_left is None:
            self._held[number] = front.next_time  # promised is its first waiting record, which is the same as before
        else:
            self._promise(number, front.next_time if times_left is None else front.promise())

    def _run(self, source: str, orders: Orders, values: list[Any], mixed: bool) -> None:
        """Run records from the first operation that has not run.

        The arguments are those of `Records`.
        """
        entrance = self.compiled.entrances[source]
        if not mixed:
            entrance.run(orders, 0, values)
            return
        step = entrance.step
        # Records of one kind in a row go on together: one failure in a batch does not make items of
        # all the others.
        for kind, some in groupby(zip(orders, values, strict=True), key=lambda record: type(record[1])):
            if kind is Ahead:
                assert entrance.behind is not None, "nothing is ahead of a source without a prefix"
                trace, run = entrance.behind
                for made, payloads in runs_of(some):
                    run(made, trace, payloads)
            elif kind is Failure:
                for order, value in some:
                    self._failures.malformed(source, order, value)
            else:
                for order, value in some:
                    step(order, 0, True, value)

    def _promise(self, number: int, time: int) -> None:
        """Report the next time of a front; or its first waiting record, until that runs."""
        if not self._merges:
            self.reporter.heartbeat(number, time)
            return
        merge = self._merge_of.get(number)
        # A front is held back for its own records alone: another may have promised more already, and a promise cannot
        # go back.
        first = None if merge is None else merge.first_time(number)
        if first is None or time <= first:
            self._held.pop(number, None)
            self.reporter.heartbeat(number, time)
        else:
            self._held[number] = time
            self.reporter.heartbeat(number, first)

    def _end(self, number: int) -> None:
        """Report the end of a front, unless some of its times or records are pending.

        Times are pending until they are stored, records until they run.
        """
        self._closing.add(number)
        if number not in self._promised and number not in self._held:
            self._closing.remove(number)
            front = self.fronts[number]
            if front.ended and self._markings_of(front):
                self.reporter.heartbeat(number, front.next_time)  # its last marks have a time of their own
            self.reporter.unregister(number)

    def _run_waiting(self) -> None:
        """Run records that no longer have to wait for other fronts."""
        for merge in self._merges:
            for records in merge.take(self.step_items):
                self._run(*records)
            for number in merge.moved():
                if number in self._held:
                    self._promise(number, self._held[number])
                if number in self._closing:
                    self._end(number)

    def heartbeat(self, number: int) -> None:
        """Promise the next time of a front that has nothing to send now."""
        self._idle_again(self.fronts[number])
        if number not in self._promised:
            self._promise(number, self.fronts[number].promise())

    def idle_front(self, number: int, waited_us: float) -> None:
        """Make a front idle for its markings if it has waited long enough for its source.

        A second run would not find the same wait, so the time of the mark is stored like that of a record, at the last
        position.
        """
        front = self.fronts[number]
        markings = [marking for marking in self._markings_of(front) if marking.idle_us is not None]
        if not markings or front.is_idle or front.times_left is not None:
            return
        if all(waited_us >= marking.idle_us for marking in markings if marking.idle_us is not None):
            time = self._say_idle(front)
            if self.plan.snapshots:
                self.given_times.append(GivenTimes(number, time, IDLE_MARK))
                self._promised[number] = front.next_time

    def _idle_again(self, front: Front) -> None:
        """Say that a front was idle where it was in an earlier run."""
        while front.was_idle:
            self._say_idle(front)

    def _say_idle(self, front: Front) -> int:
        time = front.stamp_idle()
        for marking in self._markings_of(front):
            if marking.idle_us is not None:
                marking.idle(encode_time(time) + front.suffix)
        return time

    def confirm_times(self, given_times: Sequence[GivenTimes]) -> None:
        """Promise the times after the oldest given ones, which are now stored.

        Outputs of their records may be released. The times of front 0 are those that have passed, for timers.
        """
        for given in given_times:
            number, end = given.front, given.end
            if number == MIN_FRONT:
                for intake in self.compiled.timers:
                    intake.note_stored(end)
                continue
            self._promise(number, end)
            if self._promised[number] == end:
                del self._promised[number]
                if number in self._closing:
                    self._end(number)

    def end_front(self, number: int) -> int:
        """End a front; return the time below which all its items are.

        If snapshots are taken, a front whose clock counts has its end stored before the minimum time passes it: if
        the source grows until the job restarts after a fault, new records must not get times that others have passed.
        """
        front = self.fronts[number]
        self._idle_again(front)
        stored = self.plan.snapshots and not front.ended
        if stored and self.plan.settings.clock != "wall":
            self.given_times.append(GivenTimes(number, front.next_time, 0))
            self._promised[number] = front.next_time
        if not front.ended:
            self._close_marks(front, journaled=stored and self.plan.settings.clock == "wall")
        front.ended = True
        if number in self._merge_of:
            self._merge_of[number].close(number)
        self._end(number)
        return front.next_time

    def _markings_of(self, front: Front) -> Sequence[MarkingOperator]:
        entrance = self.compiled.entrances.get(front.name.source)
        return () if entrance is None else entrance.markings  # none if its source is no longer in the flow

    def _markings(self) -> Sequence[MarkingOperator]:
        """Return all markings."""
        return [marking for entrance in self.compiled.entrances.values() for marking in entrance.markings]

    def _close_marks(self, front: Front, *, journaled: bool) -> None:
        """Say the last marks of a front, at a time of its own.

        The time counts as that of a record at the last position, for snapshots. In journals it is that of the marks: if
        a job goes on from before them, they come again at the same time, and what the source has got since is left for
        the next run. As a record it would get a time below which sinks hold their outputs.
        """
        markings = [marking for marking in self._markings_of(front) if marking.closes or front.number in self._unread]
        if not markings:
            return
        given = front.times_left is not None
        time = front.stamp_end()
        for marking in markings:
            marking.end(encode_time(time) + front.suffix)
        if journaled and not given:
            self.given_times.append(GivenTimes(front.number, time, LAST_MARK))
            self._promised[front.number] = front.next_time

    def stop_front(self, number: int) -> int:
        """Stop a front before its end: the next run continues it.

        Returns:
            The time below which all its items are; the minimum time will not pass it.
        """
        front = self.fronts[number]
        if number in self._merge_of:
            self._merge_of[number].close(number)
        # Its times are not stored yet: the promise follows when they are, and must not come before.
        if number in self._promised:
            return front.next_time
        end = front.promise()
        self._promise(number, end)
        return end

    def trim(self, time: int) -> None:
        """Drop history below `time`, a little at a time: no snapshot will be earlier."""
        # Between two snapshots, because history is kept for them: summed up bit by bit it costs no
        # pause when the next one is due.
        limit = encode_time(time)
        for front in self.fronts.values():
            front.trim(time)
        for operation in self.compiled.stateful.values():
            operation.trim(limit)
        for number, marking in self._folding:
            marking.state_of(number, time)

    def cut(self, time: int) -> Cut:
        """Return this worker's contribution to a snapshot at `time`.

        The sinks hold all outputs below `time`. The call is cheap: the changes are encoded and stored later. The next
        cut is no earlier.
        """
        limit = encode_time(time)
        # A front that has ended counts as ended only once its last records are in the snapshot:
        # otherwise a run that goes on from here would not read them again.
        fronts = tuple(
            (number, *front.cut(time), front.ended and front.uncommitted == 0) for number, front in self.fronts.items()
        )
        changes = {name: operation.cut(limit) for name, operation in self.compiled.stateful.items()}
        marked: dict[int, dict[str, object]] = {}
        for number, marking in self._folding:
            if (state := marking.state_of(number, time)) is not None:
                marked.setdefault(number, {})[marking.origin] = state
        return Cut(time, fronts, {name: changed for name, changed in changes.items() if changed}, marked)

    def restore_marked(self, number: int, states: Mapping[str, object]) -> None:
        """Load the states of a front, by marking; call it before anything else."""
        for front, marking in self._folding:
            if front == number and marking.origin in states:
                marking.restore(number, states[marking.origin])

    def restore(self, states: Mapping[str, dict[object, object]]) -> None:
        """Load the state of a snapshot, by operation; call it before anything else."""
        for name, values in states.items():
            self.compiled.stateful[name].restore(values)

    def receive(self, sender: str, message: Any) -> None:
        """Process a message: items of another worker, or news of an acker or a rear."""
        kind = type(message)
        if kind is Items:
            arrive(message.pieces, self.compiled.arrivals, self.compiled.arriving_runs)
            self._owed.extend(message.acks)
        elif kind is MinTimes:
            if self.listener.receive(int(sender.rpartition("/")[2]), message):
                self._grew, self._knowns = True, None
        elif kind is Settled:
            self.trim(message.time)
        elif kind is Busy:
            if self.compiled.shares is not None:
                self.compiled.shares.note(message)
        elif kind is Delivered:
            self._delivered[message.rear] = max(message.time, self._delivered.get(message.rear, message.time))
        else:
            raise JobError(f"worker {self.index} does not know what to do with a {kind.__name__}")

    # -- output ----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run some waiting items that nothing can come before; return whether more could."""
        if self._merges:
            self._run_waiting()
        if self._knowns is None:
            self._knowns = [self._known_at(waiting.segment) for waiting in self._drained if waiting.segment is not None]
        for waiting, known in zip(self._drained, self._knowns, strict=True):
            waiting.drain(known, self.step_items)
        for intake in self.compiled.timers:
            if intake.to_store is not None:
                self.given_times.append(GivenTimes(MIN_FRONT, intake.to_store - 1, 1))
                intake.to_store = None
        return self._is_ready()

    def _known_at(self, segment: int) -> bytes:
        """Return the encoded time below which nothing more comes to the buffers of a segment."""
        # The least of all segments that lead here: an item may come from any of them.
        return encode_time(min(map(self.listener.min_time, self._inbound[segment])))

    def _is_ready(self) -> bool:
        for each in self._steps:  # noqa: SIM110 - twice a flush, in which a generator costs more than all the rest
            if each.is_ready:
                return True
        return False

    def flush(self, now: float, *, stepped: bool = False) -> Outgoing:
        """Return the messages to send after the last calls, in order.

        Sent items are reported before received ones: reports leave in one flush, the highest times first.

        Args:
            now: Time of a monotonic clock, in seconds.
            stepped: Whether the caller has called `step` last, so that waiting items need no other step.
        """
        out: Outgoing = []
        reporter = self.reporter
        if self.has_steps:
            if not stepped:
                self.step()
            # What waits before a state is in flight, too. It is reported before the owed acks, so
            # no minimum time passes it.
            self._hand_over_to_self()
        if self.plan.workers > 1:
            for target, outbox in enumerate(self.outboxes):
                if outbox:
                    out.append((f"worker/{target}", self._hand_over(outbox)))
        # Only now: had an item been acknowledged before what came of it was handed over, the minimum time could pass
        # items that are on their way.
        for ack in self._owed:
            reporter.ack(*ack)
        self._owed.clear()
        if self._opening is not None:
            reporter.unregister(self._opening)
            self._opening = None
        at_rest = self._may_rest and not self._waiting and self._failures.is_empty
        if at_rest is not self._at_rest:
            self._at_rest = at_rest
            reporter.rest(at_rest)
        for tracker, report in reporter.flush(now):
            out.append((f"acker/{tracker}", report))
        if self._grew or self.compiled.outlets or not self._failures.is_empty:
            self._release(out)
        if self._grew:
            self._grew = False
            self._tell_time()
        return out

    def _tell_time(self) -> None:
        """Notify the operators of each segment whose minimum time inbound has risen."""
        if (early := self.compiled.early) and encode_time(self.min_time) >= early[0]:
            early.clear()  # all first records, and their derived items, are done
        for segment, operators in self.compiled.timed.items():
            time = self.listener.min_time(segment)
            if time > self._told[segment]:
                self._told[segment] = time
                minimum = encode_time(time)
                for operator in operators:
                    operator.on_time(minimum)

    def _hand_over(self, outbox: Outbox) -> Items:
        """Empty an outbox into a message with one ack for each segment.

        The ack has the lowest time of the segment's items.
        """
        pieces = outbox.take()
        lowest: dict[int, bytes] = {}
        # One number for all items of a segment, under the lowest time: they are processed together,
        # so a number for each would say no more.
        for index, _, _, orders, _ in pieces:
            segment = self._segment_of[index]
            if segment not in lowest or orders[0] < lowest[segment]:
                lowest[segment] = orders[0]
        getrandbits = self.random.getrandbits
        acks = tuple(Ack(segment, decode_time(order), getrandbits(64)) for segment, order in sorted(lowest.items()))
        for ack in acks:
            self.reporter.ack(*ack)
        return Items(pieces, acks)

    def _hand_over_to_self(self) -> None:
        """Report waiting items: one ack for each segment, with the lowest time."""
        lowest: dict[int, bytes] = {}
        for waiting in self.compiled.waiting:
            if (order := waiting.lowest) is not None and waiting.segment is not None:
                lowest[waiting.segment] = min(order, lowest.get(waiting.segment, order))
        if not lowest and not self._waiting:
            return
        for segment in lowest.keys() | self._waiting.keys():
            before = self._waiting.get(segment)
            time = decode_time(lowest[segment]) if segment in lowest else None
            if before is not None:
                # The same time waits as before: the acker need not hear of it. So a buffer costs a
                # report only when its first item changes.
                if before.time == time:
                    continue
                self._owed.append(self._waiting.pop(segment))
            if time is not None:
                ack = self._waiting[segment] = Ack(segment, time, self.random.getrandbits(64))
                self.reporter.ack(*ack)

    def close(self) -> None:
        """Close the works of ordered operations; a second call does nothing.

        Raises:
            JobError: One cannot be closed.
        """
        for operation in self.compiled.ordered.values():
            operation.close()

    def due(self) -> float | None:
        """Return the latest time of the next `flush`, on the clock of `now`, or None.

        None means that nothing waits; 0.0 that items are ready now.
        """
        return 0.0 if self._is_ready() else self.reporter.due()

    def _release(self, out: Outgoing) -> None:
        """Release the items below minimum times: for each sink, that of its segment."""
        min_time, failures = self.listener.min_time, self._failures
        ending, letters = failures.release(min_time)
        if ending is not None:  # a sink may take long to reach the failed record
            out.append((CONTROL, Failing(ending)))
        # Each sink opens by its own segment: one on a short branch does not wait for a long one.
        for rear, segment in self._opens.items():
            time = min_time(segment)
            outlet = self.compiled.outlets.get(rear)  # outlets exist only without the barrier
            if time > self._released[rear]:
                self._released[rear] = time
            elif not outlet:
                continue
            if rear == DEAD_LETTERS:
                columns = _columns(letters)
            elif outlet is None:
                columns = self.compiled.barriers[rear].columns(time)
            else:
                columns = _columns(outlet)
                outlet.clear()
            out.append((f"rear/{rear}", self._released_to(rear, time, columns)))

    def _released_to(self, rear: str, time: int, columns: Columns) -> Released:
        orders, payloads = columns
        encode = self.encoders.get(rear)
        # What comes behind a record that ends the job is cut off where it is stored: workers do not hear of it all.
        fatal = self._failures.for_rear(rear)
        return Released(self.index, time, orders, payloads if encode is None else encode(payloads), fatal)

    # -- progress --------------------------------------------------------------------------------------------------

    def delivered(self) -> int:
        """Return the time below which every rear has stored all, as far as known here."""
        if len(self._delivered) < len(self._rears):
            return MIN_TIME
        return min(self._delivered.values())

    @property
    def has_steps(self) -> bool:
        """Return whether records or items may wait here for earlier ones.

        They are records of several fronts, or items before a state.
        """
        return bool(self._merges or self.compiled.waiting)

    def counts(self) -> NodeStats:
        """Return this worker's share of the counters."""
        stateful, buffers = self.compiled.stateful.items(), self.compiled.waiting
        ordered = self.compiled.ordered.items()
        watermarks = {name: operation.watermark for name, operation in self.compiled.ordered.items()}
        holding = {name: held for name, watermark in watermarks.items() if (held := watermark.holding) is not None}
        return NodeStats(
            items_in=self.admitted,
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
            ahead={marking.origin: ahead for marking in self._markings() if (ahead := marking.ahead)},
            rejected=self.rejected,
            failed=self._failures.passed,
            first_failed=dict(self._failures.first_passed),
        )

    @property
    def min_time(self) -> int:
        """Return the last segment's minimum time known here: all sinks are open below it."""
        return self.listener.min_time(self._last)


def _columns(items: Sequence[tuple[bytes, object]]) -> Columns:
    """Return the orders of items, and their payloads."""
    return [order for order, _ in items], [payload for _, payload in items]
