"""Triggers and strategies: words, what they may do, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flamecore.errors import GraphError
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import windows as w
from flamestream_windows.model import triggers
from flamestream_windows.model.aggregates import named
from flamestream_windows.model.strategy import (
    Strategy,
    check_aggregate,
    check_emits,
    strategy,
)
from flamestream_windows.model.triggers import AfterSynchronizedProcessingTime, Look

MINUTE = w.fixed(minutes=1)
LATE = timedelta(minutes=10)


def test_triggers_combine_compare_and_print() -> None:
    trigger = t.at_watermark(early=t.count(100) | t.every(minutes=1), late=t.count(1))
    assert trigger == t.at_watermark(early=t.count(100) | t.every(seconds=60), late=t.count(1))
    assert str(trigger) == "at_watermark(early=count(100) | every(minutes=1), late=count(1))"
    assert str((t.count(1) >> t.count(2) >> t.default).repeat()) == "(count(1) >> count(2) >> default).repeat()"
    assert str((t.count(1) & (t.count(2) | t.never)).until(t.at_watermark())) == (
        "(count(1) & (count(2) | never)).until(at_watermark())"
    )
    assert (t.count(1) | t.count(2)) | t.count(3) == t.count(1) | (t.count(2) | t.count(3))
    assert str(t.every(minutes=1, aligned=True)) == "every(seconds=0, align_to=(minutes=1))"
    assert str(strategy(MINUTE, lateness=LATE, emit=trigger, panes="accumulating")) == (
        f"fixed(minutes=1), lateness=(minutes=10), emit={trigger}, panes=accumulating, time=end"
    )


def test_triggers_that_say_nothing_are_refused() -> None:
    makes: list[Callable[[], Any]] = [lambda: t.count(0), lambda: t.every(seconds=0), lambda: t.every()]
    for make in makes:
        with pytest.raises(ValueError, match=r"at least one|positive"):
            make()


LOSING: list[tuple[triggers.Trigger, bool, bool]] = [
    # trigger, without lateness, with it
    (t.default, False, False),
    (t.never, False, False),
    (t.always, False, False),
    (t.at_watermark(), False, True),
    (t.at_watermark(early=t.count(1)), False, True),
    (t.at_watermark(late=t.count(1)), False, False),
    (t.count(5), True, True),
    (t.every(seconds=1), True, True),
    (AfterSynchronizedProcessingTime(), True, True),
    (t.count(5).repeat(), False, False),
    (t.count(5) | t.default, True, True),
    (t.default | t.never, False, True),
    (t.always | t.never, True, True),
    (t.never | t.never, False, False),
    (t.count(5) & t.default, False, True),
    (t.count(5) & t.never, False, False),
    (t.count(5) & t.every(seconds=1), True, True),
    (t.count(1) >> t.count(2), True, True),
    (t.count(1) >> t.default, False, False),
    (t.default.until(t.count(1)), True, True),
    (t.count(1).until(t.never), True, True),
]


@pytest.mark.parametrize(("trigger", "soon", "late"), LOSING, ids=lambda value: str(value))
def test_a_trigger_that_may_lose_data_is_known(trigger: triggers.Trigger, soon: bool, late: bool) -> None:
    assert [trigger.may_lose_data(0), trigger.may_lose_data(1)] == [soon, late]
    for lateness, losing in ((0, soon), (1, late)):
        if losing:
            with pytest.raises(GraphError, match="may finish while elements"):
                strategy(MINUTE, lateness=lateness, emit=trigger, panes="discarding")
        else:
            strategy(MINUTE, lateness=lateness, emit=trigger, panes="discarding")


def test_what_is_lost_is_told_with_a_remedy() -> None:
    with pytest.raises(GraphError, match=r"late=t.count\(1\)"):
        strategy(MINUTE, lateness=LATE, emit=t.at_watermark(), panes="discarding")
    with pytest.raises(GraphError, match=r"repeat\(\)"):
        strategy(MINUTE, emit=t.count(3), panes="discarding")


@pytest.mark.parametrize(
    ("emit", "lateness", "several"),
    [
        ("final", 0, False),
        ("final", 5, False),
        ("updates", 0, True),
        (t.default, 0, False),
        (t.default, 5, True),
        (t.at_watermark(), 0, False),
        (t.at_watermark(early=t.count(1)), 0, True),
        (t.at_watermark(late=t.count(1)), 5, True),
        (t.count(2).repeat(), 0, True),
    ],
    ids=str,
)
def test_several_panes_need_to_say_what_they_hold(emit: Any, lateness: int, several: bool) -> None:
    make: Callable[[], Strategy] = lambda: strategy(MINUTE, lateness=lateness, emit=emit)  # noqa: E731
    if several:
        with pytest.raises(GraphError, match="panes='accumulating'"):
            make()
    else:
        assert make().several is False
    assert strategy(MINUTE, lateness=lateness, emit=emit, panes="accumulating").several is several


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"emit": "sometimes"}, "emit='sometimes'"),
        ({"panes": "some"}, "panes='some'"),
        ({"time": "noon"}, "time='noon'"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        strategy(MINUTE, **words)


def test_a_fold_needs_merge_where_windows_join() -> None:
    sessions = strategy(w.sessions(minutes=1))
    with pytest.raises(GraphError, match="merge="):
        check_aggregate(sessions, agg.fold(0, lambda a, b: a + b))
    with pytest.raises(GraphError, match="merge="):
        check_aggregate(sessions, named({"n": agg.count(), "sum": agg.fold(0, lambda a, b: a + b)}))
    check_aggregate(sessions, agg.fold(0, lambda a, b: a + b, merge=lambda a, b: a + b))
    check_aggregate(strategy(MINUTE), agg.fold(0, lambda a, b: a + b))


def test_retractions_need_an_aggregate_that_takes_back() -> None:
    fixed = strategy(MINUTE)
    for takes in (agg.count(), agg.sum(), agg.mean(), agg.collect(), named({"n": agg.count()})):
        check_aggregate(fixed, takes, retractions=True)
    for not_takes in (agg.max(), agg.top(1, abs), agg.reduce(max), named({"n": agg.count(), "most": agg.max()})):
        with pytest.raises(GraphError, match="take elements back"):
            check_aggregate(fixed, not_takes, retractions=True)


def test_windows_that_never_end_need_a_trigger_if_the_input_does_not() -> None:
    for silent in ("final", t.default, t.at_watermark(), t.never, (t.count(1) & t.default).repeat()):
        made = strategy(w.whole(), emit=silent, panes="discarding")
        check_emits(made, endless=False)
        with pytest.raises(GraphError, match="never give a pane"):
            check_emits(made, endless=True)
    for speaking in ("updates", t.at_watermark(early=t.count(2)), t.default.until(t.count(9).repeat())):
        check_emits(strategy(w.whole(), emit=speaking, panes="discarding"), endless=True)
    check_emits(strategy(MINUTE), endless=True)


def test_a_strategy_knows_whether_its_windows_are_alike() -> None:
    assert strategy(MINUTE, lateness=5).is_final
    assert not strategy(MINUTE, time="earliest").is_final
    assert not strategy(MINUTE, emit=t.at_watermark()).is_final
    assert not strategy(w.sessions(seconds=1)).is_final
    assert strategy(w.sessions(seconds=1)).is_sessions
    assert not strategy(w.sessions(seconds=1), lateness=1).is_sessions
    assert strategy(MINUTE, emit="updates", panes="discarding").is_updates
    assert not strategy(MINUTE, emit="updates", panes="retracting").is_updates
    assert not strategy(MINUTE, emit=t.count(1).repeat(), panes="discarding").is_updates


def test_behind_a_grouping_a_trigger_goes_on() -> None:
    before = t.at_watermark(early=t.every(minutes=1) | t.count(5), late=t.count(3))
    after = t.at_watermark(early=AfterSynchronizedProcessingTime() | t.count(1), late=t.count(1))
    assert before.continuation() == after
    assert (t.count(2) >> t.every(minutes=1)).continuation() == (
        t.count(1) | AfterSynchronizedProcessingTime()
    ).repeat()
    assert (t.count(2) & t.never).repeat().continuation() == (t.count(1) & t.never).repeat()
    assert t.count(2).until(t.default).continuation() == t.count(1).until(t.default)
    assert strategy(MINUTE, emit=t.count(7).repeat(), panes="discarding").after().trigger == t.count(1).repeat()
    for same in (t.default, t.never, t.always, AfterSynchronizedProcessingTime(), t.at_watermark()):
        assert same.continuation() == same


def test_a_synchronized_trigger_fires_with_its_element() -> None:
    trigger, look = AfterSynchronizedProcessingTime(), Look(ended=False, clock=0)
    state = trigger.start()
    assert not trigger.ready(state, look)
    state = trigger.on_element(state, look)
    assert trigger.ready(state, look)
    assert trigger.finished(trigger.fire(state, look))
    assert trigger.ready(trigger.merge([trigger.start(), state], look), look)
    assert not trigger.ready(trigger.clear(state), look)


def test_sliding_windows_bring_their_shift_to_the_earliest_time() -> None:
    sliding = w.sliding(seconds=10, every=timedelta(seconds=5))
    made = strategy(sliding, time="earliest")
    (first, second) = sorted(sliding.assign(7_000_000, None, ()))
    assert [made.hold(first, 7_000_000), made.hold(second, 7_000_000)] == [7_000_000, 10_000_000]
    assert strategy(sliding, time="latest").hold(second, 7_000_000) == 7_000_000
    assert strategy(sliding).hold(second, 7_000_000) == 14_999_999
