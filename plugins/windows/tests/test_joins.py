"""Joins in time and verbs by key, beside plain loops over everything that was given."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from flamestream_windows.engine.functions import Function
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.joins import as_of, distinct, inactive, interval_join
from flamestream_windows.engine.values import Drop, Element, Emit, Firing, Late
from flamestream_windows.model.aggregates import LEFT, RIGHT, Cogroup, How, Joined
from flamestream_windows.model.strategy import strategy
from flamestream_windows.model.times import MAX, MIN
from flamestream_windows.model.windows import Fixed
from flamestream_windows.testing.keyed import Keys

RUNS = 300
Seeds = Callable[..., range]
Event = tuple[str, Any, int]
"""A key, a value and a timestamp; or `WATERMARK`, None and a watermark."""

WATERMARK = "the watermark"


def _draw(rng: random.Random, *, late: int) -> list[Event]:
    """Draw elements of two sides and keys; at most `late` behind the watermark."""
    events: list[Event] = []
    watermark, now = -50, 0
    for number in range(rng.randint(2, 30)):
        now += rng.randint(0, 4)
        if rng.random() < 0.3:
            watermark = max(watermark, now - rng.randint(0, 10))
            events.append((WATERMARK, None, watermark))
        else:
            at = max(watermark - late, now - rng.randint(0, 15))
            events.append((rng.choice("kl"), (rng.choice([LEFT, RIGHT]), number), at))
    return [*events, (WATERMARK, None, MAX)]


def _play(function: Any, events: list[Event], *, sides: bool = True) -> tuple[list[tuple[str, Any, int]], list[Any]]:
    """Return what comes out, and what was dropped. Nothing may come below the output watermark if nothing was late."""
    keys = Keys(Function(function))
    outputs, dropped, late = [], [], False
    for key, value, at in events:
        before = keys.output
        if key == WATERMARK:
            found = keys.advance(at)
        else:
            found = keys.element(key, Element(value if sides else value[1], at))
        for its, output in found:
            if isinstance(output, Emit):
                assert late or output.at >= before, f"{output} is late at {before}"
                outputs.append((its, output.value, output.at))
            elif isinstance(output, Drop):
                dropped.append(output.value)
            else:
                assert isinstance(output, Late)
                late = True
        assert before <= keys.output <= keys.watermark
    assert keys.records == {}
    return outputs, dropped


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_an_interval_join_finds_all_pairs_that_are_near(how: How, seeds: Seeds) -> None:
    for seed in seeds(RUNS):
        rng = random.Random(seed)
        before, after = rng.randint(0, 6), rng.randint(0, 6)
        events = _draw(rng, late=0)
        outputs, _ = _play(interval_join(before, after, how), events)
        given = [(key, *value, at) for key, value, at in events if key != WATERMARK]
        lefts = [(key, number, at) for key, side, number, at in given if side == LEFT]
        rights = [(key, number, at) for key, side, number, at in given if side == RIGHT]
        pairs = [
            (key, (one, other), max(at, time))
            for key, one, at in lefts
            for its, other, time in rights
            if key == its and at - before <= time <= at + after
        ]
        paired = {number for _, both, _ in pairs for number in both}
        if how != "inner":
            pairs += [(key, (one, None), at) for key, one, at in lefts if one not in paired]
        if how == "outer":
            pairs += [(key, (None, other), at) for key, other, at in rights if other not in paired]
        assert sorted(outputs, key=repr) == sorted(pairs, key=repr), f"seed {seed}"


def test_late_elements_of_an_interval_join_do_not_make_others_late(seeds: Seeds) -> None:
    for seed in seeds(RUNS):
        rng = random.Random(seed)
        events = [(key, value, at) for key, value, at in _draw(rng, late=20)]
        keys = Keys(Function(interval_join(3, 9, "outer")))
        late: set[int] = set()
        for key, value, at in events:
            before = keys.output
            if key != WATERMARK and at < keys.watermark:
                late.add(value[1])
            found = keys.advance(at) if key == WATERMARK else keys.element(key, Element(value, at))
            for _, output in found:
                if isinstance(output, Emit) and not late.intersection(output.value):
                    assert output.at >= before, f"seed {seed}: {output} at {before}"


def test_an_as_of_join_finds_the_last_one_before(seeds: Seeds) -> None:
    for seed in seeds(RUNS):
        rng = random.Random(seed)
        keep = rng.randint(0, 12)
        events = _draw(rng, late=0)
        outputs, _ = _play(as_of(keep), events)
        given = [(key, *value, at) for key, value, at in events if key != WATERMARK]
        wanted = []
        for key, side, number, at in given:
            if side == LEFT:
                rights = [
                    (time, other)
                    for its, its_side, other, time in given
                    if its == key and its_side == RIGHT and at - keep <= time <= at
                ]
                wanted.append((key, (number, max(rights)[1] if rights else None), at))
        assert sorted(outputs, key=repr) == sorted(wanted, key=repr), f"seed {seed}"


def test_a_late_element_finds_the_last_one_before_it_or_is_dropped(seeds: Seeds) -> None:
    late_ones = 0
    for seed in seeds(RUNS):
        rng = random.Random(seed)
        keep = rng.randint(0, 12)
        events, watermark = [], MIN
        for key, value, at in _draw(rng, late=rng.choice([5, 10, 30])):
            watermark = at if key == WATERMARK else watermark
            events.append((key, value, at if key == WATERMARK or value[0] == LEFT else max(at, watermark)))
        outputs, dropped = _play(as_of(keep), events)
        rights = [(key, at, value[1]) for key, value, at in events if key != WATERMARK and value[0] == RIGHT]
        wanted, too_late, watermark = [], [], MIN
        for key, value, at in events:
            if key == WATERMARK:
                watermark = at
            elif value[0] == LEFT and at + keep < watermark:
                too_late.append(value)
            elif value[0] == LEFT:
                late_ones += at < watermark
                found = [(time, other) for its, time, other in rights if its == key and at - keep <= time <= at]
                wanted.append((key, (value[1], max(found)[1] if found else None), at))
        assert sorted(outputs, key=repr) == sorted(wanted, key=repr), f"seed {seed}"
        assert dropped == too_late, f"seed {seed}"
    assert late_ones


def test_distinct_elements_are_apart_and_nothing_else_is_left_out(seeds: Seeds) -> None:
    for seed in seeds(RUNS):
        rng = random.Random(seed)
        within = rng.randint(1, 12)
        events = _draw(rng, late=rng.choice([0, 10, 30]))
        outputs, dropped = _play(distinct(within), events, sides=False)
        kept: dict[str, list[int]] = {}
        wanted, late, watermark = [], [], MIN
        for key, value, at in events:
            if key == WATERMARK:
                watermark = at
            elif at + within <= watermark:
                late.append(value[1])
            elif all(abs(at - other) >= within for other in kept.setdefault(key, [])):
                kept[key].append(at)
                wanted.append((key, value[1], at))
        assert (outputs, dropped) == (wanted, late), f"seed {seed}"


def test_silence_is_told_of_once_by_the_last_element(seeds: Seeds) -> None:
    for seed in seeds(RUNS):
        rng = random.Random(seed)
        after = rng.randint(1, 10)
        events = _draw(rng, late=0)
        outputs, _ = _play(inactive(after), events, sides=False)
        # In a pause of a key longer than `after`, of all that is known when the watermark has passed it.
        wanted = []
        watermark = MIN
        waiting: dict[str, tuple[int, int]] = {}
        for key, value, at in events:
            if key == WATERMARK:
                watermark = at
                for its, (time, number) in list(waiting.items()):
                    if time + after <= watermark:
                        wanted.append((its, (its, number), time + after))
                        del waiting[its]
            elif key not in waiting or at >= waiting[key][0]:
                waiting[key] = (at, value[1])
        assert sorted(outputs, key=repr) == sorted(wanted, key=repr), f"seed {seed}"


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("inner", [[(1, 10), (1, 11), (2, 10), (2, 11)], [], []]),
        ("left", [[(1, 10), (1, 11), (2, 10), (2, 11)], [(3, None)], []]),
        ("outer", [[(1, 10), (1, 11), (2, 10), (2, 11)], [(3, None)], [(None, 12)]]),
    ],
)
def test_a_join_by_window_gives_the_pairs_of_each(how: How, wanted: list[Any]) -> None:
    keys = Keys(Grouping(strategy(Fixed(10)), Joined(how)))
    for side, value, at in ((LEFT, 1, 1), (RIGHT, 10, 2), (LEFT, 2, 3), (RIGHT, 11, 9), (LEFT, 3, 10), (RIGHT, 12, 29)):
        keys.element("k", Element((side, value), at))
    found = [output.value for _, output in keys.advance(30) if isinstance(output, Firing)]
    assert found == wanted


def test_a_cogroup_gives_the_elements_of_both() -> None:
    keys = Keys(Grouping(strategy(Fixed(10)), Cogroup()))
    for side, value, at in ((RIGHT, 10, 2), (LEFT, 1, 1), (LEFT, 2, 3)):
        keys.element("k", Element((side, value), at))
    assert [output.value for _, output in keys.advance(30) if isinstance(output, Firing)] == [([1, 2], [10])]


def _timers(keys: Keys[Any]) -> int:
    return sum(len(cell.alarms) for record in keys.records.values() for cell in record.open)


def test_as_of_has_one_timer_for_each_side_however_much_it_keeps() -> None:
    """A timer for each element would be gone through with each, which costs the square of what is kept."""
    keys = Keys(Function(as_of(10_000)))
    for at in range(300):
        for side in (LEFT, RIGHT):
            keys.element("key", Element((side, at), at))
    assert _timers(keys) == 2
    keys.advance(100)
    assert _timers(keys) == 2
    keys.advance(MAX)
    assert not keys.records
