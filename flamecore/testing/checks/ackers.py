"""The public kit for ackers: `check_acker(make)`, or pytest's `AckerTests`.

The laws that are checked, and the simulation that checks most of them, are in `flamecore.testing.simulation.ackers`.
Nothing here needs a test runner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flamecore.abc.acker import Acker, AckerPlan, Listener, Segments
from flamecore.errors import TimeRegressionError
from flamecore.testing.draws import seeds
from flamecore.testing.laws import LawBroken
from flamecore.testing.simulation.ackers import SEGMENTS, Bench, Make, Shape, Simulation

__all__ = [
    "AckerTests",
    "LawBroken",
    "Make",
    "Shape",
    "Simulation",
    "check_acker",
    "check_misuse",
    "check_simulations",
    "check_step_by_step",
    "check_subscribers",
]


def check_simulations(make: Make, runs: int = 300) -> None:
    """Run simulated jobs of all shapes, as many seeds as `runs`, those of the draw (see `flamecore.testing.draws`).

    Raises:
        LawBroken: With the seed: `Simulation(make, seed).run()` repeats the run.
    """
    for seed in seeds(runs):
        Simulation(make, seed).run()


def _bench(make: Make, fronts: tuple[int, ...] = (1,), segments: Segments = SEGMENTS[0]) -> tuple[Bench, Listener]:
    bench = Bench(make, AckerPlan(2, segments, fronts))
    return bench, bench.subscribe("worker/0")


def _settle(bench: Bench, listener: Listener, *wanted: int) -> None:
    """Run until nothing happens, then compare the listener with model and `wanted`."""
    for worker in range(bench.plan.workers):
        bench.stepped(worker)
    bench.run()
    known = tuple(listener.min_time(segment) for segment in range(len(wanted)))
    if known != wanted:
        raise bench.broken("arrives", f"the minimum times are {known}, not {wanted}")


def check_step_by_step(make: Make) -> None:
    """Check small cases: one item, two fronts, a chain of items, two segments, workers at rest.

    Raises:
        LawBroken: `safe` or `arrives`.
    """
    bench, listener = _bench(make)
    for time in (0, 1, 2, 3):  # the first promise may be promised already
        bench.promise(0, 1, time)
        _settle(bench, listener, time)
    item = bench.hand_over(0, 0, 3)
    bench.promise(0, 1, 10)
    _settle(bench, listener, 3)
    spawned = bench.hand_over(1, 0, 5)
    bench.received(1, item)
    _settle(bench, listener, 5)
    bench.received(0, spawned)
    _settle(bench, listener, 10)

    bench, listener = _bench(make, fronts=(1, 2))
    bench.promise(0, 1, 10)
    bench.promise(1, 2, 4)
    _settle(bench, listener, 4)
    item = bench.hand_over(1, 0, 4)
    bench.end(1, 2)  # beside an ack: neither may overtake the other
    _settle(bench, listener, 4)
    bench.received(0, item)
    _settle(bench, listener, 10)
    bench.end(0, 1)
    _settle(bench, listener, 10)

    bench, listener = _bench(make)
    item = bench.hand_over(0, 0, 3)
    bench.promise(0, 1, 4)
    bench.end(0, 1)  # the last front, right behind its last item
    _settle(bench, listener, 3)
    bench.received(1, item)
    _settle(bench, listener, 4)

    bench, listener = _bench(make, segments=SEGMENTS[1])
    item = bench.hand_over(0, 1, 2)
    bench.promise(0, 1, 5)
    _settle(bench, listener, 5, 2)
    bench.received(1, item)
    _settle(bench, listener, 5, 5)
    for reporter in bench.reporters:
        reporter.rest(at_rest=True)
    item = bench.hand_over(0, 1, 5)
    bench.promise(0, 1, 8)
    bench.stepped(0)
    bench.run(arrive=False)
    bench.reporters[1].rest(at_rest=False)
    waiting = bench.hand_over(1, 1, 6)  # to itself: it waits there for the segment before
    _settle(bench, listener, 8, 5)
    bench.received(1, item)
    _settle(bench, listener, 8, 6)
    bench.reporters[1].rest(at_rest=True)
    bench.received(1, waiting)
    _settle(bench, listener, 8, 8)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except TimeRegressionError:
        return
    raise LawBroken("refused", f"{what} must raise TimeRegressionError")


def check_misuse(make: Make) -> None:
    """Check refusals: promises taken back, ended fronts, times announced as past.

    Raises:
        LawBroken: `refused`.
    """

    def settled() -> Bench:
        bench, listener = _bench(make, fronts=(1, 2))
        bench.promise(0, 1, 10)
        bench.promise(1, 2, 10)
        _settle(bench, listener, 10)
        return bench

    bench = settled()
    with _refused("a heartbeat below an earlier one of its front"):
        bench.promise(0, 1, 9)
        bench.deliver(0)
    bench = settled()
    bench.end(0, 1)
    bench.deliver(0)
    with _refused("a heartbeat of a front that has ended"):
        bench.promise(0, 1, 20)
        bench.deliver(0)
    for index, tracker in enumerate(settled().trackers):
        with _refused(f"tracker {index}: a front that goes on from a time announced as past"):
            tracker.register(3, 9)
    bench = settled()
    if len(bench.trackers) == 1:  # one of several cannot tell it from an ack that overtook its cause
        with _refused("an ack of a time announced as past"):
            bench.hand_over(0, 0, 9)
            bench.deliver(0)


def check_subscribers(make: Make) -> None:
    """Check that newcomers get all times, and that unsubscribing is idempotent.

    A second subscription changes nothing, and a listener that has left, known or not, gets no more.

    Raises:
        LawBroken: `subscribers`.
    """
    bench, listener = _bench(make, segments=SEGMENTS[1])
    bench.promise(0, 1, 7)
    _settle(bench, listener, 7, 7)
    _settle(bench, bench.subscribe("late"), 7, 7)
    for index, tracker in enumerate(bench.trackers):
        told = tracker.subscribe("late")
        if len(told.times) != 2 or list(tracker.subscribers) != ["worker/0", "late"]:
            raise bench.broken("subscribers", f"tracker {index} told {told} and has {tracker.subscribers}")
        tracker.unsubscribe("late")
        tracker.unsubscribe("unknown")
        if list(tracker.subscribers) != ["worker/0"]:
            raise bench.broken("subscribers", f"tracker {index} has {tracker.subscribers} when one has left")


def check_acker(make: Make, runs: int = 300) -> None:
    """Check an acker against every law of its contract.

    Args:
        make: Builds the acker for a plan.
        runs: Simulated jobs, some milliseconds each.

    Raises:
        LawBroken: With the law, the event, and the seed of the run.
    """
    check_step_by_step(make)
    check_misuse(make)
    check_subscribers(make)
    check_simulations(make, runs)


class AckerTests:
    """The checks as a class for pytest. Must be given: `make`.

    Example:
        class TestMine(AckerTests):
            def make(self, plan: AckerPlan) -> Acker:
                return Mine(Mine.Options(), plan)
    """

    runs: int = 300

    def make(self, plan: AckerPlan) -> Acker:
        """Build the acker under test."""
        raise NotImplementedError("give `make(self, plan)` in your class")

    def test_step_by_step(self) -> None:
        check_step_by_step(self.make)

    def test_refuses_misuse(self) -> None:
        check_misuse(self.make)

    def test_subscribers(self) -> None:
        check_subscribers(self.make)

    def test_simulated_jobs(self) -> None:
        check_simulations(self.make, self.runs)
