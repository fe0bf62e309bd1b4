"""Records of several fronts of one worker run in the order of their times."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

import flamecore as fc
from flamecore.model.meta import FrontId, encode_time
from flamecore.runtime.parts.front import Front, LatestTime
from flamecore.runtime.parts.front_merge import FrontMerge, Span, merged, merges


def front(number: int, source: str = "s", **settings: object) -> Front:
    return Front(FrontId(source, number), number, **settings)  # type: ignore[arg-type]


def read(merge: FrontMerge, one: Front, *values: object, malformed: bool = False) -> list[bytes]:
    """Have a front read some records, and return their orders."""
    first = one.stamp(range(len(values)), 0.0)
    orders = [encode_time(time) + one.suffix for time in range(first, first + len(values))]
    merge.add(one.number, first, list(values), malformed=malformed)
    return orders


def taken(merge: FrontMerge, most: int = 1000) -> list[object]:
    return [value for records in merge.take(most) for value in records.values]


@pytest.fixture
def two() -> tuple[FrontMerge, Front, Front]:
    a, b = front(1), front(2)
    return FrontMerge({1: a, 2: b}), a, b


def test_a_record_waits_until_the_other_front_has_gone_past_it(two: tuple[FrontMerge, Front, Front]) -> None:
    merge, a, b = two
    read(merge, a, "a0", "a1", "a2")
    assert taken(merge) == [], "nothing of a time leaves before all of it"
    read(merge, b, "b0")
    assert taken(merge) == ["a0", "b0"], "of one time the first front comes first"
    read(merge, b, "b1", "b2", "b3")
    assert taken(merge) == ["a1", "b1", "a2", "b2"]
    assert merge.first_time(1) is None
    assert merge.first_time(2) == 3


def test_a_front_that_has_ended_keeps_nobody_waiting(two: tuple[FrontMerge, Front, Front]) -> None:
    merge, a, _ = two
    read(merge, a, "a0", "a1", "a2")
    merge.close(2)
    assert taken(merge) == ["a0", "a1", "a2"]


def test_no_more_is_taken_than_is_asked_for(two: tuple[FrontMerge, Front, Front]) -> None:
    merge, a, b = two
    read(merge, a, *range(0, 20, 2))
    read(merge, b, *range(1, 20, 2))
    assert taken(merge, 7) == [*range(7)]
    assert merge.is_ready
    assert merge.first_time(1) == merge.first_time(2) == 3
    assert merge.moved() == [], "not before all that is ready has been taken"
    assert taken(merge, 100) == [*range(7, 20)]
    assert not merge.is_ready
    assert sorted(merge.moved()) == [1, 2]


def test_what_is_read_while_a_step_is_cut_short_is_ready_after_it(two: tuple[FrontMerge, Front, Front]) -> None:
    """Nobody else may call: both fronts may wait for credit that only these records give back."""
    merge, a, b = two
    read(merge, a, *range(0, 20, 2))
    read(merge, b, *range(1, 20, 2))
    assert taken(merge, 7) == [*range(7)]
    read(merge, a, *range(20, 40, 2))
    read(merge, b, *range(21, 40, 2))
    found = []
    while merge.is_ready:
        found += taken(merge)
    assert found == [*range(7, 40)]
    assert not merge.is_ready


def test_records_of_others_that_wait_hold_no_front_back() -> None:
    """A front may have promised more than the time of what another has read since."""
    a, b, c = (front(number, clock="wall", now_us=lambda: 100) for number in (1, 2, 3))
    a.latest = b.latest = c.latest = LatestTime()
    merge = FrontMerge({1: a, 2: b, 3: c})
    read(merge, a, *range(5))
    read(merge, b, *range(5, 10))
    assert taken(merge, 3) == [0, 1, 2]
    assert (merge.first_time(1), merge.first_time(2), merge.first_time(3)) == (103, 105, None)
    assert taken(merge, 3) == [3, 4, 5]
    assert (merge.first_time(1), merge.first_time(2), merge.first_time(3)) == (106, 106, None)
    read(merge, c, 10)
    assert merge.first_time(3) == 110
    assert taken(merge) == [6, 7, 8, 9]
    assert merge.first_time(1) is merge.first_time(2) is None
    assert taken(merge) == [10]


def test_what_follows_straight_of_one_source_is_one_piece() -> None:
    a, b = front(1, "a"), front(2, "b")
    merge = FrontMerge({1: a, 2: b})
    read(merge, a, "a0", "a1", "a2")
    b.stamp([0], 0.0)
    read(merge, b, "b1", malformed=True)
    merge.close(1)
    merge.close(2)
    pieces = merge.take(100)
    assert [(piece.source, piece.values) for piece in pieces] == [("a", ["a0", "a1"]), ("b", ["b1"]), ("a", ["a2"])]


def test_what_is_left_by_a_small_call_comes_in_one_piece() -> None:
    a, b = front(1, "a"), front(2, "a")
    merge = FrontMerge({1: a, 2: b})
    read(merge, a, *range(5))
    merge.close(1)
    merge.close(2)
    assert [piece.values for piece in merge.take(2)] == [[0, 1]]
    assert merge.first_time(1) == 2
    assert [piece.values for piece in merge.take(100)] == [[2, 3, 4]]
    assert merge.first_time(1) is None


@pytest.mark.parametrize("seed", range(50))
def test_any_reading_gives_the_records_in_order_each_once(seed: int) -> None:
    random = Random(seed)
    fronts = {number: front(number, random.choice("st"), start=random.randrange(3)) for number in range(1, 5)}
    merge = FrontMerge(fronts)
    is_open, added, out = set(fronts), [], []
    while is_open:
        number = random.choice(sorted(is_open))
        if random.random() < 0.1:
            merge.close(number)
            is_open.remove(number)
        else:
            added += read(merge, fronts[number], *range(random.randint(1, 5)))
        for records in merge.take(random.choice((1, 3, 1000))):
            out += records.orders
        for other in is_open:  # nothing has run that could be late
            assert not out or out[-1] < encode_time(fronts[other].promise()) + fronts[other].suffix
    while some := merge.take(1000):
        out += [order for records in some for order in records.orders]
    assert out == sorted(added)


@pytest.mark.parametrize("seed", range(200))
def test_spans_of_any_times_are_merged_in_order(seed: int) -> None:
    """They are of the same times, as fronts at one pace give them, of others, or with gaps of times given before."""
    random = Random(seed)
    sources = random.choice(("s", "st"))
    spans, wanted = [], []
    for number in range(1, random.randint(2, 6) + 1):
        one, time = front(number, random.choice(sources)), random.choice((0, 0, 1, 20))
        for _ in range(random.choice((1, 1, 2, 3))):
            values = [f"{number}.{at}" for at in range(time, time + random.choice((1, 8, 100)))]
            spans.append(Span(one, time, time + len(values), [*values], random.random() < 0.1))
            orders = [encode_time(at) + one.suffix for at in range(time, time + len(values))]
            wanted += list(zip(orders, [one.name.source] * len(values), values, strict=True))
            time += len(values) + random.choice((0, 1, 50))
    random.shuffle(spans)
    before = [[*span.values] for span in spans]
    pieces = merged(spans)
    assert [
        (order, piece.source, value)
        for piece in pieces
        for order, value in zip(piece.orders, piece.values, strict=True)
    ] == sorted(wanted)
    assert [span.values for span in spans] == before
    assert all(earlier.source != later.source for earlier, later in pairwise(pieces)), "as few pieces as possible"
    malformed = {value for span in spans if span.malformed for value in span.values}
    assert all(piece.malformed for piece in pieces if malformed.intersection(piece.values))
    assert any(piece.malformed for piece in pieces) == bool(malformed)


def test_fronts_of_one_wall_clock_need_not_wait_for_each_other() -> None:
    """A record that is read after another has a later time, even if many records share a microsecond."""
    a, b = (front(number, clock="wall", now_us=lambda: 100) for number in (1, 2))
    a.latest = b.latest = LatestTime()
    merge = FrontMerge({1: a, 2: b})
    read(merge, a, "a0", "a1", "a2")
    assert taken(merge) == ["a0", "a1", "a2"]
    assert read(merge, b, "b0") == [encode_time(103) + b.suffix]
    assert taken(merge) == ["b0"]


def test_times_that_were_given_before_are_waited_for() -> None:
    a = front(1, clock="wall", now_us=lambda: 100)
    b = front(2, clock="wall", now_us=lambda: 100, journal=[(50, 2)])
    a.latest = b.latest = LatestTime()
    merge = FrontMerge({1: a, 2: b})
    read(merge, a, "a0")
    assert taken(merge) == []
    read(merge, b, "b0", "b1")
    assert taken(merge) == ["b0", "b1", "a0"]


def test_only_fronts_that_share_a_state_wait_for_each_other() -> None:
    flow = fc.Flow("apart")
    counted = flow.source("a").merge(flow.source("b")).key_by(str).count()
    counted.sink("counts")
    flow.source("c").key_by(str).count().sink("others")
    flow.source("d").merge(flow.source("e")).sink("plain")
    names = ["a", "b", "c", "d", "e", "gone"]
    made = merges(flow.graph(), {number: front(number, name) for number, name in enumerate(names, 1)})
    assert made.keys() == {1, 2}
    assert made[1] is made[2]
