"""Scripts: late data, tested in five lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flamecore.errors import GraphError
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import windows as w
from flamestream_windows.model.times import MAX
from flamestream_windows.testing import script


def test_late_data_in_five_lines() -> None:
    with script(lateness=5, emit=t.at_watermark(late=t.count(1)), panes="accumulating", aggregate=agg.count()) as s:
        s.add("a", "b", at=1)
        s.watermark(10)
        s.add("c", at=2)
        assert s.panes() == [
            w.Pane(None, 2, w.Window(0, 10), w.Timing.ON_TIME, 0, last=False),
            w.Pane(None, 3, w.Window(0, 10), w.Timing.LATE, 1, last=False),
        ]


def test_what_is_late_and_what_is_dropped_is_told() -> None:
    with script(lateness=5) as s:
        s.watermark(12)
        s.add("late", at=9)
        s.watermark(15)
        s.add("lost", at=9)
        assert s.late() == ["late"]
        assert s.dropped() == [w.Dropped("lost", 9, "lateness", w.Window(0, 10))]
        assert s.values() == [["late"]]
        assert (s.late(), s.dropped(), s.panes()) == ([], [], [])


def test_instants_are_those_of_a_flow() -> None:
    day = datetime(2024, 3, 31, tzinfo=UTC)
    with script(w.calendar(days=1, tz="Europe/Berlin"), aggregate=agg.sum()) as s:
        s.add(1, 2, at=day, key="k")
        s.add(3, at=day + timedelta(days=1), key="k")
        s.watermark(day + timedelta(hours=22))
        (pane,) = s.panes()
        assert (pane.key, pane.value, pane.first, pane.last) == ("k", 3, True, True)
        assert str(pane.window) == "[2024-03-30T23:00:00+00:00, 2024-03-31T22:00:00+00:00)"
        s.finish()
        assert s.values() == [3]
        assert s.output_watermark == MAX


def test_processing_time_is_moved_by_hand() -> None:
    with script(w.fixed(minutes=1), emit=t.at_watermark(early=t.every(seconds=5)), panes="discarding") as s:
        s.add("a", at=0)
        s.advance(timedelta(seconds=4))
        assert s.panes() == []
        s.clock(5_000_000)
        assert s.values() == [["a"]]
        s.clock(1)


def test_updates_give_a_pane_for_each_element_and_no_other() -> None:
    with script(lateness=5, emit="updates", panes="accumulating", aggregate=agg.count()) as s:
        s.add(*"abc", at=1)
        s.watermark(10)
        s.add("d", at=1)
        s.finish()
        panes = s.panes()
        assert [pane.value for pane in panes] == [1, 2, 3, 4]
        assert [pane.timing.name for pane in panes] == ["EARLY", "EARLY", "EARLY", "LATE"]


def test_a_script_fails_on_panes_that_nobody_asked_for() -> None:
    with pytest.raises(AssertionError, match="nobody has asked for"), script() as s:  # noqa: PT012
        s.add(1, at=0)
        s.watermark(10)


def test_a_script_that_fails_says_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError), script() as s:  # noqa: PT012
        s.add(1, at=0)
        s.watermark(10)
        raise ZeroDivisionError


def test_a_script_refuses_what_a_flow_refuses() -> None:
    with pytest.raises(GraphError, match="may finish"):
        script(emit=t.count(3))
    with pytest.raises(GraphError, match="merge="):
        script(w.sessions(seconds=1), aggregate=agg.fold(0, max))
