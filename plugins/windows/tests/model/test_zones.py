"""Calendar windows in the zones of the world, about each instant at which clocks were put forward or back."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH, ZoneInfo, _common, available_timezones

import pytest

from flamecore.testing.draws import chosen, tier
from flamestream_windows import windows as w
from flamestream_windows.model.times import TICK, instant
from flamestream_windows.model.windows import Calendar

HOUR = timedelta(hours=1)
NEAR = (-25 * HOUR, -HOUR, -timedelta(minutes=20), -TICK, 0 * HOUR, TICK, timedelta(minutes=20), HOUR, 25 * HOUR)
CALENDARS = (
    {"days": 1},
    {"days": 3},
    {"weeks": 1, "weekday": "sunday"},
    {"months": 1, "day": 28},
    {"years": 1, "month": 10, "day": 1},
)
ZONES = sorted(available_timezones())


def turns(zone: str) -> list[datetime]:
    """Return the instants at which the offset of a zone changes, and one of each of two later years."""
    files = [file for folder in TZPATH if (file := Path(folder, zone)).is_file()]
    if not files:
        pytest.skip("this system has no files of zones")
    with files[0].open("rb") as opened:
        stamps = _common.load_data(opened)[1]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    known = [epoch + timedelta(seconds=stamp) for stamp in stamps if stamp > -(10**10)]
    return [*known, *(datetime(year, 10, 29, 3, tzinfo=UTC) for year in (2040, 2041))]


def begins(calendar: Calendar, day: date) -> bool:
    """Return whether a period of a calendar begins on a day."""
    since = (day - date(1970, 1, 1)).days
    return {
        "days": since % calendar.count == 0,
        "weeks": day.weekday() == calendar.weekday,
        "months": day.day == calendar.day,
        "years": (day.month, day.day) == (calendar.month, calendar.day),
    }[calendar.unit]


def days(after: date, until: date) -> list[date]:
    return [after + timedelta(days=number) for number in range(1, (until - after).days + 1)]


@pytest.mark.parametrize("words", CALENDARS, ids=lambda words: "-".join(map(str, words.values())))
def test_a_period_begins_once_when_the_local_date_first_reaches_its_day(words: dict[str, Any]) -> None:
    for zone in chosen(ZONES, f"zones {words}", tier().cases):
        local, changes = ZoneInfo(zone), turns(zone)
        calendar = w.calendar(tz=zone, **words)
        assert isinstance(calendar, Calendar)

        def reached(end: datetime, local: ZoneInfo = local, changes: list[datetime] = changes) -> date:
            """Return the latest local date before an instant: dates go back where clocks do."""
            ends = [each for each in changes if end - 50 * HOUR < each < end]
            return max((each - TICK).astimezone(local).date() for each in (*ends, end))

        windows = set()
        for at in (instant(turn + near) for turn in changes for near in NEAR):
            (window,) = calendar.assign(at, None, ())
            assert window.start <= at < window.end, f"{zone}: {at} is not in its window, {window}"
            windows.add(window)
        for window in windows:
            start, end = window.start_time, window.end_time
            first, last = start.astimezone(local).date(), reached(end)
            assert any(begins(calendar, day) for day in days(reached(start), first)), (
                f"{zone}: {window} begins no period"
            )
            assert not any(begins(calendar, day) for day in days(first, last)), f"{zone}: one begins within {window}"
            (following,) = calendar.assign(window.end, None, ())
            assert following.start == window.end
