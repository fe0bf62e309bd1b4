"""Flows that cannot work are refused when they are drawn, or checked, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import ConfigError, FlameError, GraphError, OperationError
from flamecore.testing import assert_exactly_once
from flamecore.testing.draws import seeds
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import watermarks


def source() -> fc.Stream[Any]:
    return fc.Flow("refused").source("records", tuple)


def keyed(**settings: Any) -> w.TimedKeyed[Any, Any]:
    return w.event_time(source(), lambda record: record[0], **settings).key_by(lambda record: record[1])


MINUTE = w.fixed(minutes=1)


def retracting(name: str) -> w.Panes[Any, int, Any]:
    timed = w.event_time(fc.Flow(name).source("records", tuple), lambda record: record[0])
    windowed = timed.key_by(lambda record: record[1]).window(MINUTE, emit="updates", panes="retracting")
    return windowed.count()


def merged_into_others(panes: w.Panes[Any, int, Any]) -> fc.Stream[Any]:
    flow: Any = panes._flow
    others: fc.Stream[Any] = flow.source("others", tuple)
    return others.merge(panes)


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
    "times of arrival, and others": (
        lambda: w.event_time(source(), lambda r: r[0], watermark=watermarks.arrival()),
        "event_time after 'records': by watermarks.arrival() the time of a record is that at which it came",
        "Leave out at",
    ),
    "times of nothing": (
        lambda: w.event_time(source()),
        "event_time after 'records': nothing says the times of records",
        "watermarks.arrival()",
    ),
    "an idleness of nothing": (
        lambda: w.event_time(source(), lambda r: r[0], idle_after=timedelta(0)),
        "event_time after 'records': idle_after is 0",
        "timedelta(seconds=30)",
    ),
    "a distance of any unit": (
        lambda: w.event_time(source(), lambda r: r[0], max_ahead=60),  # type: ignore[arg-type]
        "event_time after 'records': max_ahead is a timedelta, such as timedelta(seconds=60), not 60",
        "timedelta",
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
    "a lateness below 0": (
        lambda: keyed().window(MINUTE, lateness=timedelta(seconds=-1)),
        "window after 'event_time': lateness is negative: minus (seconds=1)",
        "at least 0",
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
    "retractions among items without times": (
        lambda: retracting("merged").merge(fc.Flow("refused").source("others", tuple)),
        "merge after 'count.panes': retractions come to it",
        "panes='accumulating'",
    ),
    "retractions among items merged into others": (
        lambda: merged_into_others(retracting("merged")),
        "merge after 'count.panes': retractions come to it",
        "panes='accumulating'",
    ),
    "retractions whose values a state would take for others": (
        lambda: retracting("state").values().key_by(lambda value: value).count(),
        "a state by key after 'values': retractions come to it",
        "the panes themselves, which have `retraction`",
    ),
    "retractions among labelled items": (
        lambda: retracting("label").label("pane"),
        "label after 'count.panes': retractions come to it",
        "panes='accumulating'",
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
    assert caught.value.vertex in (None, "event_time", "records", "count.panes", "values")


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


def shorter(state: int, record: tuple[str, int]) -> tuple[int, list[tuple[str, int]]]:
    """Count the items of a key, and take one from a number."""
    return state + 1, [(record[0], record[1] - 1)]


def positive(record: tuple[str, int]) -> bool:
    return record[1] > 0


def by_key_inside(inside: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    again, done = inside.key_by(lambda record: record[0]).stateful_map(0, shorter).branch(positive)
    return again, done


def one_with_times(inside: w.Timed[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    return inside.filter(positive), by_key_inside(inside)[1]


def kept_key(inside: fc.KeyedStream[Any, Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    again, done = inside.stateful_map(0, shorter).branch(positive)
    return again, done


@pytest.mark.parametrize("body", [by_key_inside, one_with_times])
def test_a_body_of_a_loop_that_returns_no_times_is_refused(body: Any) -> None:
    timed = w.event_time(source(), lambda record: record[1])
    with pytest.raises(GraphError) as caught:
        timed.loop(body)
    assert "loop after 'event_time': the body returned 'branch." in caught.value.what
    assert "a stream without times: after a state by key" in caught.value.what
    assert "before event_time" in str(caught.value)
    assert ".key_by(key).loop(body)" in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_remedies_for_a_loop_without_times_work(workers: int) -> None:
    flow = fc.Flow("loops")
    records = flow.source("records", tuple)
    timed = w.event_time(records, lambda record: record[1], unit="s")
    timed.key_by(lambda record: record[0]).window(MINUTE).count().values().sink("counts")
    records.loop(by_key_inside).sink("before")
    timed.key_by(lambda record: record[0]).loop(kept_key).sink("by key")
    found = flow.run({"records": [("a", 1), ("b", 3), ("a", 2)]}, workers=workers)
    expected = [("a", 0), ("a", 0), ("b", 0)]
    assert (sorted(found["counts"]), sorted(found["before"]), sorted(found["by key"])) == ([1, 2], expected, expected)


@pytest.mark.parametrize("emit", ["final", t.default])
def test_windows_without_an_end_are_refused_where_the_end_of_the_input_is_none(emit: Any, tmp_path: Path) -> None:
    def drawn(**settings: Any) -> fc.Flow:
        flow = fc.Flow("endless")
        timed = w.event_time(flow.source("records", tuple), lambda record: record[0], **settings)
        timed.key_by(lambda record: record[1]).window(w.whole(), emit=emit).count().sink("out")
        return flow

    records = {"records": [(1.0, "a")]}
    assert len(drawn().run(records)["out"]) == 1
    with pytest.raises(ConfigError, match=r"<window 'count'> gives nothing .* keeps state(?s:.*)at_end='close'"):
        drawn().run(records, state=tmp_path)
    assert len(drawn(at_end="close").run(records, state=tmp_path)["out"]) == 1


def test_triggers_by_time_need_the_wall_clock() -> None:
    flow = fc.Flow("clocks")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0]).key_by(lambda record: record[1])
    panes = timed.window(MINUTE, emit=t.at_watermark(early=t.every(seconds=5)), panes="discarding")
    panes.count().sink("out")
    with pytest.raises(ConfigError, match="waits for times of the wall clock"):
        flow.run({"records": [(1.0, 2)]}, settings={"job.clock": "sequence"})
    assert len(flow.run({"records": [(1.0, 2)]}, settings={"job.clock": "wall"})["out"]) == 1


class NotATime(datetime):
    """A missing time among datetimes, as pandas has it: it is not equal to itself, and has no offset."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = datetime.__hash__

    def utcoffset(self) -> timedelta | None:
        raise ValueError("it does not support utcoffset")


