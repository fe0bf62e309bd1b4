"""Routes: which worker goes on with an item (paper 004, section 2.3). A route is a step like any other.

On one worker there is nothing to route, and an operation's input is its own step. On several, an item either goes on
here or is put into the outbox of the worker that owns its hash; that is all a step knows of other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import Any, Final

from flamecore.abc.operator import Fail, Run, Step, Way, each
from flamecore.model.batch import Orders, concat, joined, materialise
from flamecore.model.hashing import key_group, stable_hash
from flamecore.model.messages import Piece
from flamecore.model.meta import decode_time, encode_child
from flamecore.model.vertices import ByHash, ByKey, ByTime, Route, ToAll, Vertex
from flamecore.runtime.operators.rebalance import DealingByLoad, DealingByTime, LoadShares, Part, dealt

_PLACES_KEPT: Final = 65_536
_LONGEST_TEXT: Final = 64
"""Places are remembered of so many keys and payloads, and of no longer texts: what is remembered takes little."""


class Outbox:
    """What is to be sent to one worker, in the order it was put in."""

    __slots__ = ("_single", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._single: tuple[list[bytes], list[Any]] | None = None  # the last of them, if it may be added to

    def __len__(self) -> int:
        return len(self.pieces)

    def put(self, index: int, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Add one item for the vertex of that index."""
        if self._single is not None:
            last_index, last_trace, last_alive, _, _ = self.pieces[-1]
            orders, payloads = self._single
            if last_index == index and last_trace == trace and last_alive is alive and orders[-1] < order:
                orders.append(order)
                payloads.append(payload)
                return
        self._single = ([order], [payload])
        self.pieces.append((index, trace, alive, *self._single))

    def put_run(self, index: int, trace: int, orders: Orders, payloads: Sequence[Any]) -> None:
        """Add a run for the vertex of that index."""
        self._single = None
        self.pieces.append((index, trace, True, orders, payloads))

    def take(self) -> list[Piece]:
        """Empty it. What follows straight is one piece."""
        pieces, self.pieces, self._single = self.pieces, [], None
        if len(pieces) < 2:
            return pieces
        groups: list[list[Piece]] = []
        for piece in pieces:
            if groups and groups[-1][-1][:3] == piece[:3] and groups[-1][-1][3][-1] < piece[3][0]:
                groups[-1].append(piece)
            else:
                groups.append([piece])
        return [
            (*group[0][:3], joined([one[3] for one in group]), concat([one[4] for one in group])) for group in groups
        ]


Outboxes = Sequence[Outbox]
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
    shares: LoadShares | None = None,
    stays: bool = False,
) -> Way:
    """Return the step and the run that take items for `vertex` to where they are to be processed.

    Args:
        vertex: Whose input it is; its `route` says how.
        here, run_here: The vertex's own on this worker.
        worker: This worker.
        owners: Which worker owns each key group.
        outboxes: What is to be sent to each worker.
        fail: Where items go whose key or hash cannot be taken.
        shares: What a rebalance goes by whose items come once; None: it goes by their times.
        stays: Whether what is here stays here, unless its key says otherwise: in a cycle that is at home on one worker.
    """
    route = vertex.route
    workers = len(outboxes)
    if isinstance(route, ToAll):
        step = _copied(here, workers) if stays else _to_all(vertex.index, here, worker, outboxes)
        return Way(step, each(step))
    if route is None or (isinstance(route, ByTime) and (workers == 1 or stays)):
        return Way(here, run_here)
    # A stateful vertex asks for the key itself. A map does not, but a key that fails must fail on one owner too.
    if not isinstance(route, ByTime) and vertex.stateful and len(set(owners)) == 1:
        return Way(here, run_here) if owners[0] == worker else _to_one(vertex.index, outboxes[owners[0]])
    place = place_finder(route, owners, workers)
    parted: Parting
    if isinstance(route, ByTime) and shares is not None:
        place, parted = _next_of(shares), DealingByLoad(shares)
        here, run_here = shares.timed(here), shares.timed(run_here)
    elif isinstance(route, ByTime):
        parted = DealingByTime(workers)
    elif isinstance(route, ByKey):
        parted = _PartingTexts(place, fail, workers)
    else:
        parted = _Parting(place, fail, workers)
    step = _to_place(vertex.index, here, worker, outboxes, fail, place)
    return Way(step, _run_to_place(vertex.index, run_here, worker, outboxes, parted))


