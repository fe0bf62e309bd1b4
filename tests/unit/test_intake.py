"""What waits to go into an operation: everything goes in, in an order that never parts what is of one identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flamecore.meta import GlobalTime, encode_time
from flamecore.operations.intake import Intake, Origin
from flamecore.orders import Derived
from flamecore.payloads import Rows

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


def made(late: int = 0) -> tuple[Intake, Origin, Behind]:
    behind, origin = Behind(), Origin()
    return Intake(behind.step, behind.run, origin, 0, late), origin, behind


def orders_of(*times: int) -> list[bytes]:
    return [GlobalTime(time, 1).encode() for time in times]


def put(intake: Intake, origin: Origin, way: str, *times: int, trace: int = 0) -> None:
    origin.way = way
    intake.run(orders_of(*times), trace, times)


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
def test_everything_goes_in_and_nothing_overtakes_its_like(script: list[Any], late: int) -> None:
    intake, origin, behind = made(late)
    now = 0.0
    came: list[Item] = []
    for entry in script:
        if isinstance(entry, float):
            now += entry
            intake.drain(now)
            assert (intake.due() is None) == (intake.lowest is None)
            if intake.lowest is None:
                assert histories(behind.items) == histories(came)
            continue
        way, times = entry
        trace = ord(way)
        alive = not all((order, trace) in {item[:2] for item in came} for order in orders_of(*times))
        origin.way = way
        if alive and len(times) > 1:
            intake.run(orders_of(*times), trace, times)
        else:
            for time, order in zip(times, orders_of(*times), strict=True):
                intake.step(order, trace, alive, time)
        came += [(order, trace, alive, time) for time, order in zip(times, orders_of(*times), strict=True)]
    due = intake.due()
    if due is not None:
        intake.drain(due)
    intake.drain(now + 1.0)
    assert intake.lowest is None
    assert histories(behind.items) == histories(came)


def test_what_comes_in_one_step_goes_in_sorted() -> None:
    intake, origin, behind = made(10_000)
    put(intake, origin, "a", 1, 2, 5, 6)
    put(intake, origin, "b", 3, 4, 7)
    put(intake, origin, "c", 8, 10, trace=1)
    put(intake, origin, "b", 9)
    intake.drain(0.0)
    assert behind.orders == orders_of(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert behind.runs == 4, "what is of one trace goes in together"


def test_while_much_comes_late_the_early_wait_for_the_late() -> None:
    intake, origin, behind = made()
    put(intake, origin, "a", 1, 2)
    intake.drain(1.0)
    put(intake, origin, "b", 0, 1)
    intake.drain(1.01)
    assert behind.orders == orders_of(1, 2, 0, 1), "nobody could know"
    put(intake, origin, "a", 3, 4)
    intake.drain(1.02)
    assert len(behind.items) == 4
    assert intake.lowest == orders_of(3)[0]
    put(intake, origin, "b", 2, 3)
    intake.drain(1.03)
    assert behind.orders[4:] == orders_of(2, 3, 3)
    assert intake.lowest == orders_of(4)[0]


def test_a_way_that_has_no_more_is_not_waited_for_long() -> None:
    intake, origin, behind = made()
    for now, way, times in ((1.0, "a", (1, 2)), (1.01, "b", (0, 1)), (1.02, "a", (3, 4))):
        put(intake, origin, way, *times)
        intake.drain(now)
    looked_at = 1.02
    while (due := intake.due()) is not None:
        assert due > looked_at
        looked_at = due
        intake.drain(due)
    assert 1.05 < looked_at < 1.2
    assert behind.orders[4:] == orders_of(3, 4)
    put(intake, origin, "a", 5)
    intake.drain(looked_at + 0.01)
    assert behind.orders[6:] == orders_of(5), "nor again, until it has something"


def test_what_the_minimum_time_has_reached_waits_for_nobody_after_a_little() -> None:
    intake, origin, behind = made()
    past = encode_time(4)
    for now, way, times in ((1.0, "a", (1, 2)), (1.01, "b", (0, 1)), (1.02, "a", (3, 4))):
        put(intake, origin, way, *times)
        intake.drain(now, past)
    assert len(behind.items) == 4
    due = intake.due()
    assert due is not None
    assert due < 1.1
    intake.drain(due, past)
    assert behind.orders[4:] == orders_of(3)
    assert intake.lowest == orders_of(4)[0]


def test_where_much_comes_the_early_wait_from_the_beginning() -> None:
    behind, origin = Behind(), Origin()
    intake = Intake(behind.step, behind.run, origin, 0, 10_000, ways=["b"])
    put(intake, origin, "a", 1, 2)
    intake.drain(1.0)
    assert behind.orders == orders_of(1, 2), "this is little"
    put(intake, origin, "a", *range(10_000, 20_000))
    intake.drain(1.1)
    assert len(behind.items) == 2
    put(intake, origin, "b", 9_000, 15_000)
    intake.drain(1.101)
    assert behind.orders[2:] == [*orders_of(9_000, *range(10_000, 15_001)), *orders_of(15_000)]


def test_little_that_is_late_is_repaired_without_ado() -> None:
    intake, origin, behind = made(10_000)
    for turn in range(100):
        put(intake, origin, "a", 2 * turn + 1)
        intake.drain(turn * 0.01)
        put(intake, origin, "b", 2 * turn)
        intake.drain(turn * 0.01 + 0.001)
    assert len(behind.items) == 200


def test_late_runs_go_in_whole() -> None:
    """A run that is late is one repair; cut into pieces it would be many."""
    intake, origin, behind = made(10_000)
    put(intake, origin, "a", 5, 9)
    intake.drain(0.0)
    put(intake, origin, "b", 1, 3, 5, 8, 12)
    put(intake, origin, "a", 11, 13)
    intake.drain(0.1)
    assert behind.orders == orders_of(5, 9, 1, 3, 5, 8, 11, 12, 13)
    assert behind.runs == 3


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 400), min_size=1), st.integers(1, 3), st.booleans()), max_size=5),
    st.integers(0, 1),
    st.integers(1, 40),
)
def test_runs_that_are_noted_in_any_way_go_in_as_lists_do(
    script: list[tuple[set[int], int, bool]], traces: int, block: int
) -> None:
    """However fine they are cut into each other."""
    wanted, got = Behind(), Behind()
    listed, noted = (Intake(one.step, one.run, Origin(), 0, 10_000) for one in (wanted, got))
    for number, (times, count, rows) in enumerate(script):
        some = [time // block * block * len(script) + time % block + number * block for time in sorted(times)]
        orders = Derived(orders_of(*some), [count] * len(some))
        payloads = [(number, place) for place in range(len(orders))]
        trace = number if traces else 0
        listed.run([*orders], trace, payloads)
        columns = Rows([list(column) for column in zip(*payloads, strict=True)])
        noted.run(orders, trace, columns if rows else payloads)
    for intake in (listed, noted):
        intake.drain(1.0)
        intake.drain(2.0)
    assert got.items == wanted.items
    assert len(wanted.items) == sum(len(times) * count for times, count, _ in script)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from(("send", "again", "drain"))), max_size=60)
)
def test_what_is_taken_back_while_it_waits_goes_no_further(script: list[tuple[int, int, str]]) -> None:
    """Whoever sends takes back what it has sent before it sends it anew; the operation ends up with the last of it."""
    intake, origin, behind = made(10_000)
    sent: dict[tuple[bytes, int], int] = {}
    now = 0.0
    for number, (time, trace, what) in enumerate([*script, (0, 0, "drain")]):
        (order,), key = orders_of(time), (orders_of(time)[0], trace)
        origin.way = trace
        if what == "drain":
            now += 1.0
            before = len(behind.items)
            intake.drain(now)
            kinds = [(*item[:2], item[2]) for item in behind.items[before:]]
            assert len(set(kinds)) == len(kinds), "of one identity a tombstone and an item at most"
            continue
        if key in sent:
            intake.step(order, trace, False, sent.pop(key))
        if what == "again":
            sent[key] = number
            intake.step(order, trace, True, number)
    held: dict[tuple[bytes, int], int] = {}
    for order, trace, alive, payload in behind.items:
        if alive:
            assert (order, trace) not in held
            held[order, trace] = payload
        else:
            assert held.pop((order, trace)) == payload
    assert held == sent


def test_tombstones_go_in_together_where_an_operation_takes_them_so() -> None:
    behind, origin, together = Behind(), Origin(), []
    intake = Intake(behind.step, behind.run, origin, 0, 10_000, undo=lambda *run: together.append(run))
    put(intake, origin, "a", 1, 2, 3)
    intake.drain(1.0)
    for order in orders_of(1, 3):
        intake.step(order, 0, False, "gone")
    intake.drain(2.0)
    assert together == [(orders_of(1, 3), 0, ["gone", "gone"])]
    assert behind.orders == orders_of(1, 2, 3)
