"""The task of a tracker: receives reports and sends minimum times."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from flamecore.abc.acker import Tracker
from flamecore.abc.transport import Delivery
from flamecore.model.messages import MinTimes, Patient, Report
from flamecore.runtime.tasks.door import Door, anything
from flamecore.runtime.tasks.sender import Sender

_PATIENCE_S: Final = 0.01
"""Most seconds by which news reach a worker later at which nothing waits for them.

By them it forgets history, and opens what is left behind fronts that have ended.
"""


class TrackerTask:
    """The task of a tracker: reports in, news out to every subscriber.

    Workers that open states and sinks by themselves (`flamecore.runtime.parts.own_times`) say so, and get the latest of
    several news.

    Args:
        tracker: The tracker.
        sender: Sender of its endpoint.
    """

    def __init__(self, tracker: Tracker, sender: Sender) -> None:
        self.tracker = tracker
        self.sender = sender
        self._patient: set[str] = set()
        self._latest: MinTimes | None = None  # news that patient subscribers have not got
        self._timer: asyncio.TimerHandle | None = None
        self.door = Door(sender.endpoint.address, {Report: anything, Patient: anything})

    async def run(self) -> None:
        """Run until cancelled."""
        tracker, sender, plain = self.tracker, self.sender, self.door.plain
        while True:
            delivery: Delivery | None = await sender.endpoint.receive()
            latest: MinTimes | None = None
            while delivery is not None:
                known = type(delivery.message) in plain or self.door.admits(*delivery)
                if known and type(delivery.message) is Patient:
                    self._change(delivery.sender, patient=delivery.message.patient)
                    known = False
                for news in tracker.receive(delivery.message) if known else ():
                    if news.vector:  # its listeners need every step
                        self._tell(news, tracker.subscribers)
                    else:
                        latest = news
                delivery = sender.endpoint.receive_nowait()
            if latest is not None:
                self._tell(latest, [to for to in tracker.subscribers if to not in self._patient])
                self._keep(latest)

    def _change(self, subscriber: str, *, patient: bool) -> None:
        if patient:
            if subscriber in self.tracker.subscribers:
                self._patient.add(subscriber)
            return
        self._patient.discard(subscriber)
        if self._latest is not None:
            self._tell(self._latest, (subscriber,))

    def _keep(self, news: MinTimes) -> None:
        """Keep news for the patient subscribers, and tell them in a while."""
        self._latest = news if self._patient else None
        if self._patient and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._tell_latest)

    def _tell_latest(self) -> None:
        self._timer = None
        news, self._latest = self._latest, None
        try:
            if news is not None:
                self._tell(news, self._patient)
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.sender.fail(error)

    def _tell(self, news: MinTimes, subscribers: Collection[str]) -> None:
        for subscriber in subscribers:
            self.sender.send(subscriber, news)

    def aclose(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
