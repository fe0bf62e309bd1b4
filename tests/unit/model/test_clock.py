"""Times by blocks: what the fronts give in any order are the records in blocks, and numbers follow from times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamecore as fc
from flamecore.errors import JobError
from flamecore.model.clock import BLOCK, MOST_FRONTS, BlockTimes, next_blocks
from flamecore.model.meta import MAX_TIME, FrontId
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings

SIZES = st.sampled_from([1, 2, 3, 7, 4095, 4096])
FRONTS = st.integers(1, MOST_FRONTS)
BEGUN = st.one_of(st.just(0), st.integers(0, 10_000).map(lambda number: next_blocks(BlockTimes(3).time(number))))


@pytest.fixture(autouse=True)
def kept_block() -> Iterator[None]:
    token = BLOCK.set(BLOCK.get())
    yield
    BLOCK.reset(token)


@given(SIZES, FRONTS, BEGUN, st.integers(0, 100_000))
def test_a_time_says_which_record_of_its_front_has_it(size: int, front: int, begun: int, number: int) -> None:
    BLOCK.set(size)
    times = BlockTimes(front, begun)
    time = times.time(number)
    assert times.number(time) == number
    assert times.at(time) == time
    assert times.time(number + 1) > time
    assert time >= begun
    block = next(block for block in count() if times.start(block + 1) > number)
    assert times.left(time) == times.start(block + 1) - number
    assert times.start(block + 1) - times.start(block) == (size if block < 16 else 4 * size)
    assert times.time(number + times.left(time) - 1) == time + times.left(time) - 1, "to its end a block has no gap"


@given(SIZES, FRONTS, FRONTS, BEGUN, st.integers(0, 10**6), st.integers(-2, 2))
def test_from_any_time_a_front_goes_on_with_its_next_record(
    size: int, front: int, other: int, begun: int, number: int, step: int
) -> None:
    BLOCK.set(size)
    times, time = BlockTimes(front, begun), BlockTimes(other, begun).time(number) + step
    found = times.number(time)
    assert times.time(found) >= time
    assert found == 0 or times.time(found - 1) < time


@given(SIZES, st.lists(st.tuples(st.integers(1, 4), st.integers(0, 200)), min_size=2, unique=True))
def test_fronts_take_turns_by_blocks(size: int, records: list[tuple[int, int]]) -> None:
    BLOCK.set(size)
    by_time = sorted(records, key=lambda record: (BlockTimes(record[0]).time(record[1]), record[0]))
    starts = [BlockTimes(1).start(block) for block in range(202)]
    assert by_time == sorted(records, key=lambda record: (bisect_right(starts, record[1]), record[0], record[1]))


@given(SIZES, FRONTS, st.integers(0, 10**6), FRONTS)
def test_all_fronts_begin_behind_the_blocks_of_any(size: int, front: int, number: int, other: int) -> None:
    BLOCK.set(size)
    last = BlockTimes(front).time(number)
    begun = next_blocks(last)
    assert last < begun <= BlockTimes(other, begun).time(0) < begun + 2**34
    assert BlockTimes(other, begun).time(number) == begun + BlockTimes(other).time(number)


def test_all_times_fit_into_an_order() -> None:
    times = BlockTimes(MOST_FRONTS)
    assert times.time(times.start(2**29) - 1) == MAX_TIME


def test_more_fronts_than_can_be_numbered_are_refused() -> None:
    flow = fc.Flow("many")
    flow.source("lines", str).sink("out")
    graph = flow.graph()
    fronts = tuple([FrontId("lines", number) for number in range(MOST_FRONTS + 1)])
    with pytest.raises(JobError, match="1048576 partitions are read") as caught:
        Plan(graph, fronts, JobSettings(clock="blocks"))
    assert 'job.clock = "sequence"' in str(caught.value)
    assert len(Plan(graph, fronts[1:], JobSettings(clock="blocks")).fronts) == MOST_FRONTS
