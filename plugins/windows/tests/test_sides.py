"""Side inputs: elements wait until what they look at is there."""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.errors import ConsistencyError
from flamecore.runtime.codec.codec import Codec
from flamestream_windows import windows as w
from flamestream_windows.engine.sides import Side, SideRecord, WaitRecord
from flamestream_windows.engine.values import Element, Emit
from flamestream_windows.model.times import MAX
from flamestream_windows.model.windows import Fixed, Window

TEN, FIVE = Window(0, 10), Window(0, 5)


class Driven:
    """A side input and one key, driven by hand."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.known = SideRecord()
        self.record = side.nothing
        self.watermark = 0

    def add(self, value: Any, at: int, window: Window = FIVE) -> list[Any]:
        given = Element(value, at, (window,))
        self.record, outputs = self.side.element(self.record, given, self.watermark, self.known)
        return self._said(outputs)

    def pane(self, value: Any, window: Window = TEN, key: str = "k", retraction: bool = False) -> list[Any]:
        self.known = self.side.take(self.known, key, value, window, retraction=retraction)
        return self._released()

    def mark(self, to: int) -> list[Any]:
        self.known = self.side.mark(self.known, to)
        return self._released()

    def _released(self) -> list[Any]:
        self.record, outputs = self.side.release(self.record, self.known)
        return self._said(outputs)

    def _said(self, outputs: Any) -> list[Any]:
        assert all(isinstance(output, Emit) for output in outputs)
        return [(*output.value, output.at) for output in outputs]


def test_an_element_waits_for_the_first_pane_and_holds_the_watermark() -> None:
    driven = Driven(Side(Fixed(10)))
    assert driven.add("a", 3) == []
    assert driven.add("b", 1) == []
    assert driven.side.hold(driven.record) == 1
    assert driven.pane("other", Window(10, 20)) == []
    assert driven.pane(7) == [("a", 7, 3), ("b", 7, 1)]
    assert driven.record is driven.side.nothing
    assert driven.add("c", 4) == [("c", 7, 4)]
    driven.pane(8)
    assert driven.add("d", 4) == [("d", 8, 4)]


def test_an_element_waits_no_longer_than_the_watermark_of_the_side() -> None:
    driven = Driven(Side(Fixed(10), default="none"))
    assert driven.add("a", 3) == []
    assert driven.mark(9) == []
    assert driven.mark(10) == [("a", "none", 3)]
    assert driven.mark(5) == []
    assert driven.add("b", 4) == [("b", "none", 4)]


def test_a_late_element_holds_nothing() -> None:
    driven = Driven(Side(Fixed(10)))
    driven.watermark = 4
    driven.add("late", 3)
    assert driven.side.hold(driven.record) is None
    driven.add("a", 4)
    driven.watermark = 6
    driven.add("held", 5)  # not behind the output watermark, which waits at 4
    assert driven.side.hold(driven.record) == 4
    assert driven.mark(MAX) == [("late", None, 3), ("a", None, 4), ("held", None, 5)]


@pytest.mark.parametrize(
    ("shape", "panes", "wanted"),
    [
        ("list", "accumulating", [2, 9]),
        ("list", "discarding", [1, 2, 9]),
        ("dict", "accumulating", {"k": 2, "l": 9}),
        ("dict", "discarding", {"k": [1, 2], "l": [9]}),
    ],
)
def test_a_side_has_a_shape(shape: Any, panes: Any, wanted: Any) -> None:
    driven = Driven(Side(Fixed(10), shape, panes))
    for value, key in ((1, "k"), (2, "k"), (9, "l")):
        driven.pane(value, key=key)
    assert driven.add("a", 3) == [("a", wanted, 3)]
    assert driven.add("b", 13, Window(10, 15)) == []
    assert driven.mark(20) == [("b", type(wanted)(), 13)]


def test_a_side_of_many_keys_may_be_ready_at_its_end_alone() -> None:
    driven = Driven(Side(Fixed(10), "dict", whole=True))
    assert driven.add("a", 3) == []
    assert driven.pane(1, key="k") == []
    assert driven.pane(2, key="l") == []
    assert driven.mark(10) == [("a", {"k": 1, "l": 2}, 3)]


def test_a_retraction_takes_a_value_of_the_side_back() -> None:
    driven = Driven(Side(Fixed(10), "list", "retracting"))
    driven.pane(1)
    driven.pane(1, retraction=True)
    assert driven.add("a", 3) == [("a", [], 3)]
    driven.pane(2)
    assert driven.add("b", 3) == [("b", [2], 3)]


def test_a_singleton_of_several_keys_is_refused() -> None:
    driven = Driven(Side(Fixed(10)))
    driven.pane(1, key="k")
    driven.pane(2, key="l")
    with pytest.raises(ConsistencyError, match="2 keys"):
        driven.add("a", 3)


def test_windows_of_the_side_are_forgotten_when_nobody_looks_at_them() -> None:
    driven = Driven(Side(w.fixed(microseconds=10)))
    driven.pane(1)
    driven.pane(2, Window(10, 20))
    assert [window for window, _ in driven.side.forget(driven.known, 10).contents] == [Window(10, 20)]
    assert driven.side.forget(driven.known, 9) == driven.known


def test_records_of_sides_come_back_as_they_were() -> None:
    codec = Codec()
    for kind in (SideRecord, WaitRecord):
        codec.declare(kind)
    driven = Driven(Side(Fixed(10), "dict", "discarding"))
    driven.pane(1, Window(10, 20))
    driven.add("a", 3)
    for record in (driven.known, driven.record):
        assert repr(codec.decode(codec.encode(record))) == repr(record)
