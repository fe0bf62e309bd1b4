"""The operator of groupings: buckets by key, their outputs and snapshots.

See paper 004, section 3. The rules of a single bucket are in `flamecore.runtime.operators.windows`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flamecore.abc.operator import CHANGES, GONE, Run, Site, StatefulOperator, Step, each
from flamecore.model.hashing import check_key, key_group, key_groups
from flamecore.model.meta import GLOBAL_TIME_BYTES
from flamecore.model.vertices import ByHash, ByKey, Grouping
from flamecore.runtime.operators.windows import Bucket, Windows


class GroupingOperator(StatefulOperator):
    """The operator of a grouping: its buckets, and its compiled step and run.

    Args:
        vertex: The grouping, with its rules.
        site: Its place on the worker. With snapshots every changed bucket is noted, not only those that can shrink.
    """

    def __init__(self, vertex: Grouping, site: Site) -> None:
        self.rules = Windows(vertex)
        self.buckets: dict[object, Bucket] = {}
        self.names = []
        self._snapshots = site.snapshots
        self._touched: list[Any] = []
        self._changes: list[dict[object, object]] = [{}]  # since the last cut, below the time of the next one
        self._limit = b""
        self._names = BucketNames(vertex)
        # Shorter buckets have nothing to forget, and are not noted: so the minimum time makes the
        # worker look at few buckets, however many keys there are.
        least = 1 if site.snapshots or vertex.undo_partial else vertex.window  # entries of a bucket that is noted
        names = self.names if site.snapshots and vertex.keeps_state else None
        self.step = self._compile(site, least, names)
        self.run = self._compile_run(site, least, names)

    def _compile(self, site: Site, least: int, names: list[object] | None) -> Step:
        rules, buckets, touched = self.rules, self.buckets, self._touched
        by_record = rules.undo_partial
        custom, place_of = rules.custom, rules.place_of
        in_order = custom is None and not by_record
        window, name_of = rules.window, self._names.name_of
        ident, emit, fail = site.ident, site.emit, site.fail

        def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
            try:
                name = name_of(payload)
                if by_record:
                    name = (order[:GLOBAL_TIME_BYTES], name)
                bucket = buckets.get(name)
                if bucket is None:
                    check_key(name)
                key = (order, trace) if custom is None else place_of(order, trace, payload)
            except Exception as error:  # noqa: BLE001 - a failing key or order, or an unhashable key, is the user's to see
                return fail(order, trace, alive, payload, error)
            if bucket is None:
                bucket = buckets[name] = Bucket()
                if names is not None:
                    names.append(name)
            entries = bucket.entries
            if not bucket.touched and len(entries) + 1 >= least:
                bucket.touched = True
                touched.append(name)
            self.worked += alive
            # The usual case: no search, no tombstone, one window.
            if in_order and alive and (not entries or entries[-1][0] < order):
                entries.append((order, trace, payload))
                return emit(order, trace ^ ident, True, tuple([entry[2] for entry in entries[-window:]]))
            windows = (rules.insert if alive else rules.remove)(bucket, key, payload)
            if not entries:
                del buckets[name]
            for window_alive, window_order, window_trace, payloads in windows:
                self.retracted += not window_alive
                emit(window_order, window_trace ^ ident, window_alive, payloads)
            return None

        return step

    def _compile_run(self, site: Site, least: int, names: list[object] | None) -> Run:
        """Return the run of items that come after all others of their bucket.

        Late items, and those that fail, take the step.
        """
        rules, buckets, touched = self.rules, self.buckets, self._touched
        window, name_of = rules.window, self._names.name_of
        ident, emit, step = site.ident, site.emit_run, self.step
        if rules.custom is not None or rules.undo_partial:
            return each(step, site.round)
        turn = site.round

        def run(orders: Sequence[bytes], trace: int, payloads: Sequence[object]) -> None:
            places: list[bytes] = []
            windows: list[tuple[object, ...]] = []
            done = 0
            for done, (order, payload) in enumerate(zip(orders, turn.iterate(payloads), strict=False), 1):  # noqa: B007
                try:
                    name = name_of(payload)
                    bucket = buckets.get(name)
                    if bucket is None:
                        check_key(name)
                        bucket = buckets[name] = Bucket()
                        if names is not None:
                            names.append(name)
                except Exception:  # noqa: BLE001 - the step fails too, and reports it
                    bucket = None
                if bucket is None or (bucket.entries and bucket.entries[-1][0] >= order):
                    # The windows collected so far leave first: outputs go in the order of their items.
                    if places:
                        self.worked += len(places)
                        emit(places, trace ^ ident, windows)
                        places, windows = [], []
                    step(order, trace, True, payload)
                    continue
                entries = bucket.entries
                entries.append((order, trace, payload))
                if not bucket.touched and len(entries) >= least:
                    bucket.touched = True
                    touched.append(name)
                places.append(order)
                windows.append(tuple([entry[2] for entry in entries[-window:]]))
            turn.finish()
            if places:
                self.worked += len(places)
                emit(places, trace ^ ident, windows)
            if done < len(payloads):
                turn.leave(run, orders[done:], trace, payloads[done:])

        return run

    def followers(self, orders: Sequence[bytes], payloads: Sequence[object]) -> int:
        if self._names.are_given:  # a lookup would assign a name
            return len(orders) * self.rules.window
        count = 0
        for order, payload in zip(orders, payloads, strict=True):
            start = order[:GLOBAL_TIME_BYTES]  # first in any order of a bucket
            try:
                name = self._names.name_of(payload)
                bucket = self.buckets.get((start, name) if self.rules.undo_partial else name)
            except Exception:  # noqa: BLE001 - processing it reports the failure
                continue
            if bucket is not None:
                count += min(len(bucket.entries) - bisect_left(bucket.entries, (start,)), self.rules.window)
        return count

    def on_time(self, minimum: bytes) -> None:
        """Drop the history that no repair can reach.

        If snapshots are taken, they drop it instead.
        """
        if not self._snapshots:
            self._forget(minimum)

    def _forget(self, before: bytes) -> None:
        if self.rules.undo_partial:
            for name in [name for name in self._touched if name[0] < before]:
                self.buckets.pop(name, None)
            self._touched[:] = [name for name in self._touched if name in self.buckets]
            return
        self._shrink(before)

    def _shrink(self, before: bytes) -> None:
        keep = []
        for name in self._touched:
            bucket = self.buckets.get(name)
            if bucket is None:
                continue
            self.rules.forget(bucket, before)
            entries = bucket.entries
            if len(entries) >= self.rules.window or (entries and entries[-1][0] >= before):
                keep.append(name)
            else:
                bucket.touched = False
                if not entries:
                    del self.buckets[name]
        self._touched[:] = keep

    def trim(self, before: bytes) -> None:
        """Drop all but the last window - 1 entries of each bucket below `before`.

        No snapshot needs more (paper 000, "Fault tolerance").
        """
        if self.rules.undo_partial or self.rules.window == 1:
            return self._forget(before)
        # A copy, because shrinking leaves out buckets that have nothing more to forget, and these
        # have changed, too.
        touched = self._touched.copy()
        self._shrink(before)
        if len(self._changes[-1]) >= CHANGES:
            self._changes.append({})
        latest = self._changes[-1]
        for name in touched:
            bucket = self.buckets.get(name)
            if bucket is not None and (kept := _below(bucket, before)):
                latest[name] = kept
        return None

    def cut(self, before: bytes) -> list[Mapping[object, object]]:
        """Return the last window - 1 entries below `before` of each changed bucket.

        Forgets older entries. Some buckets that have not changed since the last cut may be included.

        A bucket of one record has nothing to keep: its record is either done or comes again. The same holds for a
        window of one. Other buckets have something to keep from their first entry on.
        """
        self.trim(before)
        self._limit = before
        changes, self._changes = self._changes, [{}]
        return [piece for piece in changes if piece]

    def snapshot_of(self, names: Sequence[object]) -> Mapping[object, object]:
        found = ((name, self.buckets.get(name)) for name in names)
        return {name: kept for name, bucket in found if bucket is not None and (kept := _below(bucket, self._limit))}

    def restore(self, states: Mapping[object, Any]) -> None:
        for name, entries in states.items():
            bucket = self.buckets[name] = Bucket()
            bucket.entries = [(*self.rules.place_of(*entry), entry[2]) for entry in entries]
            bucket.shortened = True
            self._names.restore(name, entries[0][2])
        self.names.extend(states)

    def groups_of(self, names: Sequence[object]) -> list[int]:
        return self._names.groups_of(names)


def _below(bucket: Bucket, before: bytes) -> tuple[tuple[object, ...], ...]:
    """Return (order, trace, payload) of a shrunk bucket's entries below a time."""
    entries = bucket.entries
    return tuple([entry[-3:] for entry in entries[: bisect_left(entries, (before,))]])


