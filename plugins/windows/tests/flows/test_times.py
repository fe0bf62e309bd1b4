"""Times of records: those too far ahead, strategies with a state, times of arrival."""

from __future__ import annotations

import io
import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import flamecore as fc
import flamestream_windows as w
from flamecore.cli.progress import Screen, summary
from flamecore.runtime.parts.counters import JobStats
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.draws import seeds
from flamestream_windows import watermarks

Record = tuple[int, int]
TICK = timedelta(microseconds=1)
FAR = 10**15


def counts(at_end: Any = "keep", **settings: Any) -> fc.Flow:
    """Count in windows of ten, of records (time, value)."""
    flow = fc.Flow("counts")
    timed = w.event_time(flow.source("left", tuple), lambda r: r[0], unit="us", at_end=at_end, **settings)
    windowed = timed.key_by(lambda r: r[1] % 3).window(w.fixed(microseconds=10))
    found = windowed.count()
    found.sink("counts")
    found.dropped.sink("dropped")
    return flow


def values(flow: fc.Flow, records: list[Record], **settings: Any) -> list[tuple[int, int]]:
    return [(pane.window.start, pane.value) for pane in flow.run({"left": records}, **settings)["counts"]]


def wild(seed: int, count: int = 40) -> list[Record]:
    """Return records out of order, some of them far ahead."""
    rng = random.Random(seed)
    times = [max(0, place + rng.randrange(-9, 6)) + FAR * (rng.random() < 0.1) for place in range(count)]
    return [(time, rng.randrange(100)) for time in times]


def said_by_twos(state: int, record: Any, at: int) -> tuple[int, int | None]:
    """Say the time of each second record."""
    return state + 1, at - 3 if state % 2 else None


STRATEGIES: dict[str, dict[str, Any]] = {
    "max_ahead": {"max_ahead": 50 * TICK},
    "fold": {"watermark": watermarks.fold(0, said_by_twos)},
    "fold and max_ahead": {"watermark": watermarks.fold(0, said_by_twos), "max_ahead": 50 * TICK},
}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_one_record_of_the_year_9999_ends_no_window(workers: int) -> None:
    records = [(1, 0), (FAR, 0), (2, 0), (3, 1), (13, 0), (25, 0)]
    assert values(counts(), records, workers=workers) == [(0, 1)]
    assert sorted(values(counts(max_ahead=100 * TICK), records, workers=workers)) == [(0, 1), (0, 2), (10, 1)]


def test_records_too_far_ahead_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records = [(1, 0), (FAR, 0), (2, 0), (FAR, 1), (25, 0)]
    assert counts(max_ahead=100 * TICK).run({"left": records}, workers=2).stats.ahead == {"event_time": 2}
    assert counts(max_ahead=100 * TICK).run({"left": records[:1]}, workers=2).stats.ahead == {}


