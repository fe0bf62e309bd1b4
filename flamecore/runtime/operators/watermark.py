"""The watermark of an ordered operation: the least of what the origins of its marks have said last.

All partitions of the operation take all marks, at the same places, so all have one watermark. Marks of one place count
together: otherwise how many partitions say them would show.

A partition of another operation says a mark for each that came to it, so that what comes of marks does not depend on
what was said before a restart. Of a front only marks that are higher count: after a restart it says some again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from flamecore.model.meta import MIN_TIME
from flamecore.model.ordered import Origin, behind
from flamecore.model.vertices import Vertex

Stored = tuple[int, tuple[tuple[str, int, int], ...]]
"""(watermark, what each origin has said last: (name of the vertex, number of the front, value)). Of an operation before
it is the least that its partitions have said, with number 0: it may go on with others."""

Change = tuple[bytes, int, list[tuple[Origin, int | None]]]
"""(place, the watermark before, what some origins had said before)."""


class Watermark:
    """The marks of one operation on one worker.

    Attributes:
        value: The watermark; `MIN_TIME` until all origins have spoken.
        marks: A heap of the marks that wait: (place, origin, value).
        stored: What a snapshot holds of it at the last cut, by the names that are this worker's.
        said: The last mark of this partition; `MIN_TIME`: there is none.
    """

    def __init__(self) -> None:
        self.value = MIN_TIME
        self.marks: list[tuple[bytes, Origin, int]] = []
        self.stored: dict[Any, Any] = {}
        self.said = MIN_TIME
        self._said: dict[Origin, int | None] = {}
        self._vertices: dict[Origin, Vertex] = {}
        self._names: Sequence[Any] = ()
        self._send: Callable[[bytes, int], None] | None = None
        self._log: deque[Change] | None = None

    def connect(
        self,
        origins: Mapping[Origin, Vertex],
        send: Callable[[bytes, int], None],
        names: Sequence[Any] | None,
    ) -> None:
        """Connect it with the origins of its marks, and with those behind.

        Args:
            origins: All origins, with the vertices that say the marks.
            send: Sends a mark of this partition: (place, value).
            names: The names under which this worker stores what is shared; None: no snapshots are taken.
        """
        self._said = dict.fromkeys(origins)
        self._vertices, self._send = dict(origins), send
        if names is not None:
            self._names, self._log = names, deque()

    def put(self, place: bytes, origin: Origin, value: int) -> None:
        """Queue a mark."""
        heappush(self.marks, (place, origin, value))

    def advance(self, place: bytes) -> bool:
        """Take the marks of a place, the least; return whether they count."""
        marks, said, changed = self.marks, self._said, list[tuple[Origin, int | None]]()
        counts = False
        while marks and marks[0][0] == place:
            _, origin, value = heappop(marks)
            last = said[origin]
            grows = last is None or value > last
            counts |= grows or self._vertices[origin].ordered
            if grows:
                changed.append((origin, last))
                said[origin] = value
        if self._log is not None and changed:
            self._log.append((place, self.value, changed))
        if changed:
            values = [value for value in said.values() if value is not None]
            if len(values) == len(said):
                self.value = max(self.value, min(values))
        return counts

    def say(self, mark: bytes, value: int) -> None:
        """Say a mark of this partition that comes of the mark at a place."""
        if self._send is not None and self.value > MIN_TIME:
            self.said = value
            self._send(behind(mark), value)

    @property
    def holding(self) -> tuple[Vertex, int] | None:
        """Return the origin that holds it back, as vertex and number: the first that says least; None: it has none."""
        if not self._said:
            return None
        origin = min(
            self._said, key=lambda origin: (MIN_TIME if (said := self._said[origin]) is None else said, origin)
        )
        return self._vertices[origin], origin[1]

    def cut(self, before: bytes) -> Mapping[Any, Any]:
        """Return what has changed for a snapshot at an encoded time, by name."""
        log = self._log
        if log is None:
            return {}
        while log and log[0][0] < before:
            log.popleft()
        value, said = self.value, dict(self._said)
        for _, earlier, changed in reversed(log):
            value = earlier
            said.update(reversed(changed))
        last: dict[tuple[str, int], int] = {}
        for origin, each in said.items():
            if each is not None:
                name = self._stored_as(origin)
                last[name] = min(each, last.get(name, each))
        if not last:
            return {}
        shared = ((value, tuple(sorted((*name, each) for name, each in last.items()))), (), None)
        if next(iter(self.stored.values()), None) == shared:
            return {}
        self.stored = dict.fromkeys(self._names, shared)
        return self.stored

    def restore(self, found: Iterable[Stored]) -> None:
        """Go on from what a snapshot holds, the same under all names; a front that is new begins with the watermark."""
        for value, last in found:
            known = {(name, number): each for name, number, each in last}
            self.value = value
            begins = None if value == MIN_TIME else value
            self._said = {origin: known.get(self._stored_as(origin), begins) for origin in self._said}

    def _stored_as(self, origin: Origin) -> tuple[str, int]:
        vertex = self._vertices[origin]
        return vertex.name, 0 if vertex.ordered else origin[1]
