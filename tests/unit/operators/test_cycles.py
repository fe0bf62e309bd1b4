"""Cycles: rounds cost what they do however many there are, and items leave in the order of their child ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import JobError, OperationError, RunawayLoopError
from flamecore.testing.draws import seeds
from flamecore.testing.flows.reference import Failed, interpret

Body = Callable[[Any], Any]


def outputs(flow: fc.Flow, records: Sequence[Any], workers: int = 1, **job: Any) -> list[Any]:
    """Run a flow as outside of tests: with checks of all records its steps are others."""
    job = {"check_types": False, "check_mutation": False} | job
    settings = {f"job.{name}": value for name, value in job.items()}
    return list(flow.run({"in": records}, workers=workers, settings=settings)["out"])


def wanted(flow: fc.Flow, records: Sequence[Any], **options: Any) -> list[Any]:
    return [output.payload for output in interpret(flow.graph(), {"in": records}, **options)["out"]]


def looped(body: Body, behind: Body = lambda stream: stream) -> fc.Flow:
    flow = fc.Flow("looped")
    behind(flow.source("in").loop(body)).sink("out")
    return flow


def turn(calls: int, number: int) -> tuple[int, list[int]]:
    return calls + 1, [number - 1]


def keyed_rounds(stream: Any) -> Any:
    """Count down, with a state."""
    return stream.key_by(lambda _: "all").stateful_map(0, turn).branch(lambda number: number > 0)


def plain_rounds(stream: Any) -> Any:
    """Count down, without one."""
    return stream.map(lambda number: number - 1).branch(lambda number: number > 0)


def dealt_rounds(stream: Any) -> Any:
    """Count down, on another worker perhaps."""
    once = stream.rebalance().map(lambda number: number - 1)
    return once.branch(lambda number: number > 0)


ROUNDS: dict[str, Body] = {"a state": keyed_rounds, "no state": plain_rounds}


# -- rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [10, 3000])
@pytest.mark.parametrize("name", ROUNDS)
def test_child_ids_do_not_grow_with_the_rounds(name: str, rounds: int) -> None:
    lengths: list[int] = []

    def look(payload: int, meta: fc.Meta) -> None:
        lengths.append(len(meta.child_ids))

    def body(stream: Any) -> Any:
        return ROUNDS[name](stream.inspect(look, meta=True))

    looped(body, lambda stream: stream.inspect(look, meta=True)).run({"in": [rounds]})
    assert len(lengths) == rounds + 1
    assert max(lengths) < 10


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ROUNDS)
def test_a_long_search_that_ends_is_not_refused(name: str, workers: int) -> None:
    assert outputs(looped(ROUNDS[name]), [50_000, 3], workers) == [0, 0]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("name", ROUNDS)
def test_as_many_rounds_are_allowed_as_is_said(name: str, workers: int) -> None:
    # 41 turns are 40 rounds, and a turn to leave
    assert outputs(looped(ROUNDS[name]), [41], workers, max_rounds=40) == [0]
    with pytest.raises(
        OperationError, match=r"without end: more than 40 rounds, the most that job\.max_rounds"
    ) as caught:
        outputs(looped(ROUNDS[name]), [5, 42, 5], workers, max_rounds=40)
    assert isinstance(caught.value.cause, RunawayLoopError)
    assert "raise max_rounds under [job]" in str(caught.value.cause)
    kept = outputs(looped(ROUNDS[name]), [5, 42, 5], workers, max_rounds=40, on_error="skip")
    assert kept == [0, 0]


@pytest.mark.parametrize("workers", [1, 2])
def test_rounds_are_counted_for_each_cycle_and_record(workers: int) -> None:
    flow = looped(keyed_rounds, lambda stream: stream.map(lambda _: 41).loop(keyed_rounds).map(lambda _: 41))
    again = fc.Flow("again")
    again.source("in").loop(keyed_rounds).map(lambda _: 41).loop(plain_rounds).sink("out")
    assert outputs(flow, [41, 41], workers, max_rounds=40) == [41, 41]
    assert outputs(again, [41, 41], workers, max_rounds=40) == [0, 0]


@pytest.mark.parametrize("workers", [1, 3])
def test_where_child_ids_grow_their_length_is_limited(workers: int) -> None:
    """The same on any number of workers: items that are dealt out take no count of rounds with them."""
    assert outputs(looped(dealt_rounds), [1000], workers) == [0]
    with pytest.raises(OperationError, match=r"its order has grown by 66 bytes, the most that job\.max_rounds allows"):
        outputs(looped(dealt_rounds), [1000], workers, max_rounds=1000)


def test_too_many_items_that_wait_are_refused() -> None:
    def body(stream: Any) -> Any:
        return stream.flat_map(lambda number: [number - 1] * 30).branch(lambda number: number > 0)

    assert len(outputs(looped(body), [2])) == 900
    with pytest.raises(JobError, match=r"more than 40 items of one record wait .*job\.max_rounds allows"):
        outputs(looped(body), [4], max_rounds=40)


@pytest.mark.parametrize("records", [[300], [1] * 300])
def test_a_branch_in_two_asks_once(records: list[int]) -> None:
    asked: list[int] = []

    def more(number: int) -> bool:
        asked.append(number)
        return number > 0

    def body(stream: Any) -> Any:
        return stream.map(lambda number: number - 1).branch(more)

    assert outputs(looped(body), records) == [0] * len(records)
    assert len(asked) == sum(records)


@pytest.mark.parametrize("early", [True, False])
def test_a_branch_in_two_fails_as_its_filters_do(early: bool) -> None:
    def halved(number: int) -> bool:
        if number % 50 == 7:
            raise ValueError(f"{number} is not liked")
        return number % 2 == 0

    def body(stream: Any) -> Any:
        even, odd = stream.branch(halved)
        return even.map(lambda number: number // 2 - 1).filter(lambda number: number > 0), odd

    flow = looped(body)
    records = [*range(100 if early else 300)]
    expected = wanted(flow, records, skip_failing=True)
    assert 20 < len(expected) < len(records)
    assert outputs(flow, records, on_error="skip", max_failed=1_000_000) == expected


# -- sequence ----------------------------------------------------------------------------------------------------------


def halves(item: tuple[int, int]) -> list[tuple[int, int]]:
    return [(item[0] - 1, item[1] * 2 + half) for half in range(2)]


def noted(state: int, item: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
    state = (state * 7 + item[1]) % 1009
    return state, [(item[0], (item[1] * 31 + state) % 1009)] * (1 + state % 2)


def with_state(stream: Any) -> Any:
    return stream.key_by(lambda item: item[1] % 3).stateful_map(0, noted)


def early_exit(stream: Any) -> Any:
    """Draw a body that some items leave before the state, some behind it."""
    more, done = stream.flat_map(halves).branch(lambda item: item[0] > 0)
    turned, left = with_state(more).branch(lambda item: item[1] % 5 > 0)
    return turned, done.merge(left)


def two_states(stream: Any) -> Any:
    return with_state(with_state(stream.flat_map(halves)).map(lambda item: item)).branch(lambda item: item[0] > 0)


def inner_cycle(stream: Any) -> Any:
    def inner(inside: Any) -> Any:
        return with_state(inside).map(lambda item: (item[0] - 1, item[1] + 1)).branch(lambda item: item[0] % 2)

    return stream.flat_map(halves).loop(inner).branch(lambda item: item[0] > 0)


def no_state(stream: Any) -> Any:
    return stream.flat_map(halves).branch(lambda item: item[0] > 0)


def reduced(stream: Any) -> Any:
    halved = stream.flat_map(halves).key_by(lambda item: item[0]).fold(1, lambda state, item: (state + item[1]) % 97)
    return halved.branch(lambda item: item[0] > 0)


def grouped(stream: Any) -> Any:
    windows = stream.flat_map(halves).key_by(lambda item: item[1] % 3).group(2)
    return windows.map(lambda window: (window[-1][0], sum(item[1] for item in window) % 97)).branch(
        lambda it: it[0] > 0
    )


BODIES: dict[str, Body] = {
    body.__name__: body for body in (early_exit, two_states, inner_cycle, no_state, reduced, grouped)
}


def beside(stream: Any) -> Any:
    """Draw a body in which one copy meets a state and the other does not.

    They must not change places.
    """
    first, second = stream.broadcast(2)
    return with_state(first).merge(second.map(lambda item: (item[0], -item[1])))


def beside_a_cycle(stream: Any) -> Any:
    first, second = stream.map(lambda item: (2, item[1])).broadcast(2)
    return first.loop(two_states).merge(second)


def through_a_state_or_past_it(stream: Any) -> Any:
    odd, even = with_state(stream).branch(lambda item: item[1] % 2)
    return with_state(odd).merge(even.flat_map(halves))


BEHIND: dict[str, Body] = {
    "nothing": lambda stream: stream,
    "a state": with_state,
    "a state beside": beside,
    "a cycle beside": beside_a_cycle,
    "states and past them": through_a_state_or_past_it,
    "windows in an order of their own": lambda stream: (
        stream.key_by(lambda item: item[1] % 2).group(2, order=lambda item: -item[1]).map(lambda window: window[-1])
    ),
}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("body", BODIES)
def test_items_leave_in_the_order_of_their_child_ids(body: str, behind: str, workers: int) -> None:
    records = [(number % 3 + 1, number) for number in range(5)]
    flow = looped(BODIES[body], BEHIND[behind])
    expected = wanted(flow, records)
    assert len(expected) > len(records)
    assert outputs(flow, records, workers) == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("first", ["in", "side"])
@pytest.mark.parametrize("inside", [with_state, lambda stream: stream.flat_map(halves)], ids=["state", "none"])
def test_a_cycle_may_be_entered_behind_its_head(inside: Body, first: str, workers: int) -> None:
    """By a stream that the body merges: what that brings goes round at once, and not with the next item."""
    flow = fc.Flow("entered")
    sources = {name: flow.source(name) for name in ("in", "side")}
    other = sources.pop("side" if first == "in" else "in")

    def body(stream: Any) -> Any:
        turned = inside(stream.merge(other)).map(lambda item: (item[0] - 1, item[1] + 1))
        return turned.branch(lambda item: item[0] > 0)

    sources[first].loop(body).sink("out")
    inputs = {"in": [(3, 1), (2, 2)], "side": [(2, 5), (3, 4), (1, 9), (4, 0)]}
    expected = [output.payload for output in interpret(flow.graph(), inputs)["out"]]
    assert len(expected) >= 6
    assert list(flow.run(inputs, workers=workers)["out"]) == expected


def liking(item: tuple[int, int]) -> tuple[int, int]:
    if item[1] % 11 == 5 or (item[0] < 2 and item[1] % 7 == 3):
        raise ValueError(f"{item} is not liked")
    return item


def liked_state(state: int, item: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
    if (state + item[1]) % 13 == 6:
        raise ValueError(f"{item} after {state}")
    return noted(state, item)


def failing_map(stream: Any) -> Any:
    return with_state(stream.flat_map(halves).map(liking)).branch(lambda item: item[0] > 0)


def failing_state(stream: Any) -> Any:
    turned = stream.flat_map(halves).key_by(lambda item: item[1] % 2).stateful_map(0, liked_state)
    return turned.branch(lambda item: item[0] > 0)


def failing_branch(stream: Any) -> Any:
    return with_state(stream.flat_map(halves)).branch(lambda item: liking(item)[0] > 0)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("body", [failing_map, failing_state, failing_branch])
def test_of_the_items_that_fail_in_a_cycle_the_first_in_order_is_told(body: Body, workers: int) -> None:
    """An item that goes round comes, or fails, before what stands behind it in the same output of a function."""
    flow = looped(body)
    for start in seeds(30, least=10):
        records = [(0, 0), (3, start), (3, 0)]
        try:
            expected = wanted(flow, records)
        except Failed as failed:
            failure = failed
        else:
            assert outputs(flow, records, workers) == expected
            continue
        with pytest.raises(OperationError) as caught:
            outputs(flow, records, workers)
        assert str(caught.value.cause) == str(failure.error), start
        assert caught.value.vertex == failure.vertex.removesuffix("/outputs")
    records = [(3, start) for start in range(30)]
    assert outputs(flow, records, workers, on_error="skip", max_failed=1_000_000) == wanted(
        flow, records, skip_failing=True
    )


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_cycle_whose_rounds_double_without_end_is_found(workers: int, on_error: str, keyed: bool) -> None:
    """Each of the items that wait would go as far as the first: the rest of the record is given up with it."""

    def twice(number: int) -> list[int]:
        return [number, number]

    def body(stream: Any) -> Any:
        once = stream.key_by(lambda n: n).stateful_map(0, lambda calls, n: (calls + 1, twice(n))) if keyed else stream
        rounds = once if keyed else once.flat_map(twice)
        return rounds.branch(lambda number: number > 0)

    flow = looped(body)
    with pytest.raises((OperationError, RunawayLoopError), match="loop"):
        outputs(flow, [0, 1], workers, max_rounds=30, on_error="fail")
    if on_error == "skip":
        try:
            found = outputs(flow, [0, 1, 0], workers, max_rounds=30, on_error="skip", max_failed=10)
        except RunawayLoopError:
            return  # too many wait
        assert found == [0, 0, 0, 0]
