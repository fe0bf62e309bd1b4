"""Drifting state in its fused form: repairs, failures, and which history is kept (paper 004, section 2.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.operator import Site, Way, each
from flamecore.errors import DuplicateItemError, NoInvalideeError
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


def test_keys_have_states_of_their_own() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, 1, 2, 4, 3)
    assert [payload for _, payload in out.sequence] == ["1/1", "2/2", "3/4", "4/6"]
    assert operation.retracted == 0


def test_arrival_in_order_replays_nothing() -> None:
    operation, out, _ = fused_step(running)
    feed(operation, *range(100))
    assert operation.retracted == 0
    assert all(alive for alive, _, _ in out.log)


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
