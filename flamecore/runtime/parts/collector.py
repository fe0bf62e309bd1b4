"""The collector of a rear, which merges all releases into one sequence.

See paper 000, "rear". Every worker sends its released items with the time up to which they are complete; items below
the least of these times are complete, and are delivered in meta order, the same in every deployment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from flamecore.abc.operator import Columns
from flamecore.errors import OrderViolationError
from flamecore.model.batch import Orders, concat, stretches, woven
from flamecore.model.batch import joined as joined_orders
from flamecore.model.failure import Failure
from flamecore.model.messages import Released
from flamecore.model.meta import MIN_TIME, Meta, decode_time, encode_time

_ORDER = itemgetter(0)


class Complete(NamedTuple):
    """Payloads ready for delivery: everything below `time`, in meta order.

    `failure` ends the job after these payloads, which are outputs of the records before the failed one. Its own outputs
    are not among them, so that it can be run again as a whole. `orders` are those of the payloads, if kept.

    `until` is the time right behind the last payload, at most `time`, and the one that the sink gets. A front without
    records advances `time`, but stores this nowhere; so a sink that got `time` would look like one whose state has lost
    all records until then.
    """

    time: int
    payloads: Sequence[object]
    failure: Failure | None = None
    orders: Orders | None = None
    until: int = MIN_TIME


def joined(parts: Sequence[Complete]) -> Complete:
    """Join consecutive deliveries, at least one, into one."""
    if len(parts) == 1:
        return parts[0]
    payloads = concat([part.payloads for part in parts if part.payloads])
    orders = [part.orders for part in parts if part.orders is not None]
    last = parts[-1]
    until = max([part.until for part in parts])
    return Complete(
        last.time, payloads, last.failure, joined_orders(orders) if len(orders) == len(parts) else None, until
    )


def first_failure(failures: Sequence[tuple[bytes, Failure]], limit: bytes) -> Failure | None:
    """Return the failure of the first record below an order that ends the job."""
    first = min((entry for entry in failures if entry[0] < limit), key=_ORDER, default=None)
    return None if first is None else first[1]


def end_of(orders: Orders, failure: Failure | None) -> int:
    """Return the number of outputs that are stored of a job that a failure may end.

    They are those of the records before the failed one. Each part that stores outputs cuts off the others: the worker
    that hosts the front of the record is the only one that hears of it, and others have released later outputs.

    Args:
        orders: Orders of the outputs, ascending.
        failure: The first failure that ends the job, if there is one.
    """
    return len(orders) if failure is None else bisect_left(orders, encode_time(failure.at.time))


class Collector:
    """The merge of the releases of all workers for one rear.

    Args:
        name: Name of the rear.
        workers: Number of workers that release to it.
        delivered_up_to: Time below which the sink has everything from an earlier run: this is not delivered again.
        barrier: Whether workers have barriers; without them items are passed on as they come.
        orders: Whether to keep the orders of payloads, for a sink that wants them.
    """

    def __init__(
        self, name: str, workers: int, *, delivered_up_to: int = MIN_TIME, barrier: bool = True, orders: bool = False
    ) -> None:
        self.name = name
        self._orders = orders
        self.delivered_up_to = delivered_up_to
        self.barrier = barrier
        self.time = MIN_TIME
        self.workers = workers
        self._through = [MIN_TIME] * workers
        # A queue for each worker: what one sends is in order already, so a delivery is a merge, and
        # never a sort of what has been merged before.
        self._pending: list[deque[Columns]] = [deque() for _ in range(workers)]
        self._failures: list[tuple[bytes, Failure]] = []
        self._heard = [MIN_TIME] * workers
        self._away: list[tuple[int, int]] = []  # (time, worker) of failures that the worker has not heard of

    def receive(self, message: Released) -> Complete | None:
        """Add one release; return the delivery that it completes, or None."""
        self._through[message.worker] = message.time
        self._failures += message.failures
        self._heard[message.worker] = message.time if message.heard is None else message.heard
        time = min(self._through)
        if self._away or message.away:
            away = [*self._away, *message.away]
            self._away = [(failed, host) for failed, host in away if self._heard[host] <= failed]
            time = min([time, *[failed for failed, _ in self._away]])
        orders, payloads = message.orders, message.payloads
        if not self.barrier:
            self.time = max(self.time, time)
            failure = first_failure(self._failures, encode_time(self.time))
            reached = self.time if failure is None else failure.at.time
            return self._complete(reached, orders, payloads, failure, reached)
        until = _end_time(orders[-1] if orders else b"")
        # A single worker's release below its time is complete as it is.
        if len(self._through) > 1 or self._pending[0] or until > time:
            if orders:
                self._pending[message.worker].append((orders, payloads))
            if time <= self.time:
                return None
            orders, payloads, last = self._take(time)
            until = _end_time(last)
        self.time = time
        # Nothing is looked for where nothing has failed, and nothing was delivered before: this is done for each batch.
        failure = first_failure(self._failures, encode_time(time)) if self._failures else None
        start = bisect_left(orders, encode_time(self.delivered_up_to)) if self.delivered_up_to > MIN_TIME else 0
        # Outputs that the sink has already are cut off here, by time, and not at the workers: only the sink knows, when
        # it is opened, up to which time it has them.
        if start or failure is not None:
            end = end_of(orders, failure)
            orders, payloads = orders[start:end], payloads[start:end]
            until = _end_time(orders[-1] if orders else b"")
        return self._complete(time if failure is None else failure.at.time, orders, payloads, failure, until)

    def _complete(
        self, time: int, orders: Orders, payloads: Sequence[object], failure: Failure | None, until: int
    ) -> Complete:
        return Complete(time, payloads, failure, list(orders) if self._orders else None, until)

    def _take(self, time: int) -> tuple[Orders, Sequence[object], bytes]:
        """Take out pending payloads below `time`, in meta order.

        Returns orders, payloads and the greatest order. The orders may be unsorted or empty if nobody looks at them.

        Raises:
            OrderViolationError: Two workers have released items with one order.
        """
        limit = encode_time(time)
        ready: list[Columns] = []
        for pending in self._pending:  # each in order: a worker never goes back
            runs: list[Columns] = []
            while pending and pending[0][0][0] < limit:
                orders, payloads = pending.popleft()
                if orders[-1] >= limit:
                    end = bisect_left(orders, limit)
                    pending.appendleft((orders[end:], payloads[end:]))
                    orders, payloads = orders[:end], payloads[:end]
                runs.append((orders, payloads))
            if runs:
                places = joined_orders([orders for orders, _ in runs])
                ready.append((places, concat([payloads for _, payloads in runs])))
        if not ready:
            return [], [], b""
        last = max([some[-1] for some, _ in ready])
        if len(ready) < 2:
            return (*ready[0], last)
        # Nobody looks at single orders, mostly: then the payloads are woven together by stretches,
        # and the orders are never spelled out.
        looked_at = self._orders or self._failures or self.delivered_up_to > MIN_TIME
        if not looked_at and (by := stretches([some for some, _ in ready])) is not None:
            return [], woven([payloads for _, payloads in ready], by), last
        ordered: list[bytes] = []
        values: list[object] = []
        for some, parts in ready:
            ordered += some
            values += parts
        # The sort takes each payload's order as its key, without making pairs. It detects sorted runs: it is a merge.
        values.sort(key=partial(next, iter(ordered)))
        # Two items of one order would leave in an arbitrary sequence. It is looked for among the
        # runs' sets, since within one run orders ascend.
        if _share_an_order([some for some, _ in ready]):
            ordered.sort()
            twice = next(one for one, other in pairwise(ordered) if one == other)
            raise OrderViolationError(
                f"sink {self.name!r}: two valid items have one order ({Meta.decode(twice)})",
                hint="A user function on their way is not deterministic.",
                vertex=self.name,
                record=None,
            )
        if looked_at:  # payloads are sorted already
            ordered.sort()
        return ordered, values, last


def _end_time(last: bytes) -> int:
    """Return the time right behind the last order; `MIN_TIME` if that is empty."""
    return decode_time(last) + 1 if last else MIN_TIME


def _share_an_order(runs: Sequence[Orders]) -> bool:
    """Return whether an order is in two of the runs."""
    *before, last = runs
    seen = set(before[0])
    for orders in before[1:]:
        if not seen.isdisjoint(orders):
            return True
        seen.update(orders)
    return not seen.isdisjoint(last)