def _to_one(index: int, outbox: Outbox) -> Way:
    """All of it goes to one other worker, and nobody asks here for what key it has."""

    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        outbox.put(index, order, trace, alive, payload)

    def run(orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        outbox.put_run(index, trace, orders, payloads)

    return Way(step, run)


def place_finder(route: Route, owners: Sequence[int], workers: int) -> Place:
    """The function that finds the worker of an item. Keys that were seen are remembered."""
    if isinstance(route, ByTime):
        return lambda order, payload: dealt(decode_time(order)) % workers
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
            if type(key) is not str or len(key) <= _LONGEST_TEXT:
                places[key] = owner
        return owner

    return place


def _next_of(shares: LoadShares) -> Place:
    return lambda order, payload: shares.deal(1).index(1)


def _to_place(index: int, here: Step, worker: int, outboxes: Outboxes, fail: Fail, place: Place) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            owner = place(order, payload)
        except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
            return fail(order, trace, alive, payload, error)
        if owner == worker:
            return here(order, trace, alive, payload)
        return outboxes[owner].put(index, order, trace, alive, payload)

    return step


def _run_to_place(index: int, here: Run, worker: int, outboxes: Outboxes, part: Parting) -> Run:
    def run(orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        parts = part(orders, trace, payloads)
        for owner, (places, values) in enumerate(parts):
            if places and owner != worker:
                outboxes[owner].put_run(index, trace, places, values)
        if parts[worker][0]:
            here(parts[worker][0], trace, parts[worker][1])

    return run


class _Parting:
    """Parts a run among the workers, item by item.

    Args:
        place: Finds the worker of an item.
        fail: Where items go that have none.
        workers: How many there are.
    """

    def __init__(self, place: Place, fail: Fail, workers: int) -> None:
        self.place, self.fail, self.workers = place, fail, workers

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> Sequence[Part]:
        parts: list[tuple[list[bytes], list[Any]]] = [([], []) for _ in range(self.workers)]
        ways = [(places.append, values.append) for places, values in parts]
        place = self.place
        for order, payload in zip(orders, payloads, strict=True):
            try:
                add_order, add_payload = ways[place(order, payload)]
            except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
                self.fail(order, trace, True, payload, error)
                continue
            add_order(order)
            add_payload(payload)
        return parts


class _PartingTexts(_Parting):
    """Parts a run by key. Equal texts have equal keys, so where payloads are texts their places are remembered: a flow
    that counts words asks for the key of each word once, not each time. Arguments as for `_Parting`."""

    def __init__(self, place: Place, fail: Fail, workers: int) -> None:
        super().__init__(place, fail, workers)
        self._places: dict[str, int] = {}
        self._asked = 0  # since they were forgotten the last time
        self._helps = True

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> Sequence[Part]:
        if not self._helps or type(payloads[0]) is not str or set(map(type, payloads)) != {str}:
            return super().__call__(orders, trace, payloads)
        self._asked += len(payloads)
        orders = materialise(orders)
        found: list[Any] = list(map(self._places.get, payloads))
        if None in found and not self._find(found, orders, payloads):
            return super().__call__(orders, trace, payloads)
        if self.workers == 2:  # one pass of C for each list
            other = list(map(not_, found))
            return [
                (list(compress(orders, other)), list(compress(payloads, other))),
                (list(compress(orders, found)), list(compress(payloads, found))),
            ]
        parts: list[tuple[list[bytes], list[Any]]] = [([], []) for _ in range(self.workers)]
        ways = [(places.append, values.append) for places, values in parts]
        for order, payload, owner in zip(orders, payloads, found, strict=True):
            add_order, add_payload = ways[owner]
            add_order(order)
            add_payload(payload)
        return parts

    def _find(self, found: list[Any], orders: Orders, payloads: Sequence[str]) -> bool:
        """Find the places that are missing; False: one has none."""
        places, place = self._places, self.place
        at = -1
        for _ in range(found.count(None)):
            at = found.index(None, at + 1)
            payload = payloads[at]
            owner = places.get(payload)
            if owner is None:
                try:
                    owner = place(orders[at], payload)
                except Exception:  # noqa: BLE001 - it is asked for again, item by item
                    return False
                if len(payload) <= _LONGEST_TEXT:
                    places[payload] = owner
            found[at] = owner
        if len(places) >= _PLACES_KEPT:
            self._helps = self._asked > 2 * len(places)
            self._asked = 0
            places.clear()
        return True


Parting = _Parting | DealingByTime | DealingByLoad


def arrive(pieces: Sequence[Piece], steps: Mapping[int, Step], runs: Mapping[int, Run]) -> None:
    """Process what another worker has sent, in its order.

    Args:
        pieces: What has come.
        steps: For each vertex index, its step.
        runs: For each vertex index that takes them from outside, its run.
    """
    for index, trace, alive, orders, payloads in pieces:
        run = runs.get(index)
        if run is not None and alive:
            run(orders, trace, payloads)
            continue
        step = steps[index]
        for order, payload in zip(orders, payloads, strict=True):
            step(order, trace, alive, payload)


def _copied(here: Step, workers: int) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        for owner in range(workers):
            here(order + encode_child(owner), trace, alive, payload)

    return step


def _to_all(index: int, here: Step, worker: int, outboxes: Outboxes) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        for owner, outbox in enumerate(outboxes):
            copy = order + encode_child(owner)
            if owner == worker:
                here(copy, trace, alive, payload)
            else:
                outbox.put(index, copy, trace, alive, payload)

    return step
