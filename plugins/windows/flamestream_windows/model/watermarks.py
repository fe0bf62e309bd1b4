"""Watermark strategies: folds over the records of a front, in order.

A strategy is told each record's timestamp and value and says a watermark: timestamps below it are believed complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flamestream_windows.model.times import MIN, instant, spell


class WatermarkStrategy(ABC):
    """A watermark strategy, immutable. The state of a fold is plain data beside it."""

    def start(self) -> Any:
        """Return the state before the first record."""
        return None

    @abstractmethod
    def observe(self, state: Any, value: Any, at: int) -> tuple[Any, int | None]:
        """Return the state after a record, and the new watermark; None: as before.

        Args:
            state: The state before.
            value: The record.
            at: Its timestamp.
        """


@dataclass(frozen=True)
class Monotonic(WatermarkStrategy):
    """Timestamps never fall."""

    def observe(self, state: Any, value: Any, at: int) -> tuple[Any, int | None]:
        return None, at

    def __str__(self) -> str:
        return "monotonic()"


@dataclass(frozen=True)
class Bounded(WatermarkStrategy):
    """Timestamps fall behind the greatest one before by at most a bound."""

    bound: int

    def observe(self, state: Any, value: Any, at: int) -> tuple[Any, int | None]:
        return None, at - self.bound

    def __str__(self) -> str:
        return f"bounded_disorder({spell(self.bound)})"


@dataclass(frozen=True)
class FromRecords(WatermarkStrategy):
    """Some records say the watermark themselves; of others the function returns None."""

    function: Callable[[Any], Any]

    def observe(self, state: Any, value: Any, at: int) -> tuple[Any, int | None]:
        said = self.function(value)
        return None, None if said is None else instant(said)


@dataclass(frozen=True)
class Folded(WatermarkStrategy):
    """A fold of the user's: its function returns a state, and a watermark or None."""

    initial: Any
    function: Callable[[Any, Any, int], tuple[Any, Any]]

    def start(self) -> Any:
        return self.initial

    def observe(self, state: Any, value: Any, at: int) -> tuple[Any, int | None]:
        state, said = self.function(state, value, at)
        return state, None if said is None else instant(said)


@dataclass(frozen=True)
class Arrival(WatermarkStrategy):
    """The timestamp of a record is its global time: nothing is ever late."""

    def observe(self, state: Any, value: Any, at: int) -> tuple[Any, int | None]:
        return None, at

    def __str__(self) -> str:
        return "arrival()"


class Estimate(NamedTuple):
    """The record of an estimator: what a front has said.

    Attributes:
        state: State of the strategy.
        mark: The last watermark that was said.
        greatest: The greatest timestamp that counted.
        ahead: Number of timestamps that were too far ahead to count.
    """

    state: Any
    mark: int = MIN
    greatest: int = MIN
    ahead: int = 0


@dataclass(frozen=True)
class Estimator:
    """A strategy at a front, which says a mark when it has grown by a step.

    Attributes:
        strategy: The strategy.
        step: Marks are multiples of it, in microseconds.
        max_ahead: Maximum distance of a timestamp that counts, ahead of a reference, or None: of the record's global
            time where the clock is the wall's, else of the greatest timestamp before.
    """

    strategy: WatermarkStrategy
    step: int = 1
    max_ahead: int | None = None

    def start(self) -> Estimate:
        """Return the record before the first of the front's."""
        return Estimate(self.strategy.start())

    def observe(self, estimate: Estimate, value: Any, at: int, wall: int | None = None) -> tuple[Estimate, int | None]:
        """Return the record after a front's record, and the mark behind it, or None.

        Args:
            estimate: The record before.
            value: The front's record.
            at: Its timestamp.
            wall: Its global time in microseconds, where the clock is the wall's.
        """
        state, mark, greatest, ahead = estimate
        if self.max_ahead is not None:
            ground = wall if wall is not None else greatest if greatest > MIN else at
            if at - ground > self.max_ahead:
                return Estimate(state, mark, greatest, ahead + 1), None
        state, said = self.strategy.observe(state, value, at)
        greatest = max(greatest, at)
        said = None if said is None else said - said % self.step
        if said is None or said <= mark:
            return Estimate(state, mark, greatest, ahead), None
        return Estimate(state, said, greatest, ahead), said


def default_step(*sizes: int) -> int:
    """Return the step for windows of these sizes: a tenth of the least.

    The sizes are sizes, periods or gaps. A step that divides the size costs no delay.
    """
    least = min(sizes, default=10)
    return next((least // parts for parts in range(10, 0, -1) if least % parts == 0 and least >= parts), 1)
