"""Silent: an alert for each sensor without a reading for a quarter of an hour.

flamestream run examples/windows/silent/job.toml

Silence is measured by the times of readings, so a run over last year's readings gives the alerts of last year. The
end of the file is no silence: with `at_end="keep"` it says nothing of what comes later.
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
    celsius: float


class Alert(NamedTuple):
    """An output: a sensor that is silent, and its last reading."""

    sensor: str
    since: str
    celsius: float


def alert(silent: tuple[str, Reading]) -> Alert:
    """Return what is shown of a sensor and its last reading."""
    sensor, last = silent
    return Alert(sensor, f"{last.at:%H:%M}", last.celsius)


flow = fc.Flow("silent")
late = watermarks.bounded_disorder(minutes=5)
readings = w.event_time(flow.source("readings", Reading), lambda reading: reading.at, watermark=late, at_end="keep")
silent = readings.key_by(lambda reading: reading.sensor).inactive(after=timedelta(minutes=15))
silent.map(alert).sink("alerts")
