"""Sliding average: each sensor's mean over the last five minutes, every minute.

flamestream run examples/windows/average/job.toml
"""

from datetime import datetime, timedelta
from typing import NamedTuple

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks


class Reading(NamedTuple):
    """A record."""

    at: datetime
    sensor: str
    value: float


class Average(NamedTuple):
    """An output: the mean of a sensor in the five minutes before."""

    until: str
    sensor: str
    mean: float


def average(pane: w.Pane[str, float]) -> Average:
    """Return what is shown of a pane."""
    return Average(f"{pane.window.end_time:%H:%M}", pane.key, round(pane.value, 2))


flow = fc.Flow("average")
readings = w.event_time(
    flow.source("readings", Reading), lambda reading: reading.at, watermark=watermarks.bounded_disorder(seconds=30)
)
lasting = readings.key_by(lambda reading: reading.sensor).window(w.sliding(minutes=5, every=timedelta(minutes=1)))
lasting.mean(lambda reading: reading.value).map(average).sink("averages")
