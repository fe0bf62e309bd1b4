"""Aggregates for flows: `aggregate(total=agg.sum(amount), n=agg.count())`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from flamecore.errors import GraphError
from flamecore.model.failure import shown_at_caller
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
from flamestream_windows.model.times import require_whole

__all__ = ["Aggregate", "collect", "count", "fold", "max", "mean", "min", "named", "reduce", "sum", "top"]


@shown_at_caller
def count() -> Aggregate:
    """Return the number of elements."""
    return Count()


@shown_at_caller
def sum(of: Function | None = None) -> Aggregate:
    """Return the sum of what `of` makes of each element; 0 of none."""
    _function("sum", "of", of)
    return Sum(of)


@shown_at_caller
def mean(of: Function | None = None) -> Aggregate:
    """Return the mean of what `of` makes of each element; None of none."""
    _function("mean", "of", of)
    return Mean(of)


@shown_at_caller
def min(of: Function | None = None) -> Aggregate:
    """Return the least of what `of` makes of each element; None of none."""
    _function("min", "of", of)
    return Extreme(of, builtins.min)


@shown_at_caller
def max(of: Function | None = None) -> Aggregate:
    """Return the greatest of what `of` makes of each element; None of none."""
    _function("max", "of", of)
    return Extreme(of, builtins.max)


@shown_at_caller
def top(n: int, by: Function) -> Aggregate:
    """Return the `n` elements of which `by` makes most, the first one first."""
    _function("top", "by", by)
    require_whole("top", "n", n)
    if n < 1:
        raise ValueError(f"top {n} has no elements; n is at least 1")
    return Top(n, by)


@shown_at_caller
def fold(initial: Any, step: Callable[[Any, Any], Any], *, merge: Callable[[Any, Any], Any] | None = None) -> Aggregate:
    """Return the elements folded into a value. `step` changes none in place.

    Args:
        initial: The value of no element: an immutable value.
        step: Value, element → next value.
        merge: Value of two, for windows that join.

    Raises:
        ValueError: The initial value, or a part of it, can be changed in place.
    """
    _function("fold", "step", step)
    _function("fold", "merge", merge)
    changeable = _changeable(initial)
    if changeable is not None:
        name = type(changeable).__qualname__
        raise ValueError(
            f"the initial value {'is' if changeable is initial else 'has'} a {name}, which can be changed in place; "
            "all keys and windows begin with it, so use an immutable one (number, text, tuple, frozen dataclass)"
        )
    return Fold(initial, step, merge)


@shown_at_caller
def reduce(function: Callable[[Any, Any], Any]) -> Aggregate:
    """Return the elements reduced, two to one; None of none."""
    _function("reduce", "function", function)
    return Reduce(function)


@shown_at_caller
def collect() -> Aggregate:
    """Return a list of the elements, in the order in which they came.

    Of windows that are merged the lists are put together one behind the other (see `Windowed.collect`).
    """
    return Collect()


def _changeable(value: Any) -> Any:
    """Return a value, or a part of it, that can be changed in place; None: there is none."""
    if isinstance(value, (list, dict, set, bytearray)):
        return value
    parts: Iterable[Any] = ()
    if isinstance(value, tuple):
        parts = value
    elif is_dataclass(value) and not isinstance(value, type):
        if not value.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # it has them
            return value
        parts = (getattr(value, each.name) for each in fields(value))
    return next((found for part in parts if (found := _changeable(part)) is not None), None)


def _function(call: str, argument: str, value: object) -> None:
    """Refuse what is no function."""
    if not (value is None or callable(value)):
        field = isinstance(value, str) and value.isidentifier()
        hint = f"For the field of that name: lambda item: item.{value}" if field else ""
        raise GraphError(f"{call}: {argument} is a function, not {value!r:.160}", hint=hint, vertex=None)
