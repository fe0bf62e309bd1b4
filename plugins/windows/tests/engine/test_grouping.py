"""The grouping step, one call at a time: what is given decides, and what is not changed stays."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flamecore.errors import ConsistencyError
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import NOTHING, Clock, Drop, Element, Firing, Late, Moment, Timer, Watermark
from flamestream_windows.model.strategy import Strategy, strategy
from flamestream_windows.model.times import MAX, MIN
from flamestream_windows.model.triggers import AfterProcessingTime, AfterWatermark, Never
from flamestream_windows.model.windows import Fixed, Sliding, Window, WindowFn
from flamestream_windows.testing.keyed import Keys
from flamestream_windows.testing.laws import draw_events, draw_strategy

TEN = Fixed(10)


def test_steps_of_time_that_lead_nowhere_change_nothing() -> None:
    grouping = Grouping(strategy(TEN, emit=t.at_watermark(early=t.every(seconds=1)), panes="discarding"), agg.count())
    record, _ = grouping.step(NOTHING, Element("a", 3), Moment(5, clock=50))
    for given in (Watermark(5), Watermark(MIN), Watermark(9), Clock(60), Timer(Window(0, 10)), Timer(Window(10, 20))):
        assert grouping.step(record, given, Moment(5, clock=50)) == (record, [])
    assert grouping.due(record, Moment(5, clock=50)) == (10, 1_000_050)


def test_a_trigger_that_is_ready_again_at_once_is_looked_at_with_the_next_watermark() -> None:
    twice = Strategy(TEN, t.at_watermark() >> t.at_watermark(), "accumulating", lateness=100)
    keys = Keys(Grouping(twice, agg.count()))
    keys.element("k", Element("a", 3))
    ((_, first),) = keys.advance(10)
    assert isinstance(first, Firing)
    assert not first.last
    assert keys.work.due(keys.record("k"), keys.moment)[0] == 11
    assert keys.advance(11) == []
    assert keys.record("k").closed == (Window(0, 10),)
    assert [type(output) for _, output in keys.element("k", Element("b", 3))] == [Drop]


def test_a_target_of_processing_time_is_met_once() -> None:
    keys = Keys(Grouping(Strategy(TEN, AfterProcessingTime(5) & Never()), agg.count()), clock=0)
    keys.element("k", Element("a", 3))
    assert keys.work.due(keys.record("k"), keys.moment)[1] == 5
    assert keys.tick(5) == []
    assert keys.work.due(keys.record("k"), keys.moment)[1] is None


def test_outputs_of_several_windows_come_in_the_order_of_their_ends() -> None:
    keys = Keys(Grouping(strategy(Sliding(10, 2), emit="updates", panes="accumulating"), agg.count()))
    found = [output.window for _, output in keys.element("k", Element("a", 9)) if isinstance(output, Firing)]
    assert found == [(0, 10), (2, 12), (4, 14), (6, 16), (8, 18)]


def test_late_is_told_once_and_dropped_for_each_window() -> None:
    keys = Keys(Grouping(strategy(Sliding(10, 2), lateness=2), agg.count()))
    keys.advance(15)
    found = [output for _, output in keys.element("k", Element("a", 9))]
    assert found == [
        Drop("a", 9, "lateness", Window(0, 10)),
        Drop("a", 9, "lateness", Window(2, 12)),
        Late("a", 9),
    ]


@dataclass(frozen=True)
class Halves(WindowFn):
    """Windows of two ticks that join with those of their ten: a window function of one's own."""

    merging: ClassVar[bool] = True

    def assign(self, at: int, value: Any, windows: Any) -> list[Window]:
        start = at - at % 2
        return [Window(start, start + 2)]

    def merge(self, windows: Any) -> Any:
        groups: dict[int, list[Window]] = {}
        for window in windows:
            groups.setdefault(window.start // 10, []).append(window)
        return [
            (Window(members[0].start, max(member.end for member in members)), members) for members in groups.values()
        ]


def test_windows_of_ones_own_may_join() -> None:
    keys = Keys(Grouping(strategy(Halves()), agg.collect()))
    for value, at in (("a", 1), ("b", 8), ("c", 11), ("d", 5)):
        keys.element("k", Element(value, at))
    found = {output.window: output.value for _, output in keys.advance(MAX) if isinstance(output, Firing)}
    assert found == {(0, 10): ["a", "b", "d"], (10, 12): ["c"]}


@dataclass(frozen=True)
class Wrong(Halves):
    """Joins what is not there."""

    def merge(self, windows: Any) -> Any:
        return [(Window(0, 99), [Window(50, 99)])]


def test_windows_that_join_wrongly_leave_the_record_as_it_was() -> None:
    keys = Keys(Grouping(strategy(Wrong()), agg.count()))
    with pytest.raises(ConsistencyError, match="not all among"):
        keys.element("k", Element("a", 1))
    assert keys.records == {}


def test_the_next_turn_is_that_of_the_first_window_that_is_due(seeds: Callable[..., range]) -> None:
    seen = 0
    for seed in seeds(300):
        rng = random.Random(seed)
        grouping = Grouping(draw_strategy(rng), agg.collect())
        keys = Keys(grouping, clock=0)
        for key, event in draw_events(rng):
            if isinstance(event, Element):
                keys.element(key, event)
            elif isinstance(event, Watermark):
                keys.advance(event.to)
            elif isinstance(event, Clock):
                keys.tick(event.to)
            for record in keys.records.values():
                turns = [(grouping.due_of(cell, keys.moment), cell.window.start) for cell in record.open]
                turns += [(grouping.strategy.expiry(window) + 1, window.start) for window in record.closed]
                assert grouping.turn(record, keys.moment) == min(turns), f"seed {seed}"
                seen += len(turns) > 1
    assert seen > len(seeds(300))


def test_windows_that_are_over_and_in_one_state_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    ready = AfterWatermark.ready

    def counted(self: AfterWatermark, state: Any, look: Any) -> bool:
        nonlocal looked
        looked += 1
        return ready(self, state, look)

    grouping = Grouping(
        strategy(TEN, lateness=10**6, emit=t.at_watermark(late=t.count(1)), panes="discarding"), agg.count()
    )
    keys = Keys(grouping)
    for at in range(0, 10_000, 10):
        keys.element("k", Element("a", at))
    assert len(keys.advance(10_000)) == 1000
    monkeypatch.setattr(AfterWatermark, "ready", counted)
    assert keys.advance(10_010) == []
    assert len(keys.element("k", Element("a", 3))) == 2  # late, and a pane
    assert looked < 10
