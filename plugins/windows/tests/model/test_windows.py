"""Times, windows and their words: which windows an instant is in."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamecore as fc
from flamecore.errors import ConsistencyError
from flamestream_windows import windows as w
from flamestream_windows.model import times
from flamestream_windows.model.times import EPOCH, TICK, instant
from flamestream_windows.model.windows import GLOBAL, Same, Window, WindowFn, merged

TICKS = st.integers(-(10**15), 10**15)


def _micros(text: str) -> int:
    return instant(datetime.fromisoformat(text))


# Times


def test_instants_are_dates_with_a_zone_microseconds_and_seconds() -> None:
    berlin = datetime(1970, 1, 1, 1, 0, 0, 7, tzinfo=ZoneInfo("Europe/Berlin"))
    assert [instant(berlin), instant(-5), instant(1.5), instant(datetime(1969, 12, 31, tzinfo=UTC))] == [
        7,
        -5,
        1_500_000,
        -86_400_000_000,
    ]


@pytest.mark.parametrize("wrong", [None, math.nan, math.inf, datetime(2024, 1, 1), times.MAX, times.MIN, 1e30])
def test_a_timestamp_that_is_no_moment_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="timestamp"):
        instant(wrong)


@pytest.mark.parametrize("wrong", ["2024-01-01", True, [], timedelta(1)])
def test_a_timestamp_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="timestamp"):
        instant(wrong)


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="lateness is negative"):
        times.duration(timedelta(seconds=-1), "lateness")
    with pytest.raises(TypeError, match="a timedelta"):
        times.duration(1.5)  # type: ignore[arg-type]


# Windows


@given(TICKS, st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_fixed_window_holds_its_instant(at: int, size: int, offset: int) -> None:
    fixed = w.fixed(microseconds=size, offset=timedelta(microseconds=offset))
    (window,) = fixed.assign(at, None, ())
    assert window.start <= at < window.end == window.start + size
    assert (window.start - offset) % size == 0


@given(st.integers(-200, 200), st.integers(1, 30), st.integers(1, 30), st.integers(0, 30))
def test_sliding_windows_are_all_that_hold_an_instant(at: int, size: int, period: int, offset: int) -> None:
    every = timedelta(microseconds=period)
    sliding = w.sliding(microseconds=size, every=every, offset=timedelta(microseconds=offset))
    wanted = [Window(start, start + size) for start in range(at - size + 1, at + 1) if (start - offset) % period == 0]
    assert sorted(sliding.assign(at, None, ())) == wanted


@given(st.integers(-100, 100), st.integers(1, 20), st.integers(1, 20), st.integers(0, 20))
def test_all_instants_of_a_stretch_are_in_the_same_windows(at: int, size: int, period: int, offset: int) -> None:
    shift = timedelta(microseconds=offset)
    sliding = w.sliding(microseconds=size, every=timedelta(microseconds=period), offset=shift)
    for windows in (sliding, w.fixed(microseconds=size, offset=shift), w.calendar(days=1, tz="UTC"), w.whole()):
        stretch = windows.stretch(at)
        assert stretch is not None
        assert stretch.start <= at < stretch.end
        for instant_of_it in (stretch.start, stretch.end - 1, at):
            found = sorted(windows.assign(instant_of_it, None, ()))
            assert found == sorted(windows.assign(at, None, ())) or windows == w.whole()
    assert w.sessions(seconds=1).stretch(at) is None


def test_a_day_of_berlin_is_longer_or_shorter_when_clocks_change() -> None:
    days = w.calendar(days=1, tz="Europe/Berlin")
    (short,) = days.assign(_micros("2024-03-31T12:00:00+02:00"), None, ())
    (long,) = days.assign(_micros("2024-10-27T12:00:00+01:00"), None, ())
    assert short == (_micros("2024-03-30T23:00:00Z"), _micros("2024-03-31T22:00:00Z"))
    assert long == (_micros("2024-10-26T22:00:00Z"), _micros("2024-10-27T23:00:00Z"))
    assert [(window.end - window.start) // 3_600_000_000 for window in (short, long)] == [23, 25]


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "America/Sao_Paulo", "Pacific/Apia"]


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["days", "weeks", "months", "years"]),
    st.integers(1, 5),
    st.integers(-(10**15) // 1, 3 * 10**15),
    st.integers(0, 6),
    st.integers(1, 12),
    st.integers(1, 28),
)
def test_calendar_windows_follow_each_other_at_local_midnight(
    zone: str, unit: str, count: int, at: int, weekday: int, month: int, day: int
) -> None:
    names = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
    words: dict[str, Any] = {unit: count}
    words |= {"weekday": names[weekday]} if unit == "weeks" else {}
    words |= {"month": month, "day": day} if unit in ("months", "years") else {}
    calendar = w.calendar(tz=zone, **words)
    (window,) = calendar.assign(at, None, ())
    assert window.start <= at < window.end
    assert list(calendar.assign(window.end - 1, None, ())) == [window]
    (following,) = calendar.assign(window.end, None, ())
    assert following.start == window.end
    start = (EPOCH + window.start * TICK).astimezone(ZoneInfo(zone))
    if unit == "weeks":
        assert start.weekday() == weekday
    if unit in ("months", "years"):
        assert start.day == day
    if unit == "years":
        assert start.month == month
        assert (start.year - 1970) % count == 0
    if unit == "months":
        assert (start.year * 12 + start.month - (1970 * 12 + month)) % count == 0


def test_quarters_may_begin_in_february() -> None:
    quarters = w.calendar(months=3, month=2, tz="UTC")
    (window,) = quarters.assign(instant(datetime(2024, 5, 15, tzinfo=UTC)), None, ())
    assert window == (instant(datetime(2024, 5, 1, tzinfo=UTC)), instant(datetime(2024, 8, 1, tzinfo=UTC)))
    (window,) = quarters.assign(instant(datetime(2025, 1, 31, tzinfo=UTC)), None, ())
    assert window == (instant(datetime(2024, 11, 1, tzinfo=UTC)), instant(datetime(2025, 2, 1, tzinfo=UTC)))


def test_days_are_counted_from_the_epoch() -> None:
    three = w.calendar(days=3, tz="UTC")
    assert list(three.assign(instant(datetime(1970, 1, 3, 5, tzinfo=UTC)), None, ())) == [(0, 3 * 86_400_000_000)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"tz": "UTC"}, "one of them"),
        ({"tz": "UTC", "days": 1, "weeks": 1}, "one of them"),
        ({"tz": "UTC", "days": -1}, "one of them"),
        ({"tz": "Europe/Belrin", "days": 1}, "not known"),
        ({"tz": "UTC", "months": 1, "day": 29}, "28"),
        ({"tz": "UTC", "weeks": 1, "weekday": "Monday"}, "weekday"),
        ({"tz": "UTC", "days": 7, "weekday": "sunday"}, "where weeks begin, and this is a window of days"),
        ({"tz": "UTC", "weeks": 1, "day": 9}, "where months and years begin, and this is a window of weeks"),
        ({"tz": "UTC", "days": 1, "month": 2}, "month=2"),
        ({"tz": "UTC", "years": 1, "weekday": "friday"}, "weekday='friday'"),
    ],
)
def test_a_calendar_that_cannot_be_is_refused(words: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        w.calendar(**words)


def test_windows_without_a_size_are_refused() -> None:
    makes: list[Callable[[], Any]] = [
        lambda: w.fixed(),
        lambda: w.sessions(seconds=0),
        lambda: w.sliding(minutes=1, every=timedelta(0)),
        lambda: w.sliding(every=timedelta(1)),
    ]
    for make in makes:
        with pytest.raises(ValueError, match="positive"):
            make()


def test_windows_compare_and_print() -> None:
    assert w.fixed(minutes=1) == w.fixed(seconds=60) != w.fixed(minutes=2)
    printed = [w.whole(), w.fixed(minutes=1), w.sliding(minutes=5, every=timedelta(minutes=1)), w.sessions(hours=2)]
    assert list(map(str, printed)) == [
        "whole()",
        "fixed(minutes=1)",
        "sliding(minutes=5, every=(minutes=1))",
        "sessions(hours=2)",
    ]
    assert str(w.calendar(months=1, tz="UTC")) == "calendar(months=1, tz='UTC')"
    assert str(w.calendar(weeks=1, tz="UTC", weekday="sunday")) == "calendar(weeks=1, tz='UTC', weekday='sunday')"
    assert str(w.calendar(months=3, tz="UTC", month=2)) == "calendar(months=3, tz='UTC', month=2)"
    assert str(w.calendar(years=1, tz="UTC", month=4, day=6)) == "calendar(years=1, tz='UTC', month=4, day=6)"
    assert str(Window(0, 60_000_000)) == "[1970-01-01T00:00:00+00:00, 1970-01-01T00:01:00+00:00)"
    assert str(GLOBAL) == "[all of time)"


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=12))
def test_sessions_join_where_they_overlap_and_stay_apart_where_they_touch(spans: list[tuple[int, int]]) -> None:
    windows = sorted({Window(start, start + length) for start, length in spans})
    groups = [[window] for window in windows]
    while pair := next(
        (
            (one, other)
            for one in groups
            for other in groups
            if one is not other and any(a.start < b.end and b.start < a.end for a in one for b in other)
        ),
        None,
    ):
        groups.remove(pair[1])
        pair[0].extend(pair[1])
    found = w.sessions(seconds=1).merge(windows)
    wanted = {tuple(sorted(group)): (group[0].start, max(each.end for each in group)) for group in map(sorted, groups)}
    assert {tuple(sorted(members)): tuple(result) for result, members in found} == wanted


@dataclass(frozen=True)
class _Joining(WindowFn):
    """Windows whose groups are given."""

    groups: tuple[tuple[Window, tuple[Window, ...]], ...]
    merging: ClassVar[bool] = True

    def assign(self, at: int, value: Any, windows: Any) -> Any:
        return windows

    def merge(self, windows: Any) -> Any:
        return self.groups


class _Steps(WindowFn):
    """Windows of a size that a function gives."""

    def __init__(self, size: Any) -> None:
        self.size = size

    def assign(self, at: int, value: Any, windows: Any) -> Any:
        start = at - at % self.size(value)
        return [Window(start, start + self.size(value))]


def _of_steps(size: Callable[[Any], int]) -> fc.Flow:
    flow = fc.Flow("own")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
    panes = timed.key_by(lambda record: record[1]).window(_Steps(size)).count()
    panes.map(lambda pane: (pane.window.start, pane.value)).sink("out")
    return flow


def test_windows_of_ones_own_compare_and_print_by_their_settings() -> None:
    assert _Steps(3) == _Steps(3) != _Steps(4)
    assert len({_Steps(3), _Steps(3), _Steps(4)}) == 2
    assert str(_Steps(3)) == "_Steps(size=3)"


def test_state_of_windows_of_ones_own_is_that_of_another_process() -> None:
    flows = [_of_steps(lambda value: 1_000_000) for _ in range(2)]  # functions at two addresses, as in two processes
    first, second = (each.state_facts for flow in flows for each in flow.graph().vertices if each.kind == "window")
    assert first == second
    assert str(first["windows"]).startswith("_Steps(size=<function ")


def test_a_run_goes_on_with_windows_of_ones_own(tmp_path: Path) -> None:
    records, read = tmp_path / "records.jsonl", {"source.records.use": "jsonl"}
    found = []
    for lines in ("[1.0, 0]\n[12.0, 0]\n", "[1.0, 0]\n[12.0, 0]\n[13.0, 0]\n[25.0, 0]\n"):
        records.write_text(lines, "utf-8")
        settings = {**read, "source.records.path": str(records)}
        found.append(list(_of_steps(lambda value: 10_000_000).run(state=tmp_path / "state", settings=settings)["out"]))
    assert found == [[(0, 1)], [(10_000_000, 2)]]


A, B, C = Window(0, 2), Window(2, 4), Window(4, 6)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([(Window(0, 4), (A, B)), (Window(2, 6), (B, C))], "two groups"),
        ([(Window(0, 9), (A, Window(7, 9)))], "not all among"),
        ([(C, (A, B))], "open and not of them"),
        ([(Window(0, 9), (A,)), (Window(0, 9), (B,))], "one window of two groups"),
        ([(Window(0, 9), ())], "not all among"),
    ],
)
def test_a_merge_that_cannot_be_is_refused(groups: Any, text: str) -> None:
    with pytest.raises(ConsistencyError, match=text):
        merged(_Joining(tuple(groups)), [A, B, C])


def test_a_side_window_is_that_of_the_last_instant() -> None:
    hour = w.fixed(hours=1)
    (minute,) = w.fixed(minutes=1).assign(59 * 60_000_000, None, ())
    assert hour.side(minute) == (0, 3_600_000_000)
    assert w.whole().side(minute) == GLOBAL
    assert Same().side(minute) == minute
    with pytest.raises(ConsistencyError, match="side input"):
        w.sessions(minutes=1).side(minute)


def test_drawn_instants_are_in_the_window_that_a_loop_over_days_finds() -> None:
    zone = ZoneInfo("Europe/Berlin")
    rng = random.Random(1)
    days = w.calendar(days=1, tz="Europe/Berlin")
    for _ in range(300):
        at = rng.randint(0, 2 * 10**15)
        local = (EPOCH + at * TICK).astimezone(zone).date()
        (window,) = days.assign(at, None, ())
        inside = [(EPOCH + edge * TICK).astimezone(zone).date() for edge in (window.start, window.end - 1)]
        assert inside == [local, local]
