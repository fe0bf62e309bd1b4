"""The shorter ways for final panes and updates give what a grouping gives, pane for pane."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import windows as w
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.keyed import Keys
from flamestream_windows.engine.short import (
    FinalKeys,
    Interrupted,
    SessionKeys,
    ShortWay,
    UpdateKeys,
    is_final,
    is_sessions,
    is_updates,
)
from flamestream_windows.engine.values import Element
from flamestream_windows.model.strategy import Strategy, strategy
from flamestream_windows.model.times import MAX, MIN


def _plain(records: Any) -> Any:
    """Return records without holds that say nothing, because an earlier one is there."""
    return {
        key: [cell if cell.hold is None else cell._replace(expiry_hold=None) for cell in record.open]
        for key, record in records.items()
    }


SHORT: dict[str, type[ShortWay]] = {"final": FinalKeys, "updates": UpdateKeys, "sessions": SessionKeys}
Kind = Literal["final", "updates", "sessions"]


def _strategy(rng: random.Random, kind: Kind) -> Strategy:
    if kind == "sessions":
        return strategy(w.sessions(microseconds=rng.choice([2, 5, 12])))
    size, period = rng.choice([3, 10, 25]), rng.randint(1, 30)
    windows = rng.choice(
        [
            w.fixed(microseconds=size, offset=timedelta(microseconds=rng.randint(0, 9))),
            w.fixed(microseconds=size),
            w.sliding(microseconds=size, every=timedelta(microseconds=period)),
            w.whole(),
        ]
    )
    panes: list[Literal["accumulating", "discarding"]] = ["accumulating", "discarding"]
    return strategy(windows, lateness=rng.choice([0, 0, 5, 40]), emit=kind, panes=rng.choice(panes))


def _compare(seed: int, kind: Kind) -> int:
    rng = random.Random(seed)
    made = _strategy(rng, kind)
    assert (is_final(made), is_updates(made), is_sessions(made)) == tuple(
        kind == each for each in ("final", "updates", "sessions")
    )
    aggregate = rng.choice([agg.count(), agg.collect()])
    general, short = Keys(Grouping(made, aggregate)), SHORT[kind](made, aggregate)
    panes, now = 0, rng.randint(-40, 40)
    for number in range(rng.randint(2, 40)):
        if rng.random() < 0.3:
            to = now + rng.randint(-30, 5)
            found = short.advance(to)
            assert found == general.advance(to), seed
            panes += len(found)
        else:
            count = rng.randint(1, 5)
            keys = [rng.choice("abc") for _ in range(count)]
            times = [now + rng.randint(-30, 3) for _ in range(count)]
            values = [(number, each) for each in range(count)]
            wanted = []
            for key, at, value in zip(keys, times, values, strict=True):
                wanted += general.element(key, Element(value, at))
            found = [(keys[at], output) for at, output in short.elements(keys, times, values)]
            assert found == wanted, seed
            panes += len(found)
            now += rng.randint(0, 8)
        assert short.output == general.output, seed
        assert _plain(short.records) == _plain(general.records), seed
        if rng.random() < 0.1:
            again = SHORT[kind](made, aggregate, watermark=short.watermark)
            again.restore(general.records)
            short = again
    found = short.advance(MAX)
    assert found == general.advance(MAX), seed
    assert short.records == {}
    return panes + len(found)


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("part", range(3))
def test_the_shorter_way_gives_the_same_panes(part: int, kind: Kind, seeds: Callable[..., range]) -> None:
    runs = seeds(200, part)
    assert sum(_compare(seed, kind) for seed in runs) > len(runs)


def test_only_final_panes_at_the_end_go_the_shorter_way() -> None:
    fixed = w.fixed(seconds=1)
    assert is_final(strategy(fixed, lateness=5))
    assert not is_final(strategy(fixed, time="earliest"))
    assert not is_final(strategy(fixed, emit=t.at_watermark()))
    assert not is_final(strategy(w.sessions(seconds=1)))
    assert not is_sessions(strategy(w.sessions(seconds=1), lateness=1))
    assert is_updates(strategy(fixed, emit="updates", panes="discarding"))
    assert not is_updates(strategy(fixed, emit="updates", panes="retracting"))
    assert not is_updates(strategy(fixed, emit=t.count(1).repeat(), panes="discarding"))


@pytest.mark.parametrize("kind", SHORT)
def test_a_function_that_fails_leaves_the_elements_before(kind: Kind) -> None:
    windows = w.sessions(microseconds=5) if kind == "sessions" else w.sliding(seconds=2, every=timedelta(seconds=1))
    emit: Literal["final", "updates"] = "updates" if kind == "updates" else "final"
    made = strategy(windows, emit=emit, panes="accumulating")
    short = SHORT[kind](made, agg.sum(lambda value: 1 // value))
    for number in range(3):
        values = [1, 1, 1]
        values[number] = 0
        with pytest.raises(Interrupted) as raised:
            short.elements("aaa", [1, 2, 3], values)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert raised.value.number == number
        assert len(raised.value.outputs) == (2 * number if kind == "updates" else 0)
    records = {key: [cell.accumulator for cell in record.open] for key, record in short.records.items()}
    assert records == {"a": [3] if kind == "sessions" else [3, 3]}
    assert short.output == short.watermark == MIN
