"""The operators of labels: one marks the orders behind it, one finds the mark.

The order of an item derived from a labelled item begins with the order of the labelled item, and so the label need not
be carried.
"""

from __future__ import annotations

from collections.abc import Sequence

from flamecore.abc.operator import Operator, Site
from flamecore.model.batch import Orders, extended
from flamecore.model.failure import FlowMistake
from flamecore.model.meta import label_code, label_in
from flamecore.model.vertices import Label, Labelled, WithLabel


class LabelOperator(Operator):
    """The operator of a label: it appends the code of the label.

    Args:
        vertex: The label.
        site: Its place on the worker.
    """

    def __init__(self, vertex: Label, site: Site) -> None:
        self._code, self._ident = label_code(vertex.number), site.ident
        self._emit, self._emit_run = site.emit, site.emit_run

    def step(self, order: bytes, trace: int, alive: bool, payload: object) -> None:
        self._emit(order + self._code, trace ^ self._ident, alive, payload)

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        self._emit_run(extended(orders, self._code), trace ^ self._ident, payloads)


class WithLabelOperator(Operator):
    """The operator that pairs items with their labels.

    Args:
        vertex: The vertex.
        site: Its place on the worker.
    """

    def __init__(self, vertex: WithLabel, site: Site) -> None:
        self._vertex, self._code, self._ends = vertex, label_code(vertex.number), vertex.ends
        self._emit, self._emit_run, self._fail = site.emit, site.emit_run, site.fail

    def step(self, order: bytes, trace: int, alive: bool, payload: object) -> None:
        label = label_in(order, self._code)
        if not label:
            return self._fail(order, trace, alive, payload, FlowMistake(self._vertex.no_label()))
        return self._emit(order, trace, alive, Labelled(label, payload, self._ends))

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        code, ends = self._code, self._ends
        # A search for bytes, not a decoded order: the code cannot be a part of any other child id.
        labels = [label_in(order, code) for order in orders]
        if all(labels):
            paired = [Labelled(label, payload, ends) for label, payload in zip(labels, payloads, strict=True)]
            self._emit_run(orders, trace, paired)
            return
        for order, payload in zip(orders, payloads, strict=True):
            self.step(order, trace, True, payload)
