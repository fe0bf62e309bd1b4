"""The contract of ackers: progress tracking.

Paper 002, "the tracker"; paper 000, "Minimal time within stream".

An acker is a *strategy* made of three parts, none of which knows how messages travel:

    reporter (one per worker)  --Report-->  tracker (one or several)  --MinTimes-->  listener (one per subscriber)

A worker tells its reporter of every hand-over to another worker: a random number when it sends, the same number
once it has processed what it received *and* acked and sent all that came of it. A tracker XORs the numbers per
(segment, time); where the result is zero nothing is in flight. The laws:

* a minimum time m of a segment means: nothing of a time below m is in flight there, and nothing will come;
* it never passes an item in flight, never goes back for a listener, and arrives once all is acked;
* messages of one flush are applied highest (segment, time) first, then heartbeats, then unregistrations.

Everything here is plain state, driven by calls: no sockets, no clock of its own, no threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flamecore.model.messages import MinTimes, Report
from flamecore.model.meta import MIN_TIME

API: int = 1

Segments = tuple[frozenset[int], ...]
"""The tracked parts of a graph: for each segment index, the segments that feed it, all of lower index."""


# Plain state, driven by calls: the same code runs under asyncio, in a seeded simulation, and in one
# that injects crashes.
class Reporter(ABC):
    """The worker's side: collects reports and hands out what is to be sent."""

    @abstractmethod
    def ack(self, segment: int, time: int, xor: int) -> None:
        """Report one hand-over, or the XOR of several of one segment and time.

        The sender reports it once, and so does the receiver.

        Order: what a worker sends must be reported no later than the receipt that caused it, within one flush at the
        latest.
        """

    @abstractmethod
    def heartbeat(self, front: int, time: int) -> None:
        """Promise that `front` will send nothing below `time`.

        Call it after the acks of what the front sent.

        Raises:
            TimeRegressionError: `time` is below an earlier promise of this front.
        """

    @abstractmethod
    def unregister(self, front: int) -> None:
        """Report the end of `front`; nothing may come from it afterwards."""

    # An intermediate minimum time costs a message and a step for each worker: a fifth of the way of a record through
    # four states, where nobody waits for it.
    def rest(self, at_rest: bool) -> None:  # noqa: B027 - most strategies tell all news at once
        """Say whether the worker is at rest.

        At rest it waits for no minimum time of a segment that feeds another. Before the first call it may wait. The
        tracker may then keep such a time to itself until a worker waits again, or until the minimum time of a segment
        that feeds no other has grown.

        It holds for all that is reported from now on: what waits was handed over or read before, and its report tells
        of it, so no minimum time passes it unheard.
        """

    @abstractmethod
    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        """Return what is to be sent now, as (tracker index, report), oldest first.

        Called after every step of the worker and when `due` has come. A reporter that aggregates may return
        nothing until its limits are reached.

        Args:
            now: A monotonic clock, in seconds.
        """

    def due(self) -> float | None:
        """Return the time by which `flush` must be called again.

        It is a time of the clock of `now`; None when nothing waits.
        """
        return None


class Tracker(ABC):
    """The acker's side: knows what is in flight.

    `subscribers` are addresses in the order in which they subscribed.
    """

    def __init__(self) -> None:
        self.subscribers: list[str] = []

    @abstractmethod
    def receive(self, report: Report) -> Sequence[MinTimes]:
        """Apply one report as one step and return the news for every subscriber.

        The news are in the order in which they are to be sent.

        Raises:
            TimeRegressionError: A heartbeat went back, came from a front that has ended, or (with a single
                tracker) an ack is of a time already announced as past.
            ConsistencyError: The table's bound is exceeded.
        """

    @abstractmethod
    def register(self, front: int, time: int | None = None) -> int:
        """Admit a front while the job runs.

        Args:
            front: Its number.
            time: Time from which it continues; None: the current time of the stream.

        Returns:
            The time from which its items may be stamped.

        Raises:
            TimeRegressionError: `time` is before what has been announced.
        """

    @abstractmethod
    def current(self) -> MinTimes:
        """Return the news for a new subscriber."""

    def subscribe(self, address: str) -> MinTimes:
        """Send news to `address` from now on, and return the first.

        A second call for an address adds nothing.
        """
        if address not in self.subscribers:
            self.subscribers.append(address)
        return self.current()

    def unsubscribe(self, address: str) -> None:
        """Send no more news to `address`; an unknown one is ignored."""
        if address in self.subscribers:
            self.subscribers.remove(address)


class Listener(ABC):
    """A subscriber's side: merges the news of all trackers.

    The result is one minimum time for each segment.
    """

    @abstractmethod
    def receive(self, tracker: int, news: MinTimes) -> bool:
        """Take the news of the tracker with that index.

        Returns:
            True if the minimum time of any segment grew.
        """

    @abstractmethod
    def min_time(self, segment: int) -> int:
        """Return the minimum time of the segment; it never falls."""


@dataclass(frozen=True, slots=True)
class AckerPlan:
    """The facts of a job that a strategy needs.

    Attributes:
        workers: Number of workers.
        segments: The tracked parts of the graph.
        fronts: Numbers of the fronts registered from the start, so that nothing passes one that is slow to begin.
        start: The time every front starts from.
        make: Builds another strategy by name (for those that wrap one): `make(name, options_table)`.
    """

    workers: int
    segments: Segments
    fronts: tuple[int, ...]
    start: int = 0
    make: Callable[[str, Mapping[str, Any]], Acker] | None = None


class Acker(ABC):
    """A strategy: builds the three parts so that they fit together.

    Class attributes: `name`, `api` and `Options` as for every driver.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None

    def __init__(self, options: Any, plan: AckerPlan) -> None:
        self.options = options
        self.plan = plan

    @property
    def trackers(self) -> int:
        """Return the number of trackers; their addresses are acker/0, acker/1 and so on."""
        return 1

    @abstractmethod
    def tracker(self, index: int) -> Tracker:
        """Build the tracker with that index."""

    @abstractmethod
    def reporter(self, worker: int) -> Reporter:
        """Build the reporter of one worker."""

    @abstractmethod
    def listener(self) -> Listener:
        """Build a listener; `min_time` starts at `plan.start`."""


class SingleListener(Listener):
    """The listener of a single tracker, whose times are the minimum times."""

    def __init__(self, segments: int, start: int = MIN_TIME) -> None:
        self._times = (start,) * segments

    def receive(self, tracker: int, news: MinTimes) -> bool:
        # The common case, a report that has changed nothing, costs one comparison.
        if news.times == self._times:
            return False
        # Never lower for a listener, whatever a tracker reports: barriers may have opened on it.
        times = tuple([max(pair) for pair in zip(self._times, news.times, strict=True)])
        grew, self._times = times != self._times, times
        return grew

    def min_time(self, segment: int) -> int:
        return self._times[segment]
