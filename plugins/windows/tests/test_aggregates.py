"""Aggregates: what the elements of a window come to, one after another, joined, and taken back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamestream_windows import aggregates as agg
from flamestream_windows import windows as w
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Element, Firing
from flamestream_windows.model.aggregates import LEFT, RIGHT, Aggregate, Cogroup, Joined, named
from flamestream_windows.model.strategy import strategy
from flamestream_windows.model.windows import Same
from flamestream_windows.testing.keyed import Keys

INTS = st.lists(st.integers(-9, 9), max_size=8)


def _tens(value: int) -> int:
    return 10 * value


PLAIN: dict[str, tuple[Aggregate, Any]] = {
    "count": (agg.count(), len),
    "sum": (agg.sum(_tens), lambda values: sum(10 * value for value in values)),
    "sum of itself": (agg.sum(), sum),
    "mean": (agg.mean(_tens), lambda values: sum(10 * value for value in values) / len(values) if values else None),
    "min": (agg.min(_tens), lambda values: min((10 * value for value in values), default=None)),
    "max": (agg.max(), lambda values: max(values, default=None)),
    "top": (agg.top(3, abs), lambda values: sorted(values, key=abs, reverse=True)[:3]),
    "fold": (agg.fold((), lambda a, b: (*a, b), merge=lambda a, b: a + b), tuple),
    "reduce": (agg.reduce(lambda a, b: a * 3 + b), lambda values: _reduced(values)),
    "collect": (agg.collect(), list),
    "named": (
        named({"n": agg.count(), "most": agg.max()}),
        lambda values: {"n": len(values), "most": max(values, default=None)},
    ),
}


def _reduced(values: list[int]) -> int | None:
    total: int | None = None
    for value in values:
        total = value if total is None else total * 3 + value
    return total


def _of(aggregate: Aggregate, values: list[Any]) -> Any:
    accumulator = aggregate.create()
    for value in values:
        accumulator = aggregate.add(accumulator, value)
    return accumulator


@pytest.mark.parametrize("name", PLAIN)
@given(values=INTS)
def test_an_aggregate_is_that_of_a_plain_loop(name: str, values: list[int]) -> None:
    aggregate, plain = PLAIN[name]
    assert aggregate.result(_of(aggregate, values)) == plain(values)


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "reduce"])
@given(first=INTS, second=INTS)
def test_joined_accumulators_are_those_of_all_elements(name: str, first: list[int], second: list[int]) -> None:
    aggregate, plain = PLAIN[name]
    joined = aggregate.merge(_of(aggregate, first), _of(aggregate, second))
    assert aggregate.result(joined) == plain(first + second)


@pytest.mark.parametrize("name", ["count", "sum", "mean", "collect"])
@given(values=st.lists(st.integers(-9, 9), min_size=1), seed=st.integers(0, 99))
def test_an_element_can_be_taken_back(name: str, values: list[int], seed: int) -> None:
    aggregate, plain = PLAIN[name]
    gone = random.Random(seed).choice(values)
    rest = list(values)
    rest.remove(gone)
    assert aggregate.result(aggregate.remove(_of(aggregate, values), gone)) == plain(rest)


def test_an_aggregate_that_takes_nothing_back_says_so() -> None:
    with pytest.raises(NotImplementedError, match="cannot take elements back"):
        agg.max().remove((1,), 1)
    with pytest.raises(NotImplementedError, match="no merge"):
        agg.fold(0, max).merge(1, 2)
    with pytest.raises(ValueError, match="at least 1"):
        agg.top(0, abs)


def test_both_sides_of_a_join_can_be_joined_and_taken_back() -> None:
    both = Cogroup()
    first, second = _of(both, [(LEFT, 1), (RIGHT, 2)]), _of(both, [(RIGHT, 3), (LEFT, 4)])
    assert both.result(both.merge(first, second)) == ([1, 4], [2, 3])
    assert both.result(both.remove(first, (RIGHT, 2))) == ([1], [])
    assert both.result(both.remove(first, (LEFT, 1))) == ([], [2])
    assert Joined("outer") == Joined("outer") != Joined("left")


def test_retractions_of_one_grouping_are_taken_back_in_the_next() -> None:
    first = Keys(Grouping(strategy(w.sessions(microseconds=5), emit="updates", panes="retracting"), agg.count()))
    totals = Keys(Grouping(strategy(w.whole(), emit="updates", panes="accumulating"), agg.sum()))
    said = []
    for at in (0, 8, 4):
        for _, pane in first.element("k", Element("x", at)):
            assert isinstance(pane, Firing)
            element = Element(pane.value, pane.at, (pane.window,), pane.retraction)
            said += [output.value for _, output in totals.element("all", element) if isinstance(output, Firing)]
    assert said == [1, 2, 1, 0, 3]


def test_panes_can_be_grouped_by_their_windows_again() -> None:
    hours = Keys(Grouping(strategy(w.fixed(microseconds=10)), agg.count()))
    tops = Keys(Grouping(strategy(Same()), agg.top(2, lambda pair: pair[1])))
    for key, at in (("a", 1), ("b", 2), ("b", 3), ("c", 4), ("c", 5), ("c", 6), ("a", 11)):
        hours.element(key, Element(key, at))
    for watermark in (10, 20):
        for key, pane in hours.advance(watermark):
            assert isinstance(pane, Firing)
            tops.element(pane.window, Element((key, pane.value), pane.at, (pane.window,)))
    found = [(key, output.value) for key, output in tops.advance(hours.output) if isinstance(output, Firing)]
    assert found == [((0, 10), [("c", 3), ("b", 2)]), ((10, 20), [("a", 1)])]


def test_a_function_that_fails_leaves_its_window_as_it_was() -> None:
    def careful(value: int) -> int:
        if value < 0:
            raise ZeroDivisionError
        return value

    sums = Keys(Grouping(strategy(w.sessions(microseconds=5), lateness=9), agg.sum(careful)))
    sums.element("k", Element(1, 0))
    sums.element("k", Element(2, 8))
    before, shown = dict(sums.records), repr(sums.records)
    with pytest.raises(ZeroDivisionError):
        sums.element("k", Element(-1, 4))  # it would have joined both
    assert sums.records == before
    assert repr(sums.records) == shown
    sums.element("k", Element(3, 4))
    assert [output.value for _, output in sums.advance(99) if isinstance(output, Firing)] == [6]


def test_a_result_that_fails_leaves_all_windows_as_they_were() -> None:
    broken = [True]

    class Fragile(type(agg.count())):  # type: ignore[misc]
        def result(self, accumulator: Any) -> Any:
            if broken[0] and accumulator == 2:
                raise ZeroDivisionError
            return accumulator

    counts = Keys(Grouping(strategy(w.fixed(microseconds=10)), Fragile()))
    for key in ("a", "b", "b", "c"):
        counts.element(key, Element(key, 1))
    before = dict(counts.records)
    with pytest.raises(ZeroDivisionError):
        counts.advance(10)
    assert (counts.records, counts.watermark) == (before, counts.watermark)
    broken[0] = False
    assert sorted(key for key, _ in counts.advance(10)) == ["a", "b", "c"]
