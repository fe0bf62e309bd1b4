"""The counts of nodes and jobs, and release latency, which ends at the delivery, not when word of it comes back."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flamecore.errors import TooManyFailedError
from flamecore.model.messages import Delivered


class DeliveryTimes:
    """When what was delivered: the deliveries of all rears, as the rears told of them.

    Args:
        rears: Names of all rears.
    """

    def __init__(self, rears: Sequence[str]) -> None:
        self._steps: dict[str, deque[tuple[int, float]]] = {rear: deque() for rear in rears}

    def note(self, word: Delivered, now: float) -> None:
        """A rear has told of deliveries. `now` is of a monotonic clock, in seconds."""
        steps = word.steps or ((word.time, 0.0),)
        self._steps[word.rear].extend([(time, now - ago) for time, ago in steps])

    def until(self, delivered: int) -> list[tuple[int, float]]:
        """(time, when everything below it had been delivered by every rear), up to `delivered`.

        Args:
            delivered: Every rear has told that it has delivered what is below. Never less than before.
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
"""Over so many seconds a rate is taken, or since the job began."""


class Histogram:
    """Latencies in buckets that grow by 7 %: a percentile is right to within that. Constant memory."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` latencies of that many seconds."""
        bucket = _bucket(seconds)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count

    def buckets(self) -> dict[int, int]:
        """The counts by bucket: what another histogram can `merge`."""
        return dict(self._buckets)

    def merge(self, buckets: Mapping[int, int]) -> None:
        """Add the counts of another histogram."""
        for bucket, count in buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
            self.count += count

    def percentile(self, share: float) -> float | None:
        """The latency in seconds below which `share` (0 … 1) of all lie; None if there are none."""
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
    """A look at a job.

    Attributes:
        items_in: Records read, without malformed ones.
        items_out: Outputs delivered, for each sink of the flow.
        dead_letters: Dead letters delivered.
        in_flight: Records admitted, and not yet delivered with all that came of them.
        held_back: Fronts that stand still because their credit is used up: a sink or a worker is slower than they are.
        min_time: The least minimum time any worker knows.
        waiting: Items that wait to go into a stateful operation until nothing can come before them, by its name.
        replays: Tombstones that operations have made: outputs taken back because something came late.
        calls: How often a stateful operation has worked on an item, the first time or again, by its name.
        calls_in_vain: How many of these were made in vain, at most; all others are final, or will prove so.
        rejected: Malformed records.
        failed: Records a user function failed on that did not end the job, each counted once.
        first_failed: The earliest of them, by its time: at which operation, why, and where it stood.
        latency_p50_ms, latency_p99_ms: From a record's admission to the delivery of all that came of it.
        elapsed_s: Since the job started.
        messages: Messages between parts of the job, for each kind.
        where: Where workers are, in the words of what they were started on; empty for processes of this machine.
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
        """Outputs delivered to all sinks."""
        return sum(self.items_out.values())

    @property
    def records(self) -> int:
        """Records read, malformed ones among them."""
        return self.items_in + self.rejected

    @property
    def left_out(self) -> int:
        """Records that failed without ending the job: skipped, or dead letters."""
        return self.rejected + self.failed

    @property
    def total_calls(self) -> int:
        """The number of times that stateful operations have worked on an item."""
        return sum(self.calls.values())

    @property
    def total_in_vain(self) -> int:
        """The number of these calls that were in vain, at most."""
        return sum(self.calls_in_vain.values())

    def rows(self) -> Iterator[tuple[str, object]]:
        """Names and values, for tables and JSON."""
        return ((name, getattr(self, name)) for name in self.__slots__)


class Rates:
    """Records read and outputs delivered a second, over the last seconds of a job."""

    def __init__(self) -> None:
        self._looks: deque[JobStats] = deque(maxlen=RATE_LOOKS + 1)

    async def watch(self, look: Callable[[], JobStats]) -> None:
        """Look at the job every second, until cancelled."""
        while True:
            self._looks.append(look())
            await asyncio.sleep(1)

    def described(self, now: JobStats) -> dict[str, Any]:
        """The rates up to a look, for programs and people."""
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
        at: When it was taken, in seconds since the epoch.
        min_times: For each worker of the node, the minimum time it knows.
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
    """Return the one with the least time of what there is for each of several workers; empty if there is nothing."""
    return dict(sorted((time, text) for first in firsts for time, text in first.items())[:1])


def summed(nodes: Iterable[NodeStats], elapsed_s: float) -> JobStats:
    """The counts of a job from those of its nodes."""
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
"""Fewest calls in vain that are worth a word: a short job may spend what each state may in any case."""


def wasteful(stats: JobStats) -> str | None:
    """Return the operation with most calls in vain, where more than half of all calls were; None: they were not."""
    if stats.total_in_vain < WASTE_CALLS or 2 * stats.total_in_vain <= stats.total_calls:
        return None
    return max(stats.calls_in_vain, key=stats.calls_in_vain.__getitem__)


_FEW: Final = 100
"""Fewest records of which no more than half may fail."""


def check_left_out(job: str, stats: JobStats, limit: float | None) -> None:
    """Refuse that a job ends well which has left out too many records.

    Args:
        job: Its name.
        stats: Its last counts.
        limit: Most records, as an `int`; the largest share of them, as a `float`; None: see
            `flamecore.abc.config.JobTable`.

    Raises:
        TooManyFailedError: It has.
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
    """How a job ended.

    Attributes:
        stats: The last look.
        drained: It was asked to stop and ended early; everything admitted was delivered.
    """

    stats: JobStats
    drained: bool = False
