"""Clicked: each view of an advertisement with its click in ten minutes, if any.

flamestream run examples/windows/clicked/job.toml

Views and clicks come in files of their own, each out of order. A view without a click comes out when the watermark says
that none can come any more.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks


class View(NamedTuple):
    """A record of one source."""

    at: datetime
    ad: str


class Click(NamedTuple):
    """A record of the other."""

    at: datetime
    ad: str
    user: str


class Seen(NamedTuple):
    """An output: a view, who clicked, and after how many seconds; None: no click."""

    at: str
    ad: str
    user: str | None
    seconds: int | None


def seen(pair: tuple[View | None, Click | None]) -> Seen:
    """Return what is shown of a view and a click."""
    view, click = pair
    assert view is not None  # with how="left" only the click may be missing
    at = f"{view.at:%H:%M:%S}"
    if click is None:
        return Seen(at, view.ad, None, None)
    return Seen(at, view.ad, click.user, round((click.at - view.at).total_seconds()))


flow = fc.Flow("clicked")
late = watermarks.bounded_disorder(seconds=30)
views = w.event_time(flow.source("views", View), lambda view: view.at, watermark=late, name="times-of-views")
clicks = w.event_time(flow.source("clicks", Click), lambda click: click.at, watermark=late, name="times-of-clicks")
pairs = views.key_by(lambda view: view.ad).join(
    clicks.key_by(lambda click: click.ad), before=timedelta(0), after=timedelta(minutes=10), how="left"
)
pairs.map(seen).sink("seen")
