"""Aggregates: what the elements of a window come to, one accumulator a window.

Accumulators are never changed in place: `add` and `merge` return new ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add as plus
from typing import Any, ClassVar, Final, Literal

Function = Callable[[Any], Any]


class Aggregate(ABC):
    """An aggregate.

    Subclass it for one of your own: a frozen dataclass, so that flows compare.

    Attributes:
        invertible: Whether `remove` takes an element back, so that retractions may come.
    """

    invertible: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        # One that adds in a way of its own adds several so, too, and not as the aggregate that it is derived from.
        if "add" in cls.__dict__ and "add_all" not in cls.__dict__:
            cls.add_all = Aggregate.add_all  # type: ignore[method-assign]  # as if it were written there

    @property
    def mergeable(self) -> bool:
        """Return whether accumulators can be merged, as merging windows require."""
        return True

    @abstractmethod
    def create(self) -> Any:
        """Return the accumulator of no element."""

    @abstractmethod
    def add(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator with one more element."""

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        """Return the accumulator with several more elements, added one after another."""
        return reduce(self.add, values, accumulator)

    def remove(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator with one element less."""
        raise NotImplementedError(f"{self} cannot take elements back")

    @abstractmethod
    def merge(self, first: Any, second: Any) -> Any:
        """Return the accumulator of the elements of two, those of `first` first."""

    def result(self, accumulator: Any) -> Any:
        """Return the value of a pane."""
        return accumulator


def _applied(function: Function | None, value: Any) -> Any:
    return value if function is None else function(value)


def _all_applied(function: Function | None, values: Sequence[Any]) -> Sequence[Any]:
    # Not by `map`: a function that raises StopIteration would end it, and the rest were not added.
    return values if function is None else [function(value) for value in values]


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of elements."""

    invertible: ClassVar[bool] = True

    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator + 1

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        return accumulator + len(values)

    def remove(self, accumulator: Any, value: Any) -> Any:
        return accumulator - 1

    def merge(self, first: Any, second: Any) -> Any:
        return first + second


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of the elements, or of what a function makes of each; 0 of none."""

    of: Function | None = None
    invertible: ClassVar[bool] = True

    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator + _applied(self.of, value)

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        # Not `sum`, which adds floats with less of an error: the same values in two calls would come to another number.
        return reduce(plus, _all_applied(self.of, values), accumulator)

    def remove(self, accumulator: Any, value: Any) -> Any:
        return accumulator - _applied(self.of, value)

    def merge(self, first: Any, second: Any) -> Any:
        return first + second


@dataclass(frozen=True)
class Mean(Aggregate):
    """The mean of the elements, or of what a function makes of each; None of none."""

    of: Function | None = None
    invertible: ClassVar[bool] = True

    def create(self) -> Any:
        return (0, 0)

    def add(self, accumulator: Any, value: Any) -> Any:
        return (accumulator[0] + 1, accumulator[1] + _applied(self.of, value))

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        count, total = accumulator
        return (count + len(values), reduce(plus, _all_applied(self.of, values), total))

    def remove(self, accumulator: Any, value: Any) -> Any:
        return (accumulator[0] - 1, accumulator[1] - _applied(self.of, value))

    def merge(self, first: Any, second: Any) -> Any:
        return (first[0] + second[0], first[1] + second[1])

    def result(self, accumulator: Any) -> Any:
        return accumulator[1] / accumulator[0] if accumulator[0] else None


@dataclass(frozen=True)
class Reduce(Aggregate):
    """The elements reduced, two to one; None of none."""

    function: Callable[[Any, Any], Any]

    def create(self) -> Any:
        return ()

    def add(self, accumulator: Any, value: Any) -> Any:
        return (self.function(accumulator[0], value),) if accumulator else (value,)

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        several = chain(accumulator, values)
        return (reduce(self.function, several),) if accumulator or values else ()

    def merge(self, first: Any, second: Any) -> Any:
        return (self.function(first[0], second[0]),) if first and second else first or second

    def result(self, accumulator: Any) -> Any:
        return accumulator[0] if accumulator else None


@dataclass(frozen=True)
class Extreme(Aggregate):
    """The least or greatest of what a function makes of each element; None of none."""

    of: Function | None
    choose: Callable[[Any, Any], Any]

    def create(self) -> Any:
        return ()

    def add(self, accumulator: Any, value: Any) -> Any:
        return self.merge(accumulator, (_applied(self.of, value),))

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        several = chain(accumulator, _all_applied(self.of, values))
        if self.choose is min or self.choose is max:
            # Given several, they compare each with the one chosen so far, as they do with two.
            return (self.choose(several),) if accumulator or values else ()
        return (reduce(self.choose, several),) if accumulator or values else ()

    def merge(self, first: Any, second: Any) -> Any:
        return (self.choose(first[0], second[0]),) if first and second else first or second

    def result(self, accumulator: Any) -> Any:
        return accumulator[0] if accumulator else None


@dataclass(frozen=True)
class Top(Aggregate):
    """The n greatest elements by a function, the greatest first.

    Among equal ones those that came first.
    """

    count: int
    by: Function

    def create(self) -> Any:
        return ()

    def add(self, accumulator: Any, value: Any) -> Any:
        return self.merge(accumulator, ((self.by(value), value),))

    def merge(self, first: Any, second: Any) -> Any:
        ranked = sorted((*first, *second), key=lambda pair: pair[0], reverse=True)  # stable: the first come first
        return tuple(ranked[: self.count])

    def result(self, accumulator: Any) -> Any:
        return [value for _, value in accumulator]


@dataclass(frozen=True)
class Fold(Aggregate):
    """The elements folded, one after another, into an initial value.

    Attributes:
        initial: The value of no element. It is shared: `step` returns a new one.
        step: Value, element → value.
        join: Value, value → value, for windows that merge.
    """

    initial: Any
    step: Callable[[Any, Any], Any]
    join: Callable[[Any, Any], Any] | None = None

    @property
    def mergeable(self) -> bool:
        return self.join is not None

    def create(self) -> Any:
        return self.initial

    def add(self, accumulator: Any, value: Any) -> Any:
        return self.step(accumulator, value)

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        return reduce(self.step, values, accumulator)

    def merge(self, first: Any, second: Any) -> Any:
        if self.join is None:
            raise NotImplementedError("a fold has no merge; give it one")
        return self.join(first, second)


@dataclass(frozen=True)
class Collect(Aggregate):
    """All elements, in the order in which they came."""

    invertible: ClassVar[bool] = True

    def create(self) -> Any:
        return ()

    def add(self, accumulator: Any, value: Any) -> Any:
        return (*accumulator, value)

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        return (*accumulator, *values)

    def remove(self, accumulator: Any, value: Any) -> Any:
        at = accumulator.index(value)
        return (*accumulator[:at], *accumulator[at + 1 :])

    def merge(self, first: Any, second: Any) -> Any:
        return (*first, *second)

    def result(self, accumulator: Any) -> Any:
        return list(accumulator)


@dataclass(frozen=True)
class Named(Aggregate):
    """Several aggregates of the same elements, each with a name."""

    parts: tuple[tuple[str, Aggregate], ...]

    @property
    def mergeable(self) -> bool:
        return all(part.mergeable for _, part in self.parts)

    @property
    def takes_back(self) -> bool:
        """Return whether each of them is invertible."""
        return all(invertible(part) for _, part in self.parts)

    def create(self) -> Any:
        return tuple(part.create() for _, part in self.parts)

    def add(self, accumulator: Any, value: Any) -> Any:
        return tuple(part.add(own, value) for (_, part), own in zip(self.parts, accumulator, strict=True))

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        return tuple(part.add_all(own, values) for (_, part), own in zip(self.parts, accumulator, strict=True))

    def remove(self, accumulator: Any, value: Any) -> Any:
        return tuple(part.remove(own, value) for (_, part), own in zip(self.parts, accumulator, strict=True))

    def merge(self, first: Any, second: Any) -> Any:
        return tuple(part.merge(a, b) for (_, part), a, b in zip(self.parts, first, second, strict=True))

    def result(self, accumulator: Any) -> Any:
        return {name: part.result(own) for (name, part), own in zip(self.parts, accumulator, strict=True)}


def invertible(aggregate: Aggregate) -> bool:
    """Return whether retractions of elements may come to an aggregate."""
    return aggregate.takes_back if isinstance(aggregate, Named) else aggregate.invertible


How = Literal["inner", "left", "outer"]
LEFT: Final = 0
RIGHT: Final = 1


@dataclass(frozen=True)
class Cogroup(Aggregate):
    """Elements of two streams.

    An element is a pair: `LEFT` or `RIGHT`, and its value.
    """

    invertible: ClassVar[bool] = True

    def create(self) -> Any:
        return ((), ())

    def add(self, accumulator: Any, value: Any) -> Any:
        left, right = accumulator
        side, inner = value
        return ((*left, inner), right) if side == LEFT else (left, (*right, inner))

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        if len(values) == 1:
            return self.add(accumulator, values[0])
        left, right = accumulator
        ours = [inner for side, inner in values if side == LEFT]
        theirs = [inner for side, inner in values if side != LEFT]
        return ((*left, *ours), (*right, *theirs))

    def remove(self, accumulator: Any, value: Any) -> Any:
        side, inner = value
        kept = list(accumulator[side])
        kept.remove(inner)
        return (tuple(kept), accumulator[RIGHT]) if side == LEFT else (accumulator[LEFT], tuple(kept))

    def merge(self, first: Any, second: Any) -> Any:
        return ((*first[0], *second[0]), (*first[1], *second[1]))

    def result(self, accumulator: Any) -> Any:
        return (list(accumulator[0]), list(accumulator[1]))


@dataclass(frozen=True)
class Joined(Cogroup):
    """The pairs of the elements of two streams in one window.

    By `how` an element without another is paired with None.
    """

    how: How = "inner"

    def result(self, accumulator: Any) -> Any:
        left, right = accumulator
        if self.how == "inner" and not (left and right):
            return []
        pairs: list[tuple[Any, Any]] = [(one, other) for one in left for other in right]
        if not pairs and self.how != "inner":
            pairs = [(one, None) for one in left]
            if self.how == "outer":
                pairs += [(None, other) for other in right]
        return pairs


def named(aggregates: Mapping[str, Aggregate]) -> Named:
    """Return one aggregate of several."""
    return Named(tuple(aggregates.items()))
