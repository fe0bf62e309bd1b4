"""Flows that cannot work are refused when they are drawn, or checked, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import ConfigError, FlameError, GraphError, OperationError
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import watermarks


def source() -> fc.Stream[Any]:
    return fc.Flow("refused").source("records", tuple)


def keyed(**settings: Any) -> w.TimedKeyed[Any, Any]:
    return w.event_time(source(), lambda record: record[0], **settings).key_by(lambda record: record[1])


MINUTE = w.fixed(minutes=1)
REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a trigger that may lose data": (
        lambda: keyed().window(MINUTE, emit=t.count(3)),
        "window after 'event_time': the trigger count(3) may finish",
        "(count(3)).repeat()",
    ),
    "late data without a late trigger": (
        lambda: keyed().window(MINUTE, emit=t.at_watermark(), lateness=timedelta(seconds=1)),
        "may finish while elements",
        "late=t.count(1)",
    ),
    "several panes of which nothing is said": (
        lambda: keyed().window(MINUTE, emit="updates"),
        "may give several panes",
        "panes='accumulating'",
    ),
    "windows that are none": (lambda: keyed().window(60), "takes windows, not 60", "w.fixed(minutes=1)"),  # type: ignore[arg-type]
    "a fold of sessions without merge": (
        lambda: keyed().window(w.sessions(minutes=5)).fold(0, lambda n, _: n + 1),
        "fold after 'event_time': windows sessions(minutes=5) may join",
        "merge=",
    ),
    "one window without an end, and no trigger": (
        lambda: keyed(at_end="keep").window(w.whole()),
        "never give a pane",
        "w.fixed(minutes=1)",
    ),
    "retractions to what takes none back": (
        lambda: (
            keyed()
            .window(MINUTE, emit="updates", panes="retracting")
            .count()
            .per_window()
            .top(1, by=lambda pane: pane.value)
        ),
        "top after 'count.panes': retractions come",
        "panes='retracting'",
    ),
    "a top of none": (lambda: keyed().window(MINUTE).top(0, by=lambda record: record), "top 0 has no elements", ""),
    "an aggregate of nothing": (lambda: keyed().window(MINUTE).aggregate(), "nothing to make", "agg.count()"),
    "an aggregate that is a function": (
        lambda: keyed().window(MINUTE).aggregate(n=len),  # type: ignore[arg-type]
        "n=<built-in function len> is no aggregate",
        "agg.count()",
    ),
    "a sum of a field's name": (
        lambda: keyed().window(MINUTE).sum("amount"),  # type: ignore[arg-type]
        "sum after 'event_time' takes a function, not 'amount'",
        "lambda item: item.amount",
    ),
    "event time twice": (
        lambda: w.event_time(w.event_time(source(), lambda r: r[0]), lambda r: r[0]),
        "behind another one",
        "at its source",
    ),
    "event time of a keyed stream": (
        lambda: w.event_time(source().key_by(lambda r: r[0]), lambda r: r[0]),  # type: ignore[arg-type]
        "takes a stream",
        "key_by behind it",
    ),
    "a strategy that is none": (
        lambda: w.event_time(source(), lambda r: r[0], watermark=5),  # type: ignore[arg-type]
        "watermark=5 is no strategy",
        "bounded_disorder",
    ),
    "a fold as strategy": (
        lambda: w.event_time(source(), lambda r: r[0], watermark=watermarks.fold(0, lambda s, v, at: (s, at))),
        "watermarks.fold() works in scripts only",
        "from_records",
    ),
    "a step of nothing": (
        lambda: w.event_time(source(), lambda r: r[0], step=timedelta(0)),
        "the step of watermarks is 0",
        "positive",
    ),
    "a unit that is none": (
        lambda: w.event_time(source(), lambda r: r[0], unit="h"),  # type: ignore[arg-type]
        "unit='h' is no unit of time",
        "unit='ms'",
    ),
    "a lateness of any unit": (
        lambda: keyed().window(MINUTE, lateness=60),  # type: ignore[arg-type]
        "window after 'event_time': lateness is a timedelta, such as timedelta(seconds=60), not 60",
        "",
    ),
    "a fold into what can be changed in place": (
        lambda: keyed().window(MINUTE).fold([], lambda seen, item: [*seen, item]),
        "fold after 'event_time': the initial value is a list, which can be changed in place",
        "",
    ),
    "a time to remember of any unit": (
        lambda: keyed().distinct(within=3600),  # type: ignore[arg-type]
        "distinct after 'event_time': within is a timedelta",
        "",
    ),
    "windows without a key": (
        lambda: w.event_time(source(), lambda r: r[0]).window(MINUTE),
        "window after 'event_time' needs a key",
        "key_by",
    ),
    "an end that says nothing": (
        lambda: w.event_time(source(), lambda r: r[0], at_end="stop"),  # type: ignore[arg-type]
        "at_end='stop'",
        "'close' or 'keep'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_when_it_is_drawn(name: str) -> None:
    draw, what, hint = REFUSED[name]
    with pytest.raises(GraphError) as caught:
        draw()
    assert what in caught.value.what
    assert hint in str(caught.value)
    assert caught.value.vertex in (None, "event_time", "records", "count.panes")


def test_event_time_behind_a_rebalance_names_itself_and_the_line_that_draws_it() -> None:
    flow = fc.Flow("rebalanced")
    timed = w.event_time(flow.source("records", tuple).rebalance(), lambda record: record[0])
    timed.key_by(lambda record: record[1]).window(MINUTE).count().sink("out")
    with pytest.raises(GraphError) as caught:
        flow.run({"records": []})
    assert "'event_time'" in str(caught.value)
    assert "Call key_by or rebalance behind it" in str(caught.value)
    assert any(__file__ in note for note in caught.value.__notes__)


def test_a_window_in_a_cycle_is_refused() -> None:
    flow = fc.Flow("cycle")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])

    def body(inside: w.Timed[Any]) -> tuple[w.Timed[Any], w.Timed[Any]]:
        counted = inside.key_by(lambda record: record[1]).window(MINUTE).count()
        return counted.map(lambda pane: (0.0, pane.value)), counted

    timed.loop(body).sink("out")
    with pytest.raises(GraphError, match="lies in the cycle"):
        flow.run({"records": []})


def test_triggers_by_time_need_the_wall_clock() -> None:
    flow = fc.Flow("clocks")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0]).key_by(lambda record: record[1])
    panes = timed.window(MINUTE, emit=t.at_watermark(early=t.every(seconds=5)), panes="discarding")
    panes.count().sink("out")
    with pytest.raises(ConfigError, match="waits for times of the wall clock"):
        flow.run({"records": [(1.0, 2)]}, settings={"job.clock": "sequence"})
    assert len(flow.run({"records": [(1.0, 2)]}, settings={"job.clock": "wall"})["out"]) == 1


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (None, "the timestamp is missing"),
        (float("nan"), "not a moment in time"),
        (datetime(2024, 1, 1), "has no zone"),
        (2**70, "out of range"),
        ("noon", "a timestamp is a datetime"),
    ],
)
def test_a_time_that_is_none_is_an_error_of_its_record(time: Any, text: str) -> None:
    flow = fc.Flow("times")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    timed.key_by(lambda record: record[1]).window(MINUTE).count().sink("out")
    records = [(1.0, "a"), (time, "b"), (2.0, "a")]
    with pytest.raises(OperationError, match=text) as caught:
        flow.run({"records": records})
    assert caught.value.vertex == "event_time"
    made = flow.run({"records": records}, workers=2, settings={"job.on_error": "skip"})
    assert [(pane.key, pane.value) for pane in made["out"]] == [("a", 2)]


def test_a_function_that_fails_leaves_its_window_as_it_was() -> None:
    flow = fc.Flow("fails")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0]).key_by(lambda record: record[1])
    timed.window(MINUTE).sum(lambda record: 6 // record[2]).sink("out")
    records = [(1.0, "a", 1), (2.0, "a", 0), (3.0, "a", 2)]
    with pytest.raises(FlameError, match="'sum' failed: ZeroDivisionError"):
        flow.run({"records": records})
    made = flow.run({"records": records}, settings={"job.on_error": "skip"})
    assert [pane.value for pane in made["out"]] == [9]


@pytest.mark.parametrize("word", ["every", "offset"])
def test_numbers_are_no_durations(word: str) -> None:
    settings: dict[str, Any] = {"every": timedelta(seconds=60)} | {word: 60}
    with pytest.raises(TypeError, match=f"{word} is a timedelta, such as timedelta"):
        w.sliding(minutes=5, **settings)


def test_an_element_is_in_so_many_windows_at_most() -> None:
    with pytest.raises(ValueError, match="in 300,000,000 windows"):
        w.sliding(minutes=5, every=timedelta(microseconds=1))


def test_what_can_be_changed_begins_no_fold() -> None:
    @dataclass
    class Sum:
        value: int = 0

    mutable: tuple[Any, ...] = ([], {}, set(), bytearray(), Sum())
    for initial in mutable:
        with pytest.raises(ValueError, match="can be changed in place"):
            agg.fold(initial, lambda value, item: value)


def starts(unit: Any, *times: Any) -> list[str]:
    """Return when the windows begin in which records of some times are."""
    flow = fc.Flow("units")
    hours = w.event_time(flow.source("times", tuple), lambda record: record[0], unit=unit).key_by(lambda record: None)
    hours.window(w.fixed(hours=1)).count().map(lambda pane: f"{pane.window.start_time:%Y-%m-%d %H} {pane.value}").sink(
        "out"
    )
    return list(flow.run({"times": [(time,) for time in times]})["out"])


def test_numbers_are_times_in_the_unit_that_is_said() -> None:
    second = 1_772_355_601
    expected = ["2026-03-01 09 2"]
    assert starts("s", second, second + 0.5) == expected
    assert starts("ms", second * 1000, second * 1000 + 0.5) == expected
    assert starts("us", second * 10**6, second * 10**6 + 1) == expected
    assert starts("ns", second * 10**9, second * 10**9 + 1) == expected
    assert starts(None, float(second), second + 0.5) == expected
    assert starts(None, second * 10**6, second * 10**6 + 1) == expected
    assert starts("s", datetime.fromtimestamp(second, UTC), second) == expected


@pytest.mark.parametrize("time", [1_772_355_601, 1_772_355_601_000, 1_772_355_601 * 10**9, 1_772_355_601_000.5])
def test_numbers_that_are_of_another_unit_nearly_always_fail(time: Any) -> None:
    with pytest.raises(FlameError, match=r"say unit='s', 'ms', 'us' or 'ns' in event_time"):
        starts(None, time)
