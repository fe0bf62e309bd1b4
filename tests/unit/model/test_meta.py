"""Meta: one byte string whose order is the order of the model: global time, then child ids, a prefix first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.model.meta import (
    GLOBAL_TIME_BYTES,
    MAX_FRONT,
    MAX_TIME,
    MIN_FRONT,
    MIN_TIME,
    DataItem,
    FrontId,
    GlobalTime,
    Meta,
    child_orders,
    decode_children,
    decode_time,
    encode_child,
    encode_time,
    orders_of,
)

TIMES = st.integers(MIN_TIME, MAX_TIME)
CHILDREN = st.integers(0, 2**64 - 1) | st.integers(240, 260) | st.integers(0, 5)
METAS = st.builds(
    lambda global_time, children: Meta(global_time, children),
    st.builds(GlobalTime, st.integers(-3, 3) | TIMES, st.integers(0, 2) | st.integers(0, MAX_FRONT)),
    st.lists(CHILDREN, max_size=5).map(tuple),
)


def meta(time: int, *children: int, front: int = 1) -> Meta:
    return Meta(GlobalTime(time, front), children)


def test_case_19_an_item_sorts_before_what_comes_of_it_and_that_before_the_next_item() -> None:
    line = [meta(1), meta(1, 0), meta(1, 0, 0), meta(1, 0, 1), meta(1, 1), meta(2)]
    assert line == sorted(line)
    orders = [each.order for each in line]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(line)


def test_case_19_a_tombstone_sorts_right_after_its_victim() -> None:
    victim = Meta(GlobalTime(1, 1), (0,), 77)
    tombstone = victim._replace(tombstone=True)
    others = [meta(1), Meta(GlobalTime(1, 1), (0,), 76), Meta(GlobalTime(1, 1), (0,), 78), meta(1, 0, 0), meta(2)]
    line = sorted([*others, victim, tombstone])
    assert line.index(tombstone) == line.index(victim) + 1
    assert tombstone.order == victim.order


@pytest.mark.parametrize("front", [1, 2, 1000, MAX_FRONT - 1])
def test_case_19_minimum_times_come_before_every_front_of_their_time(front: int) -> None:
    lowest, real, highest = GlobalTime(5), GlobalTime(5, front), GlobalTime(5, MAX_FRONT)
    assert lowest == GlobalTime(5, MIN_FRONT)
    assert lowest < real < highest
    assert lowest.encode() < real.encode() < highest.encode()
    assert GlobalTime(4, MAX_FRONT).encode() < encode_time(5) < real.encode()
    assert encode_time(5) <= lowest.encode(), "what a barrier and a forgetter compare with"


@given(METAS, METAS)
def test_bytes_sort_as_the_spelled_out_meta_does(one: Meta, other: Meta) -> None:
    assert (one.order < other.order) == (one < other)
    assert (one.order == other.order) == (one == other)


@given(METAS)
def test_metas_are_decoded_as_they_were_encoded(item: Meta) -> None:
    assert Meta.decode(item.order) == item
    assert decode_time(item.order) == item.global_time.time
    assert decode_children(item.order[GLOBAL_TIME_BYTES:]) == item.child_ids
    assert GlobalTime.decode(item.order) == item.global_time


@given(METAS, st.lists(CHILDREN, min_size=1, max_size=3))
def test_a_derived_item_has_the_order_of_its_ancestor_as_prefix(item: Meta, further: list[int]) -> None:
    derived = item._replace(child_ids=(*item.child_ids, *further))
    assert derived.order.startswith(item.order)
    assert item.order < derived.order < Meta(GlobalTime(item.global_time.time, MAX_FRONT)).order + b"\xff" * 60


@given(TIMES, st.integers(0, MAX_FRONT), st.lists(CHILDREN, max_size=3))
def test_strictly_below_a_minimum_time_is_strictly_below_its_number(time: int, front: int, children: list[int]) -> None:
    order = Meta(GlobalTime(time, front), tuple(children)).order
    for limit in (time - 1, time, time + 1):
        if MIN_TIME <= limit <= MAX_TIME:
            assert (order < encode_time(limit)) == (time < limit)


@pytest.mark.parametrize("time", [MIN_TIME - 1, MAX_TIME + 1])
def test_times_outside_of_64_bits_are_refused(time: int) -> None:
    with pytest.raises(OverflowError):
        encode_time(time)
    with pytest.raises(OverflowError):
        GlobalTime(time, 1).encode()


@given(TIMES, st.integers(0, 1100), st.binary(max_size=6))
def test_orders_of_consecutive_times_are_those_of_each_time(first: int, records: int, suffix: bytes) -> None:
    times = range(first, first + records)
    if records and times[-1] > MAX_TIME:
        with pytest.raises(OverflowError):
            orders_of(first, records, suffix)
    else:
        assert orders_of(first, records, suffix) == [encode_time(time) + suffix for time in times]


def test_fronts_outside_of_32_bits_are_refused() -> None:
    with pytest.raises(OverflowError):
        GlobalTime(0, MAX_FRONT + 1).encode()
    with pytest.raises(OverflowError):
        GlobalTime(0, -1).encode()


@pytest.mark.parametrize("number", [-1, 2**64])
def test_child_ids_outside_of_64_bits_are_refused(number: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        encode_child(number)


@pytest.mark.parametrize(("number", "length"), [(0, 1), (247, 1), (248, 2), (255, 2), (256, 3), (2**64 - 1, 9)])
def test_child_ids_have_codes_of_their_length(number: int, length: int) -> None:
    assert len(encode_child(number)) == length


def test_front_ids_sort_by_source_then_partition() -> None:
    fronts = [FrontId("a", 10), FrontId("a", 2), FrontId("b", 0), FrontId("", 5)]
    assert sorted(fronts) == [FrontId("", 5), FrontId("a", 2), FrontId("a", 10), FrontId("b", 0)]
    assert str(FrontId("lines", 3)) == "lines/3"


def test_an_item_spells_its_meta_out() -> None:
    tombstone = DataItem(meta(7, 0, 300).order, 9, False, "payload")
    assert tombstone.meta == Meta(GlobalTime(7, 1), (0, 300), 9, True)
    assert str(tombstone.meta) == "7@1[0,300] tombstone"
    assert str(meta(-7)) == "-7@1[]"


def test_the_orders_of_children_are_those_of_their_child_ids() -> None:
    orders = child_orders(b"order")
    for number in range(132_000):
        assert next(orders) == b"order" + encode_child(number), number
