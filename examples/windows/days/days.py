"""Calendar days: the sales of each shop in a day of its local time.

Some days have 23 hours, and some 25.

flamestream run examples/windows/days/job.toml
"""

from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks

BERLIN = ZoneInfo("Europe/Berlin")


class Order(NamedTuple):
    """A record."""

    at: datetime
    shop: str
    amount: int


class Day(NamedTuple):
    """An output: a day of a shop, its hours, and what it has sold."""

    day: str
    hours: int
    shop: str
    amount: int


def day(pane: w.Pane[str, int]) -> Day:
    """Return what is shown of a pane."""
    hours = (pane.window.end - pane.window.start) // 3_600_000_000
    return Day(f"{pane.window.start_time.astimezone(BERLIN):%Y-%m-%d}", hours, pane.key, pane.value)


flow = fc.Flow("days")
orders = w.event_time(
    flow.source("orders", Order), lambda order: order.at, watermark=watermarks.bounded_disorder(hours=1)
)
days = orders.key_by(lambda order: order.shop).window(w.calendar(days=1, tz="Europe/Berlin"))
days.sum(lambda order: order.amount).map(day).sink("days")
