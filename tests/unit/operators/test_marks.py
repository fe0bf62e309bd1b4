"""Marks and watermarks: what origins say, in order, and what snapshots hold of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from flamecore.abc.operator import Site, Way, each
from flamecore.errors import GraphError
from flamecore.model.failure import FlowMistake
from flamecore.model.hashing import KEY_GROUPS, key_groups
from flamecore.model.meta import MIN_TIME, GlobalTime, encode_child, encode_time
from flamecore.model.ordered import (
    BEGUN,
    CLOSING,
    DONE,
    IDLE,
    IdlingMarking,
    Marked,
    Marking,
    Ordered,
    behind,
    behind_record,
    is_shared,
    shared_names,
)
from flamecore.runtime.operators.marks import MarkingOperator
from flamecore.runtime.operators.table import row_of
from flamecore.runtime.operators.watermark import Watermark

SAID, BEFORE = Marking("said", function=int), Ordered("before")
FRONTS = [(1, 1), (1, 2)]
PARTITIONS = [(5, 0), (5, 1)]
NAMES = shared_names()[:3]


def place(time: int) -> bytes:
    return behind_record(GlobalTime(time, 1).encode())


def watermark(origins: Any = (*FRONTS, *PARTITIONS)) -> tuple[Watermark, list[Any]]:
    made, sent = Watermark(), list[Any]()
    vertices = {origin: SAID if origin in FRONTS else BEFORE for origin in origins}
    made.connect(vertices, lambda mark, value: sent.append((mark, value)), NAMES)
    return made, sent


def take(made: Watermark) -> list[tuple[bool, int]]:
    """Take all marks; return for each place whether they count, and the watermark then."""
    found = []
    while made.marks:
        counts = made.advance(made.marks[0][0])
        found.append((counts, made.value))
    return found


def test_it_is_the_least_of_all_origins_once_all_have_spoken() -> None:
    made, _ = watermark()
    for time, origin, value in ((3, (5, 0), 7), (1, (1, 1), 4), (2, (1, 2), 9), (4, (5, 1), 5), (5, (1, 1), 6)):
        made.put(place(time), origin, value)
    assert take(made) == [(True, MIN_TIME)] * 3 + [(True, 4), (True, 5)]


def test_marks_of_one_place_count_together() -> None:
    made, _ = watermark(PARTITIONS)
    for time, values in ((1, (5, 8)), (2, (12, 10))):
        for origin, value in zip(PARTITIONS, values, strict=True):
            made.put(place(time), origin, value)
    assert take(made) == [(True, 5), (True, 10)], "no 8 between, which one partition would not have given"


def test_an_end_counts_only_if_the_watermark_grows_by_it() -> None:
    """Otherwise a partition would say a mark of its own at a place where a run has found nothing more."""
    made, _ = watermark([(1, 1)])
    made.put(place(1), (1, 1), 4)
    made.put(place(2), (1, 1), DONE)
    assert take(made) == [(True, 4), (False, 4)]
    made, _ = watermark(FRONTS)
    for time, origin, value in ((1, (1, 1), 4), (2, (1, 2), 9), (3, (1, 1), DONE)):
        made.put(place(time), origin, value)
    assert take(made) == [(True, MIN_TIME), (True, 4), (True, 9)]


def test_a_beginning_counts_only_if_the_watermark_grows_by_it() -> None:
    made, quiet = Watermark(), frozenset({(1, 1)})
    made.connect({(1, 1): SAID}, lambda mark, value: None, NAMES, quiet)
    made.restore([(4, (("said", 1, 4),))])
    made.put(place(1), (1, 1), BEGUN)
    made.put(place(2), (1, 1), 4)
    made.put(place(3), (1, 1), 5)
    assert take(made) == [(False, 4), (False, 4), (True, 5)]


def test_of_a_front_only_higher_marks_count_of_a_partition_all() -> None:
    made, _ = watermark([(1, 1), (5, 0)])
    for time, origin, value in ((1, (1, 1), 4), (2, (5, 0), 4), (3, (1, 1), 4), (4, (5, 0), 4), (5, (1, 1), 3)):
        made.put(place(time), origin, value)
    assert [counts for counts, _ in take(made)] == [True, True, False, True, False]


class Counted(bytes):
    """An encoded place that counts how often two of them are compared."""

    compared = 0

    def __lt__(self, other: bytes) -> bool:
        Counted.compared += 1
        return bytes(self) < bytes(other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return bytes(self) == other

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("disorder", [1, 5, 1000])
def test_a_look_at_the_first_that_waits_does_not_compare_all(disorder: int) -> None:
    """Marks that each make a turn due have a look each; looks at all would take a time by the square."""
    made, _ = watermark([(1, 1)])
    times = sorted(range(1000), key=lambda time: time + Random(f"{time}").randrange(disorder))
    Counted.compared = 0
    for time in times:
        made.put(Counted(place(time)), (1, 1), time)
    seen = []
    while made.marks:
        first, value = next(made.coming())
        seen.append(value)
        made.advance(first)
    assert seen == [*range(1000)]
    assert Counted.compared < 40 * len(times)


def test_nothing_is_said_before_all_origins_have_spoken() -> None:
    made, sent = watermark([(1, 1)])
    made.say(place(1), MIN_TIME)
    made.put(place(2), (1, 1), 4)
    take(made)
    made.say(place(2), 3)
    assert sent == [(behind(place(2)), 3)]


def test_the_place_of_a_mark_is_behind_all_that_comes_of_its_record_and_of_marks_before() -> None:
    record = GlobalTime(7, 1).encode()
    mark = behind_record(record + encode_child(3))
    derived = record + encode_child(2**63) + encode_child(2**63)
    assert record < derived < mark < mark + encode_child(2**63) < behind(mark) < GlobalTime(7, 2).encode()


@pytest.mark.parametrize("seed", range(30))
def test_a_snapshot_holds_it_at_its_time_and_what_goes_on_counts_the_same(seed: int) -> None:
    random = Random(seed)
    origins = [(1, 1), *PARTITIONS]
    spoken = [random.choice([origins[:1], PARTITIONS]) for _ in range(30)]
    said, last = list[Any](), dict.fromkeys(origins, 0)
    for time, some in enumerate(spoken, 1):
        for origin in some:  # what a partition says only grows
            last[origin] = max(last[origin], time + random.randrange(6))
            said.append((time, origin, last[origin]))
    middle = random.randrange(1, 30)

    def run(made: Watermark, start: int, end: int) -> list[Any]:
        found = []
        for time in range(start, end):
            for at, origin, value in said:
                if at == time:
                    made.put(place(time), origin, value)
            found.append((time, made.advance(place(time)), made.value))
        return [(time, value) for time, counts, value in found if counts]

    whole, _ = watermark(origins)
    wanted = run(whole, 1, 30)
    ahead, _ = watermark(origins)
    before = [event for event in run(ahead, 1, random.randint(middle, 30)) if event[0] < middle]
    stored = ahead.cut(encode_time(middle))
    assert set(stored) in (set(), set(NAMES))
    assert ahead.cut(encode_time(middle)) == {}, "nothing has changed"
    assert dict(stored) == ahead.stored
    after, _ = watermark(origins)
    after.restore(record[0] for record in stored.values())
    assert before + run(after, middle, 30) == wanted


def test_a_new_front_begins_with_the_watermark_and_partitions_with_the_least_of_those_before() -> None:
    made, _ = watermark()
    made.restore([(6, (("before", 0, 9), ("said", 1, 8)))])
    assert made.value == 6
    made.put(place(1), (1, 1), 20)
    made.put(place(2), (1, 2), 20)
    assert take(made) == [(True, 6), (True, 9)]


def test_a_front_that_had_ended_with_nothing_new_holds_back_nothing_and_keeps_its_last_mark() -> None:
    def made(done: frozenset[Any] = frozenset()) -> Watermark:
        watermark = Watermark()
        watermark.connect(dict.fromkeys(FRONTS, SAID), lambda *_: None, NAMES, frozenset({FRONTS[0]}), done)
        return watermark

    there = [(3, (("said", 1, 3), ("said", 2, 8)))]
    ending, ended = made(), made(frozenset({FRONTS[0]}))
    ending.restore(there)
    ending.put(place(1), FRONTS[0], DONE)
    assert take(ending) == [(True, 8)]
    ended.restore(there)
    for one in (ending, ended):
        one.put(place(2), FRONTS[1], 9)
        assert take(one) == [(True, 9)]
    stored = ended.cut(encode_time(3))
    assert stored == ending.cut(encode_time(3))
    again = made()
    again.restore(record[0] for record in stored.values())
    again.put(place(4), FRONTS[0], 5)
    again.put(place(5), FRONTS[1], 12)
    assert take(again) == [(True, 9), (True, 9)], "what the first one said counts again"
    again.put(place(6), FRONTS[0], 11)
    assert take(again) == [(True, 11)]


def test_there_is_a_shared_name_for_each_key_group() -> None:
    names = shared_names()
    assert key_groups(names) == list(range(KEY_GROUPS))
    assert all(map(is_shared, names))
    assert not any(map(is_shared, ["\0shared", ("\0shared",), ("shared", 1), (("\0shared", 1), 2), 7]))


# -- markings ----------------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, function: Any, *, snapshots: bool = False, **settings: Any) -> None:
        self.items: list[Any] = []
        self.failed: list[Any] = []
        self.said: list[Any] = []

        def emit(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            self.items.append(payload)

        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            self.failed.append((payload, type(error)))

        site = Site(7, fail, (Way(emit, each(emit)),), snapshots=snapshots)
        self.operator = MarkingOperator(Marking("said", function=function, **settings), site)
        self.operator.say = lambda place, number, value: self.said.append((place, number, value))

    def run(self, *payloads: Any, front: int = 1) -> None:
        self.operator.run([GlobalTime(time, front).encode() for time in range(1, len(payloads) + 1)], 0, payloads)


def test_a_marking_says_what_is_higher_than_the_last_mark_of_the_front_in_steps() -> None:
    bench = Bench(lambda n: n, step=5)
    bench.run(3, 4, 12, None, 14, 11, 15)
    bench.run(1, front=2)
    other = behind_record(GlobalTime(1, 2).encode())
    assert bench.said == [(place(1), 1, 0), (place(3), 1, 10), (place(7), 1, 15), (other, 2, 0)]
    assert bench.items == [3, 4, 12, None, 14, 11, 15, 1]


def test_a_failing_marking_fails_on_its_item_alone() -> None:
    bench = Bench(lambda n: 10 // n)
    bench.run(0, 5, 0, 2, 1, 0)
    assert bench.items == [5, 2, 1]
    assert bench.failed == [(0, ZeroDivisionError)] * 3
    assert [value for *_, value in bench.said] == [2, 5, 10]


@pytest.mark.parametrize("wrong", [1.5, True, "7", CLOSING, 2**70, MIN_TIME])
def test_a_mark_that_is_no_whole_number_of_64_bits_is_a_mistake(wrong: Any) -> None:
    bench = Bench(lambda n: n)
    bench.run(wrong)
    assert bench.failed == [(wrong, FlowMistake)]


def test_the_end_of_a_front_closes() -> None:
    bench = Bench(lambda n: n)
    bench.operator.end(GlobalTime(9, 3).encode())
    assert bench.said == [(behind_record(GlobalTime(9, 3).encode()), 3, CLOSING)]


def _doubled(n: Any) -> int:
    return 2 * n


@pytest.mark.parametrize("seed", range(40))
def test_a_function_of_many_payloads_says_the_same_marks(seed: int) -> None:
    rng = Random(seed)
    alone, step, less = rng.random() < 0.5, rng.randint(1, 9), rng.choice([0, 0, 4])
    many = lambda records: [2 * n + less for n in records]  # noqa: E731
    function = lambda n: _doubled(n)  # noqa: E731  # a new one each time, for its attribute
    function.many = many  # type: ignore[attr-defined]
    if less:
        function.less = less  # type: ignore[attr-defined]
    plain, quick = Bench(_doubled, step=step), Bench(function, step=step)
    quick.operator.alone = alone
    now = 0
    for _ in range(rng.randint(1, 6)):
        front, wrong = (1 if alone else rng.randint(1, 3)), rng.random() < 0.2
        payloads: list[Any] = [now + rng.randint(-9, 20) for _ in range(rng.choice([rng.randint(1, 30), 200]))]
        if wrong:
            payloads[rng.randrange(len(payloads))] = rng.choice([None, "7", CLOSING])
        now += rng.randint(0, 20)
        for bench in (plain, quick):
            bench.run(*payloads, front=front)
    assert (quick.said, quick.items, quick.failed) == (plain.said, plain.items, plain.failed)


def test_records_of_several_fronts_in_one_run_have_marks_of_their_own() -> None:
    function = lambda n: n  # noqa: E731
    function.many = list  # type: ignore[attr-defined]
    bench = Bench(function)
    bench.operator.run([GlobalTime(time, 1 + time % 2).encode() for time in range(4)], 0, [9, 5, 8, 7])
    assert [(number, value) for _, number, value in bench.said] == [(1, 9), (2, 5), (2, 7)]


# -- folds -------------------------------------------------------------------------------------------------------------


def _counted(state: Any, n: int, wall: int | None) -> Marked:
    """Say each second record of a front; those above 90 do not count."""
    if n > 90:
        return Marked(state, None, False)
    count = (state or 0) + 1
    return Marked(count, n if count % 2 == 0 else None)


def test_a_fold_over_the_records_of_a_front_says_its_marks() -> None:
    bench = Bench(_counted, folds=True)
    bench.run(1, 3, 99, 4, 10, 12, 95, 20)
    bench.run(7, 8, front=2)
    assert [(number, value) for _, number, value in bench.said] == [(1, 3), (1, 10), (1, 20), (2, 8)]
    assert bench.items == [1, 3, 99, 4, 10, 12, 95, 20, 7, 8]
    assert bench.operator.ahead == 2


def test_a_fold_has_the_state_of_a_front_at_any_time_since_the_last() -> None:
    bench = Bench(_counted, folds=True, snapshots=True)
    bench.run(1, 3, 99, 4, 10)
    bench.run(7, 8, front=2)
    found = [(bench.operator.state_of(1, time), bench.operator.state_of(2, time)) for time in (1, 2, 3, 4, 5, 6)]
    assert found == [(None, None), (1, 1), (2, 2), (2, 2), (3, 2), (4, 2)]
    other = Bench(_counted, folds=True)
    other.operator.restore(1, 3)
    other.run(10)
    assert [value for *_, value in other.said] == [10]


def test_a_fold_sees_the_time_of_the_wall_clock_alone() -> None:
    seen: list[int | None] = []
    bench = Bench(lambda state, n, wall: (seen.append(wall), Marked(None))[1], folds=True)
    bench.run(5)
    assert bench.operator.folds is not None
    bench.operator.folds.wall = True
    bench.run(5, 6)
    assert seen == [None, 1, 2]


def test_a_fold_that_returns_anything_else_is_a_mistake_and_keeps_its_state() -> None:
    bench = Bench(lambda state, n, wall: n if n == 3 else Marked(n, state), folds=True)
    bench.run(1, 3, 5)
    assert bench.failed == [(3, FlowMistake)]
    assert [value for *_, value in bench.said] == [1]


# -- idle fronts -------------------------------------------------------------------------------------------------------


def test_an_idle_front_holds_nothing_back_until_its_next_mark() -> None:
    made, _ = watermark(FRONTS)
    for time, origin, value in (
        (1, (1, 1), 5),
        (2, (1, 2), 3),
        (3, (1, 2), IDLE),
        (4, (1, 1), 8),
        (5, (1, 2), IDLE),
        (6, (1, 2), 2),
        (7, (1, 1), 20),
        (8, (1, 2), 9),
    ):
        made.put(place(time), origin, value)
    assert take(made) == [
        *[(True, MIN_TIME), (True, 3), (True, 5), (True, 8), (False, 8)],
        *[(True, 8), (True, 8), (True, 9)],
    ], "from its mark on, which is low, it holds back again"


def test_a_front_that_is_idle_before_its_first_mark_is_not_waited_for() -> None:
    made, _ = watermark(FRONTS)
    for time, origin, value in ((1, (1, 2), IDLE), (2, (1, 1), 5), (3, (1, 1), IDLE), (4, (1, 2), 7)):
        made.put(place(time), origin, value)
    assert take(made) == [(True, MIN_TIME), (True, 5), (True, 5), (True, 7)]
    assert made.holding == (SAID, 2)


@pytest.mark.parametrize("first", [0, 1])
def test_where_all_fronts_are_idle_it_does_not_matter_which_was_first(first: int) -> None:
    made, _ = watermark(FRONTS)
    for time, origin, value in ((1, (1, 1), 5), (2, (1, 2), 9), (3, FRONTS[first], IDLE), (4, FRONTS[1 - first], IDLE)):
        made.put(place(time), origin, value)
    assert take(made)[-1] == (True, 9)


def test_the_end_of_one_front_ends_nothing_while_the_other_is_idle() -> None:
    made, _ = watermark(FRONTS)
    for time, origin, value in ((1, (1, 1), 5), (2, (1, 2), IDLE), (3, (1, 1), CLOSING), (4, (1, 2), 7)):
        made.put(place(time), origin, value)
    made.put(place(5), (1, 2), CLOSING)
    assert take(made) == [(True, MIN_TIME), (True, 5), (True, 5), (True, 7), (True, CLOSING)]


def quiet_watermark(*quiet: Any) -> Watermark:
    made = Watermark()
    made.connect(dict.fromkeys(FRONTS, SAID), lambda mark, value: None, NAMES, frozenset(quiet))
    return made


def test_a_front_that_had_nothing_new_holds_nothing_back_from_its_end_on() -> None:
    made = quiet_watermark(*FRONTS)
    for time, origin, value in ((1, (1, 1), BEGUN), (2, (1, 1), 5), (3, (1, 2), DONE), (4, (1, 1), 9)):
        made.put(place(time), origin, value)
    assert take(made) == [(False, MIN_TIME), (True, MIN_TIME), (True, 5), (True, 9)]
    assert made.holding == (SAID, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_fronts_that_had_nothing_new_move_nothing_in_whatever_order_they_end(first: int) -> None:
    made = quiet_watermark(*FRONTS)
    made.restore([(5, (("said", 1, 5), ("said", 2, 9)))])
    for time, origin in ((1, FRONTS[first]), (2, FRONTS[1 - first])):
        made.put(place(time), origin, DONE)
    assert [value for _, value in take(made)] == [5, 5]


def test_one_that_has_something_new_moves_it_as_far_as_those_allow_that_may_have() -> None:
    made = quiet_watermark(*FRONTS)
    made.restore([(5, (("said", 1, 5), ("said", 2, 9)))])
    for time, origin, value in ((1, (1, 1), DONE), (2, (1, 2), BEGUN), (3, (1, 2), 12)):
        made.put(place(time), origin, value)
    assert [value for _, value in take(made)] == [5, 9, 12]


@pytest.mark.parametrize("time", range(1, 8))
def test_a_snapshot_knows_which_fronts_are_idle(time: int) -> None:
    marks = [((1, 1), 5), ((1, 2), 3), ((1, 2), IDLE), ((1, 1), 8), ((1, 1), IDLE), ((1, 2), 4), ((1, 1), 30)]
    made, other = watermark(FRONTS)[0], watermark(FRONTS)[0]
    for number, (origin, value) in enumerate(marks, 1):
        made.put(place(number), origin, value)
    wanted = take(made)
    stored = made.cut(encode_time(time + 1))
    other.restore([next(iter(stored.values()))[0]])
    for number, (origin, value) in enumerate(marks, 1):
        if number > time:
            other.put(place(number), origin, value)
    assert take(other) == wanted[time:]


@pytest.mark.parametrize("many", [True, False])
def test_the_first_mark_of_a_front_behind_its_idleness_is_said_whatever_it_is(many: bool) -> None:
    bench = Bench(lambda n: n, step=5)
    bench.run(12, 14)
    bench.operator.idle(GlobalTime(10, 1).encode())
    bench.operator.run([GlobalTime(9, 1).encode()], 0, [13])  # it has waited for records of other fronts
    orders = [GlobalTime(time, 1).encode() for time in (11, 12, 13)]
    if many:
        bench.operator.run(orders, 0, [7, 6, 16])
    else:
        for order, payload in zip(orders, (7, 6, 16), strict=True):
            bench.operator.step(order, 0, True, payload)
    assert bench.said == [(place(1), 1, 10), (place(10), 1, IDLE), (place(11), 1, 5), (place(13), 1, 15)]


def test_one_operator_computes_all_markings() -> None:
    assert row_of(IdlingMarking) is Marking
    assert IdlingMarking.wall
    with pytest.raises(GraphError, match="idle after 0 microseconds"):
        IdlingMarking("said", function=int, idle_us=0).check()
