"""The marks that the fronts of a worker put among their records.

Operators of the flow say them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flamecore.model.meta import encode_time
from flamecore.runtime.operators.compiler import Entrance
from flamecore.runtime.operators.marks import MarkingOperator
from flamecore.runtime.parts.front import Front


class FrontMarks:
    """The marks of the fronts of one worker.

    Args:
        entrances: For each source, the way of its records.
        fronts: The fronts.
        unread: Numbers of the fronts of which nothing was read since the job began.

    Attributes:
        unread: Those of which nothing has been read now.
    """

    def __init__(self, entrances: Mapping[str, Entrance], fronts: Iterable[Front], unread: Iterable[int]) -> None:
        self.unread = set(unread)
        self._entrances = entrances
        self._folding = [
            (front.number, marking) for front in fronts for marking in self.of(front) if marking.folds is not None
        ]

    def of(self, front: Front) -> Sequence[MarkingOperator]:
        """Return the operators that mark the records of a front."""
        entrance = self._entrances.get(front.name.source)
        return () if entrance is None else entrance.markings  # none if its source is no longer in the flow

    def begin(self, front: Front, first: int) -> None:
        """Note that an unread front has its first record, and the time of that."""
        self.unread.remove(front.number)
        for marking in self.of(front):
            marking.begin(encode_time(first) + front.suffix)

    def idle(self, front: Front, waited_us: float) -> int | None:
        """Make a front idle if it has waited long enough for its source.

        Return the time of the mark, or None.
        """
        markings = [marking for marking in self.of(front) if marking.idle_us is not None]
        if not markings or front.is_idle or front.times_left is not None:
            return None
        if all(waited_us >= marking.idle_us for marking in markings if marking.idle_us is not None):
            return self._say_idle(front)
        return None

    def idle_again(self, front: Front) -> None:
        """Say that a front was idle where it was in an earlier run."""
        while front.was_idle:
            self._say_idle(front)

    def _say_idle(self, front: Front) -> int:
        time = front.stamp_idle()
        for marking in self.of(front):
            if marking.idle_us is not None:
                marking.idle(encode_time(time) + front.suffix)
        return time

    def end(self, front: Front) -> int | None:
        """Say the last marks of a front, at a time of its own.

        Return the time, or None if it has no such marks. The time counts as that of a record at the last position, for
        snapshots. In journals it is that of the marks: if a job goes on from before them, they come again at the same
        time, and what the source has got since is left for the next run. As a record it would get a time below which
        sinks hold their outputs.
        """
        markings = [marking for marking in self.of(front) if marking.closes or front.number in self.unread]
        if not markings:
            return None
        time = front.stamp_end()
        for marking in markings:
            marking.end(encode_time(time) + front.suffix)
        return time

    def states(self, time: int) -> dict[int, dict[str, object]]:
        """Return the states of markings at a time, by front and name.

        Later calls are not for earlier times.
        """
        states: dict[int, dict[str, object]] = {}
        for number, marking in self._folding:
            if (state := marking.state_of(number, time)) is not None:
                states.setdefault(number, {})[marking.origin] = state
        return states

    def restore(self, number: int, states: Mapping[str, object]) -> None:
        """Load the states of a front, by marking."""
        for front, marking in self._folding:
            if front == number and marking.origin in states:
                marking.restore(number, states[marking.origin])

    def ahead(self) -> dict[str, int]:
        """Return how far markings are ahead, by name, where they are."""
        markings = [marking for entrance in self._entrances.values() for marking in entrance.markings]
        return {marking.origin: ahead for marking in markings if (ahead := marking.ahead)}
