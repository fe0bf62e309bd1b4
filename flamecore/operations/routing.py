"""Routes: which worker goes on with an item (paper 004, section 2.3). A route is a step like any other.

On one worker there is nothing to route, and an operation's input is its own step. On several, an item either goes on
here or is put into the outbox of the worker that owns its hash; that is all a step knows of other workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flamecore.errors import RunawayLoopError
from flamecore.graph import ByHash, ByKey, ByTime, Map, Route, ToAll, Vertex
from flamecore.hashing import key_group, stable_hash
from flamecore.messages import Routed
from flamecore.meta import GLOBAL_TIME_BYTES, TRACE_MASK, encode_child
from flamecore.operations import Fail, Run, Step, each

_PLACES_KEPT: Final = 65_536
_QUEUE_LIMIT: Final = 1_000_000

Outboxes = Sequence[list[Routed]]
"""For each worker, what is to be sent to it."""


Place = Callable[[bytes, Any], int]
"""(order, payload) → the worker that is to go on with the item."""


def routed(
    vertex: Vertex,
    here: Step,
    run_here: Run,
    *,
    worker: int,
    owners: Sequence[int],
    outboxes: Outboxes,
    fail: Fail,
) -> tuple[Step, Run]:
    """The step and the run that take items for `vertex` to where they are to be processed.

    Args:
        vertex: Whose input it is; its `route` says how.
        here, run_here: The vertex's own on this worker.
        worker: This worker.
        owners: Which worker owns each key group.
        outboxes: What is to be sent to each worker.
        fail: Where items go whose key or hash cannot be taken.
    """
    route = vertex.route
    workers = len(outboxes)
    if isinstance(route, ToAll):
        step = _to_all(vertex.index, here, worker, outboxes)
        return step, each(step)
    # A grouping asks for the key itself. A map does not, but a key that fails must fail on one worker as on several.
    if route is None or (workers == 1 and not (isinstance(vertex, Map) and isinstance(route, (ByKey, ByHash)))):
        return here, run_here
    place = place_finder(route, owners, workers)
    step = _to_place(vertex.index, here, worker, outboxes, fail, place)
    return step, _run_to_place(vertex.index, run_here, worker, outboxes, fail, place)


def place_finder(route: Route, owners: Sequence[int], workers: int) -> Place:
    """The function that finds the worker of an item. Keys that were seen are remembered."""
    if isinstance(route, ByTime):
        return lambda order, payload: int.from_bytes(order[:8], "big") % workers
    if isinstance(route, ByHash):
        hashed = route.function
        return lambda order, payload: owners[key_group(hashed(payload))]
    assert isinstance(route, ByKey)
    key_of = route.key
    places: dict[Any, int] = {}

    def place(order: bytes, payload: Any) -> int:
        key = key_of(payload)
        owner = places.get(key)
        if owner is None:
            owner = owners[key_group(stable_hash(key))]
            if len(places) >= _PLACES_KEPT:
                places.clear()
            places[key] = owner
        return owner

    return place


def _to_place(index: int, here: Step, worker: int, outboxes: Outboxes, fail: Fail, place: Place) -> Step:
    sends = [outbox.append for outbox in outboxes]

    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            owner = place(order, payload)
        except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
            return fail(order, trace, alive, payload, error)
        if owner == worker:
            return here(order, trace, alive, payload)
        return sends[owner]((index, order, trace, alive, payload))

    return step


def _run_to_place(index: int, here: Run, worker: int, outboxes: Outboxes, fail: Fail, place: Place) -> Run:
    sends = [outbox.append for outbox in outboxes]

    def run(orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
        kept_orders: list[bytes] = []
        kept: list[Any] = []
        for order, payload in zip(orders, payloads, strict=True):
            try:
                owner = place(order, payload)
            except Exception as error:  # noqa: BLE001
                fail(order, trace, True, payload, error)
                continue
            if owner == worker:
                kept_orders.append(order)
                kept.append(payload)
            else:
                sends[owner]((index, order, trace, True, payload))
        if kept:
            here(kept_orders, trace, kept)

    return run


def arrive(items: Sequence[Routed], steps: Mapping[int, Step], runs: Mapping[int, Run]) -> None:
    """Process what another worker has sent, in its order; items that follow each other straight go as a run.

    Args:
        items: What has come.
        steps: For each vertex index, its step.
        runs: For each vertex index that takes them from outside, its run.
    """
    place, end = 0, len(items)
    while place < end:
        index, order, trace, alive, payload = items[place]
        place += 1
        run = runs.get(index)
        if run is None or not alive:
            steps[index](order, trace, alive, payload)
            continue
        orders, payloads = [order], [payload]
        while place < end:
            index_2, order_2, trace_2, alive_2, payload_2 = items[place]
            if index_2 != index or trace_2 != trace or not alive_2 or order_2 <= order:
                break
            order = order_2
            orders.append(order_2)
            payloads.append(payload_2)
            place += 1
        run(orders, trace, payloads)


def _to_all(index: int, here: Step, worker: int, outboxes: Outboxes) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        for owner, outbox in enumerate(outboxes):
            copy = order + encode_child(owner)
            if owner == worker:
                here(copy, trace, alive, payload)
            else:
                outbox.append((index, copy, trace, alive, payload))

    return step


class LoopHead:
    """Where a cycle begins: lets one item at a time go round, on this worker, with all that comes of it.

    What comes back while an item is on its way waits until the operation that made it is through with what it emits;
    otherwise a repair could overtake the very outputs it repairs. Then it goes round before the next item does: so
    descendants meet in order, and on a single worker nothing is ever replayed.

    Args:
        name: The merge that the cycle goes back to.
        limit_bytes: Longest child ids an item may gather.
        fail: Where an item goes that exceeds it.
    """

    def __init__(self, name: str, limit_bytes: int, fail: Fail) -> None:
        self.name = name
        self.limit = limit_bytes + GLOBAL_TIME_BYTES
        self.inside: Step = _nowhere
        self.busy = False
        self.waiting: deque[tuple[bytes, int, bool, Any]] = deque()
        self._fail = fail

    def enter(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """An item comes from outside the cycle."""
        self.waiting.append((order, trace, alive, payload))
        if not self.busy:
            self.busy = True
            self.drain()
            self.busy = False

    def feed_back(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """An item has gone round once more.

        Its trace is turned by one bit: the rounds of a trace must not be exchangeable, or two recomputations that
            saw the
        same workers in another sequence would have one identity.
        """
        if len(order) > self.limit:
            error = RunawayLoopError(
                f"an item has gone round the cycle at {self.name!r} without end: {len(order)} bytes of child ids",
                hint="Give the cycle an exit condition.",
                vertex=self.name,
                record=payload,
            )
            return self._fail(order, trace, alive, payload, error)
        if len(self.waiting) > _QUEUE_LIMIT:
            raise RunawayLoopError(
                f"more than {_QUEUE_LIMIT} items of one record go round the cycle at {self.name!r}: {payload!r:.160}",
                hint="Every round makes more items than it ends; give the cycle an exit condition.",
                vertex=self.name,
                record=payload,
            )
        return self.enter(order, (trace << 1 | trace >> 63) & TRACE_MASK, alive, payload)

    def drain(self) -> None:
        """Let everything that waits go round, oldest first."""
        waiting, inside = self.waiting, self.inside
        while waiting:
            inside(*waiting.popleft())


def arriving(here: Step, heads: Sequence[LoopHead]) -> Step:
    """The step for items that come from another worker to a vertex on a cycle, in the midst of it.

    The vertex is then what is at work: what comes back to a head of its cycles waits until it is through.
    """
    if not heads:
        return here

    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        for head in heads:
            head.busy = True
        here(order, trace, alive, payload)
        while any(head.waiting for head in heads):
            for head in heads:
                head.drain()
        for head in heads:
            head.busy = False

    return step


def _nowhere(order: bytes, trace: int, alive: bool, payload: Any) -> None:
    raise AssertionError("the inside of a cycle has not been compiled")
