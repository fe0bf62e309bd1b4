"""Marks and watermarks: what origins say, in order, and what snapshots hold of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from flamecore.abc.operator import Site, Way, each
from flamecore.model.failure import FlowMistake
from flamecore.model.hashing import KEY_GROUPS, key_groups
from flamecore.model.meta import MIN_TIME, GlobalTime, encode_child, encode_time
from flamecore.model.ordered import CLOSING, Marking, Ordered, behind, behind_record, is_shared, shared_names
from flamecore.runtime.operators.marks import MarkingOperator
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


def test_of_a_front_only_higher_marks_count_of_a_partition_all() -> None:
    made, _ = watermark([(1, 1), (5, 0)])
    for time, origin, value in ((1, (1, 1), 4), (2, (5, 0), 4), (3, (1, 1), 4), (4, (5, 0), 4), (5, (1, 1), 3)):
        made.put(place(time), origin, value)
    assert [counts for counts, _ in take(made)] == [True, True, False, True, False]


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


def test_there_is_a_shared_name_for_each_key_group() -> None:
    names = shared_names()
    assert key_groups(names) == list(range(KEY_GROUPS))
    assert all(map(is_shared, names))
    assert not any(map(is_shared, ["\0shared", ("\0shared",), ("shared", 1), (("\0shared", 1), 2), 7]))


# -- markings ----------------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, function: Any, **settings: Any) -> None:
        self.items: list[Any] = []
        self.failed: list[Any] = []
        self.said: list[Any] = []

        def emit(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            self.items.append(payload)

        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            self.failed.append((payload, type(error)))

        site = Site(7, fail, (Way(emit, each(emit)),))
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
    many, alone, step = lambda records: [2 * n for n in records], rng.random() < 0.5, rng.randint(1, 9)
    function = lambda n: _doubled(n)  # noqa: E731  # a new one each time, for its attribute
    function.many = many  # type: ignore[attr-defined]
    plain, quick = Bench(_doubled, step=step), Bench(function, step=step)
    quick.operator.alone = alone
    now = 0
    for _ in range(rng.randint(1, 6)):
        front, wrong = (1 if alone else rng.randint(1, 3)), rng.random() < 0.2
        payloads: list[Any] = [now + rng.randint(-9, 20) for _ in range(rng.randint(1, 30))]
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
