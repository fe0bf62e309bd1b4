"""The operators of labels and gatherings, and state by label: what they emit, and what they keep."""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.abc.operator import Run, Site, Step, Way
from flamecore.model.batch import Orders
from flamecore.model.drift import Drift
from flamecore.model.failure import FlowMistake
from flamecore.model.meta import CHILD, GlobalTime, encode_time, label_code
from flamecore.model.ordered import Gather, Gathered
from flamecore.model.vertices import ByKey, Label, Labelled, WithLabel, label_key
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.labels import LabelOperator, WithLabelOperator
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator

CODE = label_code(2)


class Bench:
    """A site that notes what is emitted, in steps and runs, and what fails."""

    def __init__(self) -> None:
        self.outputs: list[tuple[bytes, int, bool, Any]] = []
        self.runs = 0
        self.failed: list[tuple[bytes, bool, Exception]] = []

    def emit(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.outputs.append((order, trace, alive, payload))

    def emit_run(self, orders: Orders, trace: int, payloads: Any) -> None:
        self.runs += 1
        self.outputs += [(order, trace, True, payload) for order, payload in zip(orders, payloads, strict=True)]

    def fail(self, order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        self.failed.append((order, alive, error))

    def site(self) -> Site:
        step: Step = self.emit
        run: Run = self.emit_run
        return Site(8, self.fail, (Way(step, run),), snapshots=True)


def at(time: int) -> bytes:
    return GlobalTime(time, 1).encode()


def test_a_label_appends_its_code_to_items_tombstones_and_runs() -> None:
    bench = Bench()
    operator = LabelOperator(Label("label", number=2), bench.site())
    operator.step(at(1), 3, True, "a")
    operator.step(at(1), 3, False, "a")
    operator.run([at(2), at(3)], 3, ["b", "c"])
    assert bench.outputs == [
        (at(1) + CODE, 3 ^ 8, True, "a"),
        (at(1) + CODE, 3 ^ 8, False, "a"),
        (at(2) + CODE, 3 ^ 8, True, "b"),
        (at(3) + CODE, 3 ^ 8, True, "c"),
    ]


@pytest.mark.parametrize("ends", [True, False])
def test_items_are_paired_with_the_labels_of_their_orders(ends: bool) -> None:
    bench = Bench()
    operator = WithLabelOperator(WithLabel("with", label="line", number=2, ends=ends), bench.site())
    places = [at(1) + CODE + CHILD[4], at(2) + CODE]
    operator.run(places, 3, ["a", "b"])
    operator.step(places[0], 3, False, "a")
    first = Labelled(at(1) + CODE, "a", ends)
    assert bench.outputs == [
        (places[0], 3, True, first),
        (places[1], 3, True, Labelled(at(2) + CODE, "b", ends)),
        (places[0], 3, False, first),
    ]
    assert bench.runs == 1


def test_an_item_without_the_label_fails_and_the_others_of_its_run_go_on() -> None:
    bench = Bench()
    operator = WithLabelOperator(WithLabel("with", label="line", number=2), bench.site())
    places = [at(1) + CODE, at(2) + label_code(1), at(3) + CODE]
    operator.run(places, 3, ["a", "b", "c"])
    operator.step(places[1], 3, False, "b")
    assert [order for order, _, _, _ in bench.outputs] == [places[0], places[2]]
    assert [(order, alive) for order, alive, _ in bench.failed] == [(places[1], True), (places[1], False)]
    error = bench.failed[0][2]
    assert isinstance(error, FlowMistake)
    assert "no item with the label 'line': leave such items out" in str(error)


def test_a_gathering_keeps_nothing_of_what_is_gathered_or_for_snapshots() -> None:
    bench = Bench()
    operator = OrderedOperator(Gather("gather", route=ByKey(label_key), index=1), bench.site())
    buffer = OrderedBuffer("gather", operator, 1)
    for time in (2, 1):
        label = at(time) + CODE
        buffer.step(label + CHILD[1], 5, True, Labelled(label, f"item {time}", ends=True))
        for part in range(time):
            buffer.step(label + CHILD[0] + CHILD[part], part, True, Labelled(label, part))
    buffer.drain(encode_time(2))
    assert operator.cut(encode_time(2)) == []
    buffer.drain(encode_time(3))
    assert bench.outputs == [
        (at(1) + CODE + CHILD[1] + CHILD[0], 8, True, Gathered("item 1", (0,))),
        (at(2) + CODE + CHILD[1] + CHILD[0], 8, True, Gathered("item 2", (0, 1))),
    ]
    assert operator.cut(encode_time(3)) == []
    assert operator.names == []
    assert not operator._records


def test_state_by_label_goes_when_its_time_has_passed_and_is_in_no_snapshot() -> None:
    bench = Bench()

    def count(state: int, item: Labelled) -> tuple[int, list[tuple[Any, int]]]:
        return state + 1, [(item.payload, state + 1)]

    vertex = Drift(
        "drift",
        route=ByKey(lambda item: (item.label, item.payload)),
        advance=count,
        initial=0,
        labelled=True,
    )
    operator = DriftOperator(vertex, bench.site())
    for time in (1, 2):
        label = at(time) + CODE
        for part, payload in enumerate("aba"):
            operator.step(label + CHILD[part], 0, True, Labelled(label, payload))
    assert [payload for _, _, _, payload in bench.outputs] == [("a", 1), ("b", 1), ("a", 2)] * 2
    operator.on_time(encode_time(2))
    assert operator.states.top == {(at(2) + CODE, "a"): 2, (at(2) + CODE, "b"): 1}
    label = at(2) + CODE
    operator.step(label + CHILD[1], 0, False, Labelled(label, "b"))
    operator.step(label + CHILD[7], 0, True, Labelled(label, "b"))
    assert bench.outputs[-1][3] == ("b", 1)
    assert operator.cut(encode_time(2)) == []
    operator.on_time(encode_time(3))
    assert operator.states.top == {}
    assert operator.names == []
