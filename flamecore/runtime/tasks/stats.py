"""The rates and delivery times of a job, and the final check of its counters.

Release latency is measured at the delivery, not when its report arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from flamecore.errors import TooManyFailedError
from flamecore.model.messages import Delivered
from flamecore.runtime.parts.counters import JobStats


class DeliveryTimes:
    """Delivery times of all rears, from their reports.

    Args:
        rears: Names of all rears.
    """

    def __init__(self, rears: Sequence[str]) -> None:
        self._steps: dict[str, deque[tuple[int, float]]] = {rear: deque() for rear in rears}

    def note(self, word: Delivered, now: float) -> None:
        """Record the deliveries of a report that arrived at `now`, in monotonic seconds."""
        if word.steps:
            self._steps[word.rear].extend([(time, now - ago) for time, ago in word.steps])
        else:
            self._steps[word.rear].append((word.time, now))

    def until(self, delivered: int) -> list[tuple[int, float]]:
        """Return the steps of delivery up to `delivered`, and forget them.

        Each is (time, when every rear had delivered everything below it).

        Args:
            delivered: Time below which every rear has reported everything as delivered; it never falls.
        """
        rears = self._steps.values()
        found = []
        if len(rears) == 1:  # as mostly: it waits for no other
            (steps,) = rears
            while steps and steps[0][0] <= delivered:
                found.append(steps.popleft())
            return found
        # Between two such times nothing was delivered, so records share the moment of the next one.
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


RATE_LOOKS: Final = 5
"""Seconds over which a rate is measured, or since the job began."""


class Rates:
    """Records read and outputs delivered per second, over the last seconds of a job."""

    def __init__(self) -> None:
        self._looks: deque[JobStats] = deque(maxlen=RATE_LOOKS + 1)

    async def watch(self, look: Callable[[], JobStats]) -> None:
        """Take the counts of the job every second, until cancelled."""
        while True:
            self._looks.append(look())
            await asyncio.sleep(1)

    def described(self, now: JobStats) -> dict[str, object]:
        """Return the rates up to `now` as JSON-like values."""
        before = self._looks[0] if self._looks else JobStats()
        passed = max(now.elapsed_s - before.elapsed_s, 1e-9)
        return {
            "records_per_s": (now.items_in - before.items_in) / passed,
            "outputs_per_s": {
                name: (count - before.items_out.get(name, 0)) / passed for name, count in now.items_out.items()
            },
        }


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
            `flamecore.model.settings.JobTable`.

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