NOT_A_TIME = NotATime(1, 1, 1)


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (None, "the timestamp is missing"),
        (NOT_A_TIME, "the timestamp is missing"),
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


@pytest.mark.parametrize("unit", ["days", "weeks", "months", "years"])
@pytest.mark.parametrize(
    ("zone", "time"),
    [
        ("UTC", datetime(9999, 12, 31, 23, tzinfo=UTC)),
        ("Europe/Berlin", datetime(9999, 12, 31, 23, tzinfo=UTC)),
        ("America/New_York", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_beyond_the_calendar_is_an_error_of_its_record(unit: str, zone: str, time: datetime) -> None:
    flow = fc.Flow("years")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    units: dict[str, Any] = {unit: 1}
    timed.key_by(lambda record: record[1]).window(w.calendar(**units, tz=zone)).count().sink("out")
    records = [(1.0, "a"), (2.0, "a"), (time, "b")]  # which advances the watermark all the same
    with pytest.raises(OperationError, match=r"is in no window of calendar\(.*: all of it has to be in the years 1 to"):
        flow.run({"records": records})
    made = flow.run({"records": records}, workers=2, settings={"job.on_error": "skip"})
    assert [(pane.key, pane.value) for pane in made["out"]] == [("a", 2)]


@pytest.mark.parametrize("zone", ["Europe/Mars", "Europe", ""])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="is not known here; names are such as Europe/Berlin"):
        w.calendar(days=1, tz=zone)


def test_a_function_that_fails_leaves_its_window_as_it_was() -> None:
    flow = fc.Flow("fails")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0]).key_by(lambda record: record[1])
    timed.window(MINUTE).sum(lambda record: 6 // record[2]).sink("out")
    records = [(1.0, "a", 1), (2.0, "a", 0), (3.0, "a", 2)]
    with pytest.raises(FlameError, match="'sum' failed: ZeroDivisionError"):
        flow.run({"records": records})
    made = flow.run({"records": records}, settings={"job.on_error": "skip"})
    assert [pane.value for pane in made["out"]] == [9]


@dataclass(frozen=True)
class Total(agg.Aggregate):
    """A sum that cannot say 13."""

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: Any) -> int:
        return accumulator + int(value[2])

    def merge(self, first: int, second: int) -> int:
        return first + second

    def result(self, accumulator: int) -> int:
        if accumulator == 13:
            raise ValueError("13")
        return accumulator


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [("b", 2), ("a", 5), ("b", 1), ("a", 1), ("b", 1)]),
        (
            {"emit": t.at_watermark(late=t.count(1)), "lateness": timedelta(minutes=9), "panes": "accumulating"},
            [("b", 2), ("a", 14), ("a", 5), ("b", 1), ("a", 1), ("b", 1)],
        ),
    ],
)
def test_a_pane_that_fails_holds_up_no_other(settings: Any, wanted: Any, workers: int) -> None:
    flow = fc.Flow("fails")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0]).key_by(lambda record: record[1])
    panes = timed.window(w.fixed(seconds=10), **settings).aggregate(total=Total())
    panes.map(lambda pane: (pane.key, pane.value["total"])).sink("out")
    records = [(1000.0, "a", 13), (1001.0, "b", 2), (1015.0, "a", 5), (1030.0, "a", 1), (1030.0, "b", 1)]
    records += [(1001.5, "a", 1), (1045.0, "b", 1)]
    with pytest.raises(FlameError, match="'aggregate' failed: ValueError: 13"):
        flow.run({"records": records}, workers=workers)
    made = flow.run({"records": records}, workers=workers, settings={"job.on_error": "skip"})
    assert sorted(made["out"]) == sorted(wanted)


