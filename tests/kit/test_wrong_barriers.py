"""Barriers that are wrong on purpose: each must fail, in the check meant for it."""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.errors import DuplicateItemError, NoInvalideeError, OrderViolationError, TimeRegressionError
from flamecore.runtime.operators.barrier import Barrier
from flamecore.testing.checks.barriers import check_barrier, check_misuse, check_simulations, check_small
from flamecore.testing.laws import LawBroken

Batch = list[tuple[bytes, Any]]


class Wrong(Barrier):
    """A right barrier; those below break one law each."""

    def __init__(self) -> None:
        super().__init__("wrong")
        self.right = self.step
        self.step = self.take

    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.right(order, trace, alive, payload)


class ReleasesTheMinimumTimeItself(Wrong):
    def release(self, time: int) -> Batch:
        return super().release(time + 1)


class HoldsTheLastBack(Wrong):
    def release(self, time: int) -> Batch:
        return super().release(time - 1)


class DropsAnItem(Wrong):
    def release(self, time: int) -> Batch:
        batch = super().release(time)
        return batch[:-1] if len(batch) > 2 else batch


class ForgetsToCancel(Wrong):
    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        if alive:
            self._buffered.pop(order, None)
            self._twins.clear()
            super().take(order, trace, alive, payload)


class CancelsWhateverHasThatOrder(Wrong):
    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        if not alive and order in self._buffered and len(self._twins) > 0:
            trace = self._buffered[order][0]
        super().take(order, trace, alive, payload)


class CancelsDescendantsToo(Wrong):
    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        super().take(order, trace, alive, payload)
        if not alive:
            for derived in [held for held in self._buffered if held.startswith(order) and held != order]:
                del self._buffered[derived]


class ReleasesByArrival(Wrong):
    def release(self, time: int) -> Batch:
        arrivals = list(self._buffered)
        return sorted(super().release(time), key=lambda item: arrivals.index(item[0]))


class ReleasesByGlobalTimeOnly(Wrong):
    def release(self, time: int) -> Batch:
        arrivals = list(self._buffered)
        return sorted(super().release(time), key=lambda item: (item[0][:12], arrivals.index(item[0])))


class ReleasesTwice(Wrong):
    last: Batch = []

    def release(self, time: int) -> Batch:
        again, self.last = self.last, super().release(time)
        return [*again, *self.last]


class ReleasesEachItemTwice(Wrong):
    def release(self, time: int) -> Batch:
        return [item for item in super().release(time) for _ in range(2)]


class RefusesRecomputations(Wrong):
    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        if alive and order in self._buffered:
            raise DuplicateItemError("there is one of that order", vertex="wrong", record=payload)
        super().take(order, trace, alive, payload)


class RefusesNegativeTimes(Wrong):
    def release(self, time: int) -> Batch:
        if time < 0:
            raise TimeRegressionError("negative", time=time, limit=0)
        return super().release(time)


class TakesDuplicates(Wrong):
    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            super().take(order, trace, alive, payload)
        except DuplicateItemError:
            return


class IgnoresLoneTombstones(Wrong):
    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            super().take(order, trace, alive, payload)
        except NoInvalideeError:
            return


class LetsTimeGoBack(Wrong):
    def release(self, time: int) -> Batch:
        self.released = b""
        return super().release(time)


class PicksOneOfTwo(Wrong):
    def release(self, time: int) -> Batch:
        self._twins.clear()
        return super().release(time)


class SwallowsLateItems(Wrong):
    def release(self, time: int) -> Batch:
        for order in [order for order in self._buffered if order < self.released]:
            del self._buffered[order]
        return super().release(time)


class RaisesAnything(Wrong):
    def take(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            super().take(order, trace, alive, payload)
        except NoInvalideeError as error:
            raise OrderViolationError("something", vertex="wrong", record=payload) from error


WRONG = [
    (ReleasesTheMinimumTimeItself, "strict"),
    (HoldsTheLastBack, "complete"),
    (DropsAnItem, "complete"),
    (CancelsDescendantsToo, "complete"),
    (ForgetsToCancel, "cancels"),
    (CancelsWhateverHasThatOrder, "cancels"),
    (ReleasesByArrival, "order"),
    (ReleasesByGlobalTimeOnly, "order"),
    (ReleasesTwice, "once"),
    (ReleasesEachItemTwice, "once"),
    (RefusesRecomputations, "legal"),
    (RefusesNegativeTimes, "legal"),
    (TakesDuplicates, "refused"),
    (IgnoresLoneTombstones, "refused"),
    (LetsTimeGoBack, "refused"),
    (PicksOneOfTwo, "refused"),
    (SwallowsLateItems, "refused"),
    (RaisesAnything, "refused"),
]


@pytest.mark.parametrize(("wrong", "law"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_each_wrong_barrier_fails_in_the_check_meant_for_it(wrong: type[Wrong], law: str) -> None:
    with pytest.raises(LawBroken) as caught:
        check_barrier(wrong)
    assert caught.value.law == law
    meant = check_misuse if law == "refused" else check_small
    with pytest.raises(LawBroken) as caught:
        meant(wrong)
    assert caught.value.law == law


@pytest.mark.parametrize(
    "wrong", [wrong for wrong, law in WRONG if law not in ("refused", "legal")], ids=lambda value: value.__name__
)
def test_simulated_runs_catch_wrong_barriers_too_and_name_the_seed(wrong: type[Wrong]) -> None:
    with pytest.raises(LawBroken) as caught:
        check_simulations(wrong)
    assert caught.value.seed is not None
    assert f"seed {caught.value.seed}" in str(caught.value)


def test_a_right_barrier_passes() -> None:
    check_barrier(Wrong, runs=50)
