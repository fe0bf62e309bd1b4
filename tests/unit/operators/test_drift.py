"""Drifting state in its fused form: repairs, failures, and which history is kept (paper 004, section 2.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.operator import GONE, Site, Way, each
from flamecore.errors import DuplicateItemError, NoInvalideeError
from flamecore.model.batch import Orders, pack, unpack
from flamecore.model.drift import Drift
from flamecore.model.meta import GlobalTime, encode_time
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.testing.bench.contents import Contents


def fused_step(function: Callable[[int, int], tuple[int, Iterable[Any]]]) -> tuple[DriftOperator, Contents, Contents]:
    flow = fc.Flow("fused")
    flow.source("numbers", int).key_by(lambda n: n % 2).stateful_map(0, function, name="state").sink("out")
    (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
    out, failed = Contents(), Contents()

    def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        failed.step(order, trace, alive, payload)

    return DriftOperator(vertex, Site(0b100, fail, (Way(out.step, each(out.step)),))), out, failed


def feed(operation: DriftOperator, *times: int, alive: bool = True) -> None:
    for time in times:
        operation.step(GlobalTime(time, 1).encode(), 0, alive, time)


def running(state: int, n: int) -> tuple[int, list[str]]:
    return state + n, [f"{n}/{state + n}"]


def test_a_repair_takes_back_later_outputs_and_gives_them_anew_in_order() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, 2, 6, 8)
    out.log.clear()
    feed(operation, 4)
    assert [(alive, payload) for alive, _, payload in out.log] == [
        (False, "6/8"),
        (False, "8/16"),
        (True, "4/6"),
        (True, "6/12"),
        (True, "8/20"),
    ]
    assert operation.retracted == 2
    out.log.clear()
    feed(operation, 6, alive=False)
    assert [(alive, payload) for alive, _, payload in out.log] == [(False, "6/12"), (False, "8/20"), (True, "8/14")]


def test_several_items_are_taken_back_at_once() -> None:
    """The items behind them are run again once, and not for each of them."""
    operation, out, _ = fused_step(running)
    alone, wanted, _ = fused_step(running)
    numbers, gone = range(2, 20, 2), (2, 6, 16)
    for bench in (operation, alone):
        feed(bench, *numbers)
    out.log.clear()
    operation.undo([GlobalTime(time, 1).encode() for time in gone], 0, gone)
    feed(alone, *gone, alive=False)
    assert out.held == wanted.held
    assert [(alive, payload) for alive, _, payload in out.log] == [
        *[(False, f"{n}/{sum(range(2, n + 1, 2))}") for n in numbers],
        *[(True, f"{n}/{sum(m for m in range(2, n + 1, 2) if m not in gone)}") for n in numbers if n not in gone],
    ]
    with pytest.raises(NoInvalideeError):
        operation.undo([GlobalTime(6, 1).encode()], 0, [6])


def test_a_second_version_of_an_item_leaves_the_first_as_it_is() -> None:
    """Two workers may have sent it, until the tombstone of one comes."""
    operation, out, _ = fused_step(running)
    feed(operation, 2, 6)
    out.log.clear()
    operation.step(GlobalTime(2, 1).encode(), 1, True, 2)
    assert [(alive, payload) for alive, _, payload in out.log] == [(False, "6/8"), (True, "2/4"), (True, "6/10")]


def test_outputs_of_a_run_of_which_some_items_have_none_go_to_other_workers() -> None:
    flow = fc.Flow("fused")
    flow.source("numbers", int).key_by(lambda n: 0).stateful_map(0, lambda n, m: (n, [m] * (m % 3)), name="s").sink(
        "out"
    )
    (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
    runs: list[tuple[Orders, Sequence[Any]]] = []
    way = Way(lambda *_: None, lambda orders, trace, payloads: runs.append((orders, payloads)))
    numbers = range(60)
    orders = [GlobalTime(time, 1).encode() for time in numbers]
    DriftOperator(vertex, Site(0, lambda *_: None, (way,))).run(orders, 0, numbers)
    ((sent, outputs),) = runs
    assert outputs == [number for number in numbers for _ in range(number % 3)]
    assert unpack(pack(sent)) == sent


def test_keys_have_states_of_their_own() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, 1, 2, 4, 3)
    assert [payload for _, payload in out.sequence] == ["1/1", "2/2", "3/4", "4/6"]
    assert operation.retracted == 0


def strict_bench(build: Callable[[Any, int], Any]) -> tuple[DriftOperator, Contents]:
    """Return an operator that adds numbers, and a hundred times as much below time 10, and what it gives."""

    def vertex(factor: int) -> Drift:
        flow = fc.Flow("sums")
        build(flow.source("numbers", int).key_by(lambda n: 0), factor).sink("out")
        return next(vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))

    plain, strict = vertex(1), vertex(100)
    out = Contents()
    site = Site(0b100, out.step, (Way(out.step, each(out.step)),), strict=strict, early=[encode_time(10)])
    return DriftOperator(plain, site), out


@pytest.mark.parametrize(
    "build",
    [
        lambda keyed, factor: keyed.fold(0, lambda total, n: total + factor * n).map(lambda item: item[1]),
        lambda keyed, factor: keyed.stateful_map(0, lambda total, n: (total + factor * n, [total + factor * n])),
    ],
    ids=["fold", "stateful_map"],
)
def test_first_items_are_checked_whether_they_come_one_by_one_or_late_or_in_runs(build: Any) -> None:
    orders = [GlobalTime(time, 1).encode() for time in (8, 9, 10, 11)]
    for comes in ("in a run", "one by one", "late"):
        operation, out = strict_bench(build)
        if comes == "in a run":
            operation.run(orders, 0, [1, 1, 1, 1])
        else:
            for order in orders if comes == "one by one" else reversed(orders):
                operation.step(order, 0, True, 1)
        sums = [payload[1] if isinstance(payload, tuple) else payload for _, payload in out.sequence]
        assert sums == [100, 200, 201, 202], comes


def test_arrival_in_order_replays_nothing() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, *range(100))
    assert operation.retracted == 0
    assert all(alive for alive, _, _ in out.log)


def test_calls_are_counted_once_for_each_item_and_again_for_those_behind_a_late_one() -> None:
    operation, _, _ = fused_step(running)
    operation.run([GlobalTime(time, 1).encode() for time in (2, 6, 8)], 0, [2, 6, 8])
    assert operation.calls == 3
    feed(operation, 4)
    assert operation.calls == 3 + 1 + 2 * 2, "two are worked on to be taken back, and anew"
    operation.on_time(encode_time(9))
    assert operation.calls == 8


def test_items_before_one_whose_key_fails_go_on_as_one_run() -> None:
    flow = fc.Flow("counting")
    flow.source("numbers", int).key_by(lambda n: 12 // n).count(name="state").sink("out")
    (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
    sent: list[list[Any]] = []
    failed: list[Any] = []
    way = Way(lambda *item: sent.append([item[3]]), lambda orders, trace, payloads: sent.append([*payloads]))
    operation = DriftOperator(vertex, Site(0, lambda *item: failed.append(item[3]), (way,)))
    operation.run([GlobalTime(time, 1).encode() for time in range(1, 6)], 0, [4, 4, 3, 0, 4])
    assert sent[0] == [(3, 1), (3, 2), (4, 1)]
    assert failed == [0]
    assert [output for some in sent[1:] for output in some] == [(3, 3)]
    assert operation.retracted == 0


def test_a_restored_state_goes_on() -> None:
    operation, out, _ = fused_step(running)
    operation.restore({0: 10, 1: 5})
    feed(operation, 2, 3)
    assert [payload for _, payload in out.sequence] == ["2/12", "3/8"]


def test_a_key_is_forgotten_with_its_last_item() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, 2)
    feed(operation, 2, alive=False)
    assert operation.histories == {}
    assert operation.states.top == {}
    assert out.held == {}
    operation.on_time(encode_time(5))
    feed(operation, 6)
    assert [payload for _, payload in out.sequence] == ["6/6"]


def test_broken_identities_are_refused() -> None:
    operation, _, _ = fused_step(running)
    feed(operation, 2, 4)
    for time in (2, 4):
        with pytest.raises(DuplicateItemError) as caught:
            feed(operation, time)
        assert caught.value.vertex == "state"
    for time in (6, 3):
        with pytest.raises(NoInvalideeError) as missing:
            feed(operation, time, alive=False)
        assert missing.value.record == time


def test_a_failure_leaves_the_state_as_it_was_and_can_be_taken_back() -> None:
    def fussy_running(state: int, n: int) -> tuple[int, list[str]]:
        if state >= 2 and n == 6:
            raise ValueError("six after two")
        return running(state, n)

    operation, out, failed = fused_step(fussy_running)
    feed(operation, 2, 6, 8)
    assert [payload for _, payload in out.sequence] == ["2/2", "8/10"]
    assert [payload for _, payload in failed.sequence] == [6]
    feed(operation, 2, alive=False)
    assert [payload for _, payload in out.sequence] == ["6/6", "8/14"]
    assert failed.held == {}


def test_history_below_the_minimum_time_is_dropped() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, *range(100), 101, 100)
    for limit, left in ((0, 51), (50, 26), (51, 25), (100, 1)):
        operation.on_time(encode_time(limit))
        assert len(operation.histories[0]) == left
    operation.on_time(encode_time(1000))
    assert operation.histories == {}
    feed(operation, 1002, 1000)
    assert [payload for _, payload in out.sequence][-2:] == ["1000/3550", "1002/4552"]


# -- counts ------------------------------------------------------------------------------------------------------------


def remainder(n: int) -> int:
    if n % 7 == 6:
        raise ValueError("no key")
    return n % 7


class CountBench:
    """The operator of a count, or of a fold that counts, with what it has given and what its cuts leave."""

    def __init__(self, *, as_fold: bool) -> None:
        flow = fc.Flow("count")
        keyed = flow.source("numbers", int).key_by(remainder)
        counts = keyed.fold(0, lambda count, _: count + 1, name="state") if as_fold else keyed.count(name="state")
        counts.sink("out")
        (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
        self.out, self.failed = Contents(), Contents()
        site = Site(0b100, self._fail, (Way(self.out.step, each(self.out.step)),), snapshots=True)
        self.operator = DriftOperator(vertex, site)
        self.stored: dict[Any, Any] = {}

    def _fail(self, order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        self.failed.step(order, trace, alive, payload)

    def play(self, script: list[tuple[str, int]]) -> list[Any]:
        """Run a script; return what can be seen of it."""
        seen: list[Any] = []
        operator, floor, latest, there = self.operator, 0, 0, dict[int, int]()
        for what, number in script:
            if what == "run":
                times = range(latest + 2, latest + 2 + 2 * number, 2)
                operator.run([GlobalTime(time, 1).encode() for time in times], 0, list(times))
                there |= dict.fromkeys(times, 0)
                latest = times[-1]
            elif what in ("late", "gone"):
                time = max(latest - number, floor)
                alive = time not in there
                operator.step(GlobalTime(time, 1).encode(), 0, alive, time)
                there.pop(time) if not alive else there.setdefault(time, 0)
                latest = max(latest, time)
            else:
                floor = max(latest - number, floor)
                there = {time: 0 for time in there if time >= floor}
                if what == "trim":
                    operator.trim(encode_time(floor))
                else:
                    for piece in operator.cut(encode_time(floor)):
                        self.stored.update(piece)
                        self.stored = {name: state for name, state in self.stored.items() if state is not GONE}
                    seen += [dict(self.stored), operator.snapshot_of(range(7))]
        return [*seen, self.out.log, self.failed.log, operator.calls, operator.retracted, set(operator.names)]


scripts = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 40)),
        st.tuples(st.sampled_from(("late", "gone", "trim", "cut")), st.integers(0, 40)),
    ),
    max_size=25,
)


@given(scripts)
def test_a_count_is_the_fold_that_adds_one(script: list[tuple[str, int]]) -> None:
    script = [("run", 3), *script, ("cut", 5)]
    assert CountBench(as_fold=False).play(script) == CountBench(as_fold=True).play(script)


def test_a_count_is_as_of_the_time_of_its_cut() -> None:
    bench = CountBench(as_fold=False)
    operator = bench.operator
    operator.run([GlobalTime(time, 1).encode() for time in range(14)], 0, [0, 1] * 7)
    (changed,) = operator.cut(encode_time(5))
    assert changed == {0: 3, 1: 2}
    assert operator.snapshot_of(range(3)) == {0: 3, 1: 2}
    assert [payload for _, payload in bench.out.sequence][-2:] == [(0, 7), (1, 7)]


def test_a_key_whose_first_item_is_late_is_named() -> None:
    bench = CountBench(as_fold=False)
    for time, number in ((9, 1), (7, 0)):
        bench.operator.step(GlobalTime(time, 1).encode(), 0, True, number)
    assert [payload for _, payload in bench.out.sequence] == [(0, 1), (1, 1)]
    assert set(bench.operator.names) == {0, 1}, "else no full snapshot would have it"


def test_a_count_knows_the_types_that_it_stores_until_it_goes_on_from_others() -> None:
    operator = CountBench(as_fold=False).operator
    orders = [GlobalTime(time, 1).encode() for time in (1, 3)]
    operator.run(orders, 0, [1, 3])
    assert operator.name_types == {int}
    assert operator.state_type is int
    operator.restore({5: 7})
    assert operator.state_type is int
    operator.restore({6: 1.5})  # as an earlier version of the flow may have left it
    assert operator.state_type is None
    assert CountBench(as_fold=True).operator.state_type is None
