"""Limits of records in flight and since the last snapshot, for each front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flamecore.runtime.parts.front import Front

_PARTS: Final = 2
"""A paused front continues once it may read this part (one half) of its level: credit comes back bit by bit, and
batches would become ever smaller."""


class Room:
    """The distribution of one worker's credit among its fronts.

    A front always has room for one record. All fronts may have the same number of records in flight, the level, so the
    front with the fewest, which is furthest behind, has room first. A front that waits for its source holds only as
    much as its source may bring; an ended one holds only its records in flight. So a fast front uses credit that others
    do not need, and never what they do.

    The limit since the last snapshot is not distributed: the next snapshot covers all records that are no longer in
    flight. It holds for all fronts together, and each may read once between two snapshots.

    Args:
        fronts: The worker's fronts, by number.
        most: Most records of them all in flight, or one for each front if that is more.
        most_uncommitted: Most records of them all since the last snapshot; None: no snapshots are taken.
    """

    def __init__(self, fronts: Mapping[int, Front], most: int, most_uncommitted: int | None = None) -> None:
        self._fronts = fronts
        self._most = most
        self._most_uncommitted = most_uncommitted
        self._uncommitted_left = 0  # upper bound of their rest; counted again at 0
        self._asked = False  # whether a snapshot was asked for since the last one
        self._level = 1  # most records in flight of each counted front
        self._batch = 1  # least room with which a paused front continues, unless it wants less
        self._reading: dict[int, int] = {}  # most records of each read under way
        self._counted: set[int] = set()  # fronts that share the level
        self._gone = 0  # number of these that wait for their sources
        self._changed = True  # whether records were delivered since the level was computed

    def note(self) -> None:
        """Note that records have been delivered."""
        self._changed = True

    def take(self, number: int, most: int) -> int:
        """Return the number of records that a front may read now; 0: it must wait.

        It waits until more records are delivered, or committed. The read is under way until `release`.

        Args:
            number: Number of the front.
            most: Most records that it wants.
        """
        room = 0 if self._waits_for_a_snapshot(number) else self._room(number, most)
        if room <= 0:
            return 0
        self._uncommitted_left -= room
        self._reading[number] = room
        self._gone += 1
        return room

    def has_room(self, number: int, most: int) -> bool:
        """Return whether a paused front may continue; arguments as for `take`.

        It has room for all that it wants, or for a part of its level that is worth a read.
        """
        return not self._waits_for_a_snapshot(number) and self._room(number, most) >= min(most, self._batch)

    def _waits_for_a_snapshot(self, number: int) -> bool:
        return self._most_uncommitted is not None and self._fronts[number].uncommitted > 0 and self._is_full()

    def _is_full(self) -> bool:
        """Return whether as many records as may be are in no snapshot."""
        if self._most_uncommitted is None:
            return False
        # Counted again only at the bound: a sum over all fronts for each read would grow with their number.
        if self._uncommitted_left <= 0:
            self._uncommitted_left = self._most_uncommitted - sum([each.uncommitted for each in self._fronts.values()])
        return self._uncommitted_left <= 0

    def asks_for_snapshot(self) -> bool:
        """Return whether to ask for a snapshot now; then it counts as asked for.

        Nobody has asked since the last one, and as many records are in none as may be.
        """
        if self._asked or not self._is_full():
            return False
        self._asked = True
        return True

    def committed(self) -> None:
        """Note that records have come into a snapshot."""
        self._asked, self._changed = False, True

    def release(self, number: int) -> None:
        """Note that a front's read is over."""
        if self._reading.pop(number, 0) and number in self._counted:
            self._gone -= 1

    def _room(self, number: int, most: int) -> int:
        """Return the number of records that a front has room for, `most` at most.

        It may be negative: the front has more records in flight than its level allows now.
        """
        front = self._fronts[number]
        room = self._level - front.in_flight
        # Only if something has changed since: it takes a look at every front.
        if number not in self._counted or (room < most and (self._changed or self._gone)):
            self._deal()
            room = self._level - front.in_flight
        return min(room, most)

    def _deal(self) -> None:
        """Set the level so that all credit is in use."""
        held = []  # records in flight of the sharing fronts, at least one each
        left = self._most
        self._counted = set()
        for number, front in self._fronts.items():
            if front.ended or front.waits_for_others:
                left -= front.in_flight
            elif number in self._reading:
                left -= max(front.in_flight + self._reading[number], 1)
            else:
                held.append(max(front.in_flight, 1))
                self._counted.add(number)
        held.sort()
        # Not in fixed parts: of many fronts the fast one would stand still with what the slow ones leave unused.
        while len(held) > 1 and left // len(held) < held[-1]:
            left -= held.pop()  # it has more than its share
        self._level = max(left // len(held), 1) if held else 1
        self._batch = max(self._level // _PARTS, 1)
        self._changed, self._gone = False, 0
