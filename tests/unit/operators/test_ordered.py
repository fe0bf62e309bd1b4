"""The operator of ordered operations: items in order, states at any settled time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import pytest

from flamecore.abc.operator import GONE, Site, Way, Work, each
from flamecore.errors import NoInvalideeError, OrderViolationError
from flamecore.model.meta import GlobalTime, decode_children, encode_time
from flamecore.model.ordered import Now, Ordered, Outcome
from flamecore.model.vertices import ByKey
from flamecore.runtime.operators.ordered import OrderedIntake, OrderedOperator

Output = tuple[bytes, Any]


def modulo(n: int) -> int:
    return n % 3


@dataclass(eq=False, slots=True, repr=False)
class Pile(Ordered):
    """Up to three numbers of a key: then it gives them, and begins anew. It fails on multiples of 10."""

    kind: ClassVar[str] = "pile"

    def work(self) -> Work:
        return PileWork()


class PileWork(Work):
    def __init__(self) -> None:
        self.told: list[str] = []

    def open(self) -> None:
        self.told.append("open")

    def begin(self) -> None:
        self.told.append("begin")

    def process(self, key: int, state: Any, payload: int, now: Now) -> Outcome:
        self.told.append(f"{now.time}")
        pile = (*(state or ()), payload)
        if payload % 10 == 0:
            raise ValueError(payload)
        return Outcome(None, [pile, sum(pile)]) if len(pile) == 3 else Outcome(pile)

    def end(self) -> None:
        self.told.append("end")


class Bench:
    """An operator at work, with what it has emitted and failed on."""

    def __init__(self, *, snapshots: bool = True) -> None:
        self.outputs: list[Output] = []
        self.failed: list[int] = []

        def emit(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            self.outputs.append((order, payload))

        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            self.failed.append(payload)

        site = Site(7, fail, (Way(emit, each(emit)),), snapshots=snapshots)
        self.operator = OrderedOperator(Pile("pile", route=ByKey(modulo)), site)
        self.intake = OrderedIntake("pile", self.operator, 1)

    @property
    def told(self) -> list[str]:
        work = self.operator.work
        assert isinstance(work, PileWork)
        return work.told

    def put(self, time: int, payload: int, trace: int = 0, *, alive: bool = True) -> None:
        self.intake.step(order_of(time), trace, alive, payload)

    def drain(self, time: int) -> None:
        self.intake.drain(encode_time(time))


def order_of(time: int) -> bytes:
    return GlobalTime(time, 1).encode()


def test_items_wait_for_the_minimum_time_and_go_in_sorted_in_one_step() -> None:
    bench = Bench()
    for time, payload in ((3, 7), (1, 1), (2, 4), (5, 2)):
        bench.put(time, payload, trace=time)
    bench.drain(1)
    assert bench.told == ["open"]
    assert bench.intake.lowest == order_of(1)
    bench.drain(4)
    assert bench.told == ["open", "begin", "1", "2", "3", "end"]
    assert bench.outputs == [(order_of(3) + b"\x00", (1, 4, 7)), (order_of(3) + b"\x01", 12)]
    assert bench.intake.lowest == order_of(5)
    assert bench.operator.calls == 3


def test_an_item_that_is_taken_back_never_goes_in() -> None:
    bench = Bench()
    bench.put(1, 1, trace=5)
    bench.put(1, 1, trace=5, alive=False)
    bench.put(1, 4, trace=6)
    bench.drain(2)
    assert bench.told == ["open", "begin", "1", "end"]
    assert bench.operator.cut(encode_time(2)) == [{1: ((4,), (), None)}]


def test_a_tombstone_alone_is_an_error() -> None:
    bench = Bench()
    bench.put(1, 1, alive=False)
    with pytest.raises(NoInvalideeError, match="'pile': the item that a tombstone cancels is not here: 1"):
        bench.drain(2)
    assert bench.told[-1] == "end", "a step ends, whatever happens in it"


def test_an_item_that_comes_too_late_is_an_error() -> None:
    bench = Bench()
    bench.put(4, 1)
    bench.drain(5)
    bench.put(3, 1)
    with pytest.raises(OrderViolationError, match="'pile': an item came after others had gone in"):
        bench.drain(5)


def test_a_failing_item_leaves_its_state_as_it_was() -> None:
    bench = Bench()
    for time, payload in enumerate((1, 10, 4, 7), 1):
        bench.put(time, payload)
    bench.drain(9)
    assert bench.failed == [10]
    assert [payload for _, payload in bench.outputs] == [(1, 4, 7), 12]


def test_outputs_beyond_one_byte_keep_their_order() -> None:
    bench = Bench()
    bench.operator.work.process = lambda *_: Outcome(None, range(300))  # type: ignore[method-assign]
    bench.put(1, 1)
    bench.drain(2)
    assert [decode_children(order[12:])[0] for order, _ in bench.outputs] == list(range(300))
    assert bench.outputs == sorted(bench.outputs)


def fold(numbers: list[int], before: int) -> dict[int, Any]:
    """The states that the numbers below a time leave."""
    piles: dict[int, tuple[int, ...]] = {}
    for n in numbers[:before]:
        pile = (*piles.get(n % 3, ()), n)
        if n % 10:
            piles[n % 3] = pile if len(pile) < 3 else ()
    return {key: (pile, (), None) for key, pile in piles.items() if pile}


@pytest.mark.parametrize("seed", range(60))
def test_cuts_hold_the_states_at_their_times_however_far_it_is_ahead(seed: int) -> None:
    random = Random(seed)
    numbers = [random.randrange(1, 100) for _ in range(60)]
    bench, stored, settled, worked = Bench(), dict[int, Any](), 0, 0
    todo = list(enumerate(numbers))
    while settled < len(numbers):
        count = random.randrange(8)
        for time, payload in random.sample(todo[:count], len(todo[:count])):
            bench.put(time, payload)
        del todo[:count]
        worked = min(worked + count, len(numbers))
        bench.drain(worked)
        if random.random() < 0.3:
            settled = random.randint(settled, worked)
            bench.operator.trim(encode_time(settled))
        elif random.random() < 0.5 or worked == len(numbers):
            settled = random.randint(settled, worked)
            fresh = Bench()
            for piece in bench.operator.cut(encode_time(settled)):
                stored |= piece
            for key in [key for key, record in stored.items() if record is GONE]:
                del stored[key]
            assert stored == fold(numbers, settled)
            assert bench.operator.snapshot_of(bench.operator.names) == stored
            fresh.operator.restore(stored)
            assert fresh.operator.snapshot_of(fresh.operator.names) == stored
            assert sorted(set(bench.operator.names)) == sorted(bench.operator.names)


def test_without_snapshots_nothing_is_noted() -> None:
    bench = Bench(snapshots=False)
    for time in range(1, 10):
        bench.put(time, 3 * time + 1)
    bench.drain(20)
    assert bench.operator.names == []
    assert bench.operator.cut(encode_time(20)) == []
