"""The counts of nodes and jobs, and release latency.

Release latency is measured at the delivery, not when its report arrives.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flamecore.errors import TooManyFailedError
from flamecore.model.messages import Delivered


class DeliveryTimes:
    """Delivery times of all rears, from their reports.

    Args:
        rears: Names of all rears.
    """

    def __init__(self, rears: Sequence[str]) -> None:
        self._steps: dict[str, deque[tuple[int, float]]] = {rear: deque() for rear in rears}

    def note(self, word: Delivered, now: float) -> None:
        """Record the deliveries of a report that arrived at `now`, in monotonic seconds."""
        steps = word.steps or ((word.time, 0.0),)
        self._steps[word.rear].extend([(time, now - ago) for time, ago in steps])

    def until(self, delivered: int) -> list[tuple[int, float]]:
        """Return the steps of delivery up to `delivered`, and forget them.

        Each is (time, when every rear had delivered everything below it).

        Args:
            delivered: Time below which every rear has reported everything as delivered; it never falls.
        """
        rears = self._steps.values()
        found = []
        limits = {time for steps in rears for time, _ in steps if time <= delivered}
        for limit in sorted(limits):
            for steps in rears:
                while steps[0][0] < limit:
                    steps.popleft()
            found.append((limit, max(steps[0][1] for steps in rears)))
        for steps in rears:
            while steps and steps[0][0] <= delivered:
                steps.popleft()
        return found


_BASE: Final = 1.07
"""Width of a latency bucket: 7 %."""

_FLOOR_S: Final = 1e-6


RATE_LOOKS: Final = 5
"""Seconds over which a rate is measured, or since the job began."""


class Histogram:
    """Latencies in buckets that grow by 7 %, in constant memory.

    Percentiles are right to within 7 %.
    """

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` latencies of `seconds`."""
        bucket = _bucket(seconds)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count

    def buckets(self) -> dict[int, int]:
        """Return the counts by bucket, which another histogram can `merge`."""
        return dict(self._buckets)

    def merge(self, buckets: Mapping[int, int]) -> None:
        """Add the counts of another histogram."""
        for bucket, count in buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
            self.count += count

    def percentile(self, share: float) -> float | None:
        """Return the latency in seconds below which `share` (0 … 1) lies; None if empty."""
        if not self.count:
            return None
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return float(_FLOOR_S * _BASE ** (bucket + 0.5))
        raise AssertionError("the buckets hold fewer than the count says")


def _bucket(seconds: float) -> int:
    from math import log

    return max(int(log(max(seconds, _FLOOR_S) / _FLOOR_S) / log(_BASE)), 0)


@dataclass(frozen=True, slots=True)
class JobStats:
    """The counts of a job at one moment.

    Attributes:
        items_in: Records read, without malformed ones.
        items_out: Outputs delivered, for each sink of the flow.
        dead_letters: Dead letters delivered.
        in_flight: Records admitted, and not yet delivered with all their outputs.
        held_back: Fronts that pause because their credit is used up: a sink or a worker is slower than they are.
        min_time: The least minimum time known to any worker.
        waiting: Items that wait before a stateful operation until nothing can come before them, by its name.
        replays: Tombstones that operations have made: outputs retracted because an item came late.
        calls: Calls of each stateful operation, first ones and repeats, by its name.
        calls_in_vain: Upper bound of the wasted calls among these, by name; all others are final, or will be.
        rejected: Malformed records.
        failed: Records a user function failed on that did not end the job, each counted once.
        first_failed: The earliest of them, by its time: operation, reason and position.
        latency_p50_ms, latency_p99_ms: Time from a record's admission to the delivery of all its outputs.
        elapsed_s: Seconds since the job started.
        messages: Messages between parts of the job, for each kind.
        where: Locations of workers, in the terms of their host; empty for processes of this machine.
    """

    items_in: int = 0
    items_out: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    held_back: int = 0
    min_time: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    replays: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    calls_in_vain: dict[str, int] = field(default_factory=dict)
    rejected: int = 0
    failed: int = 0
    first_failed: dict[int, str] = field(default_factory=dict)
    dead_letters: int = 0
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    elapsed_s: float = 0.0
    messages: dict[str, int] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_out(self) -> int:
        """Return the outputs delivered to all sinks."""
        return sum(self.items_out.values())

    @property
    def records(self) -> int:
        """Return the records read, with malformed ones."""
        return self.items_in + self.rejected

    @property
    def left_out(self) -> int:
        """Return the records that failed without ending the job: skipped, or dead letters."""
        return self.rejected + self.failed

    @property
    def total_calls(self) -> int:
        """Return the number of calls of all stateful operations."""
        return sum(self.calls.values())

    @property
    def total_in_vain(self) -> int:
        """Return an upper bound of the wasted calls among these."""
        return sum(self.calls_in_vain.values())

    def rows(self) -> Iterator[tuple[str, object]]:
        """Return names and values, for tables and JSON."""
        return ((name, getattr(self, name)) for name in self.__slots__)


