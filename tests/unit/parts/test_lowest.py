"""The lowest of many values that only grow."""

from __future__ import annotations

from random import Random

import pytest

from flamecore.runtime.parts.lowest import Lowest


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_least_of_those_that_are_left(seed: int) -> None:
    random = Random(seed)
    values: dict[int, int] = {key: random.randrange(5) for key in range(10)}
    lowest = Lowest(values, values.get)
    while values:
        assert lowest.first() == min((value, key) for key, value in values.items())
        key = random.choice([*values])
        if random.random() < 0.2:
            del values[key]
        else:
            values[key] += random.randrange(4)
    assert lowest.first() is None


@pytest.mark.parametrize("count", [100, 1000])
def test_few_values_are_looked_at_however_many_there_are(count: int) -> None:
    looks = 0
    values = dict.fromkeys(range(count), 0)

    def value_of(key: int) -> int | None:
        nonlocal looks
        looks += 1
        return values.get(key)

    lowest = Lowest(values, value_of)
    for turn in range(1, 6):
        for key in range(count):
            values[key] = turn
            lowest.first()
    for key in range(count):
        del values[key]
        lowest.first()
    assert looks <= 3 * 6 * count
