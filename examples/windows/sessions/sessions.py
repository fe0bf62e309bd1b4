"""Sessions: the visits of each user, which end after half an hour without a click.

flamestream run examples/windows/sessions/job.toml

A click that comes late may join two visits to one.
"""

from datetime import datetime
from typing import NamedTuple

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks


class Click(NamedTuple):
    """A record."""

    at: datetime
    user: str
    page: str


class Visit(NamedTuple):
    """An output: a visit of a user, and the pages in it."""

    user: str
    begins: str
    minutes: int
    pages: tuple[str, ...]


def add(pages: tuple[str, ...], click: Click) -> tuple[str, ...]:
    """Return the pages of a visit after a click."""
    return pages if click.page in pages else (*pages, click.page)


def join(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """Return the pages of two visits that turn out to be one."""
    return tuple(dict.fromkeys(first + second))


def visit(pane: w.Pane[str, tuple[str, ...]]) -> Visit:
    """Return the output for a pane; a session ends half an hour after its last click."""
    minutes = (pane.window.end - pane.window.start) // 60_000_000 - 30
    return Visit(pane.key, f"{pane.window.start_time:%H:%M}", minutes, pane.value)


flow = fc.Flow("sessions")
clicks = flow.source("clicks", Click)
timed = w.event_time(clicks, lambda click: click.at, watermark=watermarks.bounded_disorder(minutes=15))
visits = timed.key_by(lambda click: click.user).window(w.sessions(minutes=30)).fold((), add, merge=join)
visits.map(visit).sink("visits")
