"""Records cross processes and snapshots by the codec of the core: plain data, and nothing that has to be called."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import timedelta

import pytest

from flamecore.runtime.codec.codec import Codec
from flamestream_windows import windows as w
from flamestream_windows.engine.functions import FnRecord, Function
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Element, Record, Watermark
from flamestream_windows.model.aggregates import Collect
from flamestream_windows.model.panes import Pane
from flamestream_windows.model.times import MAX
from flamestream_windows.model.watermarks import Bounded, Estimate, Estimator
from flamestream_windows.testing.keyed import Keys
from flamestream_windows.testing.laws import draw_events, draw_strategy


@pytest.fixture
def codec() -> Codec:
    made = Codec()
    for kind in (Record, FnRecord, Pane, Estimate):
        made.declare(kind)
    return made


def test_records_of_groupings_come_back_as_they_were(codec: Codec) -> None:
    seen = 0
    for seed in range(150):
        rng = random.Random(seed)
        keys = Keys(Grouping(draw_strategy(rng), Collect()), clock=0)
        for key, given in draw_events(rng)[:-1]:
            if isinstance(given, Element):
                keys.element(key, given)
            elif isinstance(given, Watermark):
                keys.advance(given.to)
        for record in keys.records.values():
            again = codec.decode(codec.encode(record))
            assert again == record
            assert repr(again) == repr(record)
            seen += 1
    assert seen > 100


class Counting(w.StatefulFn[str, int, int]):
    """Keeps all kinds of cells, and timers."""

    value = w.Value(int)
    line = w.OrderedList(int)
    table = w.Map(str, int)
    end = w.Timer("event")
    wall = w.Timer("processing")

    def on_element(self, key: str, value: int, at: int) -> Iterable[int]:
        self.value.set(value)
        self.line.add(at, value)
        self.table.put(str(at), value)
        self.end.after(timedelta(microseconds=10))
        self.wall.after(timedelta(microseconds=5), tag="t")
        return ()

    def on_end(self, key: str, at: int) -> Iterable[int]:
        return ()

    def on_wall(self, key: str, at: int) -> Iterable[int]:
        return ()


def test_records_of_functions_come_back_as_they_were(codec: Codec) -> None:
    keys = Keys(Function(Counting), clock=0)
    for at in (3, 1, 7):
        keys.element("k", Element(at * at, at))
    (record,) = keys.records.values()
    again = codec.decode(codec.encode(record))
    assert repr(again) == repr(record)
    keys.restore([("k", again)])
    keys.advance(MAX)
    assert keys.records == {}


def test_panes_and_estimates_come_back_as_they_were(codec: Codec) -> None:
    pane = Pane("k", [1, 2], w.Window(0, 10), w.Timing.LATE, 3, last=True)
    estimator = Estimator(Bounded(5), 10, max_ahead=100)
    estimate, _ = estimator.observe(estimator.start(), None, 77)
    for value in (pane, estimate):
        again = codec.decode(codec.encode(value))
        assert (again, type(again), repr(again)) == (value, type(value), repr(value))
