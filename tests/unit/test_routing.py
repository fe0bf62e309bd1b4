"""What is sent to other workers: outboxes keep the order, and put together what follows each other."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flamecore.graph import ByTime
from flamecore.meta import GlobalTime
from flamecore.operations import each
from flamecore.operations.routing import Outbox, arrive, place_finder

Item = tuple[int, bytes, int, bool, Any]

orders = st.binary(min_size=1, max_size=2)
items = st.tuples(st.integers(1, 2), orders, st.integers(0, 1), st.booleans(), st.integers())
runs = st.tuples(st.integers(1, 2), st.sets(orders, min_size=1, max_size=4).map(sorted), st.integers(0, 1))


@given(st.lists(st.one_of(items, runs), max_size=30))
def test_what_arrives_is_what_was_put_in_order(sent: list[Any]) -> None:
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
    arrive(pieces, {1: step(1), 2: step(2)}, {2: each(step(2))})
    assert arrived == wanted
    assert len(outbox) == 0


def test_what_follows_is_one_piece() -> None:
    outbox = Outbox()
    outbox.put_run(1, 7, [b"a", b"b"], ["a", "b"])
    outbox.put(1, b"c", 7, True, "c")
    outbox.put_run(1, 7, [b"d"], ["d"])
    outbox.put(1, b"d", 7, False, "d")
    assert outbox.take() == [(1, 7, True, [b"a", b"b", b"c", b"d"], ["a", "b", "c", "d"]), (1, 7, False, [b"d"], ["d"])]


def test_rebalance_deals_the_first_records_one_by_one_and_all_of_them_evenly() -> None:
    place = place_finder(ByTime(), (), 3)
    owners = [place(GlobalTime(time, 1).encode(), None) for time in range(4800)]
    assert owners[:6] == [0, 1, 2, 0, 1, 2]
    assert len(set(owners[2048:2056])) == 1, "later ones in blocks"
    assert all(1550 < owners.count(worker) < 1650 for worker in range(3))
