"""Outboxes: they keep the order, and join items that follow each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.operator import Work, each
from flamecore.model.batch import Beside, column_of
from flamecore.model.hashing import key_group, owners, stable_hash
from flamecore.model.messages import Items
from flamecore.model.meta import GlobalTime
from flamecore.model.ordered import Ordered
from flamecore.model.vertices import ByHash, ByKey, ByTime, Grouping, Map, Route, Vertex
from flamecore.runtime.operators import exchange as routing
from flamecore.runtime.operators.exchange import Outbox, place_finder, routed
from flamecore.runtime.operators.rounds import Rounds
from flamecore.runtime.parts.backlog import Backlog

Item = tuple[int, bytes, int, bool, Any]

orders = st.binary(min_size=1, max_size=2)
items = st.tuples(st.integers(1, 2), orders, st.integers(0, 1), st.booleans(), st.integers())
runs = st.tuples(st.integers(1, 2), st.sets(orders, min_size=1, max_size=4).map(sorted), st.integers(0, 1))


@given(st.lists(st.one_of(items, runs), max_size=30))
def test_items_arrive_as_they_were_sent_in_order(sent: list[Any]) -> None:
    outbox, wanted, arrived = Outbox(), [], []
    for entry in sent:
        if len(entry) == 3:
            index, places, trace = entry
            outbox.put_run(index, trace, [*places], [*places])
            wanted += [(index, place, trace, True, place) for place in places]
        else:
            outbox.put(*entry)
            wanted.append(entry)

    def step(index: int) -> Any:
        return lambda order, trace, alive, payload: arrived.append((index, order, trace, alive, payload))

    pieces = outbox.take()
    for _, _, _, places, payloads in pieces:
        assert len(places) == len(payloads)
        assert places == sorted(set(places)), "a piece is in order"
    ended: list[Items] = []
    steps = {1: step(1), 2: step(2)}
    backlog = Backlog(steps, {2: each(step(2))}, [0, 0, 0], Rounds(), lambda _, message: ended.append(message))
    backlog.receive("worker/1", Items(pieces, ()))
    for _ in range(100):  # a piece may be cut
        backlog.run(3)
    assert not backlog.waiting
    assert len(ended) == 1
    assert arrived == wanted
    assert len(outbox) == 0


def test_consecutive_items_of_one_trace_are_one_run() -> None:
    outbox, run = Outbox(), [b"a", b"b"]
    outbox.put_run(1, 7, run, ["a", "b"])
    outbox.put(1, b"c", 7, True, "c")
    outbox.put_run(1, 7, [b"d"], ["d"])
    outbox.put(1, b"d", 7, False, "d")
    outbox.put_run(1, 7, [b"d"], ["d"])
    outbox.put_run(1, 7, [b"d"], ["D"])
    assert outbox.take() == [
        (1, 7, True, [b"a", b"b", b"c", b"d"], ["a", "b", "c", "d"]),
        (1, 7, False, [b"d"], ["d"]),
        (1, 7, True, [b"d"], ["d"]),
        (1, 7, True, [b"d"], ["D"]),
    ]
    assert run == [b"a", b"b"], "a run is nobody's to add to"
    outbox.put(1, b"e", 7, False, "e")
    assert outbox.take() == [(1, 7, False, [b"e"], ["e"])]


def test_rebalance_deals_the_first_records_one_by_one_and_all_of_them_evenly() -> None:
    place = place_finder(ByTime(), (), 3)
    found = [place(GlobalTime(time, 1).encode(), None) for time in range(4800)]
    assert found[:6] == [0, 1, 2, 0, 1, 2]
    assert len(set(found[2048:2056])) == 1, "later ones in blocks"
    assert all(1550 < found.count(worker) < 1650 for worker in range(3))


class Ends:
    """The places that the items of one worker arrive at."""

    def __init__(self, route: Route, workers: int, worker: int, vertex: Vertex | None = None, owning: int = 99) -> None:
        self.items: list[Item] = []
        self.failed: list[tuple[bytes, Any]] = []
        self.outboxes = [Outbox() for _ in range(workers)]
        self.step, self.run = routed(
            vertex or Map("map", route=route, index=5, function=abs),
            self.take,
            each(self.take),
            worker=worker,
            owners=owners(workers, owning),
            outboxes=self.outboxes,
            fail=lambda order, trace, alive, payload, error: self.failed.append((order, payload)),
        )

    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.items.append((5, order, trace, alive, payload))

    def all(self) -> tuple[Any, ...]:
        sent = [
            [
                (index, order, trace, alive, payload)
                for index, trace, alive, orders, payloads in outbox.take()
                for order, payload in zip(orders, payloads, strict=True)
            ]
            for outbox in self.outboxes
        ]
        return self.items, self.failed, sent


def first_letter(payload: Any) -> Any:
    return payload[0]  # of an empty text, or a number, there is none


def letters_and_length(payload: Any) -> Any:
    return payload[:2], len(payload)  # of a number there is neither


payloads = st.lists(st.one_of(st.sampled_from(["", "a", "b", "bb", "c", "x" * 100]), st.integers(0, 3)), min_size=1)


@given(st.lists(payloads, max_size=4), st.sampled_from((1, 2, 3)), st.booleans(), st.sampled_from((1, 5, 65_536)))
def test_runs_go_where_their_items_would(lists: list[list[Any]], workers: int, texts: bool, kept: int) -> None:
    by_key = map(ByKey, (first_letter, str, len, letters_and_length, lambda payload: [payload]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "_PLACES_KEPT", kept)
        for route in (*by_key, ByHash(lambda payload: len(payload) - 2**31), ByTime()):
            check_runs_go_where_their_items_would(route, lists, workers, texts=texts)


def check_runs_go_where_their_items_would(route: Route, lists: list[list[Any]], workers: int, *, texts: bool) -> None:
    one, other = Ends(route, workers, workers - 1), Ends(route, workers, workers - 1)
    time = 1000
    for some in lists:
        values = [str(value) for value in some] if texts else some
        places = [GlobalTime(time + 3 * at, 1).encode() for at in range(len(values))]
        time += 3 * len(values)
        one.run(places, 7, values)
        for place, value in zip(places, values, strict=True):
            other.step(place, 7, True, value)
    assert one.all() == other.all()


class Nothing(Ordered):
    """An ordered operation that is only routed to."""

    def work(self) -> Work:
        raise NotImplementedError


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=12), max_size=3),
    st.sampled_from((2, 3, 4)),
    st.booleans(),
    st.booleans(),
)
def test_columns_beside_payloads_go_along(
    lists: list[list[int]], workers: int, is_ordered: bool, are_noted: bool
) -> None:
    key = abs if is_ordered else str
    route = ByKey(key)
    vertex = Nothing("nothing", route=route, index=5) if is_ordered else None
    arrived: list[Any] = []
    outboxes = [Outbox() for _ in range(workers)]
    _, run = routed(
        vertex or Map("map", route=route, index=5, function=abs),
        lambda order, trace, alive, payload: pytest.fail("it came alone"),
        lambda orders, trace, payloads: arrived.append((orders, payloads)),
        worker=0,
        owners=owners(workers),
        outboxes=outboxes,
        fail=lambda *failure: pytest.fail(f"{failure}"),
    )
    wanted: list[list[int]] = [[] for _ in range(workers)]
    time = 0
    for some in lists:
        places = [GlobalTime(time + at, 1).encode() for at in range(len(some))]
        time += len(some)
        run(places, 7, Beside(some, (hex, [*map(hex, some)])) if are_noted else some)
        for value in some:
            wanted[owners(workers)[key_group(stable_hash(key(value)))]].append(value)
    sent = [[payloads for *_, payloads in outbox.take()] for outbox in outboxes]
    for worker, runs_of in enumerate([[payloads for _, payloads in arrived], *sent[1:]]):
        assert [value for payloads in runs_of for value in payloads] == wanted[worker]
        for payloads in runs_of:
            assert column_of(payloads, hex) == ([*map(hex, payloads)] if are_noted else None)
            assert column_of(payloads, key) == ([*map(key, payloads)] if is_ordered else None)
    assert not sent[0]


def test_keys_are_not_computed_where_one_worker_owns_all() -> None:
    places = [GlobalTime(time, 1).encode() for time in range(3)]
    route = ByKey(first_letter)
    sender, owner = (Ends(route, 3, at, Grouping("group", route=route, index=5, window=2), 1) for at in (1, 2))
    for ends in (sender, owner):
        ends.run(places, 7, ["a", "", "b"])
        ends.step(b"z", 7, False, "")
    run = [(5, place, 7, True, payload) for place, payload in zip(places, ["a", "", "b"], strict=True)]
    assert sender.all() == ([], [], [[], [], [*run, (5, b"z", 7, False, "")]])
    assert ([item[4] for item in owner.items], owner.failed) == (["a", "", "b", ""], [])
    assert not any(owner.outboxes)


def test_keys_of_a_map_are_computed_on_every_worker() -> None:
    for worker in (0, 1):
        ends = Ends(ByKey(first_letter), 2, worker, owning=1)
        ends.run([GlobalTime(time, 1).encode() for time in range(2)], 7, ["", "b"])
        assert [payload for _, payload in ends.failed] == [""]


keys = st.one_of(
    st.none(),
    st.sampled_from([0, -0.0, 0.0, 1, 1.0, True, False, -1, -2, "1", b"1", "", b"", (), (1,), (1.0,), "é", "x" * 1000]),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
    st.text(max_size=2),
    st.tuples(st.one_of(st.integers(0, 2), st.booleans(), st.floats(0, 2)), st.text(max_size=1)),
)


@given(st.lists(keys, max_size=40), st.sampled_from((2, 3, 7)), st.sampled_from((1, 3, 1000)))
def test_a_key_has_one_place_for_any_cache(asked: list[Any], workers: int, kept: int) -> None:
    """Also of keys that Python calls equal, of which only one is remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "_PLACES_KEPT", kept)
        place = place_finder(ByKey(lambda key: key), owners(workers), workers)
        for key in asked * 2:
            assert place(b"", key) == owners(workers)[key_group(stable_hash(key))]


def test_long_texts_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def hashed(key: Any) -> int:
        asked.append(key)
        return stable_hash(key)

    monkeypatch.setattr(routing, "stable_hash", hashed)
    place = place_finder(ByKey(lambda key: key), owners(2), 2)
    short, long = "x" * 64, "x" * 65
    assert [place(b"", key) for key in (short, long)] == [place(b"", key) for key in (short, long)]
    assert asked == [short, long, long]


def test_cached_places_of_many_texts_are_dropped_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_PLACES_KEPT", 10)
    asked: list[str] = []

    def key(text: str) -> str:
        asked.append(text)
        return text

    few, many = ["a", "b"], [f"{number}" for number in range(30)]
    ends = Ends(ByKey(key), 2, 0)
    for turn, values in enumerate([few * 20, few * 20, many, many]):
        ends.run([GlobalTime(100 * turn + at, 1).encode() for at in range(len(values))], 0, values)
    assert asked == [*few, *many, *many], "each once, until there are too many"
    place = place_finder(ByKey(key), owners(2), 2)
    assert all(place(b"", text) == 0 for *_, text in ends.items)
    assert len(ends.items) + sum(len(piece[3]) for piece in ends.outboxes[1].take()) == 140
