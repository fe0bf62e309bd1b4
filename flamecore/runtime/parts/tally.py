"""The collector of a rear whose outputs the workers have stored themselves.

It takes the place of `flamecore.runtime.parts.collector.Collector` where a sink is in partitions. A worker that has
stored outputs sends a release that holds the order of the last one and their number.
"""

from __future__ import annotations

from flamecore.model.failure import Failure
from flamecore.model.messages import Released
from flamecore.model.meta import MIN_TIME, decode_time, encode_time
from flamecore.runtime.parts.collector import Complete, first_failure


class PartitionTally:
    """The times below which all partitions of one rear hold their outputs.

    Args:
        name: Name of the rear.
        workers: Number of workers that release to it.
        delivered_up_to: Time below which the partitions held everything when they were divided.
    """

    def __init__(self, name: str, workers: int, *, delivered_up_to: int = MIN_TIME) -> None:
        self.name = name
        self.workers = workers
        self.delivered_up_to = delivered_up_to
        self._time = MIN_TIME
        self._through = [MIN_TIME] * workers
        self._latest = self._noted = delivered_up_to
        self._count = 0
        self._failures: list[tuple[bytes, Failure]] = []

    def receive(self, message: Released) -> Complete | None:
        """Add one release; return the delivery that it completes, or None.

        Its payload is the number of outputs stored since the last one; it has none if the sink need not be told.
        """
        self._through[message.worker] = message.time
        self._failures += message.failures
        if message.orders:
            self._latest = max(self._latest, decode_time(message.orders[-1]) + 1)
            self._count += sum([count for count in message.payloads if type(count) is int])
        time = min(self._through)
        if time <= self._time:
            return None
        self._time = time
        failure = first_failure(self._failures, encode_time(time))
        reached = time if failure is None else failure.at.time
        # Not beyond the last output, for the reason given at `Complete.until`. A failed record has been given its time,
        # and partitions may hold outputs of later ones, so then it says exactly where the output ends.
        until = reached if failure is not None else min(reached, self._latest)
        if until <= self._noted:  # what is repeated after a fault, or what no output is in
            return Complete(reached, (), failure)
        payloads, self._count, self._noted = [self._count], 0, until
        return Complete(reached, payloads, failure, None, until)
