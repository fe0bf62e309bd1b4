"""The task of a tracker: receives reports and sends minimum times."""

from __future__ import annotations

from flamecore.abc.acker import Tracker
from flamecore.abc.transport import Delivery
from flamecore.model.messages import MinTimes, Report
from flamecore.runtime.tasks.door import Door, anything
from flamecore.runtime.tasks.sender import Sender


class TrackerTask:
    """The task of a tracker: reports in, news out to every subscriber."""

    def __init__(self, tracker: Tracker, sender: Sender) -> None:
        self.tracker = tracker
        self.sender = sender
        self.door = Door(sender.endpoint.address, {Report: anything})

    async def run(self) -> None:
        """Run until cancelled."""
        tracker, sender, plain = self.tracker, self.sender, self.door.plain
        while True:
            delivery: Delivery | None = await sender.endpoint.receive()
            latest: MinTimes | None = None
            while delivery is not None:
                known = type(delivery.message) in plain or self.door.admits(*delivery)
                for news in tracker.receive(delivery.message) if known else ():
                    if news.vector:  # its listeners need every step
                        self._tell(news)
                    else:
                        latest = news
                delivery = sender.endpoint.receive_nowait()
            if latest is not None:
                self._tell(latest)

    def _tell(self, news: MinTimes) -> None:
        for subscriber in self.tracker.subscribers:
            self.sender.send(subscriber, news)
