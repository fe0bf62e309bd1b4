"""Once: each message one time, though its sender repeats it until it is answered.

flamestream run examples/windows/once/job.toml

The first of the messages with one id comes out at once; an equal one within an hour of it is left out. After that the
id is forgotten, so the state holds the ids of an hour and no more.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks


class Message(NamedTuple):
    """A record."""

    at: datetime
    id: str
    text: str


class Taken(NamedTuple):
    """An output: a message that was not there before."""

    at: str
    id: str
    text: str


def taken(message: Message) -> Taken:
    """Return what is shown of a message."""
    return Taken(f"{message.at:%H:%M:%S}", message.id, message.text)


flow = fc.Flow("once")
late = watermarks.bounded_disorder(minutes=5)
messages = w.event_time(flow.source("messages", Message), lambda message: message.at, watermark=late)
messages.key_by(lambda message: message.id).distinct(within=timedelta(hours=1)).map(taken).sink("taken")
