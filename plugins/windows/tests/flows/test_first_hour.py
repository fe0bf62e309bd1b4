"""Mistakes of the first hour: verbs in a wrong order, and without what they need. Each error has the remedy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import GraphError
from flamestream_windows import aggregates as agg
from flamestream_windows import watermarks

DAY = timedelta(days=1)


def first(record: Any) -> Any:
    return record[0]


def plain() -> Any:
    return fc.Flow("first").source("records", tuple)


def timed() -> Any:
    return w.event_time(plain(), first)


def keyed() -> Any:
    return timed().key_by(first)


def windowed() -> Any:
    return keyed().window(w.fixed(minutes=1))


def panes() -> Any:
    return windowed().count()


OF_ANOTHER_STREAM: dict[str, tuple[Callable[[], Any], str]] = {
    "windows without event time": (
        lambda: plain().key_by(first).window(w.fixed(minutes=1)),
        "needs event time, which a stream gets before its key: event_time(stream, at).key_by(function).window(…)",
    ),
    "windows of a plain stream": (lambda: plain().window(w.fixed(minutes=1)), "needs event time"),
    "a join without event time": (lambda: plain().key_by(first).join(plain()), "event_time(stream, at)"),
    "distinct without event time": (lambda: plain().key_by(first).distinct(within=DAY), "event_time(stream, at)"),
    "event_time as a verb": (lambda: plain().event_time(first), "a function that takes the stream"),
    "event_time behind a key": (lambda: plain().key_by(first).event_time(first), "a function that takes the stream"),
    "a state without a key": (lambda: timed().count(), "key first: .key_by(function).count("),
    "a join without a key": (
        lambda: timed().join(timed(), before=DAY, after=DAY),
        "key first: .key_by(function).join(",
    ),
    "distinct without a key": (lambda: timed().distinct(within=DAY), "key first: .key_by(function).distinct("),
    "process without a key": (lambda: timed().process(w.StatefulFn), "key first: .key_by(function).process("),
    "an aggregate without a key": (lambda: timed().collect(), ".key_by(function).window(w.fixed(minutes=1)).collect("),
    "an aggregate without windows": (lambda: keyed().sum(first), "windows first: .window(w.fixed(minutes=1)).sum("),
    "late items of no windows": (lambda: timed().late, "of what an operation on windows gives, such as .count().late"),
    "dropped items of a key": (lambda: keyed().dropped, "such as .count().dropped"),
    "a filter behind the key": (lambda: keyed().filter(first), "Call filter before key_by"),
    "a sink behind the key": (lambda: keyed().sink("out"), "Call sink before key_by"),
    "a second key": (lambda: keyed().key_by(first), "A stream has one key"),
    "a sink of windows": (lambda: windowed().sink("out"), "what a pane holds, such as .count(), then .sink"),
    "a map of windows": (lambda: windowed().map(first), "what a pane holds, such as .count(), then .map"),
    "late items of windows": (lambda: windowed().late, "what a pane holds, such as .count(), then .late"),
    "windows of windows": (lambda: windowed().window(w.fixed(minutes=5)), "what a pane holds"),
    "process of windows": (lambda: windowed().process(w.StatefulFn), "leave the windows out"),
    "panes by window at a sink": (lambda: panes().per_window().sink("out"), "what a pane holds"),
    "a field of panes": (lambda: panes().value, "Its items are panes: .map(lambda pane: pane.value)"),
    "a sum of panes": (lambda: panes().sum(first), "windows first: .key_by(function).window("),
}


@pytest.mark.parametrize("case", OF_ANOTHER_STREAM)
def test_a_verb_of_another_stream_is_an_error_with_the_way_to_it(case: str) -> None:
    call, remedy = OF_ANOTHER_STREAM[case]
    with pytest.raises(AttributeError) as caught:
        call()
    missing, _, hint = str(caught.value).partition("\n")
    assert "object has no attribute" in missing
    assert remedy in hint


ARGUMENTS: dict[str, tuple[Callable[[], Any], str]] = {
    "collect takes none": (lambda: untyped(agg.collect)(first), r"^collect takes \(\): takes 0 positional"),
    "count takes none": (lambda: untyped(agg.count)(first), r"^count takes \(\): takes 0 positional"),
    "whole takes none": (lambda: untyped(w.whole)(1), r"^whole takes \(\): takes 0 positional"),
    "arrival takes none": (lambda: untyped(watermarks.arrival)(1), r"^arrival takes \(\): takes 0 positional"),
    "monotonic takes none": (lambda: untyped(watermarks.monotonic)(1), r"^monotonic takes \(\): takes 0 positional"),
    "collect of panes takes none": (lambda: windowed().collect(first), r"^collect takes \(\*, name: "),
    "a top of no number": (lambda: windowed().top("3", first), "^top after 'event_time': top: n is a whole number"),
    "a fold with its arguments swapped": (lambda: windowed().fold(first, 0), "step is a function, not 0"),
    "a watermark that is no function": (lambda: untyped(watermarks.from_records)(5), "function is a function, not 5"),
    "a fold of watermarks that is none": (lambda: untyped(watermarks.fold)(0, 5), "step is a function, not 5"),
}


def untyped(call: Any) -> Any:
    """Return what a type checker knows nothing of."""
    return call


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_a_word_does_not_take_are_named(case: str) -> None:
    call, text = ARGUMENTS[case]
    with pytest.raises(GraphError, match=text):
        call()


def test_a_field_in_place_of_a_function_has_its_remedy() -> None:
    with pytest.raises(GraphError, match="sum: of is a function, not 'amount'") as caught:
        untyped(agg.sum)("amount")
    assert "lambda item: item.amount" in caught.value.hint


def test_a_look_at_late_and_dropped_items_changes_no_flow() -> None:
    def names(look: Callable[[Any], object]) -> list[str]:
        flow = fc.Flow("looks")
        counted: Any = (
            w.event_time(flow.source("records", tuple), first).key_by(first).window(w.fixed(seconds=1)).count()
        )
        look(counted)
        counted.sink("counts")
        return [vertex.name for vertex in flow.graph().vertices]

    without = names(lambda counted: None)
    assert names(lambda counted: (counted.late, counted.dropped, repr(counted.dropped))) == without
    twice = names(lambda counted: (counted.dropped.sink("one"), counted.dropped.map(first).sink("two")))
    assert [name for name in twice if name.startswith("count.dropped")] == ["count.dropped", "count.dropped.fork"]


def test_dropped_items_come_to_all_their_uses() -> None:
    flow = fc.Flow("both")
    counted = (
        w.event_time(flow.source("records", tuple), first, unit="s").key_by(len).window(w.fixed(seconds=1)).count()
    )
    counted.dropped.map(lambda dropped: dropped.value).sink("values")
    counted.dropped.map(lambda dropped: dropped.reason).sink("reasons")
    counted.values().sink("counts")
    now = 1_700_000_000
    outputs = flow.run({"records": [(now, "a"), (now + 10, "b"), (now, "c")]}, workers=2)
    assert outputs == {"values": [(now, "c")], "reasons": ["lateness"], "counts": [1, 1]}
