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
        self._asked = False  # whether a snapshot was asked for since the last one
        self._level = 1  # most records in flight of each front that shares it
        self._batch = 1  # least room with which a paused front continues, unless it wants less
        self._reading: dict[int, int] = {}  # most records of each read under way
        self._apart: set[int] = set()  # fronts that were reading when the level was computed
        self._gone = 0  # number of the others that wait for their sources
        self._changed = True  # whether records were delivered since the level was computed
        # Sums over all fronts, so that no read takes a look at every front. How many share is known by their records in
        # flight: these are few numbers, as their sum is bounded.
        self._sharing: dict[int, int] = {}
        self._fixed = 0  # records of the fronts that do not share
        self._uncommitted = 0
        self._in_flight = 0
        self._counted = dict.fromkeys(fronts, (0, 0, 0, 0))  # share of each front in these
        # A front changes several times between two looks at the sums, so it is counted before a look.
        self._changes: set[Front] = set(fronts.values())
        for front in fronts.values():
            front.changed = self._changes.add

    @property
    def in_flight(self) -> int:
        """Return the number of records of all fronts that are not delivered."""
        self._count_changes()
        return self._in_flight

    def _count_changes(self) -> None:
        """Count the fronts that have changed since the last look."""
        changes = self._changes
        while changes:
            self._count(changes.pop())

    def _count(self, front: Front) -> None:
        """Count a front as it is now."""
        number, in_flight, uncommitted = front.number, front.in_flight, front.uncommitted
        sharing = fixed = 0
        if front.ended or front.waits_for_others:
            fixed = in_flight
        elif number in self._reading:
            fixed = max(in_flight + self._reading[number], 1)
        else:
            sharing = max(in_flight, 1)
        was_sharing, was_fixed, was_in_flight, was_uncommitted = self._counted[number]
        self._counted[number] = sharing, fixed, in_flight, uncommitted
        self._fixed += fixed - was_fixed
        self._in_flight += in_flight - was_in_flight
        self._uncommitted += uncommitted - was_uncommitted
        if sharing == was_sharing:
            return
        counts = self._sharing
        if was_sharing:
            counts[was_sharing] -= 1
            if not counts[was_sharing]:
                del counts[was_sharing]
        if sharing:
            counts[sharing] = counts.get(sharing, 0) + 1

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
        self._reading[number] = room
        self._changes.add(self._fronts[number])
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
        self._count_changes()
        return self._uncommitted >= self._most_uncommitted

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
        if self._reading.pop(number, 0):
            self._changes.add(self._fronts[number])
            if number not in self._apart:
                self._gone -= 1

    def _room(self, number: int, most: int) -> int:
        """Return the number of records that a front has room for, `most` at most.

        It may be negative: the front has more records in flight than its level allows now.
        """
        front = self._fronts[number]
        room = self._level - front.in_flight
        # Only if something has changed since: a fast front would else have room for ever smaller batches.
        if number in self._apart or (room < most and (self._changed or self._gone)):
            self._deal()
            room = self._level - front.in_flight
        return min(room, most)

    def _deal(self) -> None:
        """Set the level so that all credit is in use."""
        self._count_changes()
        left, count = self._most - self._fixed, sum(self._sharing.values())
        # Not in fixed parts: of many fronts the fast one would stand still with what the slow ones leave unused.
        for held in sorted(self._sharing, reverse=True):
            if count <= 1 or left // count >= held:
                break
            more = min(self._sharing[held], count - 1)  # they have more than their share
            left -= more * held
            count -= more
        self._level = max(left // count, 1) if count else 1
        self._batch = max(self._level // _PARTS, 1)
        self._apart = set(self._reading)
        self._changed, self._gone = False, 0
