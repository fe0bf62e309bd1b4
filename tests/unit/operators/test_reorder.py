"""What waits to go into an operation: everything goes in, in an order that never parts what is of one identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flamecore.model.batch import DerivedOrders, Rows
from flamecore.model.meta import GlobalTime, encode_time
from flamecore.runtime.operators.reorder import Origin, ReorderBuffer

Item = tuple[bytes, int, bool, Any]


class Behind:
    """An operation that notes what goes in."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.runs = 0

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.items.append((order, trace, alive, payload))

    def run(self, orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
        assert [*orders] == sorted(set(orders)), "a run is in order"
        self.runs += 1
        self.items += [(order, trace, True, payload) for order, payload in zip(orders, payloads, strict=True)]

    @property
    def orders(self) -> list[bytes]:
        return [order for order, _, _, _ in self.items]


def made(late: int = 0) -> tuple[ReorderBuffer, Origin, Behind]:
    behind, origin = Behind(), Origin()
    return ReorderBuffer(behind.step, behind.run, origin, 0, late), origin, behind


def orders_of(*times: int) -> list[bytes]:
    return [GlobalTime(time, 1).encode() for time in times]


def put(buffer: ReorderBuffer, origin: Origin, way: str, *times: int, trace: int = 0) -> None:
    origin.way = way
    buffer.run(orders_of(*times), trace, times)


def histories(items: Sequence[Item]) -> dict[tuple[bytes, int], list[tuple[bool, Any]]]:
    """For each identity what came of it, but for what a tombstone has cancelled."""
    found: dict[tuple[bytes, int], list[tuple[bool, Any]]] = {}
    for order, trace, alive, payload in items:
        history = found.setdefault((order, trace), [])
        if not alive and history and history[-1][0]:
            history.pop()
        else:
            history.append((alive, payload))
    return {identity: history for identity, history in found.items() if history}


runs = st.tuples(st.sampled_from("abc"), st.sets(st.integers(0, 20), min_size=1, max_size=5).map(sorted))


@given(st.lists(st.one_of(runs, st.floats(0.001, 0.2)), max_size=30), st.sampled_from((0, 3, 10_000)))
def test_all_items_go_in_and_none_overtakes_its_like(script: list[Any], late: int) -> None:
    buffer, origin, behind = made(late)
    now = 0.0
    came: list[Item] = []
    for entry in script:
        if isinstance(entry, float):
            now += entry
            buffer.drain(now)
            assert (buffer.due() is None) == (buffer.lowest is None)
            if buffer.lowest is None:
                assert histories(behind.items) == histories(came)
            continue
        way, times = entry
        trace = ord(way)
        alive = not all((order, trace) in {item[:2] for item in came} for order in orders_of(*times))
        origin.way = way
        if alive and len(times) > 1:
            buffer.run(orders_of(*times), trace, times)
        else:
            for time, order in zip(times, orders_of(*times), strict=True):
                buffer.step(order, trace, alive, time)
        came += [(order, trace, alive, time) for time, order in zip(times, orders_of(*times), strict=True)]
    due = buffer.due()
    if due is not None:
        buffer.drain(due)
    buffer.drain(now + 1.0)
    assert buffer.lowest is None
    assert histories(behind.items) == histories(came)


def test_items_of_one_step_go_in_sorted() -> None:
    buffer, origin, behind = made(10_000)
    put(buffer, origin, "a", 1, 2, 5, 6)
    put(buffer, origin, "b", 3, 4, 7)
    put(buffer, origin, "c", 8, 10, trace=1)
    put(buffer, origin, "b", 9)
    buffer.drain(0.0)
    assert behind.orders == orders_of(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert behind.runs == 4, "what is of one trace goes in together"


def test_early_items_wait_while_many_come_late() -> None:
    buffer, origin, behind = made()
    put(buffer, origin, "a", 1, 2)
    buffer.drain(1.0)
    put(buffer, origin, "b", 0, 1)
    buffer.drain(1.01)
    assert behind.orders == orders_of(1, 2, 0, 1), "nobody could know"
    put(buffer, origin, "a", 3, 4)
    buffer.drain(1.02)
    assert len(behind.items) == 4
    assert buffer.lowest == orders_of(3)[0]
    put(buffer, origin, "b", 2, 3)
    buffer.drain(1.03)
    assert behind.orders[4:] == orders_of(2, 3, 3)
    assert buffer.lowest == orders_of(4)[0]


def test_an_exhausted_way_is_not_waited_for_long() -> None:
    buffer, origin, behind = made()
    for now, way, times in ((1.0, "a", (1, 2)), (1.01, "b", (0, 1)), (1.02, "a", (3, 4))):
        put(buffer, origin, way, *times)
        buffer.drain(now)
    looked_at = 1.02
    while (due := buffer.due()) is not None:
        assert due > looked_at
        looked_at = due
        buffer.drain(due)
    assert 1.05 < looked_at < 1.2
    assert behind.orders[4:] == orders_of(3, 4)
    put(buffer, origin, "a", 5)
    buffer.drain(looked_at + 0.01)
    assert behind.orders[6:] == orders_of(5), "nor again, until it has something"


def test_items_below_the_minimum_time_wait_only_a_little() -> None:
    buffer, origin, behind = made()
    past = encode_time(4)
    for now, way, times in ((1.0, "a", (1, 2)), (1.01, "b", (0, 1)), (1.02, "a", (3, 4))):
        put(buffer, origin, way, *times)
        buffer.drain(now, past)
    assert len(behind.items) == 4
    due = buffer.due()
    assert due is not None
    assert due < 1.1
    buffer.drain(due, past)
    assert behind.orders[4:] == orders_of(3)
    assert buffer.lowest == orders_of(4)[0]


def test_early_items_of_a_busy_operation_wait_from_the_beginning() -> None:
    behind, origin = Behind(), Origin()
    buffer = ReorderBuffer(behind.step, behind.run, origin, 0, 10_000, ways=["b"])
    put(buffer, origin, "a", 1, 2)
    buffer.drain(1.0)
    assert behind.orders == orders_of(1, 2), "this is little"
    put(buffer, origin, "a", *range(10_000, 20_000))
    buffer.drain(1.1)
    assert len(behind.items) == 2
    put(buffer, origin, "b", 9_000, 15_000)
    buffer.drain(1.101)
    assert behind.orders[2:] == [*orders_of(9_000, *range(10_000, 15_001)), *orders_of(15_000)]


def test_few_late_items_are_repaired_at_once() -> None:
    buffer, origin, behind = made(10_000)
    for turn in range(100):
        put(buffer, origin, "a", 2 * turn + 1)
        buffer.drain(turn * 0.01)
        put(buffer, origin, "b", 2 * turn)
        buffer.drain(turn * 0.01 + 0.001)
    assert len(behind.items) == 200


def test_late_runs_go_in_whole() -> None:
    """A run that is late is one repair; cut into pieces it would be many."""
    buffer, origin, behind = made(10_000)
    put(buffer, origin, "a", 5, 9)
    buffer.drain(0.0)
    put(buffer, origin, "b", 1, 3, 5, 8, 12)
    put(buffer, origin, "a", 11, 13)
    buffer.drain(0.1)
    assert behind.orders == orders_of(5, 9, 1, 3, 5, 8, 11, 12, 13)
    assert behind.runs == 3


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 400), min_size=1), st.integers(1, 3), st.booleans()), max_size=5),
    st.integers(0, 1),
    st.integers(1, 40),
)
def test_runs_of_any_form_go_in_as_lists_do(script: list[tuple[set[int], int, bool]], traces: int, block: int) -> None:
    """However fine they are cut into each other."""
    wanted, got = Behind(), Behind()
    listed, noted = (ReorderBuffer(one.step, one.run, Origin(), 0, 10_000) for one in (wanted, got))
    for number, (times, count, rows) in enumerate(script):
        some = [time // block * block * len(script) + time % block + number * block for time in sorted(times)]
        orders = DerivedOrders(orders_of(*some), [count] * len(some))
        payloads = [(number, place) for place in range(len(orders))]
        trace = number if traces else 0
        listed.run([*orders], trace, payloads)
        columns = Rows([list(column) for column in zip(*payloads, strict=True)])
        noted.run(orders, trace, columns if rows else payloads)
    for buffer in (listed, noted):
        buffer.drain(1.0)
        buffer.drain(2.0)
    assert got.items == wanted.items
    assert len(wanted.items) == sum(len(times) * count for times, count, _ in script)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from(("send", "again", "drain"))), max_size=60)
)
def test_items_taken_back_while_they_wait_go_no_further(script: list[tuple[int, int, str]]) -> None:
    """Whoever sends takes back what it has sent before it sends it anew; the operation ends up with the last of it."""
    buffer, origin, behind = made(10_000)
    sent: dict[tuple[bytes, int], int] = {}
    now = 0.0
    for number, (time, trace, what) in enumerate([*script, (0, 0, "drain")]):
        (order,), key = orders_of(time), (orders_of(time)[0], trace)
        origin.way = trace
        if what == "drain":
            now += 1.0
            before = len(behind.items)
            buffer.drain(now)
            kinds = [(*item[:2], item[2]) for item in behind.items[before:]]
            assert len(set(kinds)) == len(kinds), "of one identity a tombstone and an item at most"
            continue
        if key in sent:
            buffer.step(order, trace, False, sent.pop(key))
        if what == "again":
            sent[key] = number
            buffer.step(order, trace, True, number)
    held: dict[tuple[bytes, int], int] = {}
    for order, trace, alive, payload in behind.items:
        if alive:
            assert (order, trace) not in held
            held[order, trace] = payload
        else:
            assert held.pop((order, trace)) == payload
    assert held == sent


def test_tombstones_go_in_together_where_the_operation_takes_runs() -> None:
    behind, origin, together = Behind(), Origin(), []
    buffer = ReorderBuffer(behind.step, behind.run, origin, 0, 10_000, undo=lambda *run: together.append(run))
    put(buffer, origin, "a", 1, 2, 3)
    buffer.drain(1.0)
    for order in orders_of(1, 3):
        buffer.step(order, 0, False, "gone")
    buffer.drain(2.0)
    assert together == [(orders_of(1, 3), 0, ["gone", "gone"])]
    assert behind.orders == orders_of(1, 2, 3)
