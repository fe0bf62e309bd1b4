"""Totals by minute: the takings of each shop, though some orders come late.

flamestream run examples/windows/totals/job.toml
flamestream run examples/windows/totals/corrected.toml

Orders are in the minute in which they were made, not in that in which they are read. By the watermark, which is 20
seconds behind the latest order, a minute is over; and for another minute it still takes orders that are later than
that. `flow` gives each total once, when it can no longer change. `corrected` gives a first one with every second
order, one when the watermark passes the minute, and another with each late order.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import triggers as t
from flamestream_windows import watermarks


class Order(NamedTuple):
    """A record."""

    at: datetime
    shop: str
    amount: int


class Total(NamedTuple):
    """An output: the takings of a shop in a minute, so far."""

    minute: str
    shop: str
    amount: int
    timing: str
    index: int


class TooLate(NamedTuple):
    """An output: an order that is in no total."""

    at: str
    shop: str
    amount: int


def by_shop(flow: fc.Flow) -> w.TimedKeyed[str, Order]:
    """Return the orders of each shop, in the time in which they were made."""
    orders = flow.source("orders", Order)
    timed = w.event_time(orders, lambda order: order.at, watermark=watermarks.bounded_disorder(seconds=20))
    return timed.key_by(lambda order: order.shop)


def total(pane: w.Pane[str, int]) -> Total:
    """Return what is shown of a pane."""
    return Total(f"{pane.window.start_time:%H:%M}", pane.key, pane.value, pane.timing.name.lower(), pane.index)


def too_late(order: w.Dropped[Order]) -> TooLate:
    """Return what is shown of an order that was dropped."""
    return TooLate(f"{order.value.at:%H:%M:%S}", order.value.shop, order.value.amount)


flow = fc.Flow("totals")
totals = by_shop(flow).window(w.fixed(minutes=1), lateness=timedelta(minutes=1)).sum(lambda order: order.amount)
totals.map(total).sink("totals")
totals.dropped.map(too_late).sink("too_late")

corrected = fc.Flow("corrected")
first, late = t.count(2), t.count(1)
by_shop(corrected).window(
    w.fixed(minutes=1),
    lateness=timedelta(minutes=1),
    emit=t.at_watermark(early=first, late=late),
    panes="accumulating",
).sum(lambda order: order.amount).map(total).sink("totals")
