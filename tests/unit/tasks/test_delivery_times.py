"""Release latency ends at the delivery: with several rears, at that of the last of them."""

from __future__ import annotations

from flamecore.model.messages import Delivered
from flamecore.runtime.tasks.stats import DeliveryTimes


def test_a_delivery_has_the_moment_it_was_noted_at() -> None:
    delivery_times = DeliveryTimes(["out"])
    delivery_times.note(Delivered("out", 3), 10.0)
    assert delivery_times.until(3) == [(3, 10.0)]
    assert delivery_times.until(3) == []


def test_each_of_several_deliveries_has_its_own_moment() -> None:
    delivery_times = DeliveryTimes(["out"])
    delivery_times.note(Delivered("out", 5, ((3, 0.5), (5, 0.25))), 10.0)
    assert delivery_times.until(5) == [(3, 9.5), (5, 9.75)]


def test_the_last_rear_decides() -> None:
    delivery_times = DeliveryTimes(["a", "b"])
    delivery_times.note(Delivered("a", 4, ((2, 3.0), (4, 2.0))), 10.0)
    delivery_times.note(Delivered("b", 3, ((3, 1.0),)), 11.0)
    assert delivery_times.until(3) == [(2, 10.0), (3, 10.0)]
    delivery_times.note(Delivered("b", 9), 12.0)
    assert delivery_times.until(4) == [(4, 12.0)]
    delivery_times.note(Delivered("a", 9), 20.0)
    assert delivery_times.until(9) == [(9, 20.0)]
