"""The suffix of a sink, run behind the workers.

It computes the outputs of items that the workers have released: valid ones, in meta order. A suffix needs nothing but
its item, as the prefix of a source does, so it may run wherever outputs are stored, by the same compiled maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from flamecore.abc.operator import Fail, Run
from flamecore.model.batch import Orders, joined
from flamecore.model.failure import Failure
from flamecore.model.graph import Graph
from flamecore.model.meta import FrontId
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.model.settings import JobSettings
from flamecore.model.vertices import Map, Sink, Vertex
from flamecore.runtime.operators.map import map_run
from flamecore.runtime.operators.strict import early_orders, early_run, strict_vertex
from flamecore.runtime.parts.failures import failure_of


class Outcome(NamedTuple):
    """The result of a suffix for some items.

    Attributes:
        orders, payloads: The outputs, in meta order.
        failures: The order and the failure of each item on which a function has failed, in meta order; the position of
            its record is not known here.
    """

    orders: Orders
    payloads: Sequence[object]
    failures: Sequence[tuple[bytes, Failure]]


class SuffixRun:
    """The suffix of a sink, compiled to run on its own.

    Functions are checked as on a worker: for the first records, or if the job asks for it for all.

    Args:
        graph: The checked graph.
        sink: One of its sinks, with a suffix.
        fronts: The fronts of the job.
        settings: Its settings.

    Attributes:
        wants_letters: Whether items that a function fails on become dead letters.
    """

    def __init__(self, graph: Graph, sink: Sink, fronts: Sequence[FrontId], settings: JobSettings) -> None:
        plan = Plan(graph, tuple(fronts), settings)
        early = early_orders(plan)
        self._settings = settings
        self.wants_letters = settings.on_error == DEAD_LETTERS
        self._orders: list[Orders] = []
        self._payloads: list[Sequence[object]] = []
        self._failures: list[tuple[bytes, Failure]] = []
        self._run: Run = self._take
        for vertex in reversed(graph.suffix_of(sink)):
            self._run = self._compiled(vertex, plan, early)

    def _compiled(self, vertex: Map, plan: Plan, early: Sequence[bytes]) -> Run:
        strict: Any = strict_vertex(vertex, plan)
        fail = self._fail_at(vertex)
        plain = map_run(strict if self._settings.checks else vertex, 0, self._run, fail)
        return early_run(map_run(strict, 0, self._run, fail), plain, early) if early else plain

    def _take(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        self._orders.append(orders)
        self._payloads.append(payloads)

    def _fail_at(self, vertex: Vertex) -> Fail:
        def fail(order: bytes, trace: int, alive: bool, payload: object, error: Exception) -> None:
            failure = failure_of(vertex, order, payload, error, self._settings, letter=self.wants_letters)
            self._failures.append((order, failure))

        return fail

    def run(self, orders: Orders, payloads: Sequence[object]) -> Outcome:
        """Run the suffix for items.

        Args:
            orders: Their orders, ascending.
            payloads: The items.
        """
        self._orders, self._payloads, self._failures = [], [], []
        if payloads:
            self._run(orders, 0, payloads)
        # By order: each operation comes upon its failures in turn, one operation after the other.
        failures = sorted(self._failures, key=lambda entry: entry[0])
        return Outcome(joined(self._orders), list(chain.from_iterable(self._payloads)), failures)
