"""Release latency ends at the delivery: with several rears, at that of the last of them."""

from __future__ import annotations

from flamecore.messages import Delivered
from flamecore.moments import Moments


def test_word_that_comes_at_once() -> None:
    moments = Moments(["out"])
    moments.note(Delivered("out", 3), 10.0)
    assert moments.until(3) == [(3, 10.0)]
    assert moments.until(3) == []


def test_word_of_several_deliveries_counts_from_each() -> None:
    moments = Moments(["out"])
    moments.note(Delivered("out", 5, ((3, 0.5), (5, 0.25))), 10.0)
    assert moments.until(5) == [(3, 9.5), (5, 9.75)]


def test_the_last_rear_decides() -> None:
    moments = Moments(["a", "b"])
    moments.note(Delivered("a", 4, ((2, 3.0), (4, 2.0))), 10.0)
    moments.note(Delivered("b", 3, ((3, 1.0),)), 11.0)
    assert moments.until(3) == [(2, 10.0), (3, 10.0)]
    moments.note(Delivered("b", 9), 12.0)
    assert moments.until(4) == [(4, 12.0)]
    moments.note(Delivered("a", 9), 20.0)
    assert moments.until(9) == [(9, 20.0)]
