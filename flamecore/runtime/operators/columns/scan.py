"""Scans: running totals by key whose items stay where they are.

With the clock `blocks` all items of a block of records are on one worker, and no item of another worker is between them
in the order. So the totals before a block are those of all blocks before it, whoever has their items. Each worker folds
its items as they come to partial totals, one for a key, and sends these to all others. The totals of its own items
follow from theirs and the partials of others, in the order of both. No item goes to another worker.

Every worker has the totals of all keys. In a snapshot each has those of its own key groups.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from heapq import heappop, heappush
from itertools import repeat
from operator import add
from sys import maxsize
from typing import Any

from flamecore.abc.operator import Site
from flamecore.model.batch import Orders, many_of, results
from flamecore.model.clock import block_of
from flamecore.model.drift import MISSING, Drift
from flamecore.model.failure import FlowMistake, describe, shorten_repr
from flamecore.model.hashing import check_key, check_keys, key_groups
from flamecore.model.meta import encode_child
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.keyed_state import ABSENT
from flamecore.runtime.operators.reorder import ReorderBuffer

Partial = tuple[Sequence[Any], Sequence[Any]]
"""(keys, totals) of some items of one block."""

SendPartial = Callable[[bytes, Partial], None]
"""Sends a partial total to all other workers: (place, partial)."""


class ScanOperator(DriftOperator):
    """A count or reduce whose state has the items of all workers.

    Args:
        vertex: The count or reduce.
        site: Its place on the worker.
        groups: Key groups whose totals this worker stores.
        worker: Number of the worker.
    """

    whole = True

    def __init__(self, vertex: Drift, site: Site, groups: Collection[int], worker: int) -> None:
        super().__init__(vertex, site)
        assert vertex.accumulate is not None
        self._accumulate = vertex.accumulate
        self.counts = vertex.initial is not MISSING  # others are reduces
        self._suffix = encode_child(worker)
        self._mistaken = False
        self.names: list[object] = []
        self._groups = frozenset(groups)
        self._own: set[object] = set()
        self._seen = 0  # number of known keys that are in `names` or of others

    def add(self, place: bytes, partial: Partial) -> None:
        """Add a partial total of another worker, which covers all items up to a place."""
        keys, counts = partial
        if not self.counts:
            return self._combine(place, keys, counts)
        states: dict[Any, Any] = self.states.top
        if not self._snapshots:
            # In one pass of C: the state of a rare key is in no cache of the processor, and looked for once.
            states.update(zip(keys, map(add, map(states.get, keys, repeat(0)), counts), strict=True))
            self._latest = place
            self.worked += len(keys)
            return None
        load = self.states.load
        before = [state if (state := states.get(key)) is not None else load(key) for key in keys]
        states.update(zip(keys, map(add, before, counts), strict=True))
        return self._note([*repeat(place, len(keys))], 0, keys, keys, before)

    def _combine(self, place: bytes, keys: Sequence[Any], totals: Sequence[Any]) -> None:
        accumulate, states = self._accumulate, self.states.top
        before = self.states_of(keys)
        for key, state, total in zip(keys, before, totals, strict=True):
            try:
                states[key] = accumulate(state, total)
            except Exception as error:  # noqa: BLE001 - as it should on one of the items of the total
                self.refuse(place, total, f"it fails on a total of several items: {describe(error)}")
        self._note([*repeat(place, len(keys))], 0, keys, keys, before)

    def states_of(self, keys: Sequence[Any]) -> list[Any]:
        """Return the states of keys; some may be new."""
        states, load = self.states.top, self.states.load
        return [state if (state := states.get(key, ABSENT)) is not ABSENT else load(key) for key in keys]

    def accumulate_at(self, order: bytes) -> Callable[[Any, Any], object]:
        """Return the function that adds an item to a total."""
        strict = self._strict_accumulate if self._early and order < self._early[0] else None
        return strict or self._accumulate

    # The totals of a worker are what all others know of its items. Were they not what its own items have made of its
    # states, the outputs would depend on where blocks are, and on how many records are read at once.
    def verify(self, place: bytes, before: Sequence[Any], partial: Partial) -> None:
        """Compare the states behind some items with those that other workers make of their totals.

        Args:
            place: Order of the last of the items.
            before: State of each key before them.
            partial: Their totals.
        """
        accumulate = self._accumulate
        for key, state, total in zip(partial[0], before, partial[1], strict=True):
            after = self.states.get(key)
            try:
                found = accumulate(state, total)
                if _are_alike(found, after):
                    continue
                wrong = f"the total of some items makes {shorten_repr(found)} of {shorten_repr(state)}"
                wrong += f", and the items one by one make {shorten_repr(after)}"
            except Exception as error:  # noqa: BLE001 - of the user's function, or of a comparison
                wrong = f"it fails on a total of several items: {describe(error)}"
            self.refuse(place, total, wrong)

    def refuse(self, order: bytes, payload: object, wrong: str) -> None:
        """End the job at an item, since the function cannot scan.

        Args:
            order: Order of the item.
            payload: Item or total that shows it.
            wrong: How it shows.
        """
        if self._mistaken:
            return
        self._mistaken = True
        # Behind the item, and apart from what other workers find there: the function may fail on the item, too.
        text = f"{wrong}; the function of a scan has to be associative, and not to fail"
        self._fail(order + self._suffix, 0, True, payload, FlowMistake(text))

    # Items of a scan come in their order, and none is taken back: only snapshots need states as they were before.
    def _note(
        self,
        orders: Orders,
        trace: int,
        payloads: Sequence[object],
        keys: Sequence[object],
        states: Sequence[object],
    ) -> None:
        if self._snapshots or not orders:
            return super()._note(orders, trace, payloads, keys, states)
        self._latest = orders[-1]
        self.worked += len(orders)
        return None

    def _own_names(self) -> None:
        """Add the new keys of own key groups to the names."""
        known = self.states.names
        new = known[self._seen :]
        self._seen = len(known)
        own = [key for key, group in zip(new, key_groups(new), strict=True) if group in self._groups]
        self._own.update(own)
        self.names += own

    def cut(self, before: bytes) -> list[Mapping[object, object]]:
        changes = super().cut(before)
        self._own_names()
        own = [{key: state for key, state in some.items() if key in self._own} for some in changes]
        return [some for some in own if some]

    def restore(self, states: Mapping[object, object]) -> None:
        super().restore(states)
        self._own_names()


class BlockTotals:
    """The totals of own items, block by block.

    Args:
        operator: The operation.
        key_of: Function of the key.
        tell: Function called with (order of the last item, total) for each block, or a part of it.

    Attributes:
        block: The block of the items that are noted and not told of; -1: there was none yet.
    """

    def __init__(self, operator: ScanOperator, key_of: Callable[[object], object], tell: SendPartial) -> None:
        self._scan, self._key_of, self._tell = operator, key_of, tell
        self._keys_of = many_of(key_of)
        self.block = -1
        self._keys: list[object] = []
        self._totals: dict[Any, Any] = {}
        self._last = b""

    def add(self, orders: Orders, payloads: Sequence[object]) -> None:
        """Add the items of a run, block by block."""
        start, count, last = 0, len(orders), block_of(orders[-1])
        while start < count:
            block = block_of(orders[start])
            end = count if block == last else bisect_left(orders, block + 1, start, key=block_of)
            if block != self.block:
                self.flush()
                self.block = block
            whole = end - start == count
            self._note(orders if whole else orders[start:end], payloads if whole else payloads[start:end])
            self._last = max(self._last, orders[end - 1])
            start = end

    def _note(self, orders: Orders, payloads: Sequence[object]) -> None:
        """Note items of one block; the operation reports those whose key cannot be computed."""
        if not self._scan.counts:
            return self._reduce(orders, payloads)
        count = len(self._keys)
        try:
            keys_of = self._keys_of
            self._keys += results(self._key_of, payloads) if keys_of is None else keys_of(payloads)
        except Exception:  # noqa: BLE001 - as above
            del self._keys[count:]
            for payload in payloads:
                with suppress(Exception):
                    self._keys.append(self._key_of(payload))
        return None

    def _reduce(self, orders: Orders, payloads: Sequence[object]) -> None:
        totals, key_of = self._totals, self._key_of
        accumulate = self._scan.accumulate_at(orders[0])
        for place, payload in enumerate(payloads):
            try:
                key = key_of(payload)
                before = totals.get(key, MISSING)
            except Exception:  # noqa: BLE001 - as above
                continue
            try:
                totals[key] = accumulate(before, payload)
            except Exception as error:  # noqa: BLE001 - the operation reports it, too, if it fails on the state
                self._scan.refuse(orders[place], payload, f"it fails on an item: {describe(error)}")

    def flush(self) -> None:
        """Tell the total of the items noted, if there are any."""
        keys, totals, place = self._keys, self._totals, self._last
        self._last = b""
        if not keys and not totals:
            return
        self._keys, self._totals = [], {}
        try:
            totals = totals or Counter(keys)
            check_keys(totals)
        except Exception:  # noqa: BLE001 - the operation reports values that are no keys
            if keys:
                totals = Counter(filter(_is_key, keys))
            else:
                totals = {key: total for key, total in totals.items() if _is_key(key)}
        if totals:
            self._tell(place, ([*totals], [*totals.values()]))


class ScanBuffer(ReorderBuffer):
    """The buffer before a scan, with own items and partial totals of others.

    They wait until nothing can come before them.

    Args:
        name: Name of the operation.
        operator: The operation.
        segment: Its segment, as for `ReorderBuffer`.
        key_of: Function of the key.
        send: Sends a partial total.
        blocks: The blocks of which more items are about to come.
    """

    def __init__(
        self,
        name: str,
        operator: ScanOperator,
        segment: int,
        key_of: Callable[[object], object],
        send: SendPartial,
        blocks: Container[int] = (),
    ) -> None:
        super().__init__(name, operator, segment, advance=False)
        self._scan, self._send, self._blocks = operator, send, blocks
        self._own = BlockTotals(operator, key_of, send if operator.counts else self._send_total)
        self._partials: list[tuple[bytes, int, Partial]] = []  # a heap of (place, arrival number, partial)
        self._arrived = 0
        self._sent: list[tuple[bytes, int, Partial]] = []  # the same as above, of own items that are to be verified
        self._before: list[Any] | None = None  # the states before those of the first of them, if some have passed

    # -- input -------------------------------------------------------------------------------------------------------

    def step(self, order: bytes, trace: int, alive: bool, payload: object) -> None:
        self._own.add((order,), (payload,))
        super().step(order, trace, alive, payload)

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        self._own.add(orders, payloads)
        super().run(orders, trace, payloads)

    def arrive(self, place: bytes, trace: int, alive: bool, partial: Any) -> None:
        """Queue a partial total of another worker."""
        self._arrived += 1
        heappush(self._partials, (place, self._arrived, partial))

    def _send_total(self, place: bytes, partial: Partial) -> None:
        """Send the total of own items, and note it to be verified."""
        self._send(place, partial)
        self._arrived += 1
        heappush(self._sent, (place, self._arrived, partial))

    # -- output ------------------------------------------------------------------------------------------------------

    @property
    def lowest(self) -> bytes | None:
        waiting = super().lowest
        if not self._partials:
            return waiting
        return self._partials[0][0] if waiting is None else min(waiting, self._partials[0][0])

    def drain(self, known: bytes, most: int = maxsize) -> None:
        # The partial total of an open block waits for more, which costs one number for a key in place of several. The
        # block is closed before its front promises more, so no minimum time passes what has not been sent.
        if self._own.block not in self._blocks:
            self._own.flush()
        super().drain(known, most)
        if not self.is_ready:
            self._add_before(known)

    def _pass(self, trace: int, alive: bool, orders: Orders, payloads: Sequence[object]) -> None:
        start = 0
        while self._partials and self._partials[0][0] <= orders[-1]:
            place = self._partials[0][0]
            # Before them all, as mostly, as nobody else has items of this block: a bisection spells out a dozen orders.
            end = start if place < orders[start] else bisect_left(orders, place, start)
            if start < end:
                self._pass_verified(trace, alive, orders[start:end], payloads[start:end])
            start = end
            self._add_before(orders[start])
        if start:
            orders, payloads = orders[start:], payloads[start:]
        self._pass_verified(trace, alive, orders, payloads)

    def _pass_verified(self, trace: int, alive: bool, orders: Orders, payloads: Sequence[object]) -> None:
        """Pass items, and verify their totals with the last item of each."""
        start = 0
        while self._sent and start < len(orders):
            place, _, partial = self._sent[0]
            if self._before is None:
                self._before = self._scan.states_of(partial[0])
            end = len(orders) if place >= orders[-1] else bisect_right(orders, place, start)
            if start < end:
                super()._pass(trace, alive, orders[start:end], payloads[start:end])
            start = end
            if place <= orders[end - 1] or start < len(orders):
                heappop(self._sent)
                self._scan.verify(place, self._before, partial)
                self._before = None
        if start:
            orders, payloads = orders[start:], payloads[start:]
        if orders:
            super()._pass(trace, alive, orders, payloads)

    def _add_before(self, order: bytes) -> None:
        """Add the partial totals below an order."""
        while self._partials and self._partials[0][0] < order:
            place, _, partial = heappop(self._partials)
            self._scan.add(place, partial)


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal in a way that outputs show.

    >>> _are_alike((1, "a"), (1, "a"))
    True
    >>> _are_alike(0.0, -0.0), _are_alike((1,), (True,)), _are_alike(Decimal("1.0"), Decimal("1.00"))
    (False, False, False)
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_are_alike, one, other))
    if type(one) in (float, complex, Decimal):
        return repr(one) == repr(other)
    return bool(one == other)


def _is_key(value: Any) -> bool:
    try:
        check_key(value)
    except Exception:  # noqa: BLE001 - the class of a key may be a user's
        return False
    return True
