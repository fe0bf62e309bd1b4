"""Aggregates in the words of flows: `aggregate(total=agg.sum(amount), n=agg.count())`."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from flamestream_windows.model.aggregates import (
    Aggregate,
    Collect,
    Count,
    Extreme,
    Fold,
    Function,
    Mean,
    Reduce,
    Sum,
    Top,
    named,
)

__all__ = ["Aggregate", "collect", "count", "fold", "max", "mean", "min", "named", "reduce", "sum", "top"]


def count() -> Aggregate:
    """Return the number of elements."""
    return Count()


def sum(of: Function | None = None) -> Aggregate:
    """Return the sum of what `of` makes of each element; 0 of none."""
    return Sum(of)


def mean(of: Function | None = None) -> Aggregate:
    """Return the mean of what `of` makes of each element; None of none."""
    return Mean(of)


def min(of: Function | None = None) -> Aggregate:
    """Return the least of what `of` makes of each element; None of none."""
    return Extreme(of, builtins.min)


def max(of: Function | None = None) -> Aggregate:
    """Return the greatest of what `of` makes of each element; None of none."""
    return Extreme(of, builtins.max)


def top(n: int, by: Function) -> Aggregate:
    """Return the `n` elements of which `by` makes most, the first one first."""
    if n < 1:
        raise ValueError(f"the top {n} are nobody; n is at least 1")
    return Top(n, by)


def fold(initial: Any, step: Callable[[Any, Any], Any], *, merge: Callable[[Any, Any], Any] | None = None) -> Aggregate:
    """Return the elements folded into a value. `step` changes none in place.

    Args:
        initial: The value of no element.
        step: Value, element → next value.
        merge: Value of two, for windows that join.
    """
    return Fold(initial, step, merge)


def reduce(function: Callable[[Any, Any], Any]) -> Aggregate:
    """Return the elements reduced, two to one; None of none."""
    return Reduce(function)


def collect() -> Aggregate:
    """Return a list of the elements, in the order in which they came."""
    return Collect()
