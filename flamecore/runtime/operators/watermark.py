"""The watermark of an ordered operation.

It is the least of the last marks of its origins. All partitions of the operation take all marks, at the same places, so
all have one watermark. Marks of one place count together: otherwise how many partitions say them would show.

A partition of another operation says a mark for each that came to it, so that what comes of marks does not depend on
what was said before a restart. Only increasing marks of a front count: after a restart it repeats some of them.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flamecore.model.meta import MIN_TIME
from flamecore.model.ordered import BEGUN, CLOSING, DONE, IDLE, Origin, behind
from flamecore.model.vertices import Vertex

Stored = tuple[int, tuple[tuple[Any, ...], ...]]
"""(watermark, last values of the origins: (name of the vertex, number of the front, value), and True behind the value
of a front that is idle). An operation before this one counts as one origin with number 0, and its value is the least
of its partitions: their number may be another after a restart."""

Change = tuple[bytes, int, list[tuple[Origin, int | None, bool]]]
"""(place, the watermark before, what some origins had said before, and whether they were idle)."""


class Watermark:
    """The marks of one operation on one worker.

    Attributes:
        value: The watermark; `MIN_TIME` until all origins have spoken.
        marks: The marks that wait, in order: (place, origin, value).
        stored: Its contents in a snapshot at the last cut, by the names that belong to this worker.
        said: The last mark of this partition; `MIN_TIME`: there is none.
    """

    def __init__(self) -> None:
        self.value = MIN_TIME
        # No heap: where each mark makes a turn due, the first that wait are looked at again behind each of them.
        self.marks: deque[tuple[bytes, Origin, int]] = deque()
        self.stored: dict[object, object] = {}
        self.said = MIN_TIME
        self._said: dict[Origin, int | None] = {}
        self._idle: frozenset[Origin] = frozenset()
        # Neither is stored: how far each front has been read at the time of a snapshot says as much.
        self._quiet: frozenset[Origin] = frozenset()
        self._done: frozenset[Origin] = frozenset()
        self._vertices: dict[Origin, Vertex] = {}
        self._names: Sequence[object] = ()
        self._send: Callable[[bytes, int], None] | None = None
        self._log: deque[Change] | None = None

    def connect(
        self,
        origins: Mapping[Origin, Vertex],
        send: Callable[[bytes, int], None],
        names: Sequence[object] | None,
        quiet: frozenset[Origin] = frozenset(),
        done: frozenset[Origin] = frozenset(),
    ) -> None:
        """Connect it with the origins of its marks, and with those behind.

        Args:
            origins: All origins, with the vertices that say the marks.
            send: Sends a mark of this partition: (place, value).
            names: The names under which this worker stores what is shared; None: no snapshots are taken.
            quiet: The origins that have had nothing new.
            done: Those of them that had ended before. Their last marks stay for the run in which they have something
                new: it must not matter whether a run in between was interrupted.
        """
        self._quiet, self._done = quiet, done
        self._said = dict.fromkeys(origins)
        self._vertices, self._send = dict(origins), send
        if names is not None:
            self._names, self._log = names, deque()

    def put(self, place: bytes, origin: Origin, value: int) -> None:
        """Queue a mark."""
        marks, mark = self.marks, (place, origin, value)
        if marks and mark < marks[-1]:
            insort(marks, mark)
        else:
            marks.append(mark)

    def advance(self, place: bytes) -> bool:
        """Take the marks of a place, the least; return whether they count.

        The end of a front, and its beginning after a restart, count only if the watermark grows by them. Otherwise what
        comes behind would depend on where a run has found nothing more.
        """
        marks, said, changed = self.marks, self._said, list[tuple[Origin, int | None, bool]]()
        before, counts, altered = self.value, False, False
        while marks and marks[0][0] == place:
            _, origin, value = marks.popleft()
            last, idle = said[origin], origin in self._idle
            if value == DONE:
                self._done |= {origin}
                altered = True
                continue
            if origin in self._quiet and value != IDLE:
                self._quiet -= {origin}
                altered = True
            if value == BEGUN:
                continue
            if value == IDLE:
                if not idle:
                    changed.append((origin, last, False))
                    self._idle |= {origin}
                    counts = True
                continue
            grows = last is None or value > last
            counts |= grows or idle or self._vertices[origin].ordered
            if grows or idle:
                changed.append((origin, last, idle))
                said[origin] = value if last is None else max(last, value)
                self._idle -= {origin}
        if self._log is not None and (changed or altered):
            self._log.append((place, self.value, changed))
        if changed or altered:
            self.value = max(self.value, self._agreed())
        return counts or self.value > before

    # Computed from all origins each time: the least rises with any of them, and fronts that become
    # idle, or end, drop out of it.
    def _agreed(self) -> int:
        """Return the least last mark of the origins neither idle nor at their end."""
        idle = self._idle
        awaited = {origin: value for origin, value in self._said.items() if origin not in idle | self._done}
        # Those that have had nothing new hold the watermark back, for they may still; alone they do not move it. So a
        # job that starts again, and finds nothing, closes no window.
        if awaited and self._quiet.issuperset(awaited):
            return MIN_TIME
        values = [value for value in awaited.values() if value != CLOSING]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return MIN_TIME  # until each origin has spoken, its first mark may be lower than those of all others
        if not known:  # the greatest, as if that origin had been the last to be idle: which one was must not matter
            said = [value for origin in idle if (value := self._said[origin]) is not None]
            known = [max(said, default=MIN_TIME) if idle or self._done else CLOSING]
        return min(known)

    def coming(self) -> Iterator[tuple[bytes, int | None]]:
        """Yield the places of the waiting marks, and the watermarks that they make.

        A watermark is None if it depends on several origins, or the only one is idle from there on.
        """
        value, alone = self.value, len(self._said) == 1
        for place, _, mark in self.marks:
            if mark != IDLE:
                value = max(value, mark)
            yield place, value if alone and mark != IDLE else None

    def say(self, mark: bytes, value: int) -> None:
        """Emit a mark of this partition, caused by the mark at a place."""
        if self._send is not None and self.value > MIN_TIME:
            self.said = value
            self._send(behind(mark), value)

    @property
    def holding(self) -> tuple[Vertex, int] | None:
        """Return the origin that holds the watermark back, as vertex and number.

        It is the first by name of those with the least last mark. None: there is no origin.
        """
        if not self._said:
            return None

        def place_of(origin: Origin) -> tuple[int, str, int]:
            said = self._said[origin]
            # Not by the index of the vertex: moving a line of the flow would name another.
            return MIN_TIME if said is None else said, self._vertices[origin].name, origin[1]

        awaited = [origin for origin in self._said if origin not in self._idle | self._done]
        origin = min(awaited or self._said, key=place_of)
        return self._vertices[origin], origin[1]

    def cut(self, before: bytes) -> Mapping[object, object]:
        """Return the changes for a snapshot at an encoded time, by name."""
        log = self._log
        if log is None:
            return {}
        while log and log[0][0] < before:
            log.popleft()
        value, said, idle = self.value, dict(self._said), set(self._idle)
        # Backwards from now: the log holds changes, not values, so a mark costs the same however
        # many origins there are.
        for _, earlier, changed in reversed(log):
            value = earlier
            for origin, each, was_idle in reversed(changed):
                said[origin] = each
                (idle.add if was_idle else idle.discard)(origin)
        last: dict[tuple[str, int], tuple[Any, ...]] = {}
        for origin, each in said.items():
            name = self._stored_as(origin)
            if origin in idle:
                last[name] = (MIN_TIME if each is None else each, True)
            elif each is not None:
                last[name] = min((each,), last.get(name, (each,)))
        if not last:
            return {}
        shared = ((value, tuple(sorted((*name, *each) for name, each in last.items()))), (), None)
        if next(iter(self.stored.values()), None) == shared:
            return {}
        self.stored = dict.fromkeys(self._names, shared)
        return self.stored

    def restore(self, found: Iterable[Stored]) -> None:
        """Restore from a snapshot; a new front begins with the watermark.

        A snapshot holds the same value under all names.
        """
        for value, last in found:
            known = {(name, number): each for name, number, each, *_ in last}
            idle = {(name, number) for name, number, _, *rest in last if rest}
            self.value = value
            begins = None if value == MIN_TIME else value
            self._said = {origin: known.get(self._stored_as(origin), begins) for origin in self._said}
            self._idle = frozenset(origin for origin in self._said if self._stored_as(origin) in idle)

    def _stored_as(self, origin: Origin) -> tuple[str, int]:
        vertex = self._vertices[origin]
        return vertex.name, 0 if vertex.ordered else origin[1]
