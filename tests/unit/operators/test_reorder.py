"""The reorder buffer: items go in sorted once their place is known.

Items that go in early cost few calls in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.operator import Operator, Site, StatefulOperator, Way
from flamecore.model.batch import DerivedOrders, Rows
from flamecore.model.drift import Drift
from flamecore.model.meta import GlobalTime, encode_time
from flamecore.model.vertices import ByHash, ByKey, Grouping
from flamecore.runtime.operators import reorder
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.operators.rounds import Rounds, VertexRound

Item = tuple[bytes, int, bool, Any]


class Behind:
    """A state that counts its calls, and what comes of it."""

    def __init__(self, keys: int = 1, *, advance: bool = True) -> None:
        self.calls = 0
        self.runs = 0
        self.held: dict[tuple[bytes, int], Any] = {}
        self.taken_back = 0
        site = Site(0, self.fail, (Way(self.step, self.run),))
        route = ByKey(lambda item: item[0] % keys)
        self.operator = DriftOperator(Drift("state", route=route, initial=(), advance=self.work), site)
        self.buffer = ReorderBuffer("state", self.operator, 1, advance=advance)

    def work(self, state: tuple[Any, ...], item: Any) -> tuple[tuple[Any, ...], list[Any]]:
        self.calls += 1
        return (*state[-2:], item), [(item, state)]

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        if alive:
            assert (order, trace) not in self.held
            self.held[order, trace] = payload
        else:
            self.taken_back += 1
            assert self.held.pop((order, trace)) == payload

    def run(self, orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
        assert [*orders] == sorted(set(orders)), "a run is in order"
        self.runs += 1
        for order, payload in zip(orders, payloads, strict=True):
            self.step(order, trace, True, payload)

    def fail(self, order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        raise error

    @property
    def outputs(self) -> list[Any]:
        return [payload for _, payload in sorted(self.held.items())]


def sequential(items: Sequence[tuple[int, Any]], keys: int = 1) -> list[Any]:
    """Return the outputs of a run that sees items in the order of their times."""
    states: dict[int, tuple[Any, ...]] = {}
    outputs = []
    for _, item in sorted(items):
        state = states.get(item[0] % keys, ())
        outputs.append((item, state))
        states[item[0] % keys] = (*state[-2:], item)
    return outputs


def orders_of(*times: int) -> list[bytes]:
    return [GlobalTime(time, 1).encode() for time in times]


def put(buffer: ReorderBuffer, *times: int, trace: int = 0) -> None:
    buffer.run(orders_of(*times), trace, [(time,) for time in times])


def test_nothing_goes_in_before_it_is_known_and_then_sorted() -> None:
    behind = Behind(advance=False)
    put(behind.buffer, 1, 2, 5, 6)
    put(behind.buffer, 3, 4, 7)
    put(behind.buffer, 8, 10, trace=1)
    put(behind.buffer, 9)
    behind.buffer.drain(b"")
    assert behind.calls == 0
    assert behind.buffer.lowest == orders_of(1)[0]
    behind.buffer.drain(encode_time(6))
    assert (behind.calls, behind.runs, behind.buffer.lowest) == (5, 1, orders_of(6)[0])
    behind.buffer.drain(encode_time(11))
    assert (behind.calls, behind.runs, behind.buffer.lowest) == (10, 5, None), "what is of one trace goes in together"
    assert behind.outputs == sequential([(time, (time,)) for time in range(1, 11)])
    assert behind.buffer.in_vain == 0


def test_little_goes_in_at_once() -> None:
    behind = Behind()
    put(behind.buffer, 3, 4)
    behind.buffer.drain(b"")
    assert (behind.calls, behind.buffer.lowest, behind.buffer.in_vain) == (2, None, 0)
    put(behind.buffer, 5)
    behind.buffer.drain(encode_time(4))
    behind.buffer.drain(encode_time(9))
    assert (behind.calls, behind.buffer.in_vain, behind.taken_back) == (3, 0, 0)


def test_much_waits() -> None:
    behind = Behind()
    put(behind.buffer, *range(1000))
    behind.buffer.drain(b"")
    assert behind.calls == 0


def test_a_late_item_is_repaired_and_what_it_costs_is_charged() -> None:
    behind = Behind()
    put(behind.buffer, 3, 4)
    behind.buffer.drain(b"")
    put(behind.buffer, 2)
    behind.buffer.drain(b"")
    assert behind.outputs == sequential([(time, (time,)) for time in (2, 3, 4)])
    assert (behind.calls, behind.buffer.in_vain) == (7, 4), "two found out again to be taken back, and made again"
    behind.buffer.drain(encode_time(5))
    assert behind.calls == 7


def test_of_other_keys_nothing_is_done_again() -> None:
    behind = Behind(keys=2)
    put(behind.buffer, 3, 5)
    behind.buffer.drain(b"")
    put(behind.buffer, 2)
    behind.buffer.drain(b"")
    assert (behind.calls, behind.buffer.in_vain, behind.taken_back) == (3, 0, 0)


def test_so_many_late_items_wait_that_all_that_went_in_early_could_not_be_paid_for() -> None:
    behind = Behind(keys=50)
    put(behind.buffer, *range(20, 30))
    behind.buffer.drain(b"")
    assert behind.calls == 10
    put(behind.buffer, *range(20))
    behind.buffer.drain(b"")
    assert behind.buffer._early.allows(behind.buffer._early.outstanding)
    behind.buffer.drain(encode_time(40))
    assert behind.outputs == sequential([(time, (time,)) for time in range(30)], 50)


def test_when_the_advance_is_spent_all_that_is_outstanding_waits_again() -> None:
    """Items before the late one may have left already, and stay."""
    behind = Behind()
    put(behind.buffer, 1)
    put(behind.buffer, *range(10, 22))
    behind.buffer.drain(b"")
    assert behind.calls == 13
    for late in range(9, 5, -1):
        put(behind.buffer, late)
        behind.buffer.drain(b"")
    assert behind.buffer.in_vain <= 32
    put(behind.buffer, 2)
    behind.buffer.drain(encode_time(3))
    assert behind.buffer.in_vain <= 32
    assert min(behind.held)[0].startswith(encode_time(1))
    behind.buffer.drain(encode_time(30))
    assert behind.outputs == sequential([(time, (time,)) for time in (1, 2, *range(6, 22))])
    assert behind.calls <= 18 + behind.buffer.in_vain


def test_a_tombstone_meets_its_victim_while_both_wait() -> None:
    behind = Behind(advance=False)
    put(behind.buffer, 1, 2, 3)
    behind.buffer.step(orders_of(2)[0], 0, False, (2,))
    behind.buffer.step(orders_of(2)[0], 0, True, (4,))
    behind.buffer.drain(encode_time(9))
    assert behind.outputs == sequential([(1, (1,)), (2, (4,)), (3, (3,))])
    assert behind.calls == 3


def test_a_tombstone_of_what_went_in_early_takes_it_out() -> None:
    behind = Behind()
    put(behind.buffer, 1, 2, 3)
    behind.buffer.drain(b"")
    behind.buffer.step(orders_of(2)[0], 0, False, (2,))
    behind.buffer.drain(b"")
    assert behind.buffer._early.outstanding == 2, "no more may be found out to be in vain"
    behind.buffer.step(orders_of(2)[0], 0, True, (4,))
    behind.buffer.drain(b"")
    assert behind.buffer._early.outstanding == 3
    behind.buffer.drain(encode_time(9))
    assert behind.buffer._early.outstanding == 0
    assert behind.outputs == sequential([(1, (1,)), (2, (4,)), (3, (3,))])
    assert behind.calls <= 3 + behind.buffer.in_vain


@pytest.mark.parametrize("count", [10, 1000])
def test_tombstones_and_items_of_one_trace_stay_apart(count: int) -> None:
    """However many alternate, also where a sort of all of them would take less time."""
    gone, new = range(1, count, 2), range(0, count, 2)
    pieces = [(5, alive, orders_of(*times), [*times]) for alive, times in ((False, gone), (True, new))]
    merged = [*reorder._merged(pieces)]
    assert [(order, alive) for _, alive, orders, _ in merged for order in orders] == [
        (order, time % 2 == 0) for time, order in enumerate(orders_of(*range(count)))
    ]
    assert [time for _, _, _, payloads in merged for time in payloads] == [*range(count)]


def test_two_versions_of_an_item_that_come_together_are_charged() -> None:
    """Two workers have sent them: one took over from the other, whose tombstone is still on its way."""
    behind = Behind()
    put(behind.buffer, 1, 2)
    put(behind.buffer, 2, trace=1)
    behind.buffer.drain(b"")
    behind.buffer.step(orders_of(2)[0], 0, False, (2,))
    behind.buffer.drain(encode_time(9))
    assert behind.outputs == sequential([(1, (1,)), (2, (2,))])
    assert 2 < behind.calls <= 2 + behind.buffer.in_vain


def test_a_tombstone_goes_before_the_version_that_came_before_it() -> None:
    """Otherwise that one goes in, can no longer be paid for, and is worked on again with what is taken back."""
    behind = Behind(keys=50)
    put(behind.buffer, *range(2, 17))
    behind.buffer.drain(b"")
    put(behind.buffer, 2, trace=1)
    behind.buffer.step(orders_of(2)[0], 0, False, (2,))
    behind.buffer.drain(encode_time(20))
    assert behind.outputs == sequential([(time, (time,)) for time in range(2, 17)], 50)
    assert behind.calls <= 15 + behind.buffer.in_vain


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("advance", [False, True])
@given(st.data())
def test_calls_in_vain_are_bounded_whatever_comes_in_which_sequence(keys: int, advance: bool, data: Any) -> None:
    """Items of several traces, some in versions that are taken back, come by several ways, each in order."""
    random = Random(data.draw(st.integers(0, 10**9)))
    behind = Behind(keys, advance=advance)
    items = [(time, (random.randrange(100), time)) for time in range(random.choice((5, 40, 400)))]
    ways: list[list[tuple[int, int, bool, Any]]] = [[] for _ in range(random.randint(1, 3))]
    for time, payload in items:
        way = random.choice(ways)
        trace = random.randrange(2)
        for _ in range(random.choice((0, 0, 0, 1, 2))):
            wrong = (random.randrange(100), -1)
            way += [(time, trace, True, wrong), (time, trace, False, wrong)]
        if random.random() < 0.2:  # by another worker, which may be ahead of the one that takes it back
            way, trace = random.choice(ways), trace + 2
        way.append((time, trace, True, payload))
    waiting = [way[::-1] for way in ways if way]
    came = 0
    while waiting:
        way = random.choice(waiting)
        for _ in range(random.randint(1, random.choice((2, 30)))):
            time, trace, alive, payload = way.pop()
            behind.buffer.step(orders_of(time)[0], trace, alive, payload)
            came += alive
            if not way:
                waiting.remove(way)
                break
        if random.random() < 0.5:
            known = min([way[-1][0] for way in waiting], default=len(items))
            behind.buffer.drain(encode_time(random.randint(0, known)))
        assert behind.calls <= came + behind.buffer.in_vain
        assert behind.buffer.in_vain <= len(items) // 10 + 32
    behind.buffer.drain(encode_time(len(items)))
    assert behind.calls <= len(items) + behind.buffer.in_vain
    assert behind.outputs == sequential(items, keys)
    assert behind.calls <= len(items) + behind.buffer.in_vain
    assert behind.buffer.in_vain <= (32 + len(items) // 10 if advance else 0)
    assert (behind.calls == len(items)) or advance
    assert behind.buffer.lowest is None


def window_of(size: int, **settings: Any) -> Callable[[Site], StatefulOperator]:
    route = settings.pop("route", ByKey(lambda item: item % 3))
    return lambda site: GroupingOperator(Grouping("group", route=route, window=size, **settings), site)


def state_of(site: Site) -> StatefulOperator:
    def advance(state: tuple[int, ...], item: int) -> tuple[tuple[int, ...], list[Any]]:
        return (*state, item), [(item, state)] * (item % 7)

    return DriftOperator(Drift("state", route=ByKey(lambda item: item % 3), initial=(), advance=advance), site)


OPERATIONS: dict[str, Callable[[Site], StatefulOperator]] = {
    "drift": state_of,
    "window of 1": window_of(1),
    "window of 3": window_of(3),
    "partial windows": window_of(3, undo_partial=True),
    "an order of its own": window_of(3, order=lambda item: -item),
    "a hash and an equality": window_of(
        3, route=ByHash(lambda item: item % 2), equal=lambda one, other: one % 3 == other % 3
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(st.randoms(use_true_random=False))
def test_an_operation_knows_on_how_many_items_it_would_work_again(name: str, random: Random) -> None:
    """At most; and to be asked changes nothing, not even what a hash and an equality tell apart later."""

    def drop(*item: Any) -> None:
        """Take outputs that nobody looks at."""

    asked, other = (OPERATIONS[name](Site(0, drop, (Way(drop, drop),))) for _ in range(2))
    items: list[tuple[bytes, int]] = []
    for number in random.sample(range(40), 40):
        order = GlobalTime(number // 2, 1).encode() + bytes((number % 2,))
        gone = items and random.random() < 0.3
        some = [items.pop(random.randrange(len(items)))] if gone else [(order, number)]
        orders, payloads = [order for order, _ in some], [payload for _, payload in some]
        again = asked.followers(orders, payloads)
        assert again is not None
        before = asked.repeated, asked.retracted
        for operator in (asked, other):
            operator.step(orders[0], 0, not gone, payloads[0])
        if not gone:
            items += some
        cost = (asked.repeated - before[0]) or (asked.retracted - before[1])
        assert cost <= 2 * again
        assert (asked.repeated, asked.retracted) == (other.repeated, other.retracted)
    assert set(asked.names) == set(other.names)


class Noting(Operator):
    """An operation that notes what goes in."""

    repeated = retracted = 0

    def __init__(self) -> None:
        self.items: list[Item] = []

    def followers(self, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        """Return None: it does not know."""

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.items.append((order, trace, alive, payload))

    def run(self, orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
        self.items += [(order, trace, True, payload) for order, payload in zip(orders, payloads, strict=True)]


class Undoing(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.together: list[Any] = []

    def undo(self, *run: Any) -> None:
        self.together.append(run)


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 400), min_size=1), st.integers(1, 3), st.booleans()), max_size=5),
    st.integers(0, 1),
    st.integers(1, 40),
    st.lists(st.integers(0, 3000), max_size=3).map(sorted),
)
def test_runs_of_any_form_go_in_as_lists_do(
    script: list[tuple[set[int], int, bool]], traces: int, block: int, known: list[int]
) -> None:
    """However fine they are cut into each other, and wherever the minimum time cuts them."""
    wanted, got = Noting(), Noting()
    listed, noted = (ReorderBuffer("state", one, 1, advance=False) for one in (wanted, got))  # type: ignore[arg-type]
    for number, (times, count, rows) in enumerate(script):
        some = [time // block * block * len(script) + time % block + number * block for time in sorted(times)]
        orders = DerivedOrders(orders_of(*some), [count] * len(some))
        payloads = [(number, place) for place in range(len(orders))]
        trace = number if traces else 0
        listed.run([*orders], trace, payloads)
        columns = Rows([list(column) for column in zip(*payloads, strict=True)])
        noted.run(orders, trace, columns if rows else payloads)
    for buffer in (listed, noted):
        for time in (*known, 10_000):
            buffer.drain(encode_time(time))
    assert got.items == wanted.items
    assert [item[0] for item in got.items] == sorted(item[0] for item in got.items)
    assert len(wanted.items) == sum(len(times) * count for times, count, _ in script)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from(("send", "again", "drain"))), max_size=60)
)
def test_items_taken_back_while_they_wait_go_no_further(script: list[tuple[int, int, str]]) -> None:
    """A sender takes back each item before it sends it anew; the operation ends up with the last version."""
    behind = Noting()
    buffer = ReorderBuffer("state", behind, 1)  # type: ignore[arg-type]
    sent: dict[tuple[bytes, int], int] = {}
    for number, (time, trace, what) in enumerate([*script, (0, 0, "drain")]):
        (order,), key = orders_of(time), (orders_of(time)[0], trace)
        if what == "drain":
            before = len(behind.items)
            buffer.drain(b"")
            kinds = [item[:3] for item in behind.items[before:]]
            assert len(set(kinds)) == len(kinds), "of one identity a tombstone and an item at most"
            continue
        if key in sent:
            buffer.step(order, trace, False, sent.pop(key))
        if what == "again":
            sent[key] = number
            buffer.step(order, trace, True, number)
    buffer.drain(encode_time(9))
    held: dict[tuple[bytes, int], int] = {}
    for order, trace, alive, payload in behind.items:
        if alive:
            assert (order, trace) not in held
            held[order, trace] = payload
        else:
            assert held.pop((order, trace)) == payload
    assert held == sent


def test_versions_of_an_item_that_a_round_leaves_keep_the_sequence_in_which_they_came() -> None:
    rounds, behind = Rounds(), Noting()
    buffer = ReorderBuffer("state", behind, 1, turn=VertexRound(rounds, 1))  # type: ignore[arg-type]
    for trace in (5, 3, 4):
        put(buffer, 1, trace=trace)
    rounds.end()
    buffer.drain(encode_time(2))
    assert (behind.items, len(buffer), buffer.is_ready) == ([], 3, True)
    rounds.begin()
    buffer.drain(encode_time(2))
    assert [trace for _, trace, _, _ in behind.items] == [5, 3, 4]
    assert not buffer.is_ready


def test_known_items_go_in_however_much_was_in_vain() -> None:
    class Costly(Noting):
        def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
            super().step(order, trace, alive, payload)
            self.retracted += 0 if alive else 100

    behind = Costly()
    buffer = ReorderBuffer("state", behind, 1)  # type: ignore[arg-type]
    put(buffer, 1)
    buffer.drain(b"")
    buffer.step(orders_of(1)[0], 0, False, (1,))
    assert len(buffer) == 1
    buffer.drain(b"")
    assert buffer.in_vain > 100
    put(buffer, 2)
    buffer.step(orders_of(3)[0], 1, True, (3,))
    buffer.drain(b"")
    assert (len(buffer), buffer.lowest) == (2, orders_of(2)[0]), "nothing goes in early any more"
    buffer.drain(encode_time(4))
    assert [item[0] for item in behind.items] == orders_of(1, 1, 2, 3)
    assert len(buffer) == 0


def test_tombstones_go_in_together_where_the_operation_takes_runs() -> None:
    behind = Undoing()
    buffer = ReorderBuffer("state", behind, 1)  # type: ignore[arg-type]
    put(buffer, 1, 2, 3)
    buffer.drain(b"")
    for order in orders_of(1, 3):
        buffer.step(order, 0, False, "gone")
    buffer.drain(b"")
    assert behind.together == [(orders_of(1, 3), 0, ["gone", "gone"])]
    assert [item[0] for item in behind.items] == orders_of(1, 2, 3)


@pytest.mark.parametrize("advance", [False, True])
@pytest.mark.parametrize("most", [1, 3, 10])
def test_what_is_ready_goes_in_bit_by_bit_where_it_is_asked_to(most: int, advance: bool) -> None:
    """A function may be slow, and the worker has more to do."""
    behind = Behind(advance=advance)
    times = [*range(0, 40, 2)], [*range(1, 41, 2)]
    for trace, some in enumerate(times):
        behind.buffer.run(orders_of(*some), trace, [(time, trace) for time in some])
    before, ready = 0, True
    while ready:
        behind.buffer.drain(encode_time(30), most)
        assert 0 < behind.calls - before <= 4 * most, "so many of each piece, known ones and early ones"
        before, ready = behind.calls, behind.buffer.is_ready
    assert behind.calls >= 30
    behind.buffer.drain(encode_time(100))
    assert behind.outputs == sequential([(time, (time, time % 2)) for time in range(40)])
    assert behind.taken_back == 0
    assert behind.calls == 40
