"""Windows over ordered buckets: the effect of insertion and removal of an item.

Sources: paper 004, section 3; paper 000, "Ordering model".

A bucket is a list of entries sorted by bucket order. The output of an entry is the list of the last `window` payloads
ending with it, identified by that entry. An item in order adds one window. A late item, or a tombstone, changes some
windows: the old ones are retracted first, then the new ones emitted, both in ascending order.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

from flamecore.errors import DuplicateItemError, NoInvalideeError, OrderViolationError
from flamecore.model.meta import GLOBAL_TIME_BYTES
from flamecore.model.vertices import Grouping


class Window(NamedTuple):
    """One output of a grouping, new (`alive`) or retracted.

    It has the order and trace of its last entry.
    """

    alive: bool
    order: bytes
    trace: int
    payloads: tuple[object, ...]


class Bucket:
    """The entries of one key, sorted by bucket order.

    The bucket order is global time, then the custom order if there is one, then meta. An entry is the tuple of its sort
    key and its payload; order, trace and payload are its last three parts.
    """

    __slots__ = ("entries", "shortened", "touched")

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.shortened = False  # history was dropped: the first entry left is not the start of the bucket
        self.touched = False


class Windows:
    """The rules of one grouping vertex for insertion into a bucket and removal.

    Args:
        vertex: The grouping: window, custom order and treatment of partial windows.
    """

    def __init__(self, vertex: Grouping) -> None:
        self.name = vertex.name
        self.window = vertex.window
        self.undo_partial = vertex.undo_partial
        self.custom = vertex.order

    def place_of(self, order: bytes, trace: int, payload: object) -> tuple[object, ...]:
        """Return the sort key of an entry."""
        if self.custom is None:
            return (order, trace)
        return (order[:GLOBAL_TIME_BYTES], self.custom(payload), order, trace)

    def insert(self, bucket: Bucket, key: tuple[Any, ...], payload: object) -> list[Window]:
        """Insert an item at its sort key from `place_of`; return outputs in order.

        Raises:
            DuplicateItemError: An item of the same identity is there.
            OrderViolationError: A custom order puts the item before its own ancestor, or cannot compare sort keys.
        """
        entries = bucket.entries
        place = self._find(entries, key, payload)
        if place < len(entries) and entries[place][-3:-1] == key[-2:]:
            raise DuplicateItemError(
                f"grouping {self.name!r}: a second live item of one identity came: {payload!r}",
                hint="A user function, key or hash on its way is not deterministic.",
                vertex=self.name,
                record=payload,
            )
        if self.custom is not None:
            self._check_ancestors(entries, place, key[-2], payload)
        # The old windows before the new ones: at the next operation a new window may have the
        # identity of an old one.
        out = self._windows(bucket, place, place + self.window - 1, alive=False)
        entries.insert(place, (*key, payload))
        out += self._windows(bucket, place, place + self.window, alive=True)
        return out

    def remove(self, bucket: Bucket, key: tuple[object, ...], payload: object) -> list[Window]:
        """Remove the victim of a tombstone; return outputs in order.

        The tombstone itself ends here.

        Raises:
            NoInvalideeError: The victim is not there.
        """
        entries = bucket.entries
        place = self._find(entries, key, payload)
        if place == len(entries) or entries[place][-3:-1] != key[-2:]:
            raise NoInvalideeError(
                f"grouping {self.name!r}: the item that a tombstone cancels is not there: {payload!r}",
                hint="A user function, key or hash on its way is not deterministic.",
                vertex=self.name,
                record=payload,
            )
        out = self._windows(bucket, place, place + self.window, alive=False)
        del entries[place]
        out += self._windows(bucket, place, place + self.window - 1, alive=True)
        return out

    def _find(self, entries: list[tuple[object, ...]], key: tuple[object, ...], payload: object) -> int:
        """Return the index of the first entry that does not sort before `key`."""
        if self.custom is None:
            return bisect_left(entries, key)
        try:
            return bisect_left(entries, key)
        except Exception as error:  # the comparison of two sort keys is user code
            raise OrderViolationError(
                f"grouping {self.name!r}: the sort key {key[1]!r} of {payload!r:.160} cannot be compared with those "
                f"of other items: {error}",
                hint="A custom order must give keys of one type with a total order.",
                vertex=self.name,
                record=payload,
            ) from error

    def _windows(self, bucket: Bucket, first: int, end: int, *, alive: bool) -> list[Window]:
        """Return the windows whose last entry has an index in [first, end)."""
        window, entries = self.window, bucket.entries
        size = len(entries)
        end = min(end, size)
        if self.undo_partial:
            if 0 < size < window and not bucket.shortened:
                # Below a full window the whole bucket is one provisional result, whichever entry changed.
                first, end = size - 1, size
            else:
                first = max(first, window - 1)
        out = []
        for place in range(first, end):
            payloads = tuple([entry[-1] for entry in entries[max(place + 1 - window, 0) : place + 1]])
            out.append(Window(alive, entries[place][-3], entries[place][-2], payloads))
        return out

    def _check_ancestors(self, entries: list[tuple[Any, ...]], place: int, order: bytes, payload: object) -> None:
        """Refuse a custom order that puts an item before its ancestor.

        Among items of the same global time, no ancestor may be behind it, and no descendant before it.
        """
        moment = order[:GLOBAL_TIME_BYTES]
        # Neighbours of one global time only: a custom order sorts within it, so an ancestor cannot
        # be anywhere else.
        for entry in entries[place:]:
            if entry[0] != moment:
                break
            if order.startswith(entry[-3]) and order != entry[-3]:
                self._out_of_line(payload)
        for entry in reversed(entries[:place]):
            if entry[0] != moment:
                break
            if entry[-3].startswith(order) and order != entry[-3]:
                self._out_of_line(payload)

    def _out_of_line(self, payload: object) -> None:
        raise OrderViolationError(
            f"grouping {self.name!r}: its custom order puts {payload!r} on the wrong side of what it is related to",
            hint="A custom order may reorder cousins, never put an item before what it was derived from.",
            vertex=self.name,
            record=payload,
        )

    def forget(self, bucket: Bucket, before: bytes) -> None:
        """Drop all but the last window - 1 entries older than encoded time `before`.

        No repair can reach them.
        """
        old = bisect_left(bucket.entries, (before,))
        drop = old - self.window + 1
        if drop > 0:
            del bucket.entries[:drop]
            bucket.shortened = True
