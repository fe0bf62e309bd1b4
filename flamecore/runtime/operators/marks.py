"""The ways of marks: straight to all partitions of the next ordered operations.

They begin at the origins of the marks. A mark is a piece of a hand-over, of a vertex index of its own, so runs of items
are never looked through for marks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from flamecore.abc.operator import Operator, Site, Step
from flamecore.model.batch import Orders, ascending
from flamecore.model.failure import FlowMistake, shorten_repr
from flamecore.model.meta import GLOBAL_TIME_BYTES, MIN_TIME, decode_time, encode_time
from flamecore.model.ordered import (
    BEGUN,
    CLOSING,
    DONE,
    IDLE,
    IdlingMarking,
    Marked,
    Marking,
    Origin,
    behind_record,
    shared_names,
)
from flamecore.model.plan import Plan
from flamecore.model.vertices import Vertex
from flamecore.runtime.operators.exchange import Outboxes
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator

_STRETCH: Final = 64
"""Number of values that are compared at once."""

Say = Callable[[bytes, int, int], None]
"""Sends a mark: (place, number of the front or partition, value)."""


class MarkWays:
    """The ways of the marks of one worker.

    Args:
        plan: The job's plan.
        worker: Number of the worker.
        outboxes: Outbox of each worker.

    Attributes:
        buffers: The buffers of this worker's ordered operations, by index of the vertex.
        markings: The markings of this worker's fronts, by name of the source.
    """

    def __init__(self, plan: Plan, worker: int, outboxes: Outboxes) -> None:
        self._plan, self._worker, self._outboxes = plan, worker, outboxes
        self._first = 2 * len(plan.graph.vertices) + 1  # behind the vertices and their failures
        self.buffers: dict[int, OrderedBuffer] = {}
        self.markings: dict[str, list[MarkingOperator]] = {}

    def arrivals(self) -> Iterator[tuple[int, Step]]:
        """Yield the index of each ordered operation's marks, and the step that takes them."""
        return ((self._first + index, partial(_arrive, buffer)) for index, buffer in self.buffers.items())

    def of(self, vertex: Vertex) -> Say:
        """Return the function that sends the marks of a vertex."""
        targets = self._plan.graph.next_ordered(vertex)
        owners = {target.index: sorted(set(self._plan.owners_of(target))) for target in targets}

        def say(place: bytes, number: int, value: int) -> None:
            mark = (vertex.index, number, value)
            # To every partition, also without items of its own: all of them have one watermark.
            for index, workers in owners.items():
                for worker in workers:
                    if worker == self._worker:
                        self.buffers[index].put_mark(place, mark)
                    else:
                        self._outboxes[worker].put(self._first + index, place, 0, True, mark)

        return say

    def connect(self, vertex: Vertex, operator: OrderedOperator, buffer: OrderedBuffer) -> None:
        """Connect an ordered operation with the origins of its marks and those behind it."""
        plan, worker = self._plan, self._worker
        self.buffers[vertex.index] = buffer
        origins: dict[Origin, Vertex] = {}
        for before in plan.graph.marks_before(vertex):
            if before.ordered:
                numbers = sorted(set(plan.owners_of(before)))
            else:
                numbers = list(self._counting(before))
            origins |= {(before.index, number): before for number in numbers}
        if not origins:
            return
        say = self.of(vertex)
        names = [name for name, owner in zip(shared_names(), plan.owners_of(vertex), strict=True) if owner == worker]
        quiet = frozenset(
            origin for origin, before in origins.items() if not before.ordered and origin[1] in plan.unread
        )
        done = frozenset(origin for origin in quiet if origin[1] in plan.done and not _closes(origins[origin]))
        operator.watermark.connect(
            origins, lambda place, value: say(place, worker, value), names if plan.snapshots else None, quiet, done
        )
        if plan.snapshots:
            operator.names.extend(names)

    def _counting(self, marking: Vertex) -> Sequence[int]:
        """Return the numbers of the fronts that say marks of a marking."""
        found = self._plan.marking_fronts(self._plan.graph.marked_source(marking).name)
        # Where ends are marks, they have said theirs: none is to come.
        return [number for number in found if not (_closes(marking) and number in self._plan.done)] or found

    def add_marking(self, vertex: Vertex, operator: MarkingOperator) -> None:
        """Connect a marking."""
        operator.say = self.of(vertex)
        source = self._plan.graph.marked_source(vertex).name
        operator.alone = len(self._plan.marking_fronts(source)) == 1
        if operator.folds is not None:
            operator.folds.wall = self._plan.settings.clock == "wall"
        self.markings.setdefault(source, []).append(operator)