def test_panes_that_fail_are_left_out_alike_after_crashes() -> None:
    flow = fc.Flow("fails")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0], at_end="keep")
    keyed = timed.key_by(lambda record: record[1])
    keyed.window(w.fixed(seconds=4)).aggregate(total=Total()).sink("final")
    late: Any = {"emit": t.at_watermark(late=t.count(1)), "lateness": timedelta(seconds=9), "panes": "accumulating"}
    keyed.window(w.fixed(seconds=4), **late).aggregate(total=Total()).sink("late")
    # Each window of four seconds has two of each key: 13 of "a", and 15 of "b".
    records = [(1000.0 + at, "ab"[at % 2], (6, 7, 7, 8)[at % 4]) for at in range(24)]
    assert_exactly_once(flow, {"records": records}, seeds=seeds(6), on_error="skip")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("domain", ["event", "processing"])
def test_a_timer_that_fails_does_not_run_again(domain: Any, workers: int) -> None:
    class Once(w.StatefulFn[Any, Any, Any]):
        count = w.Value(int)
        soon = w.Timer(domain)

        def on_element(self, key: Any, item: Any, at: datetime) -> list[Any]:
            if self.count.get() is None:
                self.soon.after(timedelta(microseconds=1))
            self.count.set(self.count.get(0) + 1)
            return [(key, self.count.get())]

        def on_soon(self, key: Any, at: datetime) -> list[Any]:
            self.count.set(100)
            if key == "a":
                raise ValueError("soon")
            return [(key, "soon")]

    flow = fc.Flow("fails")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    timed.key_by(lambda record: record[1]).process(Once).sink("out")
    records = [(1000.0, "a"), (1001.0, "b"), (1020.0, "a"), (1030.0, "b"), (1040.0, "a")]
    settings = {"job.on_error": "skip", "job.clock": "wall"}
    found = flow.run({"records": records}, workers=workers, settings=settings)["out"]
    assert [count for key, count in found if key == "a"] == [1, 2, 3]
    assert ("b", "soon") in found


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

    @dataclass(frozen=True)
    class Seen:
        items: Any = ()

    mutable: tuple[Any, ...] = ([], {}, set(), bytearray(), Sum(), (0, []), Seen([]), (Seen(Sum()),))
    for initial in mutable:
        with pytest.raises(ValueError, match="can be changed in place"):
            agg.fold(initial, lambda value, item: value)
    immutable: tuple[Any, ...] = ((), Seen(), (Seen("a"), frozenset()), None, Sum)
    for initial in immutable:
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


