"""When what was delivered: release latency ends at the delivery, not when word of it comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from flamecore.messages import Delivered


class Moments:
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
