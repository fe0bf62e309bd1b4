"""Loops by key at work: each key stays on its worker, and an item that changes its key is an error."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import LoopKeyError, OperationError
from flamecore.model.hashing import key_group, stable_hash
from flamecore.runtime.operators.agenda import Agenda
from flamecore.runtime.operators.cycles import KeyedAgenda
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named, assert_deterministic
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import Simulation

Item = tuple[Any, int, int]


def key(item: Item) -> Any:
    return item[0]


def turn(state: int, item: Item) -> tuple[int, list[Item]]:
    return (state * 7 + item[2]) % 101, [(item[0], item[1] - 1, (item[2] + state) % 97)]


def goes_on(item: Item) -> bool:
    return item[1] > 0


def refine(items: fc.KeyedStream[Any, Item]) -> Any:
    return items.stateful_map(0, turn, name="refine").branch(goes_on)


def changing(at: int) -> Any:
    """Return a body in which the item of that number changes its key."""

    def change(item: Item) -> Item:
        return ("other", item[1], item[2]) if item[1:] == (2, at) else item

    def body(items: fc.KeyedStream[Any, Item]) -> Any:
        return items.map(lambda item: (item[0], item[1] - 1, item[2])).map(change).branch(goes_on)

    return body


def drawn(body: Any, rounds: int = 3) -> fc.Flow:
    flow = fc.Flow("keyed-loops")
    flow.source("in", int).map(lambda n: (n % 20, rounds, n)).key_by(key).loop(body).sink("out")
    return flow


def test_the_calls_for_each_key_are_made_where_the_key_lives() -> None:
    calls: defaultdict[int, int] = defaultdict(int)

    def counted(state: int, item: Item) -> tuple[int, list[Item]]:
        calls[item[0]] += 1
        return turn(state, item)

    flow = drawn(lambda items: items.stateful_map(0, counted, name="refine").branch(goes_on))
    for workers in (1, 2, 4):
        calls.clear()
        simulation = Simulation(
            flow.graph(), {"in": range(100)}, acker=acker_named("centralized"), workers=workers, seed=workers
        )
        simulation.run()
        assert calls == dict.fromkeys(range(20), 15), "five records of three rounds"
        made = []
        for index in range(workers):
            state = simulation.workers[f"worker/{index}"].compiled.stateful["refine"]
            mine = [key for key in calls if state.states.top.get(key) is not None]  # type: ignore[attr-defined]
            owners = simulation.plan.owners
            assert mine == [key for key in calls if owners[key_group(stable_hash(key))] == index]
            made.append(sum(calls[key] for key in mine))
        assert sum(made) == 300
        assert all(made[index] for index in set(simulation.plan.owners))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_an_item_that_comes_back_with_another_key_is_shown_with_both(workers: int) -> None:
    with pytest.raises(OperationError) as failed:
        drawn(changing(at=57)).run({"in": range(100)}, workers=workers)
    text = str(failed.value)
    assert "'loop' failed" in text
    assert "comes back with key 'other', but its origin has entered with key 17" in text
    assert "('other', 2, 57)" in text
    assert "value 58 of in" in text
    with pytest.raises(Failed) as wanted:
        interpret(drawn(changing(at=57)).graph(), {"in": range(100)})
    assert wanted.value.payload == ("other", 2, 57)


@pytest.mark.parametrize("how", ["a state", "a map"])
def test_an_item_that_comes_to_an_operation_with_another_key_is_an_error(how: str) -> None:
    def body(items: fc.KeyedStream[Any, Item]) -> Any:
        changed = items.map(lambda item: (item[0] + (item[2] == 7), item[1] - 1, item[2])).key_by(key)
        first = changed.stateful_map(0, turn, name="there") if how == "a state" else changed.map(tuple, name="there")
        return first.map(lambda item: (item[0] - (item[2] == 7), *item[1:])).branch(goes_on)

    for workers in (1, 3):
        with pytest.raises(OperationError, match=r"an item comes to 'there' with key 8, but .* entered with key 7"):
            drawn(body).run({"in": range(20)}, workers=workers)


def test_the_error_of_another_key_has_its_facts_as_fields() -> None:
    keyed = KeyedAgenda("loop", Agenda())
    keyed.key = 17
    error: Any = keyed.refusal("turn", "other", ("other", 2, 57))
    assert isinstance(error, LoopKeyError)
    assert (error.vertex, error.loop, error.entered, error.key) == ("turn", "loop", 17, "other")
    assert error.record == ("other", 2, 57)


def test_only_the_item_with_another_key_is_left_out_if_failing_items_are() -> None:
    flow = drawn(changing(at=57))
    wanted = [output.payload for output in interpret(flow.graph(), {"in": range(100)}, skip_failing=True)["out"]]
    assert len(wanted) == 99
    for workers in (1, 2, 4):
        found = flow.run({"in": range(100)}, workers=workers, settings={"job.on_error": "skip"})["out"]
        assert list(found) == wanted


def test_equal_keys_of_other_types_are_one_key() -> None:
    def body(items: fc.KeyedStream[Any, Item]) -> Any:
        return items.map(lambda item: (float(item[0]), item[1] - 1, item[2])).branch(goes_on)

    for workers in (1, 3):
        assert len(drawn(body).run({"in": range(20)}, workers=workers)["out"]) == 20


def test_a_key_function_that_fails_inside_is_the_users_error() -> None:
    def body(items: fc.KeyedStream[Any, Item]) -> Any:
        return items.map(lambda item: () if item[2] == 3 else (item[0], item[1] - 1, item[2])).branch(
            lambda item: not item or goes_on(item)
        )

    for workers in (1, 3):
        with pytest.raises(OperationError, match="'loop' failed: IndexError"):
            drawn(body).run({"in": range(20)}, workers=workers)


def test_a_function_that_fails_in_the_loop_fails_at_the_same_record_everywhere() -> None:
    def fail(item: Item) -> Item:
        if item[1:] == (1, 43):
            raise ValueError("too much")
        return item

    def body(items: fc.KeyedStream[Any, Item]) -> Any:
        return items.map(lambda item: (item[0], item[1] - 1, item[2])).map(fail).branch(goes_on)

    assert_deterministic(drawn(body), {"in": list(range(60))}, seeds=seeds(5))


def test_repairs_inside_of_a_loop_keep_their_keys() -> None:
    """Corrections come late, with copies of several keys, and have items behind them made anew, on one worker too.

    Windows that are not full are taken back by the next item, behind a cycle, where everything waits for its turn.
    """

    def halves(n: int) -> list[tuple[int, int]]:
        return [(n % 3, n // 2), (n % 2, n // 3)]

    def splitting(numbers: fc.Stream[Any]) -> Any:
        return numbers.flat_map(lambda pair: halves(pair[1])).branch(lambda pair: pair[1] > 5)

    def body(items: fc.KeyedStream[Any, Item]) -> Any:
        first = items.stateful_map(0, turn, name="first").key_by(key)
        return first.stateful_map(0, turn, name="second").branch(goes_on)

    flow = fc.Flow("repairs")
    numbers = flow.source("in", int).map(lambda n: (0, n)).loop(splitting)
    windows = numbers.key_by(lambda pair: pair[0]).group(4, undo_partial=True)
    copies = windows.map(lambda window: (len(window), sum(pair[1] for pair in window))).broadcast(3)
    ways = [copy.map(lambda pair, by=by: ((pair[1] + by) % 3, 5, pair[1] + by)) for by, copy in enumerate(copies)]
    ways[0].merge(*ways[1:]).key_by(key).loop(body).sink("out")
    assert_deterministic(flow, {"in": [25, 14]}, seeds=seeds(8))