def test_integers_of_numpy_are_times_as_ints_are() -> None:
    np = pytest.importorskip("numpy")
    second = 1_772_355_601
    expected = ["2026-03-01 09 1"]
    for kind in (np.int32, np.int64, np.uint64):
        assert starts("s", kind(second)) == expected
    assert starts("ms", np.int64(second * 1000)) == starts("ms", np.uint64(second * 1000)) == expected
    assert starts("us", np.int64(second * 10**6)) == starts(None, np.int64(second * 10**6)) == expected
    assert starts("ns", np.uint64(second * 10**9)) == expected
    assert starts("ms", np.int64(second * 1000), second * 1000, np.float64(second * 1000)) == ["2026-03-01 09 3"]
    for time in (np.int32(second), np.int64(second * 1000), np.uint64(0), np.int64(second * 10**9)):
        with pytest.raises(FlameError, match=r"say unit='s', 'ms', 'us' or 'ns' in event_time"):
            starts(None, time)
    # A datetime64 has no zone; what is less exact than a float is no time of today.
    for time in (np.datetime64("2026-03-01T09:00:01"), np.float32(second), np.bool_(True), True, np.array([second])):
        for unit in (None, "s"):
            with pytest.raises(FlameError, match="TypeError: a timestamp is a datetime with a zone"):
                starts(unit, time)


def branched(panes: w.Panes[Any, int, Any]) -> fc.Stream[Any]:
    one, other = panes.branch(lambda pane: pane.value > 1)
    other.sink("rest", retractions=True)
    return one


RETRACTING: dict[str, Callable[[w.Panes[Any, int, Any]], fc.Stream[Any]]] = {
    "panes": lambda panes: panes,
    "values": lambda panes: panes.values(),
    "a branch": branched,
    "a copy": lambda panes: panes.broadcast(2)[0],
    "a loop": lambda panes: panes.loop(lambda inside: (inside.filter(lambda pane: False), inside)),
    "a merge": lambda panes: panes.merge(panes.map(lambda pane: pane)),
    "windows again": lambda panes: panes.per_window().count(name="again"),
}


@pytest.mark.parametrize("name", RETRACTING)
def test_a_sink_that_would_not_show_retractions_is_refused(name: str, tmp_path: Path) -> None:
    stream = RETRACTING[name](retracting("refused"))
    stream.sink("out")
    flow: Any = stream._flow
    flow.run({"records": [(1.0, "a")]})  # the program sees them
    path = {"sink.out.use": "jsonl", "sink.out.path": str(tmp_path / "out.jsonl")}
    with pytest.raises(
        ConfigError, match=r"(?s)to sink 'out' come retractions, .* jsonl .*\.sink\('out', retractions=True"
    ):
        flow.run({"records": [(1.0, "a")]}, settings=path)


def test_a_sink_of_an_unknown_driver_is_named_though_retractions_come_to_it() -> None:
    panes = retracting("unknown")
    panes.sink("out")
    flow: Any = panes._flow
    with pytest.raises(ConfigError, match="no sink named 'jsnl' is installed"):
        flow.run({"records": [(1.0, "a")]}, settings={"sink.out.use": "jsnl"})


def test_a_sink_whose_readers_look_for_retractions_is_not_refused(tmp_path: Path) -> None:
    panes = retracting("allowed")
    panes.map(lambda pane: [pane.value, pane.retraction]).sink("out", retractions=True)
    panes.late.sink("late")
    flow: Any = panes._flow
    more = {f"sink.{name}.use": "jsonl" for name in ("out", "late")}
    more |= {f"sink.{name}.path": str(tmp_path / name) for name in ("out", "late")}
    flow.run({"records": [(1.0, "a"), (2.0, "a")]}, settings=more)
    assert (tmp_path / "out").read_text("utf-8") == "[1,false]\n[1,true]\n[2,false]\n"


def test_panes_merged_with_values_are_no_panes() -> None:
    """A state could not tell which of the values are retractions."""
    flow = fc.Flow("mixed")
    records = w.event_time(flow.source("records", tuple), lambda r: r[0], unit="s", watermark=watermarks.monotonic())
    windows = records.key_by(lambda r: r[1]).window(w.fixed(seconds=10), emit="updates", panes="retracting")
    counts = windows.count()
    with pytest.raises(GraphError, match="retractions come to it"):
        counts.merge(counts.map(lambda pane: pane.value)).key_by(lambda v: "all").count()
    with pytest.raises(GraphError, match="retractions come to it"):
        counts.map(lambda pane: pane.value).merge(counts).key_by(lambda v: "all").count()
    counts.merge(windows.sum(lambda r: 1)).key_by(lambda pane: pane.key).count()


