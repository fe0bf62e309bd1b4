"""Routes: the choice of the worker for an item (paper 004, section 2.3).

A route is a step like any other. On one worker there is nothing to route, and an operation's input is its own step. On
several, an item is either processed here or put into the outbox of the worker that owns its hash; steps know nothing
else of other workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from operator import itemgetter, not_
from typing import Any, Final

from flamecore.abc.operator import NEVER_OVER, Fail, Operator, Round, Run, Site, Step, Way, each
from flamecore.errors import PlaceError
from flamecore.model.batch import (
    Beside,
    Column,
    DerivedOrders,
    Orders,
    concat,
    extended,
    joined,
    made_of,
    materialise,
    results,
    selected,
)
from flamecore.model.failure import shorten_repr
from flamecore.model.hashing import check_key, key_group, key_groups, stable_hash
from flamecore.model.messages import Piece
from flamecore.model.meta import CHILD, decode_time, encode_child
from flamecore.model.vertices import ByHash, ByKey, ByTime, Placing, Route, ToAll, Vertex
from flamecore.runtime.operators.rebalance import DealingByLoad, DealingByTime, LoadShares, Part, dealt

_PLACES_KEPT: Final = 65_536
_LONGEST_TEXT: Final = 64
"""Most keys and payloads whose places are cached, and the longest cached text: the cache stays small."""


class Outbox:
    """Pieces to send to one worker, in the order in which they were put."""

    __slots__ = ("_single", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._single: tuple[list[bytes], list[object]] | None = None  # the last piece, if it may grow

    def __len__(self) -> int:
        return len(self.pieces)

    def put(self, index: int, order: bytes, trace: int, alive: bool, payload: object) -> None:
        """Add one item for the vertex with that index."""
        if self._single is not None:
            last_index, last_trace, last_alive, _, _ = self.pieces[-1]
            orders, payloads = self._single
            if last_index == index and last_trace == trace and last_alive is alive and orders[-1] < order:
                orders.append(order)
                payloads.append(payload)
                return
        self._single = ([order], [payload])
        self.pieces.append((index, trace, alive, *self._single))

    def put_run(self, index: int, trace: int, orders: Orders, payloads: Sequence[object]) -> None:
        """Add a run for the vertex with that index."""
        self._single = None
        self.pieces.append((index, trace, True, orders, payloads))

    def take(self) -> list[Piece]:
        """Take out all pieces, with consecutive ones joined."""
        pieces, self.pieces, self._single = self.pieces, [], None
        if len(pieces) < 2:
            return pieces
        groups: list[list[Piece]] = []
        for piece in pieces:
            # Joined only if nothing is between them: a channel never changes the sequence of its
            # items, or a tombstone could pass its victim.
            if groups and groups[-1][-1][:3] == piece[:3] and groups[-1][-1][3][-1] < piece[3][0]:
                groups[-1].append(piece)
            else:
                groups.append([piece])
        return [
            # The parts of runs are put together here, where they are sent, and not run by run: what
            # follows straight is one run for the receiver.
            (*group[0][:3], joined([one[3] for one in group]), concat([one[4] for one in group]))
            for group in groups
        ]


Outboxes = Sequence[Outbox]
"""The outbox of each worker."""


Place = Callable[[bytes, object], int]
"""(order, payload) → the worker that processes the item."""


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
    records: RecordPlaces | None = None,
    turn: Round = NEVER_OVER,
) -> Way:
    """Return the step and the run that bring items of `vertex` to their workers.

    Args:
        vertex: The vertex; its `route` decides.
        here, run_here: Step and run of the vertex on this worker.
        worker: Number of this worker.
        owners: Owner of each key group.
        outboxes: Outbox of each worker.
        fail: Failure handler of items whose key or hash function fails.
        shares: Shares of a rebalance whose items come once; None: it follows their times.
        stays: Whether items stay here, unless routed by key: in a cycle that is at home on one worker.
        records: Places of the records of which the items are made, and which have brought them to their workers.
        turn: The rounds of the worker, for the way to the vertex.
    """
    route = vertex.route
    if records is not None:
        return records.checked(vertex, Way(here, run_here), fail)
    workers = len(outboxes)
    if isinstance(route, ToAll):
        step = _copied(here, workers) if stays else _to_all(vertex.index, here, worker, outboxes)
        return Way(step, each(step))
    if route is None or (isinstance(route, ByTime) and (workers == 1 or stays)):
        return Way(here, run_here)
    # A stateful vertex calls the key function itself. A map does not, but a failing key must fail on one owner too.
    # A placing calls it, too; but nobody else calls the function of a place.
    called = isinstance(vertex, Placing) or (vertex.stateful and not (isinstance(route, ByKey) and route.place))
    if called and not isinstance(route, ByTime) and len(set(owners)) == 1:
        return Way(here, run_here) if owners[0] == worker else _to_one(vertex.index, outboxes[owners[0]])
    place = place_finder(route, owners, workers)
    parted: Parting
    # By load only where items come once: a tombstone has to go the way of its item, which only its order tells.
    if isinstance(route, ByTime) and shares is not None:
        place, parted = _next_of(shares), DealingByLoad(shares)
        here, run_here = shares.timed(here), shares.timed(run_here)
    elif isinstance(route, ByTime):
        parted = DealingByTime(workers)
    elif isinstance(route, ByKey):
        parted = _PartingByKey(route.placed, owners, place, fail, workers, turn, notes=vertex.ordered)
    else:
        parted = _Parting(place, fail, workers, turn)
    step = _to_place(vertex.index, here, worker, outboxes, fail, place)
    return Way(step, _run_to_place(vertex.index, run_here, worker, outboxes, parted, turn))


def _to_one(index: int, outbox: Outbox) -> Way:
    """Return the way of items that all go to one other worker; it needs no key."""

    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        outbox.put(index, order, trace, alive, payload)

    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        outbox.put_run(index, trace, orders, payloads)

    return Way(step, run)


def place_finder(route: Route, owners: Sequence[int], workers: int) -> Place:
    """Return a function that finds the worker of an item; it caches known keys."""
    if isinstance(route, ByTime):
        return lambda order, payload: dealt(decode_time(order)) % workers
    if isinstance(route, ByHash):
        hashed = route.function
        return lambda order, payload: owners[key_group(hashed(payload))]
    assert isinstance(route, ByKey)
    key_of = route.placed
    places: dict[object, int] = {}

    # Most keys repeat, and to look one up costs less than its hash.
    def place(order: bytes, payload: object) -> int:
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
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            owner = place(order, payload)
        except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
            return fail(order, trace, alive, payload, error)
        if owner == worker:
            return here(order, trace, alive, payload)
        return outboxes[owner].put(index, order, trace, alive, payload)

    return step


def _run_to_place(index: int, here: Run, worker: int, outboxes: Outboxes, part: Parting, turn: Round) -> Run:
    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        if turn.is_over:
            return turn.leave(run, orders, trace, payloads)
        parts = part(orders, trace, payloads)
        for owner, (places, values) in enumerate(parts):
            if places and owner != worker:
                outboxes[owner].put_run(index, trace, places, values)
        if parts[worker][0]:
            here(parts[worker][0], trace, parts[worker][1])
        if (done := part.done) < len(orders):
            turn.leave(run, orders[done:], trace, payloads[done:])
        return None

    return run


class _Parting:
    """A partition of runs among the workers, item by item.

    Args:
        place: Function that finds the worker of an item.
        fail: Failure handler of items without one.
        workers: Number of workers.
        turn: The rounds of the worker.

    Attributes:
        done: Number of items of the last run that the round has come to.
    """

    def __init__(self, place: Place, fail: Fail, workers: int, turn: Round = NEVER_OVER) -> None:
        self.place, self.fail, self.workers, self.turn = place, fail, workers, turn
        self.done = 0

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[object]) -> Sequence[Part]:
        done = 0
        parts: list[tuple[list[bytes], list[object]]] = [([], []) for _ in range(self.workers)]
        ways = [(places.append, values.append) for places, values in parts]
        place = self.place
        for done, (order, payload) in enumerate(zip(orders, self.turn.iterate(payloads), strict=False), 1):  # noqa: B007
            try:
                add_order, add_payload = ways[place(order, payload)]
            except Exception as error:  # noqa: BLE001 - a failing or unhashable key is the user's to see
                self.fail(order, trace, True, payload, error)
                continue
            add_order(order)
            add_payload(payload)
        self.turn.finish()
        self.done = done
        return parts


class _PlaceCache:
    """The places of names, in C loops, while they repeat themselves.

    Attributes:
        helps: Whether names have repeated themselves so far.
    """

    def __init__(self) -> None:
        self.helps = True
        self._places: dict[object, int] = {}
        self._asked = 0  # lookups since the cache was last cleared

    def find(self, names: Sequence[object], places_of: Callable[[Sequence[object]], Sequence[int]]) -> Sequence[int]:
        """Return the place of each name.

        Args:
            names: Hashable names.
            places_of: Function that returns the places of new names; what it raises is raised.
        """
        places = self._places
        self._asked += len(names)
        found = list(map(places.get, names))
        if None in found:
            new = list(dict.fromkeys(compress(names, [place is None for place in found])))
            fresh = dict(zip(new, places_of(new), strict=True))
            found = [fresh[name] if place is None else place for name, place in zip(names, found, strict=True)]
            places.update(
                (name, place) for name, place in fresh.items() if type(name) is not str or len(name) <= _LONGEST_TEXT
            )
            if len(places) >= _PLACES_KEPT:
                # If less than half of the look-ups found something, keys do not repeat themselves,
                # and looking costs more than hashing them by columns.
                self.helps = self._asked > 2 * len(places)
                self._asked = 0
                places.clear()
        return found  # type: ignore[return-value]  # none is None any more


class _PartingByKey(_Parting):
    """A partition of runs by key, in C loops.

    Equal texts have equal keys: a flow that counts words calls the key function once for each word. Keys that do not
    repeat themselves are hashed by columns, since looking for them costs as much.

    Args:
        key: The function to what is hashed.
        owners: Owner of each key group.
        place, fail, workers, turn: As for `_Parting`.
        notes: Whether the keys go along beside the payloads. Operations that take keys in columns then need no call
            for each.
    """

    def __init__(
        self,
        key: Callable[[object], object],
        owners: Sequence[int],
        place: Place,
        fail: Fail,
        workers: int,
        turn: Round = NEVER_OVER,
        *,
        notes: bool = False,
    ) -> None:
        super().__init__(place, fail, workers, turn)
        self._slow = False  # whether a round has ended in the key function, which then goes item by item
        self._key, self._owners, self._notes = key, owners, notes
        self._texts, self._keys = _PlaceCache(), _PlaceCache()

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[object]) -> Sequence[Part]:
        if self._slow:
            return super().__call__(orders, trace, payloads)
        texts = self._texts.helps and type(payloads[0]) is str and set(map(type, payloads)) == {str}
        columns: list[Column] = []
        try:
            if texts:
                found = self._texts.find(payloads, self._places_of)
            else:
                keys = self._keys_of(payloads)
                found = self._keys.find(keys, self._owners_of) if self._keys.helps else self._owners_of(keys)
                if self._notes:
                    columns.append((self._key, keys))
        except Exception:  # noqa: BLE001 - the item-by-item path repeats the call, and reports it
            return super().__call__(orders, trace, payloads)
        self.done = len(orders)
        orders = materialise(orders)
        if type(payloads) is Beside:
            columns += payloads.columns
        if columns:
            return self._with_columns(found, orders, payloads, columns)
        if self.workers == 2:  # one pass of C for each list
            other = list(map(not_, found))
            return [
                (list(compress(orders, other)), list(compress(payloads, other))),
                (list(compress(orders, found)), list(compress(payloads, found))),
            ]
        parts: list[tuple[list[bytes], list[object]]] = [([], []) for _ in range(self.workers)]
        ways = [(places.append, values.append) for places, values in parts]
        for order, payload, owner in zip(orders, payloads, found, strict=True):
            add_order, add_payload = ways[owner]
            add_order(order)
            add_payload(payload)
        return parts

    def _with_columns(
        self, found: Sequence[int], orders: Sequence[bytes], payloads: Sequence[object], columns: Sequence[Column]
    ) -> Sequence[Part]:
        """Return the parts of payloads with columns beside them.

        Args:
            found: The worker of each.
            orders: The order of each.
            payloads: The payloads.
            columns: The columns beside them.
        """
        return [
            (pick(orders), Beside(pick(payloads), *[(by, pick(column)) for by, column in columns]))
            for pick in _picks(found, self.workers)
        ]

    def _places_of(self, payloads: Sequence[object]) -> Sequence[int]:
        return self._owners_of(self._keys_of(payloads))

    def _keys_of(self, payloads: Sequence[object]) -> Sequence[object]:
        keys = [*map(self._key, self.turn.iterate(payloads))]
        self.turn.finish()
        if len(keys) < len(payloads):
            self._slow = self.turn.is_over
            raise RuntimeError("the round has ended, or the key function raised StopIteration")
        return keys

    def _owners_of(self, keys: Sequence[object]) -> Sequence[int]:
        return list(map(self._owners.__getitem__, key_groups(keys)))


def _picks(found: Sequence[int], workers: int) -> list[Callable[[Sequence[Any]], list[Any]]]:
    """Return for each worker a function that picks its entries of a column, in C loops.

    Args:
        found: The worker of each entry.
        workers: Number of workers.
    """
    if workers == 2:
        other = list(map(not_, found))
        return [lambda column: list(compress(column, other)), lambda column: list(compress(column, found))]
    indexes: list[list[int]] = [[] for _ in range(workers)]
    adds = [some.append for some in indexes]
    for index, owner in enumerate(found):
        adds[owner](index)
    return [partial(_picked, some) for some in indexes]


def _picked(indexes: Sequence[int], column: Sequence[Any]) -> list[Any]:
    """Return the entries of a column at some indexes."""
    if len(indexes) < 2:  # a getter of one index returns no tuple
        return [column[at] for at in indexes]
    # A subclass would be asked for each entry by its own method.
    return [*itemgetter(*indexes)(column if type(column) is list else list(column))]


class RecordPlaces:
    """The places of the records under way on a worker, for all that is made of them.

    The worker has been dealt the records by these places. Only calls are between the vertex that deals records and a
    route by place. So no place is kept longer than the run of its record takes, with what was left of a round, and no
    place is sent along.

    Args:
        placing: Name of the vertex that deals the records.
    """

    __slots__ = ("_earlier", "_orders", "_places", "_placing")

    def __init__(self, placing: str) -> None:
        self._placing = placing
        self._orders: Sequence[bytes] = ()
        self._places: Sequence[object] = ()
        self._earlier: list[tuple[Sequence[bytes], Sequence[object]]] = []

    def note(self, orders: Sequence[bytes], places: Sequence[object], *, keep: bool = False) -> None:
        """Note the records that go on now, in order, and their places.

        Args:
            orders, places: The records.
            keep: Whether some that are made of earlier records are left of a round.
        """
        if keep:
            self._earlier.append((self._orders, self._places))
        elif self._earlier:
            self._earlier.clear()
        self._orders, self._places = orders, places

    def _turn_to(self, order: bytes) -> None:
        """Take the records of which an item is made."""
        for number in range(len(self._earlier), -1, -1):
            orders, places = self._earlier[number] if number < len(self._earlier) else (self._orders, self._places)
            at = bisect_right(orders, order) - 1
            if at >= 0 and order.startswith(orders[at]):
                if number < len(self._earlier):
                    self._earlier[number] = self._orders, self._places
                    self._orders, self._places = orders, places
                return

    def are(self, places: list[object], orders: Orders) -> bool:
        """Return whether `places` are those of the records that `orders` derive from."""
        if self._earlier:
            self._turn_to(orders[0])
        # The usual case, of a map with one output each: the columns are compared in one step of C.
        if type(orders) is DerivedOrders and orders.counts is None and orders.bases is self._orders:  # one of each
            return places == self._places
        at = 0
        for index, count in made_of(orders, self._orders):
            if places[at : at + count].count(self._places[index]) < count:
                return False
            at += count
        return True

    def checked(self, vertex: Vertex, way: Way, fail: Fail) -> Way:
        """Return the way into a vertex for items whose key has their record's place.

        Items whose key has another place do not take it.

        Args:
            vertex: The vertex, with a route by place.
            way: The way of the others.
            fail: Failure handler of items that have another place, or none.
        """
        route = vertex.route
        assert isinstance(route, ByKey)
        key_of, place_of = route.key, route.place
        assert place_of is not None
        here, run_here = way

        def is_right(order: bytes, trace: int, alive: bool, payload: object) -> bool:
            if self._earlier:
                self._turn_to(order)
            try:
                key = key_of(payload)
                place = place_of(key)
                # Orders of the records ascend, so the record of an item is the last one at or
                # before it: what is derived from a record sorts behind it and before the next.
                expected = self._places[bisect_right(self._orders, order) - 1]
                if place == expected:
                    return True
                error: Exception = self._refusal(vertex.name, payload, key, place, expected)
            except Exception as raised:  # noqa: BLE001 - a failing key or place is the user's to see
                error = raised
            fail(order, trace, alive, payload, error)
            return False

        def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
            if is_right(order, trace, alive, payload):
                here(order, trace, alive, payload)

        def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
            try:
                right = self.are(results(place_of, results(key_of, payloads)), orders)
            except Exception:  # noqa: BLE001 - item by item, which repeats the call and reports it
                right = False
            if not right:
                both = enumerate(zip(orders, payloads, strict=True))
                kept = [at for at, (order, payload) in both if is_right(order, trace, True, payload)]
                orders, payloads = selected(orders, kept), [payloads[at] for at in kept]
            if payloads:
                run_here(orders, trace, payloads)

        return Way(step, run)

    def _refusal(self, vertex: str, record: object, key: object, place: object, expected: object) -> PlaceError:
        return PlaceError(
            f"{vertex!r} is to take an item with the key {shorten_repr(key)}, whose place is {shorten_repr(place)}, "
            f"and the record of which it is made was dealt by {self._placing!r} to the place {shorten_repr(expected)}",
            hint="Give key_by a place that returns for each key what place_by has returned for its record. Where the "
            "two differ, draw key_by without place, or rebalance() before it: items then go to the workers of their "
            "keys.",
            vertex=vertex,
            placing=self._placing,
            record=record,
            key=key,
            place=place,
            expected=expected,
        )


class PlacingOperator(Operator):
    """The operator of a placing, on the worker to which its records have been dealt.

    Args:
        vertex: The placing.
        site: Its place on the worker.

    Attributes:
        records: The list in which it notes the places of the records; the compiler connects it with the routes behind.
    """

    def __init__(self, vertex: Placing, site: Site) -> None:
        assert isinstance(vertex.route, ByKey)
        self._place_of, self._ident = vertex.route.key, site.ident
        self._emit, self._emit_run, self._fail = site.emit, site.emit_run, site.fail
        self._round = site.round
        self.records = RecordPlaces(vertex.name)

    def step(self, order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            place = self._place_of(payload)
            check_key(place)
        except Exception as error:  # noqa: BLE001 - a failing or unhashable place is the user's to see
            return self._fail(order, trace, alive, payload, error)
        self.records.note((order,), (place,), keep=self._round.is_behind)
        return self._emit(order + CHILD[0], trace ^ self._ident, alive, payload)

    def run(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        try:
            places = results(self._place_of, payloads)
            for place in places:
                check_key(place)
        except Exception:  # noqa: BLE001 - as above
            return each(self.step)(orders, trace, payloads)
        orders = materialise(orders)
        self.records.note(orders, places, keep=self._round.is_behind)
        return self._emit_run(extended(orders, CHILD[0]), trace ^ self._ident, payloads)


Parting = _Parting | DealingByTime | DealingByLoad


def _copied(here: Step, workers: int) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        for owner in range(workers):
            here(order + encode_child(owner), trace, alive, payload)

    return step


def _to_all(index: int, here: Step, worker: int, outboxes: Outboxes) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        for owner, outbox in enumerate(outboxes):
            copy = order + encode_child(owner)
            if owner == worker:
                here(copy, trace, alive, payload)
            else:
                outbox.put(index, copy, trace, alive, payload)

    return step
