"""The operator of ordered operations: items in order, states at any settled time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any, ClassVar

import pytest

from flamecore.abc.operator import GONE, Site, Way, Work, each
from flamecore.errors import JobError, NoInvalideeError, OrderViolationError
from flamecore.model.failure import FlowMistake
from flamecore.model.meta import GlobalTime, decode_children, encode_time
from flamecore.model.ordered import KEPT, Marking, Now, Ordered, Outcome, Timer, behind, behind_record
from flamecore.model.vertices import ByKey
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator
from flamecore.runtime.operators.rounds import Rounds, VertexRound

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

    def close(self) -> None:
        self.told.append("close")


class Bench:
    """An operator at work, with what it has emitted and failed on."""

    vertex: ClassVar[type[Ordered]] = Pile
    key: ClassVar[Callable[[Any], Any]] = staticmethod(modulo)

    def __init__(self, *, snapshots: bool = True) -> None:
        self.rounds = Rounds()
        turn = VertexRound(self.rounds, 1)
        self.outputs: list[Output] = []
        self.failed: list[Any] = []
        self.errors: list[Exception] = []

        def emit(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            self.outputs.append((order, payload))

        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            self.failed.append(payload)
            self.errors.append(error)

        site = Site(7, fail, (Way(emit, each(emit)),), snapshots=snapshots, round=turn)
        self.operator = OrderedOperator(self.vertex("pile", route=ByKey(self.key), index=3), site)
        self.buffer = OrderedBuffer("pile", self.operator, 1, turn)

    @property
    def told(self) -> list[str]:
        work = self.operator.work
        assert isinstance(work, PileWork)
        return work.told

    def put(self, time: int, payload: Any, trace: int = 0, *, alive: bool = True) -> None:
        self.buffer.step(order_of(time), trace, alive, payload)

    def drain(self, time: int) -> None:
        self.buffer.drain(encode_time(time))

    def end_round_at(self, time: int) -> None:
        """Make the round end during the call for the item of a time."""
        process = self.operator.work.process

        def last(key: Any, state: Any, payload: Any, now: Now) -> Outcome:
            if now.time == time:
                self.rounds.end()
            return process(key, state, payload, now)

        self.operator.work.process = last  # type: ignore[method-assign]

    def next_round(self) -> None:
        """Run what the last round has left."""
        self.rounds.begin()
        for rest in self.rounds.take():
            rest.run(rest.orders, rest.trace, rest.payloads)


def order_of(time: int) -> bytes:
    return GlobalTime(time, 1).encode()


def test_items_wait_for_the_minimum_time_and_go_in_sorted_in_one_step() -> None:
    bench = Bench()
    for time, payload in ((3, 7), (1, 1), (2, 4), (5, 2)):
        bench.put(time, payload, trace=time)
    bench.drain(1)
    assert bench.told == ["open"]
    assert bench.buffer.lowest == order_of(1)
    bench.drain(4)
    assert bench.told == ["open", "begin", "1", "2", "3", "end"]
    assert bench.outputs == [(order_of(3) + b"\x00", (1, 4, 7)), (order_of(3) + b"\x01", 12)]
    assert bench.buffer.lowest == order_of(5)
    assert bench.operator.calls == 3


def test_an_item_that_is_taken_back_never_goes_in() -> None:
    bench = Bench()
    bench.put(1, 1, trace=5)
    bench.put(1, 1, trace=5, alive=False)
    bench.put(1, 4, trace=6)
    bench.drain(2)
    assert bench.told == ["open", "begin", "1", "end"]
    assert bench.operator.cut(encode_time(2)) == [{1: ((4,), (), None)}]


def test_a_work_is_closed_once() -> None:
    bench = Bench()
    bench.operator.close()
    bench.operator.close()
    assert bench.told == ["open", "close"]


@pytest.mark.parametrize("method", ["open", "begin", "end", "close"])
def test_a_work_that_fails_outside_of_its_records_ends_the_job(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(work: Work) -> None:
        raise OSError("no room")

    def run() -> None:
        bench = Bench()
        bench.put(1, 1)
        bench.drain(2)
        bench.operator.close()

    monkeypatch.setattr(PileWork, method, fail)
    with pytest.raises(JobError, match=rf"'pile'>: {method} of its PileWork failed: OSError: no room"):
        run()


def test_items_that_a_round_leaves_go_in_by_a_step_of_their_own() -> None:
    bench = Bench()
    for time, payload in enumerate((1, 4, 7), 1):
        bench.put(time, payload)
    bench.end_round_at(2)
    bench.drain(9)
    assert bench.told == ["open", "begin", "1", "2", "end"]
    assert bench.operator.worked == 2
    bench.next_round()
    assert bench.told[5:] == ["begin", "3", "end"]
    assert bench.operator.worked == 3
    assert [payload for _, payload in bench.outputs] == [(1, 4, 7), 12]
    bench.put(3, 1)
    with pytest.raises(OrderViolationError):
        bench.drain(9)


def test_a_tombstone_alone_is_an_error() -> None:
    bench = Bench()
    bench.put(1, 1, alive=False)
    with pytest.raises(NoInvalideeError, match="'pile': the item that a tombstone cancels is not here: 1"):
        bench.drain(2)
    assert bench.told[-1] == "end", "a step ends, whatever happens in it"


@pytest.mark.parametrize("time", [3, 4])
def test_an_item_that_comes_too_late_is_an_error(time: int) -> None:
    bench = Bench()
    bench.put(4, 1)
    bench.drain(5)
    bench.put(time, 1)
    with pytest.raises(OrderViolationError, match="'pile': an item came after others had gone in"):
        bench.drain(5)


def test_a_failing_item_leaves_its_state_as_it_was() -> None:
    bench = Bench()
    for time, payload in enumerate((1, 10, 4, 7), 1):
        bench.put(time, payload)
    bench.drain(9)
    assert bench.failed == [10]
    assert [payload for _, payload in bench.outputs] == [(1, 4, 7), 12]


@pytest.mark.parametrize("wrong", [None, (1, [2]), 7])
def test_a_work_that_returns_no_outcome_is_a_mistake(wrong: Any) -> None:
    bench = AlarmBench()
    bench.operator.work.process = lambda key, *_: wrong if key == "a" else Outcome(1, [], [Timer(4)])  # type: ignore[method-assign]
    bench.operator.work.on_time = lambda *_: wrong  # type: ignore[method-assign]
    bench.put(1, ("a",))
    bench.put(2, ("b",))
    bench.drain(9)
    assert list(map(repr, bench.failed)) == ["('a',)", "timer 0 of 'b' at 4"]
    assert all(isinstance(error, FlowMistake) for error in bench.errors)


def test_outputs_beyond_one_byte_keep_their_order() -> None:
    bench = Bench()
    bench.operator.work.process = lambda *_: Outcome(None, range(300))  # type: ignore[method-assign]
    bench.put(1, 1)
    bench.drain(2)
    assert [decode_children(order[12:])[0] for order, _ in bench.outputs] == list(range(300))
    assert bench.outputs == sorted(bench.outputs)


def fold(numbers: list[int], before: int) -> dict[int, Any]:
    """Return the states that the numbers below a time leave."""
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
            if settled % 2:  # as when a sweep has come to its end
                bench.operator._enough = 0
                bench.operator.compact()
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


# -- timers ------------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True, repr=False)
class Alarm(Pile):
    """Sets the timers that an item asks for, as (time, tag) pairs, and gives each that is due."""

    timers: ClassVar[bool] = True

    def work(self) -> Work:
        return AlarmWork()


class AlarmWork(PileWork):
    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        _, *timers = payload
        return Outcome(timers, [("set", now.time)], [Timer(*timer) for timer in timers])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        if timer.tag == 13:
            raise ValueError("unlucky")
        if timer.tag == 99:
            return Outcome(state, [], [timer])
        left = [other for other in state if tuple(other) > timer]
        return Outcome(left or None, [(key, *timer[:2], now.time)], [Timer(*other) for other in left])


class AlarmBench(Bench):
    vertex = Alarm
    key = staticmethod(itemgetter(0))


def due(bench: Bench) -> list[Any]:
    return [payload for _, payload in bench.outputs if payload[0] != "set"]


def test_no_more_timers_go_in_at_once_than_asked_for() -> None:
    bench = AlarmBench()
    bench.put(1, ("a", (3, 0), (4, 0), (5, 0)))
    bench.drain(2)
    assert bench.operator.on_known(encode_time(9), 1)
    assert due(bench) == [("a", 3, 0, 3)]
    assert not bench.operator.on_known(encode_time(9), 2)
    assert due(bench) == [("a", 3, 0, 3), ("a", 4, 0, 4), ("a", 5, 0, 5)]


def test_a_key_keeps_its_state_behind_its_last_timer() -> None:
    bench = AlarmBench()
    bench.operator.work.on_time = lambda key, state, timer, now: Outcome("kept")  # type: ignore[method-assign]
    bench.put(1, ("a", (3, 0)))
    bench.drain(5)
    assert bench.operator.cut(encode_time(5)) == [{"a": ("kept", (), None)}]


def test_timers_are_due_before_the_items_of_their_time() -> None:
    bench = AlarmBench()
    bench.put(1, ("a", (5, 0), (3, 0)))
    bench.put(3, ("b", (9, 0)))
    bench.put(5, ("b", (7, 0)))
    bench.drain(6)
    outputs = [payload for _, payload in bench.outputs]
    assert outputs == [("set", 1), ("a", 3, 0, 3), ("set", 3), ("a", 5, 0, 5), ("set", 5)]
    assert [order for order, _ in bench.outputs] == sorted(order for order, _ in bench.outputs)
    assert bench.buffer.lowest is not None
    assert bench.buffer.lowest.startswith(encode_time(7) + bytes(4)), "in flight until it is due; that at 9 is not set"
    bench.drain(7)
    assert len(bench.outputs) == 5, "nothing of a time is known to be complete before the minimum time has passed it"
    bench.drain(8)
    assert due(bench)[-1] == ("b", 7, 0, 7)
    assert bench.buffer.lowest is None
    assert bench.operator.cut(encode_time(8)) == [], "no key has state any more"


def test_timers_of_one_time_go_by_tag_and_then_by_a_hash_of_the_key() -> None:
    orders = []
    for keys in (range(20), reversed(range(20))):
        bench = AlarmBench()
        for time, key in enumerate(keys, 1):
            bench.put(time, (key, (50, key % 2), (50, -1)))
        bench.drain(60)
        found = due(bench)
        assert [tag for _, _, tag, _ in found] == [-1] * 20 + [0] * 10 + [1] * 10
        orders.append(found)
    assert orders[0] == orders[1]
    assert [key for key, *_ in orders[0][:20]] != list(range(20))


def test_keys_of_one_hash_go_by_their_bytes_and_their_outputs_are_numbered_on(monkeypatch: Any) -> None:
    monkeypatch.setattr("flamecore.model.ordered.xxh3_64_intdigest", lambda _: 7)
    bench = AlarmBench()
    for time, key in enumerate("cab", 1):
        bench.put(time, (key, (50, 0)))
    bench.drain(60)
    assert [key for key, *_ in due(bench)] == ["a", "b", "c"]
    assert [decode_children(order[12:])[-1] for order, payload in bench.outputs if payload[0] != "set"] == [0, 1, 2]


def test_keys_that_cannot_be_told_apart_by_their_hashes_have_an_order_too() -> None:
    orders = []
    for keys in ((-1, -2, "x"), ("x", -2, -1)):  # Python gives -1 and -2 one hash
        bench = AlarmBench()
        for time, key in enumerate(keys, 1):
            bench.put(time, (key, (50, 0)))
        bench.drain(60)
        orders.append([key for key, *_ in due(bench)])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("mark", [False, True])
def test_timers_and_holds_that_are_set_again_and_again_take_no_memory(mark: bool) -> None:
    bench = AlarmBench()
    bench.operator.work.process = lambda _key, _state, payload, now: Outcome(  # type: ignore[method-assign]
        1, [], [Timer(now.time + 90_000, 0, mark)], now.time
    )
    for time in range(1, 5_000):
        bench.put(time, (time % 3,))
    bench.drain(5_000)
    operator = bench.operator
    assert max(len(operator._timers), len(operator._turns), len(operator._by_mark), len(operator._holds)) < 300
    assert operator._timer_count == (0 if mark else 3)
    assert sum(map(len, operator._by_mark.values())) == (3 if mark else 0)
    assert sum(operator._held.values()) == 3
    assert operator._records[1] == (1, ((94_999, 0, mark),), 4_999)


def test_a_timer_that_is_left_out_is_cancelled_and_one_set_twice_comes_once() -> None:
    bench = AlarmBench()
    bench.put(1, ("a", (9, 1), (9, 2), (9, 2)))
    bench.put(2, ("a", (9, 2)))
    bench.put(3, ("a", (9, 1), (9, 2)))
    bench.drain(10)
    assert due(bench) == [("a", 9, 1, 9), ("a", 9, 2, 9)]


def test_a_timer_that_is_past_is_due_at_once() -> None:
    bench = AlarmBench()
    bench.put(5, ("a", (2, 0), (5, 0), (6, 0)))
    bench.drain(7)
    assert bench.outputs[:3] == [
        (order_of(5) + b"\x00", ("set", 5)),
        (order_of(5) + b"\x01", ("a", 2, 0, 5)),
        (order_of(5) + b"\x02", ("a", 5, 0, 5)),
    ]
    assert due(bench)[2:] == [("a", 6, 0, 6)]


def test_past_timers_without_end_are_a_mistake_of_the_item() -> None:
    bench = AlarmBench()
    bench.put(5, ("a", (2, 99)))
    bench.drain(7)
    assert bench.failed == [("a", (2, 99))]
    assert bench.operator.snapshot_of(["a"]) == {}


def test_a_failing_timer_is_told_and_over() -> None:
    bench = AlarmBench()
    bench.put(1, ("a", (5, 13), (6, 1)))
    bench.drain(9)
    (failed,) = bench.failed
    assert repr(failed) == "timer 13 of 'a' at 5"
    assert due(bench) == [("a", 6, 1, 6)]


def test_a_work_may_say_how_a_key_goes_on_whose_timer_has_failed() -> None:
    bench = AlarmBench()
    bench.operator.work.leave_out = lambda key, state, timer, now: Outcome(  # type: ignore[method-assign]
        ["left"], [(key, "left", now.time)], [Timer(7, 2)]
    )
    bench.put(1, ("a", (5, 13), (6, 1)))
    bench.drain(7)
    assert len(bench.failed) == 1
    assert due(bench) == [("a", "left", 5)]
    assert bench.operator.cut(encode_time(7)) == [{"a": (["left"], (Timer(7, 2),), None)}]


def test_a_work_that_cannot_say_how_a_key_goes_on_leaves_its_state_as_it_was() -> None:
    bench = AlarmBench()

    def leave_out(*_: Any) -> Outcome:
        raise ValueError("neither")

    bench.operator.work.leave_out = leave_out  # type: ignore[method-assign]
    bench.put(1, ("a", (5, 13), (6, 1)))
    bench.drain(6)
    assert len(bench.failed) == 1
    assert bench.operator.cut(encode_time(6)) == [{"a": ([(5, 13), (6, 1)], (Timer(6, 1),), None)}]


def test_timers_wait_for_the_items_that_a_round_has_left() -> None:
    bench = AlarmBench()
    for time, timers in ((1, [(5, 0)]), (2, []), (3, [])):
        bench.put(time, (time, *timers))
    bench.end_round_at(2)
    bench.drain(9)
    assert [payload for _, payload in bench.outputs] == [("set", 1), ("set", 2)]
    bench.next_round()
    bench.drain(9)
    assert [payload for _, payload in bench.outputs][2:] == [("set", 3), (1, 5, 0, 5)]


def test_a_timer_of_a_vertex_without_timers_is_a_mistake() -> None:
    bench = Bench()
    bench.operator.work.process = lambda *_: Outcome(1, [], [Timer(7)])  # type: ignore[method-assign]
    bench.put(1, 1)
    bench.drain(9)
    assert bench.failed == [1]


@pytest.mark.parametrize("journal", [False, True])
def test_a_step_does_no_more_than_it_may_and_says_so(journal: bool) -> None:
    bench = AlarmBench()
    if journal:
        bench.buffer.wait_for_journal()
    for time in range(1, 11):
        bench.put(time, (time, (50, 0)))
    for _ in range(3 if journal else 6):
        assert bench.buffer.to_store is None
        bench.buffer.drain(encode_time(60), 4)
        assert len(bench.outputs) <= 20
    assert [payload for _, payload in bench.outputs[:10]] == [("set", time) for time in range(1, 11)]
    assert bench.buffer.is_ready is False
    if journal:
        assert (due(bench), bench.buffer.to_store) == ([], 60)
        bench.buffer.note_stored(60)
        for _ in range(3):
            bench.buffer.drain(encode_time(60), 4)
    assert len(due(bench)) == 10


def test_timers_wait_until_the_journal_says_that_time_has_passed() -> None:
    bench = AlarmBench()
    bench.buffer.wait_for_journal()
    bench.put(1, ("a", (5, 0), (6, 0), (30, 0)))
    bench.drain(6)
    assert [payload for _, payload in bench.outputs] == [("set", 1)]
    assert (bench.buffer.to_store, bench.buffer.is_ready) == (6, False)
    bench.buffer.note_stored(6)
    bench.drain(9)
    assert due(bench) == [("a", 5, 0, 5)]
    assert bench.buffer.to_store == 9
    bench.put(9, ("b",))
    bench.drain(10)
    assert due(bench) == [("a", 5, 0, 5), ("a", 6, 0, 6)], "the journal has the time of the item that came"
    assert bench.outputs[-1][1] == ("set", 9)


@pytest.mark.parametrize("seed", range(40))
def test_cuts_hold_pending_timers_and_what_is_restored_goes_on(seed: int) -> None:
    random = Random(seed)
    asked = [
        (time, (random.choice("abcd"), *((time + random.randrange(-2, 9), random.randrange(3)) for _ in range(count))))
        for time, count in enumerate(random.choices(range(4), k=30), 1)
    ]
    whole = AlarmBench()
    for time, payload in asked:
        whole.put(time, payload)
    whole.drain(60)
    middle = random.randint(1, 30)
    ahead = AlarmBench()
    for time, payload in asked:
        ahead.put(time, payload)
    ahead.drain(random.randint(middle, 40))
    before = [output for output in ahead.outputs if output[0] < encode_time(middle)]
    after = AlarmBench()
    for piece in ahead.operator.cut(encode_time(middle)):
        after.operator.restore({key: record for key, record in piece.items() if record is not GONE})
    for time, payload in asked[middle - 1 :]:
        after.put(time, payload)
    after.drain(60)
    assert before + after.outputs == whole.outputs


# -- marks -------------------------------------------------------------------------------------------------------------


def test_a_mark_lets_go_what_waits_for_it_and_is_said_on_but_not_beyond_what_keys_hold_back() -> None:
    bench = AlarmBench()
    said: list[tuple[bytes, int]] = []
    bench.operator.watermark.connect({(9, 1): Marking("said", function=int)}, lambda *mark: said.append(mark), None)
    bench.operator.work.process = lambda key, _state, payload, now: Outcome(  # type: ignore[method-assign]
        [], [], [Timer(10, 1, mark=True)], None if key == "free" else 7
    )
    bench.operator.work.on_time = lambda key, _state, timer, now: Outcome(  # type: ignore[method-assign]
        None, [(key, now.time, now.watermark)]
    )
    for time, key in ((1, "free"), (2, "held")):
        bench.put(time, (key,))
    marks = [behind_record(order_of(time)) for time in (2, 4, 6)]
    for mark, value in zip(marks, (5, 9, 12), strict=True):
        bench.buffer.put_mark(mark, (9, 1, value))
    bench.drain(5)
    assert said == [(behind(marks[0]), 5), (behind(marks[1]), 7)]
    assert bench.buffer.lowest == marks[2]
    assert bench.outputs == []
    bench.drain(7)
    assert said[2:] == [(behind(marks[2]), 12)], "nothing is held back any more"
    assert sorted(payload for _, payload in bench.outputs) == [("free", 6, 12), ("held", 6, 12)]
    assert all(marks[2] < order < behind(marks[2]) for order, _ in bench.outputs)


def test_a_timer_whose_mark_has_come_already_is_due_at_once() -> None:
    bench = AlarmBench()
    bench.operator.watermark.connect({(9, 1): Marking("said", function=int)}, lambda *mark: None, None)
    bench.buffer.put_mark(behind_record(order_of(1)), (9, 1, 50))
    bench.operator.work.process = lambda *_: Outcome([], [], [Timer(50, 1, mark=True), Timer(51, 2, mark=True)])  # type: ignore[method-assign]
    bench.operator.work.on_time = lambda key, _state, timer, now: Outcome(  # type: ignore[method-assign]
        None, [(timer.time, now.time)], [Timer(51, 2, mark=True)] if timer.tag == 1 else []
    )
    bench.put(3, ("a",))
    bench.drain(9)
    assert bench.outputs == [(order_of(3) + b"\x00", (50, 3))]


def marked(bench: Bench) -> Bench:
    """Return a bench whose operation has one origin of marks."""
    bench.operator.watermark.connect({(9, 1): Marking("said", function=int)}, lambda *_: None, None)
    return bench


def test_keys_that_wait_for_the_watermark_say_how_many_items_they_hold() -> None:
    bench = marked(AlarmBench())
    bench.operator.work.process = lambda key, _state, payload, now: Outcome(  # type: ignore[method-assign]
        payload[1], [], [Timer(50, 1), Timer(50, 2, mark=key != "free")]
    )
    bench.operator.work.held = lambda state: state  # type: ignore[method-assign]
    for time, payload in enumerate([("a", 2), ("b", 5), ("free", 11)], 1):
        bench.put(time, payload)
    bench.drain(9)
    assert bench.operator.held() == 7
    assert bench.operator.pending == 6


def test_a_timer_is_told_the_watermark_before_the_mark_that_makes_it_due() -> None:
    bench = marked(AlarmBench())
    told = list[Now]()

    def on_time(key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        told.append(now)
        return Outcome(None)

    def process(key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        told.append(now)
        return Outcome([], [], [Timer(10, 1, mark=True), Timer(20, 2, mark=True)])

    bench.operator.work.process, bench.operator.work.on_time = process, on_time  # type: ignore[method-assign]
    bench.buffer.put_mark(behind_record(order_of(1)), (9, 1, 4))
    bench.put(2, ("a",))
    bench.buffer.put_mark(behind_record(order_of(2)), (9, 1, 6))
    bench.buffer.put_mark(behind_record(order_of(3)), (9, 1, 15))
    bench.drain(5)
    assert told == [Now(2, 4, 4), Now(3, 15, 6)]


def test_marks_do_not_wait_for_the_journal_but_behind_a_timer_that_does() -> None:
    bench = marked(AlarmBench())
    bench.buffer.wait_for_journal()
    bench.buffer.put_mark(behind_record(order_of(1)), (9, 1, 4))
    bench.drain(3)
    assert (bench.operator.watermark.value, bench.buffer.is_ready, bench.buffer.to_store) == (4, False, None)
    bench.put(4, ("a", (6, 0)))
    bench.buffer.put_mark(behind_record(order_of(8)), (9, 1, 9))
    bench.drain(10)
    assert (bench.operator.watermark.value, bench.buffer.is_ready, bench.buffer.to_store) == (4, False, 10)
    bench.buffer.note_stored(10)
    bench.drain(10)
    assert (bench.operator.watermark.value, bench.buffer.lowest) == (9, None)
    assert due(bench) == [("a", 6, 0, 6)]


def test_timers_and_hold_that_are_kept_stay_as_they_are() -> None:
    bench = marked(AlarmBench(snapshots=True))
    said = list[int]()
    bench.operator.watermark.connect({(9, 1): Marking("said", function=int)}, lambda _, value: said.append(value), None)
    bench.operator.work.process = lambda _key, state, payload, now: (  # type: ignore[method-assign]
        Outcome((1,), [], [Timer(20, 5), Timer(30, 6, mark=True)], 7)
        if state is None
        else Outcome((*state, 2), [], KEPT)
    )
    bench.operator.work.on_time = lambda key, state, timer, now: Outcome(None, [(timer.tag, state)])  # type: ignore[method-assign]
    bench.put(1, ("a",))
    bench.put(2, ("a",))
    bench.buffer.put_mark(behind_record(order_of(3)), (9, 1, 10))
    bench.drain(9)
    assert said == [7]
    assert bench.operator.cut(encode_time(2)) == [{"a": ((1,), ((20, 5, False), (30, 6, True)), 7)}]
    assert bench.operator.cut(encode_time(9)) == [{"a": ((1, 2), ((20, 5, False), (30, 6, True)), 7)}]
    bench.drain(21)
    assert bench.outputs[-1][1] == (5, (1, 2))


def test_a_key_without_state_has_nothing_that_could_be_kept() -> None:
    bench = AlarmBench()
    bench.operator.work.process = lambda *_: Outcome((1,), [], KEPT)  # type: ignore[method-assign]
    bench.put(1, ("a",))
    bench.drain(9)
    (error,) = bench.errors
    assert isinstance(error, FlowMistake)
