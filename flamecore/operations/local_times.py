"""The earlier ordering model: traces of local times (papers 001 and 004, section 3.1), for the generic operations.

The order of an item is its global time and a trace that every operation appends to: (logical time, child id), where
the logical time counts what that operation has processed. An item *invalidates* another of the same global time if
its trace is greater and the first difference is in a logical time: it is a later recomputation of the same thing. If
the first difference is in a child id the two are siblings, and both stand. There are no tombstones: a bucket, and
the barrier, drop what a newcomer invalidates, and a newcomer that is invalidated by what is there.

    order = global time (12 bytes) | logical time (8) child id (4) | …

**Its limit**: it can replace, not retract. Where a recomputation gives less than before (a map drops it now) or goes to
another bucket (its key has changed), nothing newer comes to where the old one lies, and the old one stays. Use it
only where every recomputation reaches the same buckets and the barrier; the default model has no such limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flamecore.barrier import Columns
from flamecore.graph import Broadcast, ByTime, Grouping, Map, Merge, Sink, Vertex
from flamecore.meta import GLOBAL_TIME_BYTES, encode_time
from flamecore.operations import Fail, Step, each
from flamecore.operations.compiler import Compiler
from flamecore.operations.grouping import BucketNames

_ELEMENT: Final = 12
_LOGICAL: Final = 8


def invalidates(newer: bytes, older: bytes) -> bool:
    """Whether the item of order `newer` invalidates the one of order `older`: a partial order.

    >>> from flamecore.meta import GlobalTime
    >>> start = GlobalTime(1).encode()
    >>> invalidates(start + element(2, 0), start + element(1, 0))
    True
    >>> invalidates(start + element(1, 1), start + element(1, 0))  # siblings
    False
    """
    if newer <= older or newer[:GLOBAL_TIME_BYTES] != older[:GLOBAL_TIME_BYTES]:
        return False
    for place in range(GLOBAL_TIME_BYTES, min(len(newer), len(older)), _ELEMENT):
        ours, theirs = newer[place : place + _ELEMENT], older[place : place + _ELEMENT]
        if ours != theirs:
            return ours[:_LOGICAL] != theirs[:_LOGICAL]
    return False  # one is derived from the other


def element(logical_time: int, child: int) -> bytes:
    """One element of a trace."""
    return logical_time.to_bytes(_LOGICAL, "big") + child.to_bytes(_ELEMENT - _LOGICAL, "big")


class LocalTimesCompiler(Compiler):
    """Compiles the generic operations to steps of this model.

    Barriers are partitioned by global time, so that an item and what invalidates it meet whatever way they took.
    """

    sorts = False  # local times are given as items go in

    def operation(self, vertex: Vertex) -> Step:
        clock = _Clock()
        if isinstance(vertex, Map):
            return _map_step(vertex, clock, self.successor(vertex), self.fail_at(vertex))
        if isinstance(vertex, Broadcast):
            return _broadcast_step(clock, [self.way(vertex, end) for end in self.plan.graph.successors(vertex)])
        if isinstance(vertex, Merge):
            return self.merge(vertex)
        if isinstance(vertex, Grouping):
            return self.stateful(
                vertex, _LocalTimesGrouping(vertex, clock, self.successor(vertex), self.fail_at(vertex))
            )
        return super().operation(vertex)

    def input_of(self, vertex: Vertex) -> Step:
        if not isinstance(vertex, Sink) or vertex in self.inputs:
            return super().input_of(vertex)
        barrier = self.compiled.barriers[vertex.name] = LatestOnly()
        placed = replace(vertex, route=ByTime())
        self.inputs[vertex], self.runs[vertex] = self.arrange(placed, barrier.step, each(barrier.step))
        return self.inputs[vertex]


class _Clock:
    """The logical time of one physical instance: it ticks once for each item processed."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now