class BucketNames:
    """The names of a grouping's buckets.

    A name is the key itself; or, for a hash with an equality, the hash and the rank among unequal payloads of that
    hash.
    """

    def __init__(self, vertex: Grouping) -> None:
        route = vertex.route
        assert isinstance(route, (ByKey, ByHash))
        self._by_key = isinstance(route, ByKey)
        self._equal = vertex.equal
        self.are_given = not self._by_key and self._equal is not None
        """Whether the first lookup of a payload assigns its name, because the hash is not enough."""
        self._ranked: dict[int, list[object]] = {}
        self.name_of: Callable[[object], object] = (
            route.key if isinstance(route, ByKey) else self._hashed(route.function)
        )

    def _hashed(self, hashed: Callable[[object], int]) -> Callable[[object], object]:
        equal, ranked = self._equal, self._ranked
        if equal is None:
            return hashed

        def name_of(payload: object) -> tuple[int, int]:
            number = hashed(payload)
            unequal = ranked.setdefault(number, [])
            for rank, other in enumerate(unequal):
                # A rank stays with its payload, also when the bucket is empty: it is part of a
                # stored name.
                if other is not GONE and equal(other, payload):
                    return (number, rank)
            unequal.append(payload)
            return (number, len(unequal) - 1)

        return name_of

    def restore(self, name: Any, payload: object) -> None:
        """Assign a bucket's name from a snapshot to the payload that it holds."""
        if not self.are_given:
            return
        number, rank = name
        unequal = self._ranked.setdefault(number, [])
        unequal += [GONE] * (rank + 1 - len(unequal))
        unequal[rank] = payload

    def groups_of(self, names: Sequence[Any]) -> list[int]:
        """Return the key group of each bucket name."""
        if self._by_key:
            return key_groups(names)
        return [key_group(name if self._equal is None else name[0]) for name in names]