class Rates:
    """Records read and outputs delivered per second, over the last seconds of a job."""

    def __init__(self) -> None:
        self._looks: deque[JobStats] = deque(maxlen=RATE_LOOKS + 1)

    async def watch(self, look: Callable[[], JobStats]) -> None:
        """Take the counts of the job every second, until cancelled."""
        while True:
            self._looks.append(look())
            await asyncio.sleep(1)

    def described(self, now: JobStats) -> dict[str, Any]:
        """Return the rates up to `now` as JSON-like values."""
        before = self._looks[0] if self._looks else JobStats()
        passed = max(now.elapsed_s - before.elapsed_s, 1e-9)
        return {
            "records_per_s": (now.items_in - before.items_in) / passed,
            "outputs_per_s": {
                name: (count - before.items_out.get(name, 0)) / passed for name, count in now.items_out.items()
            },
        }


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The share of one node in the counts of a job; fields as in `JobStats`.

    Attributes:
        at: Time of the counts, in seconds since the epoch.
        min_times: Minimum time known to each worker of the node.
        latency: Release latencies of records that the node's fronts admitted, by bucket of `Histogram`.
    """

    at: float = 0.0
    items_in: int = 0
    items_out: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    held_back: int = 0
    min_times: dict[int, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    replays: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    calls_in_vain: dict[str, int] = field(default_factory=dict)
    rejected: int = 0
    failed: int = 0
    first_failed: dict[int, str] = field(default_factory=dict)
    dead_letters: int = 0
    latency: dict[int, int] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)


def earliest(firsts: Iterable[Mapping[int, str]]) -> dict[int, str]:
    """Return the entry with the least time in several mappings, or none."""
    return dict(sorted((time, text) for first in firsts for time, text in first.items())[:1])


def summed(nodes: Iterable[NodeStats], elapsed_s: float) -> JobStats:
    """Return the counts of a job, summed over its nodes."""
    nodes = list(nodes)
    latency = Histogram()
    messages: Counter[str] = Counter()
    for node in nodes:
        latency.merge(node.latency)
        messages.update(node.messages)
    p50, p99 = latency.percentile(0.50), latency.percentile(0.99)
    return JobStats(
        items_in=sum(node.items_in for node in nodes),
        items_out=dict(sum((Counter(node.items_out) for node in nodes), Counter())),
        in_flight=sum(node.in_flight for node in nodes),
        held_back=sum(node.held_back for node in nodes),
        min_time=min((time for node in nodes for time in node.min_times.values()), default=0),
        waiting=dict(sum((Counter(node.waiting) for node in nodes), Counter())),
        replays=sum(node.replays for node in nodes),
        calls=dict(sum((Counter(node.calls) for node in nodes), Counter())),
        calls_in_vain=dict(sum((Counter(node.calls_in_vain) for node in nodes), Counter())),
        rejected=sum(node.rejected for node in nodes),
        failed=sum(node.failed for node in nodes),
        first_failed=earliest(node.first_failed for node in nodes),
        dead_letters=sum(node.dead_letters for node in nodes),
        latency_p50_ms=None if p50 is None else p50 * 1000,
        latency_p99_ms=None if p99 is None else p99 * 1000,
        elapsed_s=elapsed_s,
        messages=dict(messages),
    )


WASTE_CALLS: Final = 1_000
"""Fewest wasted calls that are worth a warning: a short job may spend the free advance of each state."""


def wasteful(stats: JobStats) -> str | None:
    """Return the operation with most wasted calls; None unless they are over half."""
    if stats.total_in_vain < WASTE_CALLS or 2 * stats.total_in_vain <= stats.total_calls:
        return None
    return max(stats.calls_in_vain, key=stats.calls_in_vain.__getitem__)


_FEW: Final = 100
"""Number of records from which on no more than half may fail."""


def check_left_out(job: str, stats: JobStats, limit: float | None) -> None:
    """Raise an error if a job has left out too many records.

    Args:
        job: Name of the job.
        stats: Its last counts.
        limit: Most records, as an `int`; the largest share of them, as a `float`; None: see
            `flamecore.abc.config.JobTable`.

    Raises:
        TooManyFailedError: Too many records failed.
    """
    count, records = stats.left_out, stats.records
    if limit is None:
        allowed = count < records and (records < _FEW or count * 2 <= records)
    else:
        allowed = count <= (limit * records if isinstance(limit, float) else limit)
    if allowed or not count:
        return
    kept = f"; {stats.dead_letters:,} dead letters are kept" if stats.dead_letters else ""
    first = "".join(f"\n  the first  {text}" for text in stats.first_failed.values())
    raise TooManyFailedError(
        f"job {job!r}: {count:,} of {records:,} records failed: {stats.rejected:,} could not be read, "
        f"functions failed on {stats.failed:,}{kept}{first}",
        hint=f"The outputs are those of the others. To allow as many: [job] max_failed = {count}, or a share: 1.0.",
        records=records,
        rejected=stats.rejected,
        failed=stats.failed,
        dead_letters=stats.dead_letters,
        limit=limit,
    )


@dataclass(frozen=True, slots=True)
class JobReport:
    """The end of a job.

    Attributes:
        stats: The last counts.
        drained: Whether it was asked to stop and ended early; everything admitted was delivered.
    """

    stats: JobStats
    drained: bool = False