def _map_step(vertex: Map, clock: _Clock, emit: Step, fail: Fail) -> Step:
    function, shape = vertex.function, vertex.shape

    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            result = function(payload)
            if shape == "many":
                outputs = list(result)
            elif shape == "one":
                outputs = [result]
            else:
                outputs = [payload] if shape == "inspect" or result else []
        except Exception as error:  # noqa: BLE001 - whatever user code raises is shown to the user
            return fail(order, trace, alive, payload, error)
        now = clock.tick()
        for child, output in enumerate(outputs):
            emit(order + element(now, child), trace, alive, output)
        return None

    return step


def _broadcast_step(clock: _Clock, successors: Sequence[Step]) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        now = clock.tick()
        for child, emit in enumerate(successors):
            emit(order + element(now, child), trace, alive, payload)

    return step


def _place(entries: list[tuple[bytes, Any]], order: bytes) -> tuple[int, bool]:
    """Drop what a newcomer invalidates; returns where it belongs, and whether it is wanted at all."""
    moment = order[:GLOBAL_TIME_BYTES]
    first = bisect_left(entries, (moment,))
    end = first
    while end < len(entries) and entries[end][0].startswith(moment):
        end += 1
    if any(invalidates(other, order) for other, _ in entries[first:end]):
        return 0, False
    entries[first:end] = [entry for entry in entries[first:end] if not invalidates(order, entry[0])]
    return bisect_left(entries, (order,)), True


class _LocalTimesGrouping:
    """A grouping that replaces: after an insertion it emits again every window that holds the newcomer."""

    def __init__(self, vertex: Grouping, clock: _Clock, emit: Step, fail: Fail) -> None:
        self.retracted = 0
        self.names: list[Any] = []
        self.window = vertex.window
        self.buckets: dict[Any, list[tuple[bytes, Any]]] = {}
        self.step = self._compile(BucketNames(vertex).name_of, clock, emit, fail)

    def _compile(self, name_of: Callable[[Any], Any], clock: _Clock, emit: Step, fail: Fail) -> Step:
        def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            try:
                entries = self.buckets.setdefault(name_of(payload), [])
            except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
                return fail(order, trace, alive, payload, error)
            place, wanted = _place(entries, order)
            if not wanted:
                return None
            self.retracted += min(len(entries) - place, self.window - 1)
            entries.insert(place, (order, payload))
            now = element(clock.tick(), 0)
            windows = [
                (entries[end - 1][0] + now, tuple([part for _, part in entries[max(end - self.window, 0) : end]]))
                for end in range(place + 1, min(place + self.window, len(entries)) + 1)
            ]
            for window_order, window in windows:
                emit(window_order, trace, True, window)
            return None

        return step

    def forget(self, before: bytes) -> None:
        """Drop what no repair can reach: all but the last window - 1 entries older than `before` (an encoded time)."""
        for entries in self.buckets.values():
            drop = bisect_left(entries, (before,)) - self.window + 1
            if drop > 0:
                del entries[:drop]

    def settle(self, before: bytes) -> None:
        raise NotImplementedError("this model takes no snapshots")

    def cut(self, before: bytes) -> Sequence[Mapping[Any, Any]]:
        raise NotImplementedError("this model takes no snapshots")

    def held(self, names: Sequence[Any]) -> Mapping[Any, Any]:
        raise NotImplementedError("this model takes no snapshots")

    def restore(self, held: Mapping[Any, Any]) -> None:
        raise NotImplementedError("this model takes no snapshots")

    def groups_of(self, names: Sequence[Any]) -> Sequence[int]:
        raise NotImplementedError("this model takes no snapshots")


class LatestOnly:
    """The barrier of this model: of recomputations only the latest is held. Released as by
    `flamecore.barrier.Barrier`."""

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, Any]] = []

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        place, wanted = _place(self._entries, order)
        if wanted:
            self._entries.insert(place, (order, payload))

    def release(self, time: int) -> list[tuple[bytes, Any]]:
        """Take out what has a time strictly below `time`, in order."""
        end = bisect_left(self._entries, (encode_time(time),))
        released, self._entries[:end] = self._entries[:end], []
        return released

    def columns(self, time: int) -> Columns:
        """The same, orders and payloads apart."""
        released = self.release(time)
        return [order for order, _ in released], [payload for _, payload in released]