def test_a_state_may_look_for_the_retractions_of_panes() -> None:
    panes = retracting("state")
    totals = panes.filter(lambda pane: True).key_by(lambda pane: pane.key)
    totals.fold(0, lambda total, pane: total + pane.value * (-1) ** pane.retraction).sink("out")
    flow: Any = panes._flow
    assert list(flow.run({"records": [(1.0, "a"), (2.0, "a")]})["out"]) == [("a", 1), ("a", 0), ("a", 2)]


def test_windows_of_which_nothing_is_made_are_refused_by_name_and_line() -> None:
    flow = fc.Flow("unused")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    keyed = timed.key_by(lambda record: record[1])
    keyed.window(MINUTE).count().sink("counts")
    keyed.window(w.sessions(minutes=5))
    with pytest.raises(
        GraphError, match=r"window after 'event_time': nothing is made .* sessions\(minutes=5\)"
    ) as caught:
        flow.run({"records": []})
    assert ".count()" in str(caught.value)
    assert any(__file__ in note for note in caught.value.__notes__)


def test_windows_of_two_streams_are_made_use_of_together() -> None:
    flow = fc.Flow("joined")
    left, right = [
        w.event_time(flow.source(name, tuple), lambda record: record[0]).key_by(lambda record: record[1]).window(MINUTE)
        for name in ("left", "right")
    ]
    left.cogroup(right).sink("both")
    assert len(flow.run({"left": [(1.0, "a")], "right": [(2.0, "a")]})["both"]) == 1


def test_idleness_needs_the_wall_clock() -> None:
    flow = fc.Flow("idle")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0], idle_after=timedelta(seconds=5))
    timed.key_by(lambda record: record[1]).window(MINUTE).count().sink("out")
    with pytest.raises(ConfigError, match="<marking 'event_time'> waits for times of the wall clock"):
        flow.run({"records": [(1.0, 2)]}, settings={"job.clock": "sequence"})


def test_timers_by_processing_time_need_the_wall_clock() -> None:
    class Reminder(w.StatefulFn[Any, Any, str]):
        soon = w.Timer("processing")

        def on_element(self, key: Any, item: Any, at: datetime) -> list[str]:
            return []

        def on_soon(self, key: Any, at: datetime) -> list[str]:
            return ["due"]

    flow = fc.Flow("timers")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    timed.key_by(lambda record: record[1]).process(Reminder).sink("out")
    with pytest.raises(ConfigError, match="<process 'process'> waits for times of the wall clock"):
        flow.run({"records": [(1.0, 2)]}, settings={"job.clock": "sequence"})


