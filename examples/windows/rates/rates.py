"""Rates: each trade at the rate that was in force, though rates come late.

A trade without a rate in the last ten minutes has no value.

flamestream run examples/windows/rates/job.toml

`as_of` lets a trade wait until the watermark says that no rate before it is to come. Two streams make one watermark,
the least.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks


class Trade(NamedTuple):
    """A record of one source."""

    at: datetime
    pair: str
    amount: float


class Rate(NamedTuple):
    """A record of the other."""

    at: datetime
    pair: str
    rate: float


class Valued(NamedTuple):
    """An output: a trade with its value; None if no rate is known."""

    at: str
    pair: str
    value: float | None


def valued(both: tuple[Trade, Rate | None]) -> Valued:
    """Return the value of a trade at a rate."""
    trade, rate = both
    return Valued(f"{trade.at:%H:%M:%S}", trade.pair, None if rate is None else round(trade.amount * rate.rate, 2))


flow = fc.Flow("rates")
late = watermarks.bounded_disorder(seconds=10)
trades = w.event_time(flow.source("trades", Trade), lambda trade: trade.at, watermark=late, name="times-of-trades")
rates = w.event_time(flow.source("rates", Rate), lambda rate: rate.at, watermark=late, name="times-of-rates")
both = trades.key_by(lambda trade: trade.pair).as_of(rates.key_by(lambda rate: rate.pair), keep=timedelta(minutes=10))
both.map(valued).sink("valued")
