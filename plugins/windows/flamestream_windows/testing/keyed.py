"""Many keys: records, what is due when, and the output watermark of all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

from flamecore.model.hashing import canonical
from flamecore.model.ordered import rank_of
from flamestream_windows.engine.values import Clock, Element, Input, Moment, Output, Watermark
from flamestream_windows.model.times import MIN

R = TypeVar("R")


class Work(Protocol[R]):
    """An operation on one key at a time, such as a grouping."""

    @property
    def nothing(self) -> R:
        """Return the initial record of a key."""

    def step(self, record: R, given: Input, moment: Moment, key: Any = None) -> tuple[R, list[Output]]:
        """Return the record after an input, and what comes of it."""

    def hold(self, record: R) -> int | None:
        """Return where a key holds the output watermark, or None."""

    def due(self, record: R, moment: Moment) -> tuple[int | None, int | None]:
        """Return the least watermark and the least clock at which a step may do anything."""


Keyed = tuple[Any, Output]
"""A key, and an output of it."""


class Keys(Generic[R]):
    """The keys of an operation, one after another in one place.

    Attributes:
        records: The records of all keys that anything is known of. They are replaced, never changed.
        watermark: The input watermark.
        clock: Processing time.
    """

    def __init__(self, work: Work[R], *, watermark: int = MIN, clock: int = MIN) -> None:
        self.work = work
        self.records: dict[Hashable, R] = {}
        self.watermark = watermark
        self.clock = clock
        # Times at which something is due or held. An entry counts if it is still noted of its key.
        self._due: dict[Hashable, tuple[int | None, int | None, int | None]] = {}
        self._heaps: tuple[list[tuple[int, int, Hashable]], ...] = ([], [], [])
        self._entries = 0

    @property
    def output(self) -> int:
        """Return the output watermark: the least of the keys'."""
        held = self._first(2)
        return self.watermark if held is None else min(self.watermark, held)

    def element(self, key: Hashable, element: Element) -> list[Keyed]:
        """Take an element of a key."""
        return self.give(key, element)

    def advance(self, to: int) -> list[Keyed]:
        """Move the input watermark; return outputs by place and hash of the key."""
        if to <= self.watermark:
            return []
        found = self._pass(Watermark(to), self._up_to(0, to))
        self.watermark = to
        return self._noted(found)

    def tick(self, to: int) -> list[Keyed]:
        """Move the clock; return outputs by place and hash of the key."""
        if to <= self.clock:
            return []
        found = self._pass(Clock(to), self._up_to(1, to))
        self.clock = to
        return self._noted(found)

    def give(self, key: Hashable, given: Input) -> list[Keyed]:
        """Step one key."""
        record, outputs = self.work.step(self.record(key), given, self.moment, key)
        self._keep(key, record)
        self._note(key)
        return [(key, output) for output in outputs]

    def record(self, key: Hashable) -> R:
        """Return the record of a key."""
        return self.records.get(key, self.work.nothing)

    def restore(self, records: Iterable[tuple[Hashable, R]]) -> None:
        """Go on from records of a snapshot."""
        for key, record in records:
            self._keep(key, record)
            self._note(key)

    @property
    def moment(self) -> Moment:
        """Return the watermark and the clock, before the next step."""
        return Moment(self.watermark, self.clock)

    def _pass(self, given: Input, keys: list[Hashable]) -> list[tuple[Hashable, list[Output]]]:
        moment = self.moment
        try:
            stepped = [(key, *self.work.step(self.records[key], given, moment, key)) for key in keys]
        except BaseException:  # all or none: a function that raises has changed nothing
            for key in keys:
                self._note(key)
            raise
        for key, record, _ in stepped:
            self._keep(key, record)
        return [(key, outputs) for key, _, outputs in stepped]

    def _noted(self, found: list[tuple[Hashable, list[Output]]]) -> list[Keyed]:
        """Note what is due next, and return the outputs of several keys in order."""
        for key, _ in found:
            self._note(key)
        every = [(key, output) for key, outputs in found for output in outputs]
        if len(found) > 1:
            ranks = {key: (rank_of(key), canonical(key)) for key, outputs in found if outputs}
            every.sort(key=lambda pair: (getattr(pair[1], "place", ()), ranks[pair[0]]))
        return every

    def _keep(self, key: Hashable, record: R) -> None:
        if record is self.work.nothing:
            self.records.pop(key, None)
        else:
            self.records[key] = record

    def _note(self, key: Hashable) -> None:
        record = self.records.get(key)
        if record is None:
            self._due.pop(key, None)
            return
        before = self._due.get(key, (None, None, None))
        now = (*self.work.due(record, self.moment), self.work.hold(record))
        self._due[key] = now
        for at, (time, earlier) in enumerate(zip(now, before, strict=True)):
            if time is not None and time != earlier:
                self._entries += 1
                heappush(self._heaps[at], (time, self._entries, key))
                if len(self._heaps[at]) > 2 * len(self._due) + 64:
                    self._tidy(at)

    def _tidy(self, at: int) -> None:
        """Forget entries that do not count, so that there are not many more than keys."""
        heap = self._heaps[at]
        heap.clear()
        for number, (key, noted) in enumerate(self._due.items()):
            if (time := noted[at]) is not None:
                heap.append((time, number, key))
        heapify(heap)
        self._entries = max(self._entries, len(heap))

    def _first(self, at: int) -> int | None:
        heap = self._heaps[at]
        while heap:
            time, _, key = heap[0]
            if self._due.get(key, (None, None, None))[at] == time:
                return time
            heappop(heap)
        return None

    def _up_to(self, at: int, time: int) -> list[Hashable]:
        heap, found = self._heaps[at], dict[Hashable, None]()
        while heap and heap[0][0] <= time:
            due, _, key = heappop(heap)
            if self._due.get(key, (None, None, None))[at] == due:
                found[key] = None
        for key in found:  # noted again after the step
            noted = list(self._due[key])
            noted[at] = None
            self._due[key] = (noted[0], noted[1], noted[2])
        return list(found)
