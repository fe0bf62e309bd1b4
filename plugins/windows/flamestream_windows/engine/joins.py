"""Joins in time and verbs by key, as stateful functions.

An element of two streams is a pair: its side, its value.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from flamestream_windows.model.aggregates import LEFT, RIGHT, How
from flamestream_windows.model.cells import Alarm, OrderedList, Stamped, StatefulFn, Timer, Value
from flamestream_windows.model.times import MIN

Both = tuple[Any, Any]
T = TypeVar("T")
U = TypeVar("U")


class _ByTime(StatefulFn[Hashable, T, U]):
    """A function that counts in microseconds."""

    micros = True


class IntervalJoin(_ByTime[tuple[int, Any], Both]):
    """Pairs of a left and a right element whose timestamps are close.

    Namely `left − before ≤ right ≤ left + after`.

    A pair has the later timestamp of both; an element without another its own, which it holds until none can come.
    """

    before: ClassVar[int]
    after: ClassVar[int]
    how: ClassVar[How]

    left = OrderedList()
    right = OrderedList()
    left_over = Timer("event")
    right_over = Timer("event")

    # An entry is (value, whether it is in a pair). A timer for each timestamp, with it as the tag, ends its entries.

    def on_element(self, key: Hashable, value: tuple[int, Any], at: int) -> Iterable[Stamped[Both]]:
        side, inner = value
        mine, others = (self.left, self.right) if side == LEFT else (self.right, self.left)
        start, end = (at - self.before, at + self.after) if side == LEFT else (at - self.after, at + self.before)
        found = others.between(start, end + 1)
        mine.add(at, (inner, bool(found)))
        self._set(side, at)
        if any(not paired for _, (_, paired) in found):
            others.update(start, end + 1, lambda entry: (entry[0], True))
            for time in sorted({time for time, (_, paired) in found if not paired}):
                self._set(RIGHT if side == LEFT else LEFT, time)
        for time, (other, _) in found:
            yield Stamped((inner, other) if side == LEFT else (other, inner), max(at, time))

    @classmethod
    def _held(cls, contents: Mapping[str, tuple[Any, ...]], alarms: Collection[Alarm]) -> int:
        alone = {"inner": (), "left": ("left",), "outer": ("left", "right")}[cls.how]
        return sum(not paired for side in alone for _, (_, paired) in contents.get(side, ()))

    def on_left_over(self, key: Hashable, at: int) -> Iterable[Stamped[Both]]:
        time = at - self.after - 1
        for _, (value, paired) in self.left.remove(time, time + 1):
            if self.how != "inner" and not paired:
                yield Stamped((value, None), time)

    def on_right_over(self, key: Hashable, at: int) -> Iterable[Stamped[Both]]:
        time = at - self.before - 1
        for _, (value, paired) in self.right.remove(time, time + 1):
            if self.how == "outer" and not paired:
                yield Stamped((None, value), time)

    def _set(self, side: int, at: int) -> None:
        """Set the end of the entries of a timestamp.

        They hold the output watermark while one may come out alone.
        """
        if side == LEFT:
            entries, over, end, alone = self.left, self.left_over, at + self.after + 1, self.how != "inner"
        else:
            entries, over, end, alone = self.right, self.right_over, at + self.before + 1, self.how == "outer"
        alone = alone and any(not paired for _, (_, paired) in entries.between(at, at + 1))
        over.set(end, output=at if alone else end, tag=str(at))


class AsOf(_ByTime[tuple[int, Any], Both]):
    """Each left element with the last right one that is not after it, or None.

    It waits until the watermark has passed it, so that the right one is known.
    """

    keep: ClassVar[int]

    waiting = OrderedList()
    right = OrderedList()
    known = Timer("event")
    over = Timer("event")

    # The first element of either list has a timer, with its time as the tag, and each timer sets the next: one that is
    # set again under its tag would not run when the input is over.

    def on_element(self, key: Hashable, value: tuple[int, Any], at: int) -> Iterable[Stamped[Both]]:
        side, inner = value
        mine = self.waiting if side == LEFT else self.right
        before = mine.first()
        mine.add(at, inner)
        if before is None or at < before[0]:
            if before is not None:
                (self.known if side == LEFT else self.over).clear(tag=str(before[0]))
            self._next(side)
        return ()

    @classmethod
    def _held(cls, contents: Mapping[str, tuple[Any, ...]], alarms: Collection[Alarm]) -> int:
        return len(contents.get("waiting", ()))

    def on_known(self, key: Hashable, at: int) -> Iterable[Stamped[Both]]:
        time = at - 1
        found = self.right.last(time - self.keep, at)
        for _, value in self.waiting.remove(time, at):
            yield Stamped((value, found[1] if found else None), time)
        self._next(LEFT)

    def on_over(self, key: Hashable, at: int) -> Iterable[Stamped[Both]]:
        self.right.remove(MIN, at - 2 * self.keep)
        self._next(RIGHT)
        return ()

    def _next(self, side: int) -> None:
        """Set the timer of the first element of a side."""
        first = (self.waiting if side == LEFT else self.right).first()
        if first is None:
            return
        at, _ = first
        if side == LEFT:
            self.known.set(at + 1, output=at, tag=str(at))
        else:
            # A left one that is late by `keep` may be that much later than this.
            self.over.set(at + 2 * self.keep + 1, tag=str(at))


class Distinct(_ByTime[Any, Any]):
    """The first element of a key within a time, on either side of it."""

    within: ClassVar[int]

    seen = OrderedList()
    forget = Timer("event")

    def on_element(self, key: Hashable, value: Any, at: int) -> Iterable[Any]:
        if self.seen.between(at - self.within + 1, at + self.within):
            return
        self.seen.add(at, True)
        # One that is late by nearly `within` may be that much later than what it repeats.
        self.forget.set(at + 2 * self.within, tag=str(at))
        yield value

    @classmethod
    def _held(cls, contents: Mapping[str, tuple[Any, ...]], alarms: Collection[Alarm]) -> int:
        return 0  # an element comes out at once or never

    def on_forget(self, key: Hashable, at: int) -> Iterable[Any]:
        self.seen.remove(MIN, at - 2 * self.within + 1)
        return ()


class Inactive(_ByTime[Any, tuple[Any, Any]]):
    """The key and its last element, once nothing has come for a time."""

    after: ClassVar[int]

    latest = Value()
    quiet = Timer("event")

    def on_element(self, key: Hashable, value: Any, at: int) -> Iterable[tuple[Any, Any]]:
        time, _ = self.latest.get((at, None))
        if at >= time:
            self.latest.set((at, value))
            self.quiet.set(at + self.after)
        return ()

    def on_quiet(self, key: Hashable, at: int) -> Iterable[tuple[Any, Any]]:
        _, value = self.latest.get()
        self.latest.clear()
        yield key, value


def interval_join(before: int, after: int, how: How = "inner") -> type[IntervalJoin]:
    """Return the interval join with these bounds, in microseconds.

    A right element may be up to `before` earlier and up to `after` later than the left one.
    """
    return type("IntervalJoin", (IntervalJoin,), {"before": before, "after": after, "how": how})


def as_of(keep: int) -> type[AsOf]:
    """Return the join with the last element before, at most so many microseconds old."""
    return type("AsOf", (AsOf,), {"keep": keep, "lateness": keep})


def distinct(within: int) -> type[Distinct]:
    """Return the function that lets one element of a key in a time pass.

    Args:
        within: Microseconds.
    """
    return type("Distinct", (Distinct,), {"within": within, "lateness": within - 1})


def inactive(after: int) -> type[Inactive]:
    """Return the function that tells of keys that have been silent.

    Args:
        after: For how many microseconds.
    """
    return type("Inactive", (Inactive,), {"after": after})