def _closes(marking: Vertex) -> bool:
    """Return whether the ends of fronts are marks, in a job that keeps state."""
    return isinstance(marking, Marking) and bool(marking.closes)


def _arrive(buffer: OrderedBuffer, order: bytes, trace: int, alive: bool, payload: Any) -> None:
    buffer.put_mark(order, payload)


class FrontFolds:
    """A fold over the records of each front.

    It keeps the present state of each front, and its earlier states since the last cut.

    Args:
        function: The function of the marking.
        logged: Whether snapshots are taken.

    Attributes:
        wall: Whether times are those of the wall clock.
        ahead: Number of records that did not count for marks.
        states: The state of each front, as in orders.
    """

    def __init__(self, function: Callable[..., object], *, logged: bool) -> None:
        self._function, self._logged = function, logged
        self.wall = False
        self.ahead = 0
        self.states: dict[bytes, object] = {}
        self._settled: dict[bytes, object] = {}  # at the last cut
        self._log: dict[bytes, deque[tuple[bytes, object]]] = {}  # by front, since then: (order, state behind it)

    def mark_of(self, order: bytes, payload: object) -> int | None:
        """Take a record; return the mark that it causes, or None."""
        before = self.states.get(order[8:GLOBAL_TIME_BYTES])
        marked = self._function(before, payload, decode_time(order) if self.wall else None)
        if type(marked) is not Marked:
            raise FlowMistake(f"it returned {shorten_repr(marked)}, and no Marked")
        self.ahead += not marked.counts
        if marked.state != before:
            self._keep(order, marked.state)
        return marked.mark

    def _keep(self, order: bytes, state: object) -> None:
        """Keep the state of a front behind a record."""
        front = order[8:GLOBAL_TIME_BYTES]
        if self._logged:
            log = self._log.get(front)
            if log is None:
                log = self._log[front] = deque()
                self._settled[front] = self.states.get(front)
            log.append((order, state))
        self.states[front] = state

    def cut(self, front: bytes, before: bytes) -> object:
        """Return the state of a front below an encoded time; the next cut is no earlier."""
        log = self._log.get(front)
        if log is None:
            return self.states.get(front)
        while log and log[0][0] < before:
            self._settled[front] = log.popleft()[1]
        return self._settled[front]


