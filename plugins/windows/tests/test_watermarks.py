"""Watermark strategies at a front."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from flamestream_windows import watermarks
from flamestream_windows.model.times import MIN
from flamestream_windows.model.watermarks import Estimator, WatermarkStrategy, default_step


def _marks(estimator: Estimator, records: list[tuple[Any, int]], walls: list[int] | None = None) -> list[int | None]:
    estimate = estimator.start()
    said = []
    for number, (value, at) in enumerate(records):
        estimate, mark = estimator.observe(estimate, value, at, None if walls is None else walls[number])
        said.append(mark)
    return said


def _at(*times: int) -> list[tuple[Any, int]]:
    return [(None, time) for time in times]


def test_a_monotonic_front_says_each_greater_timestamp() -> None:
    assert _marks(Estimator(watermarks.monotonic()), _at(3, 3, 5, 4, 6)) == [3, None, 5, None, 6]


def test_a_front_in_disorder_stays_behind_its_greatest_timestamp() -> None:
    bounded = watermarks.bounded_disorder(microseconds=5)
    assert _marks(Estimator(bounded), _at(3, 20, 16, 21)) == [-2, 15, None, 16]


def test_no_element_is_late_within_the_bound() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        bound, step = rng.randint(0, 20), rng.choice([1, 7, 10])
        greatest, watermark = MIN, MIN
        estimator = Estimator(watermarks.bounded_disorder(microseconds=bound), step)
        estimate = estimator.start()
        for _ in range(50):
            at = rng.randint(-50, 50) if greatest == MIN else greatest + rng.randint(-bound, 9)
            greatest = max(greatest, at)
            assert at >= watermark
            estimate, mark = estimator.observe(estimate, None, at)
            if mark is not None:
                assert mark > watermark
                assert mark % step == 0
                watermark = mark
            assert watermark <= greatest - bound < watermark + step


def test_marks_are_multiples_of_a_step_of_event_time() -> None:
    assert _marks(Estimator(watermarks.monotonic(), 10), _at(-11, -1, 3, 9, 10, 19, 45)) == [
        -20,
        -10,
        0,
        None,
        10,
        None,
        40,
    ]


def test_records_may_say_the_watermark_themselves() -> None:
    strategy = watermarks.from_records(lambda value: value)
    records = [(None, 5), (3, 9), (None, 20), (2, 20), (datetime(1970, 1, 1, tzinfo=UTC), 1), (7, 1)]
    assert _marks(Estimator(strategy), records) == [None, 3, None, None, None, 7]


def test_a_fold_may_say_the_watermark() -> None:
    def third(state: int, value: Any, at: int) -> tuple[int, int | None]:
        return state + 1, at if state % 3 == 2 else None

    assert _marks(Estimator(watermarks.fold(0, third)), _at(1, 2, 3, 4, 5, 6)) == [None, None, 3, None, None, 6]


def test_arrival_is_a_timestamp_that_never_falls() -> None:
    assert _marks(Estimator(watermarks.arrival()), _at(1, 2, 7)) == [1, 2, 7]


def test_a_timestamp_too_far_ahead_does_not_move_the_watermark_and_is_counted() -> None:
    estimator = Estimator(watermarks.monotonic(), 1, max_ahead=10)
    estimate = estimator.start()
    said = []
    for at in (5, 1000, 9, 19, 2000, 30):
        estimate, mark = estimator.observe(estimate, None, at)
        said.append(mark)
    assert said == [5, None, 9, 19, None, None]
    assert (estimate.ahead, estimate.greatest) == (3, 19)
    walls = [0, 100, 995, 1000, 1000, 1000]
    assert _marks(estimator, _at(5, 1000, 1000, 1005, 1011, 1010), walls) == [5, None, 1000, 1005, None, 1010]


def test_strategies_compare_and_print() -> None:
    assert watermarks.bounded_disorder(seconds=5) == watermarks.bounded_disorder(milliseconds=5000)
    assert [str(watermarks.bounded_disorder(seconds=5)), str(watermarks.monotonic()), str(watermarks.arrival())] == [
        "bounded_disorder(seconds=5)",
        "monotonic()",
        "arrival()",
    ]
    with pytest.raises(ValueError, match="negative"):
        watermarks.bounded_disorder(seconds=-1)
    assert issubclass(type(watermarks.monotonic()), WatermarkStrategy)


@pytest.mark.parametrize(
    ("sizes", "step"), [((100,), 10), ((60_000_000, 7_000_000), 700_000), ((25,), 5), ((7,), 1), ((1,), 1), ((), 1)]
)
def test_the_default_step_divides_the_smallest_size(sizes: tuple[int, ...], step: int) -> None:
    assert default_step(*sizes) == step