def test_an_error_of_a_time_shows_record_and_position(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('[1.0, "a"]\n[NaN, "b"]\n'.replace("NaN", "null"), "utf-8")
    flow = fc.Flow("times")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    timed.key_by(lambda record: record[1]).window(MINUTE).count().sink("out")
    path = {"source.records.use": "jsonl", "source.records.path": str(tmp_path / "in.jsonl")}
    with pytest.raises(OperationError, match="the timestamp is missing") as caught:
        flow.run(settings=path)
    assert "(None, 'b')" in str(caught.value)
    assert "in.jsonl" in str(caught.value)


def test_every_verb_of_a_stream_is_thought_of_where_there_are_times() -> None:
    # A verb that is only inherited would hand stamps to the user's function, or lose times or retractions.
    # `through` hands the stream itself on.
    for plain, timed, inherited in ((fc.Stream, w.Timed, {"through"}), (fc.KeyedStream, w.TimedKeyed, PLAIN)):
        verbs = {name for name, value in vars(plain).items() if callable(value) and not name.startswith("_")}
        assert verbs - set(vars(timed)) == inherited, "define it, or add it here: it works on values, without times"


PLAIN = {"apply", "count", "fold", "group", "loop", "reduce", "stateful_map", "through"}
"""Verbs on keys that take values: `TimedKeyed` hands them the stream of these."""


@pytest.mark.parametrize("verb", sorted(PLAIN - {"apply", "through"}))
def test_verbs_on_keys_that_know_no_times_take_values(verb: str) -> None:
    flow = fc.Flow("plain")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0]).map(lambda record: record[1])
    keyed = timed.key_by(lambda value: value % 2)
    draw: dict[str, Callable[[], Any]] = {
        "count": lambda: keyed.count(),
        "fold": lambda: keyed.fold(0, lambda total, value: total + value),
        "group": lambda: keyed.group(2),
        "loop": lambda: keyed.loop(lambda inside: (inside.flat_map(lambda value: []), inside.map(lambda value: value))),
        "reduce": lambda: keyed.reduce(lambda one, other: one + other),
        "stateful_map": lambda: keyed.stateful_map(0, lambda state, value: (state, [value])),
    }
    draw[verb]().sink("out")
    expected: dict[str, list[Any]] = {
        "count": [(1, 1), (0, 1), (1, 2)],
        "fold": [(1, 1), (0, 2), (1, 4)],
        "group": [(1,), (2,), (1, 3)],
        "reduce": [(1, 1), (0, 2), (1, 4)],
    }
    found = flow.run({"records": [(1.0, 1), (2.0, 2), (3.0, 3)]}, workers=2)["out"]
    assert list(found) == expected.get(verb, [1, 2, 3])


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "fixed by place": (lambda: untyped(w.fixed)(5), r"^fixed takes \(\*, offset"),
    "a word that is no unit": (
        lambda: w.fixed(minute=1),
        r"^fixed\(minute=1\): the size of a window is numbers",
    ),
    "a text for a number": (
        lambda: w.sessions(minutes="1"),
        r"^sessions\(minutes='1'\): the gap of a session is numbers",
    ),
    "sliding without a period": (lambda: untyped(w.sliding)(minutes=1), r"^sliding takes .*'every'"),
    "days that are no number": (lambda: untyped(w.calendar)(tz="UTC", days="1"), "^calendar: days is a whole number"),
    "a zone that is no text": (lambda: untyped(w.calendar)(tz=5, days=1), "^calendar: tz is the name of a zone"),
    "disorder": (
        lambda: watermarks.bounded_disorder(second=5),
        r"^bounded_disorder\(second=5\): the disorder",
    ),
    "a count that is no number": (lambda: untyped(t.count)("x"), "^count: elements is a whole number, not 'x'"),
    "no trigger beside another": (lambda: t.count(1) | untyped(5), r"unsupported operand type\(s\) for \|"),
    "no trigger with another": (lambda: t.count(1) & untyped(5), r"unsupported operand type\(s\) for &"),
    "no trigger behind another": (lambda: t.count(1) >> untyped(5), r"unsupported operand type\(s\) for >>"),
    "until no trigger": (lambda: t.count(1).until(untyped(5)), "^until: last is a trigger, such as count"),
    "no trigger": (lambda: untyped(t.at_watermark)(early=5), "^at_watermark: early is a trigger, such as count"),
    "top of no number": (lambda: untyped(agg.top)("3", abs), "^top: n is a whole number, not '3'"),
    "a fold without a step": (lambda: untyped(agg.fold)(0), r"^fold takes \(initial: .*'step'"),
    "a sum of no function": (lambda: untyped(agg.sum)("amount"), "^sum: of is a function, not 'amount'"),
    "window without windows": (lambda: untyped(keyed()).window(), r"^window takes \(windows: .*'windows'"),
}


def untyped(call: Any) -> Any:
    """Return what a type checker knows nothing of."""
    return call


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_named_with_what_is_expected(case: str) -> None:
    call, text = WRONG[case]
    with pytest.raises((GraphError, TypeError), match=text):
        call()


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (lambda keyed: keyed.window(MINUTE).count(), "the panes of 'count' lead nowhere"),
        (lambda keyed: keyed.distinct(within=timedelta(minutes=1)), "the outputs of 'distinct' lead nowhere"),
    ],
)
def test_items_told_apart_are_not_all_that_is_used(told: Callable[[Any], w.Told[Any, Any]], what: str) -> None:
    flow = fc.Flow("apart")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    outputs = told(timed.key_by(lambda record: record[1]))
    outputs.dropped.sink("dropped")
    with pytest.raises(GraphError, match=what) as refused:
        flow.graph()
    assert ".sink(name), too" in refused.value.hint
    outputs.sink("outputs")
    assert len(flow.graph().sinks) == 2
