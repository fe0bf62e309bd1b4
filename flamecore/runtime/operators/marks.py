"""The ways of marks: from their origins straight to every partition of the next ordered operations.

A mark is a piece of a hand-over, of a vertex index of its own, so runs of items are never looked through for marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from flamecore.abc.operator import Operator, Site, Step
from flamecore.model.batch import Orders
from flamecore.model.failure import FlowMistake
from flamecore.model.meta import GLOBAL_TIME_BYTES, MIN_TIME
from flamecore.model.ordered import CLOSING, Marking, Origin, behind_record, shared_names
from flamecore.model.plan import Plan
from flamecore.model.vertices import Vertex
from flamecore.runtime.operators.exchange import Outboxes
from flamecore.runtime.operators.ordered import OrderedIntake, OrderedOperator

Say = Callable[[bytes, int, int], None]
"""Sends a mark: (place, number of the front or partition, value)."""


class MarkWays:
    """The ways of the marks of one worker.

    Args:
        plan: The job's plan.
        worker: Number of the worker.
        outboxes: Outbox of each worker.

    Attributes:
        intakes: The intakes of this worker's ordered operations, by index of the vertex.
        markings: The markings of this worker's fronts, by name of the source.
    """

    def __init__(self, plan: Plan, worker: int, outboxes: Outboxes) -> None:
        self._plan, self._worker, self._outboxes = plan, worker, outboxes
        self._first = 2 * len(plan.graph.vertices) + 1  # behind the vertices and their failures
        self.segments = plan.segments.entered
        self.intakes: dict[int, OrderedIntake] = {}
        self.markings: dict[str, list[MarkingOperator]] = {}

    def arrivals(self) -> Iterator[tuple[int, Step]]:
        """Yield the index of each ordered operation's marks, and the step that takes them."""
        return ((self._first + index, partial(_arrive, intake)) for index, intake in self.intakes.items())

    def of(self, vertex: Vertex) -> Say:
        """Return the function that sends the marks of a vertex."""
        targets = self._plan.graph.next_ordered(vertex)
        owners = {target.index: sorted(set(self._plan.owners_of(target))) for target in targets}

        def say(place: bytes, number: int, value: int) -> None:
            mark = (vertex.index, number, value)
            for index, workers in owners.items():
                for worker in workers:
                    if worker == self._worker:
                        self.intakes[index].put_mark(place, mark)
                    else:
                        self._outboxes[worker].put(self._first + index, place, 0, True, mark)

        return say

    def connect(self, vertex: Vertex, operator: OrderedOperator, intake: OrderedIntake) -> None:
        """Connect an ordered operation with the origins of its marks, and with those behind."""
        plan, worker = self._plan, self._worker
        self.intakes[vertex.index] = intake
        origins: dict[Origin, Vertex] = {}
        for before in plan.graph.marks_before(vertex):
            if before.ordered:
                numbers = sorted(set(plan.owners_of(before)))
            else:
                source = plan.graph.marked_source(before).name
                numbers = [number for number, front in enumerate(plan.fronts, 1) if front.source == source]
            origins |= {(before.index, number): before for number in numbers}
        if not origins:
            return
        say = self.of(vertex)
        names = [name for name, owner in zip(shared_names(), plan.owners_of(vertex), strict=True) if owner == worker]
        operator.watermark.connect(
            origins, lambda place, value: say(place, worker, value), names if plan.snapshots else None
        )
        if plan.snapshots:
            operator.names.extend(names)

    def add_marking(self, vertex: Vertex, operator: MarkingOperator) -> None:
        """Connect a marking."""
        operator.say = self.of(vertex)
        source = self._plan.graph.marked_source(vertex).name
        operator.alone = sum([front.source == source for front in self._plan.fronts]) == 1
        self.markings.setdefault(source, []).append(operator)


def _arrive(intake: OrderedIntake, order: bytes, trace: int, alive: bool, payload: Any) -> None:
    intake.put_mark(order, payload)


class MarkingOperator(Operator):
    """The operator of a marking.

    Args:
        vertex: The marking.
        site: Its place on the worker.

    Attributes:
        say: Sends a mark.
        closes: Whether the end of a front is a mark.
        alone: Whether all records are of one front.
    """

    say: Say
    alone: bool = False

    def __init__(self, vertex: Marking, site: Site) -> None:
        self.closes = not site.snapshots if vertex.closes is None else vertex.closes
        self._function, self._step = vertex.function, vertex.step
        self._many: Callable[[Sequence[Any]], Sequence[int]] | None = getattr(vertex.function, "many", None)
        self._emit, self._emit_run, self._fail = site.emit, site.emit_run, site.fail
        self._last: dict[bytes, int] = {}  # by front, as in orders

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            self._mark(order, payload)
        except Exception as error:  # noqa: BLE001 - the failing item is the user's to see
            return self._fail(order, trace, alive, payload, error)
        return self._emit(order, trace, alive, payload)

    def run(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        if self._many is not None and self._mark_all(self._many, orders, payloads):
            self._emit_run(orders, trace, payloads)
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
        self, many: Callable[[Sequence[Any]], Sequence[int]], orders: Orders, payloads: Sequence[Any]
    ) -> bool:
        """Say the marks of a run of one front; return False if its records must be looked at one by one."""
        front = orders[0][8:GLOBAL_TIME_BYTES]
        if not self.alone and {order[8:GLOBAL_TIME_BYTES] for order in orders} != {front}:
            return False
        last, step = self._last.get(front), self._step
        least = MIN_TIME if last is None else last + step
        marks: list[tuple[bytes, int]] = []
        try:
            values = many(payloads)
            if max(values) >= least:
                for order, value in zip(orders, values, strict=True):
                    if value >= least:
                        if type(value) is not int or not MIN_TIME < value < CLOSING:
                            return False
                        last = value - value % step
                        least = last + step
                        marks.append((order, last))
        except Exception:  # noqa: BLE001 - the function fails on one of them, too
            return False
        if marks:
            number = int.from_bytes(front, "big")
            for order, mark in marks:
                self._last[front] = mark
                self.say(behind_record(order), number, mark)
        return True

    def _mark(self, order: bytes, payload: Any) -> None:
        value = self._function(payload)
        if value is None:
            return
        if type(value) is not int or not MIN_TIME < value < CLOSING:
            raise FlowMistake(f"its mark is {value!r}, and no whole number of 64 bits")
        front = order[8:GLOBAL_TIME_BYTES]
        last = self._last.get(front)
        value -= value % self._step
        if last is None or value > last:
            self._last[front] = value
            self.say(behind_record(order), int.from_bytes(front, "big"), value)

    def end(self, order: bytes) -> None:
        """Say the last mark of a front, at a time of its own."""
        self.say(behind_record(order), int.from_bytes(order[8:GLOBAL_TIME_BYTES], "big"), CLOSING)
