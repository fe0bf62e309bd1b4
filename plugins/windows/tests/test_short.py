"""The shorter ways for final panes and updates give what a grouping gives, pane for pane."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any, Literal

import pytest

from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import windows as w
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.keyed import Keys
from flamestream_windows.engine.short import FinalKeys, UpdateKeys, is_final, is_updates
from flamestream_windows.engine.values import Element
from flamestream_windows.model.strategy import strategy
from flamestream_windows.model.times import MAX, MIN


def _plain(records: Any) -> Any:
    """Return records without holds that say nothing, because an earlier one is there."""
    return {
        key: [cell if cell.hold is None else cell._replace(expiry_hold=None) for cell in record.open]
        for key, record in records.items()
    }


def _compare(seed: int, emit: Literal["final", "updates"]) -> int:
    rng = random.Random(seed)
    size, period = rng.choice([3, 10, 25]), rng.randint(1, 30)
    windows = rng.choice(
        [
            w.fixed(microseconds=size, offset=timedelta(microseconds=rng.randint(0, 9))),
            w.fixed(microseconds=size),
            w.sliding(microseconds=size, every=timedelta(microseconds=period)),
            w.whole(),
        ]
    )
    panes_hold: list[Literal["accumulating", "discarding"]] = ["accumulating", "discarding"]
    made = strategy(windows, lateness=rng.choice([0, 0, 5, 40]), emit=emit, panes=rng.choice(panes_hold))
    kind = FinalKeys if emit == "final" else UpdateKeys
    assert (is_final(made), is_updates(made)) == (emit == "final", emit == "updates")
    aggregate = rng.choice([agg.count(), agg.collect()])
    general, short = Keys(Grouping(made, aggregate)), kind(made, aggregate)
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
            again = kind(made, aggregate, watermark=short.watermark)
            again.restore(general.records)
            short = again
    found = short.advance(MAX)
    assert found == general.advance(MAX), seed
    assert short.records == {}
    return panes + len(found)


@pytest.mark.parametrize("emit", ["final", "updates"])
@pytest.mark.parametrize("part", range(3))
def test_the_shorter_way_gives_the_same_panes(part: int, emit: Literal["final", "updates"]) -> None:
    assert sum(_compare(seed, emit) for seed in range(part * 200, (part + 1) * 200)) > 200


def test_only_final_panes_at_the_end_go_the_shorter_way() -> None:
    fixed = w.fixed(seconds=1)
    assert is_final(strategy(fixed, lateness=5))
    assert not is_final(strategy(fixed, time="earliest"))
    assert not is_final(strategy(fixed, emit=t.at_watermark()))
    assert not is_final(strategy(w.sessions(seconds=1)))
    assert is_updates(strategy(fixed, emit="updates", panes="discarding"))
    assert not is_updates(strategy(fixed, emit="updates", panes="retracting"))
    assert not is_updates(strategy(fixed, emit=t.count(1).repeat(), panes="discarding"))


def test_a_function_that_fails_leaves_the_elements_before() -> None:
    short = FinalKeys(strategy(w.sliding(seconds=2, every=timedelta(seconds=1))), agg.sum(lambda value: 1 // value))
    with pytest.raises(ZeroDivisionError):
        short.elements("aaa", [1, 2, 3], [1, 0, 1])
    assert short.output == short.watermark == MIN
    assert [(key, pane.value) for key, pane in short.advance(MAX) if hasattr(pane, "value")] == [("a", 1), ("a", 1)]
