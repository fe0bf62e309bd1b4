"""Room: how many records each front of a worker may have in flight, and behind the last snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flamecore.runtime.parts.front import Front

_PARTS: Final = 2
"""A front that stands still goes on once it may read this part of all it may have: credit comes back bit by bit, and
batches would become ever smaller."""


class Room:
    """Deals the credit of one worker among its fronts.

    A front always has room for one record. The rest is dealt by how far each front is behind: all may have the same
    number in flight, so the front with the fewest, which is furthest behind, has room first. A front that waits for its
    source holds only as much as its source may bring; one that has ended holds only what is on its way. So a fast front
    uses what others do not need, and never what they do.

    What has been read since the last snapshot needs no dealing: the next one is of a time that all of it is below which
    is in flight no more. It is bounded for all fronts together, and each may read once between two.

    Args:
        fronts: The worker's fronts, by number.
        most: Most records of them all in flight, or one for each front if that is more.
        most_uncommitted: Most records of them all since the last snapshot; None: there are no snapshots.
    """

    def __init__(self, fronts: Mapping[int, Front], most: int, most_uncommitted: int | None = None) -> None:
        self._fronts = fronts
        self._most = most
        self._most_uncommitted = most_uncommitted
        self._uncommitted_left = 0  # no more than that are left of these; counted anew when none seem to be
        self._level = 1  # how many records each front that reads on may have in flight
        self._reading: dict[int, int] = {}  # how many records a read under way may bring
        self._counted: set[int] = set()  # the fronts among which the level was dealt
        self._gone = 0  # how many of these wait for their sources
        self._changed = True  # records have been delivered since the level was dealt

    def note(self) -> None:
        """Learn that records have been delivered."""
        self._changed = True

    def take(self, number: int, most: int) -> int:
        """Return how many records a front may read now; 0 if it stands still until more are delivered, or committed.

        The read is under way until `release`.

        Args:
            number: The front.
            most: How many it wants at most.
        """
        room = 0 if self._waits_for_a_snapshot(number) else self._room(number, most)
        if room:
            self._uncommitted_left -= room
            self._reading[number] = room
            self._gone += 1
        return room

    def has_room(self, number: int, most: int) -> bool:
        """Return whether a front that stands still may go on. Arguments: as of `take`."""
        return not self._waits_for_a_snapshot(number) and self._room(number, most) > 0

    def _waits_for_a_snapshot(self, number: int) -> bool:
        if self._most_uncommitted is None or not self._fronts[number].uncommitted:
            return False
        if self._uncommitted_left <= 0:
            self._uncommitted_left = self._most_uncommitted - sum([each.uncommitted for each in self._fronts.values()])
        return self._uncommitted_left <= 0

    def release(self, number: int) -> None:
        """Learn that a front's read is over."""
        if self._reading.pop(number, 0) and number in self._counted:
            self._gone -= 1

    def _room(self, number: int, most: int) -> int:
        room = self._level - self._fronts[number].in_flight
        if number not in self._counted or (room < most and (self._changed or self._gone)):
            self._deal()
            room = self._level - self._fronts[number].in_flight
        return min(room, most) if room >= min(most, max(self._level // _PARTS, 1)) else 0

    def _deal(self) -> None:
        """Raise the level until all credit is in use, or lower it."""
        held = []  # by the fronts that read on; each at least one record, which nobody else is given
        left = self._most
        self._counted = set()
        for number, front in self._fronts.items():
            if front.ended:
                left -= front.in_flight
            elif number in self._reading:
                left -= max(front.in_flight + self._reading[number], 1)
            else:
                held.append(max(front.in_flight, 1))
                self._counted.add(number)
        held.sort()
        while len(held) > 1 and left // len(held) < held[-1]:
            left -= held.pop()  # it has more than its part
        self._level = max(left // len(held), 1) if held else 1
        self._changed, self._gone = False, 0
