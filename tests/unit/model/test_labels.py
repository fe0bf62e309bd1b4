"""Labels and gathering as vertices: where they may be, and what the order of an item says of its label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.operator import Work
from flamecore.errors import GraphError
from flamecore.model.meta import MOST_LABELS, GlobalTime, Meta, encode_child, label_code, label_in
from flamecore.model.ordered import Marking, Ordered
from flamecore.model.vertices import Broadcast
from flamecore.runtime.state.schema import state_schema


@dataclass(eq=False, slots=True, repr=False)
class Alarm(Ordered):
    """One that may work when no item comes."""

    kind: ClassVar[str] = "alarm"
    timers: ClassVar[bool] = True

    def work(self) -> Work:
        return Work()


@dataclass(eq=False, slots=True, repr=False)
class Plain(Ordered):
    kind: ClassVar[str] = "plain"

    def work(self) -> Work:
        return Work()


def numbers(flow: fc.Flow) -> fc.Stream[int]:
    return flow.source("numbers", int)


# -- orders ------------------------------------------------------------------------------------------------------------


def test_the_order_of_what_comes_of_an_item_tells_its_label() -> None:
    labelled = GlobalTime(7, 2).encode() + encode_child(3) + label_code(5)
    derived = labelled + encode_child(0) + encode_child(70_000) + label_code(4) + encode_child(253)
    assert label_in(derived, label_code(5)) == labelled
    assert label_in(derived, label_code(4)) == derived[:-2]
    assert label_in(derived, label_code(3)) == b""


def test_an_item_labelled_again_has_the_later_label() -> None:
    first = GlobalTime(7, 2).encode() + label_code(0)
    again = first + encode_child(9) + label_code(0)
    assert label_in(again + encode_child(1), label_code(0)) == again


@pytest.mark.parametrize("number", [0, 1, MOST_LABELS - 1])
@pytest.mark.parametrize("child", [0, 255, 2**16 - 1, 2**40 - 1])
def test_no_child_ids_of_outputs_look_like_a_label(number: int, child: int) -> None:
    code = label_code(number)
    order = GlobalTime(2**63 - 1, 2**32 - 1).encode() + encode_child(child) * 20
    assert label_in(order, code) == b""
    assert label_in(order + code + encode_child(child) * 20, code) == order + code
    assert Meta.decode(order + code).order == order + code


# -- flows -------------------------------------------------------------------------------------------------------------


def test_an_unknown_label_is_refused_by_name() -> None:
    flow = fc.Flow("flow")
    stream = numbers(flow)
    with pytest.raises(GraphError, match=r"gather after 'numbers': there is no label 'request'") as refused:
        stream.gather("request")
    assert "The flow has none. Call .label('request')" in str(refused.value)
    stream.label("line")
    with pytest.raises(GraphError, match=r"key_by after 'numbers': there is no label 'request'") as refused:
        stream.key_by(abs, label="request")
    assert "The flow has 'line'." in str(refused.value)
    assert refused.value.vertex == "numbers"


def test_one_name_for_two_labels_is_refused() -> None:
    flow = fc.Flow("flow")
    stream = numbers(flow)
    stream.label("line")
    with pytest.raises(GraphError, match=r"two labels are named 'line'") as refused:
        stream.map(abs).label("line")
    assert refused.value.vertex == "label:line"


def test_a_gathering_that_its_label_does_not_lead_to_is_refused() -> None:
    flow = fc.Flow("flow")
    stream = numbers(flow)
    stream.label("line").sink("labelled")
    with pytest.raises(
        GraphError, match=r"gather after 'map:abs': no item there is derived from an item with the label"
    ):
        stream.map(abs).gather("line")
    with pytest.raises(GraphError, match=r"key_by after 'map:abs-2'"):
        stream.map(abs).key_by(abs, label="line")


def test_a_gathering_in_a_cycle_is_refused() -> None:
    def body(inside: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        sums = inside.map(abs).gather("line").map(lambda gathered: sum(gathered.parts))
        return sums.filter(bool), sums

    flow = fc.Flow("flow")
    numbers(flow).label("line").loop(body, name="turns").sink("out")
    with pytest.raises(GraphError, match=r"<gather 'gather:line'> lies in the cycle of <merge 'turns'>") as refused:
        flow.graph()
    assert "before the loop or behind it" in str(refused.value)


def test_too_many_labels_are_refused() -> None:
    flow = fc.Flow("flow")
    stream = numbers(flow)
    for number in range(MOST_LABELS):
        stream.label(f"label {number}")
    with pytest.raises(GraphError, match=r"more than 255 labels"):
        stream.label("one more")


def test_what_may_work_without_an_item_between_label_and_gathering_is_refused() -> None:
    flow = fc.Flow("flow")
    numbers(flow).label("line").key_by(abs).apply(Alarm, name="alarm").gather("line").sink("out")
    with pytest.raises(GraphError, match=r"<alarm 'alarm'> lies between the label 'line' and <with_label") as refused:
        flow.graph()
    assert refused.value.vertex == "alarm"
    assert "or gather before it" in str(refused.value)


@pytest.mark.parametrize("marked", [True, False])
def test_an_ordered_operation_between_is_fine_unless_marks_come_to_it(marked: bool) -> None:
    flow = fc.Flow("flow")
    stream = numbers(flow).apply(Marking, function=abs) if marked else numbers(flow)
    stream.label("line").key_by(abs).apply(Plain, name="plain").gather("line").sink("out")
    if marked:
        with pytest.raises(GraphError, match=r"<plain 'plain'> lies between"):
            flow.graph()
    else:
        flow.graph()


def test_one_before_the_label_or_behind_the_gathering_is_fine() -> None:
    flow = fc.Flow("flow")
    before = numbers(flow).key_by(abs).apply(Alarm, name="before")
    parts: fc.Stream[Any] = before.label("line").gather("line")
    parts.key_by(lambda gathered: gathered.item).apply(Alarm, name="behind").sink("out")
    flow.graph()


def test_the_labelled_item_goes_behind_all_other_uses_of_the_label() -> None:
    flow = fc.Flow("flow")
    labelled = numbers(flow).label("line")
    labelled.gather("line").sink("all")
    labelled.map(abs).gather("line", name="positive").sink("positive")
    labelled.sink("plain")
    graph = flow.graph()
    (fork,) = [vertex for vertex in graph.vertices if isinstance(vertex, Broadcast)]
    ends = [vertex.name for vertex in graph.successors(fork)]
    assert {"gather:line.end", "positive.end"} == set(ends[-2:])


def test_a_key_for_each_label_offers_what_keeps_state_by_key_alone() -> None:
    flow = fc.Flow("flow")
    keyed: Any = numbers(flow).label("line").key_by(abs, label="line")
    for method, argument in (("group", 2), ("map", abs), ("flat_map", range), ("apply", Plain), ("loop", abs)):
        with pytest.raises(GraphError, match=r"key_by after 'label:line' keeps state for each label 'line', and "):
            getattr(keyed, method)(argument)


def test_state_by_label_is_in_no_snapshot() -> None:
    flow = fc.Flow("flow")
    labelled = numbers(flow).label("line")
    labelled.key_by(abs, label="line").count(name="apart").sink("apart")
    labelled.key_by(abs).count(name="kept").sink("kept")
    assert state_schema(flow.graph()).keys() == {"kept"}


def gathered() -> tuple[fc.Flow, fc.Stream[int], fc.Stream[int]]:
    """Return a flow, its labelled numbers, and those that are gathered again."""
    flow = fc.Flow("late")
    numbers = flow.source("numbers", int).label("number")
    return flow, numbers, numbers.gather("number").map(lambda gathered: gathered.item)


def late_in(flow: fc.Flow) -> set[str]:
    return {vertex.name for vertex in flow.graph().late_meetings()}


def test_late_items_meet_others_in_the_states_behind_a_merge() -> None:
    flow, numbers, late = gathered()
    meeting = late.merge(numbers).key_by(abs).count(name="meeting")
    meeting.key_by(str).count(name="behind").sink("counts")
    late.key_by(abs).count(name="late").sink("late")
    numbers.key_by(abs).count(name="direct").sink("direct")
    assert late_in(flow) == {"meeting"}


def test_what_has_waited_in_two_places_meets_late() -> None:
    flow, numbers, late = gathered()
    waiting = late.merge(numbers).key_by(abs).count(name="one").map(lambda pair: pair[0])
    waiting.merge(late).key_by(abs).count(name="two").sink("counts")
    assert late_in(flow) == {"one", "two"}


@pytest.mark.parametrize("beside", [True, False])
def test_items_enter_a_cycle_late_with_all_of_its_operations(beside: bool) -> None:
    def body(inside: fc.KeyedStream[int, int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        once = inside.stateful_map(0, lambda count, item: (count + 1, [item - 1]))
        return once.filter(lambda item: item > 0), once

    flow, numbers, late = gathered()
    entering = late.merge(numbers) if beside else late
    entering.key_by(lambda item: 0).loop(body, name="loop").key_by(abs).count(name="behind").sink("out")
    assert ("loop" in late_in(flow)) is beside
    assert "behind" not in late_in(flow)


def test_a_lone_worker_waits_for_late_items_and_calls_no_function_in_vain() -> None:
    calls: list[int] = []

    def count(before: int, item: int) -> tuple[int, list[int]]:
        calls.append(item)
        return before + 1, [before]

    flow, numbers, late = gathered()
    late.merge(numbers).key_by(lambda item: 0).stateful_map(0, count).sink("out")
    assert flow.run({"numbers": range(100)})["out"] == [*range(200)]
    assert len(calls) == 200