def test_by_the_wall_clock_a_time_is_ahead_of_its_arrival() -> None:
    records = [(FAR, 0), (1, 0), (2, 0), (25, 0)]  # 2001
    flow = counts(max_ahead=timedelta(days=1))
    assert values(flow, records, settings={"job.clock": "sequence"}) == []
    assert values(flow, records, settings={"job.clock": "wall"}) == []
    far = [(5 * FAR, 0), *records[1:]]  # 2128
    assert values(flow, far, settings={"job.clock": "sequence"}) == []
    assert values(flow, far, settings={"job.clock": "wall"}) == [(0, 2)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_interleaving_of_a_strategy_with_a_state_shows(name: str) -> None:
    assert_deterministic(counts(**STRATEGIES[name]), {"left": wild(1)}, seeds=seeds(8), workers=(1, 2, 3))


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_crash_and_no_rescale_shows_of_a_strategy_with_a_state(name: str) -> None:
    assert_exactly_once(counts(**STRATEGIES[name]), {"left": wild(2)}, seeds=seeds(12), kinds=["kill"])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_goes_on_where_it_stood(name: str, tmp_path: Path) -> None:
    records, outputs = [*wild(5, 24), (FAR, 1), *wild(6, 40)], []
    more = {"source.left.use": "jsonl", "source.left.path": str(tmp_path / "left.jsonl")}
    for part, workers in ((records[:23], 2), (records[23:24], 1), (records[24:], 3)):
        with (tmp_path / "left.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(record)}\n" for record in part)
        outputs += counts(**STRATEGIES[name]).run(workers=workers, state=tmp_path / "state", settings=more)["counts"]
    assert outputs == list(counts(**STRATEGIES[name]).run(settings=more)["counts"])
    assert outputs


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_by_arrival_records_have_the_times_at_which_they_came(workers: int) -> None:
    flow = fc.Flow("arrived")
    timed = w.event_time(flow.source("left", tuple), watermark=watermarks.arrival())
    timed.key_by(lambda r: r[1] % 2).window(w.fixed(microseconds=3)).sum(lambda r: r[0]).sink("sums")
    timed.map(lambda r: r[0]).sink("plain")
    records = [(10, 0), (20, 0), (30, 1), (40, 1), (50, 0), (60, 1), (70, 0)]
    found = flow.run({"left": records}, workers=workers)
    sums = [(pane.key, pane.window.start, pane.value) for pane in found["sums"]]
    assert sorted(sums) == [(0, 0, 30), (0, 3, 50), (0, 6, 70), (1, 0, 30), (1, 3, 100)]
    assert list(found["plain"]) == [10, 20, 30, 40, 50, 60, 70]


def test_no_crash_shows_of_times_of_arrival() -> None:
    flow = fc.Flow("arrived")
    timed = w.event_time(flow.source("left", tuple), watermark=watermarks.arrival(), at_end="keep")
    timed.key_by(lambda r: r[1] % 2).window(w.fixed(microseconds=5)).collect().sink("lists")
    assert_exactly_once(flow, {"left": wild(3)}, seeds=seeds(12))


# -- what status and summary say ---------------------------------------------------------------------------------------

LATE = [(1, 0), (2, 1), (15, 0), (3, 0), (14, 0), (4, 1), (40, 2), (5, 0), (41, 0)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_late_and_dropped_items_and_open_windows_are_counted_by_operation(workers: int) -> None:
    flow = fc.Flow("counted")
    timed = w.event_time(flow.source("left", tuple), lambda r: r[0], unit="us", at_end="keep")
    keyed = timed.key_by(lambda r: r[1] % 3)
    keyed.window(w.fixed(microseconds=10), lateness=10 * TICK).count(name="patient").sink("patient")
    keyed.window(w.fixed(microseconds=10)).count(name="strict").sink("strict")
    keyed.distinct(within=10 * TICK).sink("distinct")
    stats = flow.run({"left": LATE}, workers=workers).stats
    assert stats.late == {"patient": 3, "strict": 1, "distinct": 1}
    assert stats.dropped == {"patient": 1, "strict": 3, "distinct": 3}
    assert stats.pending["patient"] == stats.pending["strict"] == 2
    assert stats.held_by["strict"] == "left/0"
    assert (stats.watermarks["strict"], stats.marks["strict"]) == (41, 41)
    assert stats.marks["patient"] == 41
    line = summary(stats)
    assert "3 late at patient, 1 late at strict" in line
    assert "3 dropped at strict" in line


def test_items_dropped_by_a_side_are_counted() -> None:
    flow = fc.Flow("counted")
    timed = w.event_time(flow.source("left", tuple), lambda r: r[0], unit="us")
    keyed = timed.key_by(lambda r: r[1] % 3)
    side = keyed.window(w.fixed(microseconds=10), lateness=10 * TICK).count()
    keyed.with_side(side, form="dict").sink("out")
    stats = flow.run({"left": LATE}, workers=2).stats
    assert (stats.late["with_side"], stats.dropped["with_side"]) == (2, 1)  # the watermark waits for the panes


def test_a_table_of_progress_shows_watermarks_and_what_holds_them_back() -> None:
    stats = JobStats(watermarks={"sum": 5_000_000}, held_by={"sum": "left/0"}, pending={"sum": 3}, dropped={"sum": 7})
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(Screen("job")._table(stats))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is the one above
    for part in ("watermark sum", "1970-01-01T00:00:05+00:00", "held by left/0", "pending sum", "dropped at sum"):
        assert part in text


@pytest.mark.parametrize(
    ("windows", "lateness", "times", "dropped"),
    [
        (w.fixed(seconds=3), 2, (1, 4.9, 2, 5, 2.5), [2.5]),
        (w.fixed(seconds=60, offset=timedelta(seconds=7)), 0, (60, 66, 61, 67, 62), [62]),
        (
            w.sliding(seconds=60, every=timedelta(seconds=60), offset=timedelta(seconds=7)),
            0,
            (60, 66, 61, 67, 62),
            [62],
        ),
        (w.calendar(days=1, tz="UTC"), 7, (0, 86_406, 1, 86_407, 2), [2]),
    ],
)
def test_by_default_no_mark_delays_the_end_of_a_window_or_of_its_lateness(
    windows: w.WindowFn, lateness: int, times: tuple[float, ...], dropped: list[float]
) -> None:
    flow = fc.Flow("ends")
    timed = w.event_time(flow.source("times", float), lambda at: at, unit="s")
    counts = timed.key_by(lambda at: None).window(windows, lateness=timedelta(seconds=lateness)).count()
    counts.sink("counts")
    counts.dropped.map(lambda item: item.value).sink("dropped")
    assert flow.run({"times": [float(at) for at in times]})["dropped"] == dropped


def test_a_side_is_kept_for_its_lateness_and_no_longer() -> None:
    flow = fc.Flow("side")
    timed = w.event_time(flow.source("times", float), lambda at: at, unit="s")
    side = timed.key_by(lambda at: None).window(w.fixed(seconds=3), lateness=timedelta(seconds=2)).count()
    looked = timed.key_by(lambda at: None).with_side(side)
    looked.sink("looked")
    looked.dropped.map(lambda item: item.value).sink("dropped")
    assert flow.run({"times": [1.0, 5.0, 2.5]})["dropped"] == [2.5]


def first_of_other_keys(record: tuple[int, str]) -> str:
    """Return the key of a record; it has none if it says so."""
    return next(key for key in (record[1],) if key != "none")


@pytest.mark.parametrize("emit", ["final", "updates"])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 7, 99])
def test_a_key_that_raises_stop_iteration_fails_its_record(emit: Any, workers: int, place: int) -> None:
    # It would end a `map` over the records of a run, and those behind it would be lost without a word.
    records = [(number, "none" if number == place else "a") for number in range(100)]
    flow = fc.Flow("counts")
    timed = w.event_time(flow.source("left", tuple), lambda r: r[0], unit="us", at_end="close")
    windows = timed.key_by(first_of_other_keys).window(w.fixed(seconds=1), emit=emit, panes="accumulating")
    windows.count().sink("counts")
    with pytest.raises(fc.OperationError, match="StopIteration") as caught:
        flow.run({"left": records}, workers=workers)
    assert repr(records[place]) in str(caught.value)