class MarkingOperator(Operator):
    """The operator of a marking.

    Args:
        vertex: The marking.
        site: Its place on the worker.

    Attributes:
        say: Sends a mark.
        closes: Whether the end of a front is a mark.
        folds: The states of fronts; None: they have none.
        alone: Whether all records are of one front.
    """

    say: Say
    alone: bool = False

    def __init__(self, vertex: Marking, site: Site) -> None:
        self.closes = not site.snapshots if vertex.closes is None else vertex.closes
        self._vertex = vertex
        self._function, self._step = vertex.function, vertex.step
        self._emit, self._emit_run, self._fail = site.emit, site.emit_run, site.fail
        self._last: dict[bytes, int] = {}  # by front, as in orders
        self._idle: dict[bytes, bytes] = {}  # since which order a front is idle
        self.folds = FrontFolds(vertex.function, logged=site.snapshots) if vertex.folds else None

    @property
    def origin(self) -> str:
        """Return the name of the vertex."""
        return self._vertex.name

    @property
    def idle_us(self) -> int | None:
        """Return the microseconds a front waits before it is idle; None: it never is."""
        return self._vertex.idle_us if isinstance(self._vertex, IdlingMarking) else None

    @property
    def ahead(self) -> int:
        """Return the number of records that did not count for marks."""
        return 0 if self.folds is None else self.folds.ahead

    def step(self, order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            self._mark(order, payload)
        except Exception as error:  # noqa: BLE001 - the failing item is the user's to see
            return self._fail(order, trace, alive, payload, error)
        return self._emit(order, trace, alive, payload)

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        many: Callable[[Sequence[object]], Sequence[int]] | None = getattr(self._function, "many", None)
        if many is not None and (marked := self._mark_all(many, orders, payloads)) is not None:
            self._emit_run(orders, trace, marked)
            return
        start = 0
        for place, (order, payload) in enumerate(zip(orders, payloads, strict=True)):
            try:
                self._mark(order, payload)
            except Exception as error:  # noqa: BLE001 - as above
                if start < place:
                    self._emit_run(orders[start:place], trace, payloads[start:place])
                self._fail(order, trace, True, payload, error)
                start = place + 1
        if start == 0:
            self._emit_run(orders, trace, payloads)
        elif start < len(orders):
            self._emit_run(orders[start:], trace, payloads[start:])

    def _mark_all(
        self, many: Callable[[Sequence[object]], Sequence[int]], orders: Orders, payloads: Sequence[object]
    ) -> Sequence[object] | None:
        """Emit the marks of a run of one front; return its records as they go on.

        Return None if its records must be looked at one by one.
        """
        front = orders[0][8:GLOBAL_TIME_BYTES]
        if self._idle:
            return None  # the first mark of each ends that, whatever it says
        if not self.alone and {order[8:GLOBAL_TIME_BYTES] for order in orders} != {front}:
            return None
        last, step = self._last.get(front), self._step
        least = MIN_TIME if last is None else last + step
        marks: list[tuple[bytes, int]] = []
        try:
            # The values that the function needs of each record, such as its time, go to the next operation beside it.
            if (noted := getattr(self._function, "noted", None)) is not None:
                payloads = noted(payloads)
            values, less = many(payloads), getattr(self._function, "less", 0)
            if len(values) != len(orders):
                return None
            least += less
            # By place: of an order that is not looked at only its base is there.
            if ascending(values):
                place = -1
                while (place := bisect_left(values, least, place + 1)) < len(values):
                    last = self._rounded(values[place] - less)
                    least = last + step + less
                    marks.append((orders[place], last))
            else:
                for start in range(0, len(values), _STRETCH):
                    if max(values[start : start + _STRETCH]) < least:  # as in most: the values nearly rise
                        continue
                    for place, value in enumerate(values[start : start + _STRETCH], start):
                        if value >= least:
                            last = self._rounded(value - less)
                            least = last + step + less
                            marks.append((orders[place], last))
        except Exception:  # noqa: BLE001 - the function fails on one of them, too
            return None
        if marks:
            number = int.from_bytes(front, "big")
            for order, mark in marks:
                self._last[front] = mark
                self.say(behind_record(order), number, mark)
        return payloads

    def _rounded(self, value: object) -> int:
        """Return a value as a mark.

        Raises:
            FlowMistake: It cannot be one.
        """
        if type(value) is not int or not BEGUN < value - value % self._step <= value < CLOSING:
            raise FlowMistake(f"its mark is {value!r}, and no whole number of 64 bits")
        # Rounded down, so that few marks are sent: one for each step of the watermark, not for each
        # record.
        return value - value % self._step

    def _mark(self, order: bytes, payload: object) -> None:
        value = self._function(payload) if self.folds is None else self.folds.mark_of(order, payload)
        if value is None:
            return
        value = self._rounded(value)
        front = order[8:GLOBAL_TIME_BYTES]
        last = self._last.get(front)
        since = self._idle.get(front) if self._idle else None
        if since is not None and order > since:  # others may wait for earlier records of other fronts yet
            del self._idle[front]
            last = None
        if last is None or value > last:
            self._last[front] = value
            self.say(behind_record(order), int.from_bytes(front, "big"), value)

    def state_of(self, front: int, time: int) -> object:
        """Return the state of a front below a time; None: it has none.

        No later call has an earlier time.
        """
        return None if self.folds is None else self.folds.cut(front.to_bytes(4, "big"), encode_time(time))

    def restore(self, front: int, state: object) -> None:
        """Go on from the state of a front."""
        if self.folds is not None:
            self.folds.states[front.to_bytes(4, "big")] = state

    def idle(self, order: bytes) -> None:
        """Say that a front is idle, at a time of its own; its next mark ends that."""
        front = order[8:GLOBAL_TIME_BYTES]
        # With its order: earlier records of this front may still wait for those of other fronts, and
        # must not end the idleness.
        self._idle[front] = order
        self.say(behind_record(order), int.from_bytes(front, "big"), IDLE)

    def begin(self, order: bytes) -> None:
        """Say that a front has something new: the record of an order."""
        self.say(behind_record(order), int.from_bytes(order[8:GLOBAL_TIME_BYTES], "big"), BEGUN)

    def end(self, order: bytes) -> None:
        """Emit the last mark of a front that closes or had nothing new.

        The mark has a time of its own.
        """
        value = CLOSING if self.closes else DONE
        self.say(behind_record(order), int.from_bytes(order[8:GLOBAL_TIME_BYTES], "big"), value)
