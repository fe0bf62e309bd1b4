"""Watermark strategies in the words of flows: `bounded_disorder(seconds=5)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flamecore.errors import GraphError
from flamecore.model.failure import shown_at_caller
from flamestream_windows.model.times import units_duration
from flamestream_windows.model.watermarks import (
    Arrival,
    Bounded,
    Folded,
    FromRecords,
    Monotonic,
    WatermarkStrategy,
)

__all__ = ["WatermarkStrategy", "arrival", "bounded_disorder", "fold", "from_records", "monotonic"]


@shown_at_caller
def monotonic() -> WatermarkStrategy:
    """Return the strategy of records whose timestamps never fall."""
    return Monotonic()


@shown_at_caller
def bounded_disorder(**units: Any) -> WatermarkStrategy:
    """Return the strategy of records that are at most so late: `seconds=5`.

    Raises:
        ValueError: The time is negative.
    """
    return Bounded(units_duration("bounded_disorder", units, "the disorder"))


@shown_at_caller
def from_records(function: Callable[[Any], Any]) -> WatermarkStrategy:
    """Return the strategy of records of which some say a watermark.

    Args:
        function: Returns it, or None, for a record.
    """
    _function("from_records", "function", function)
    return FromRecords(function)


@shown_at_caller
def fold(initial: Any, step: Callable[[Any, Any, int], tuple[Any, Any]]) -> WatermarkStrategy:
    """Return a strategy of one's own.

    Args:
        initial: The state before the first record.
        step: State, record, timestamp → next state, and a watermark or None.
    """
    _function("fold", "step", step)
    return Folded(initial, step)


@shown_at_caller
def arrival() -> WatermarkStrategy:
    """Return the strategy by which a record's timestamp is the time at which it came."""
    return Arrival()


def _function(call: str, argument: str, value: object) -> None:
    """Refuse what is no function."""
    if not callable(value):
        raise GraphError(f"{call}: {argument} is a function, not {value!r:.160}", vertex=None)
