"""Top ten: the pages of each hour that were read most.

flamestream run examples/windows/top/job.toml

Reads are counted by page and hour, wherever the page is; `per_window` then takes the counts of an hour together.
"""

from datetime import datetime
from typing import NamedTuple

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks


class Read(NamedTuple):
    """A record."""

    at: datetime
    page: str


class Top(NamedTuple):
    """Output: an hour, and the pages that were read most in it, the most read first."""

    hour: str
    pages: tuple[tuple[str, int], ...]


def most_read(pane: w.Pane[w.Window, list[w.Pane[str, int]]]) -> Top:
    """Return what is shown of an hour."""
    return Top(f"{pane.window.start_time:%H:%M}", tuple((each.key, each.value) for each in pane.value))


flow = fc.Flow("top")
reads = w.event_time(
    flow.source("reads", Read), lambda read: read.at, watermark=watermarks.bounded_disorder(minutes=10)
)
counts = reads.key_by(lambda read: read.page).window(w.fixed(hours=1)).count()
counts.per_window().top(10, by=lambda count: count.value).map(most_read).sink("top")
