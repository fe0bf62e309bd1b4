"""The public kit for barriers: `check_barrier(make)`, or class `BarrierTests`.

The class is for pytest: `class TestMine(BarrierTests)`. A barrier takes items and tombstones in any order that a stream
may bring them in, and releases, again and again, the items that a growing minimum time has passed. The model beside it
is a plain list that is sorted when asked. The laws, by the names that `LawBroken.law` gives:

* `strict`: no item is released that has the minimum time itself, or a later one;
* `complete`: every live item below it is released, at once, as it came;
* `order`: a release is sorted by meta;
* `once`: no item is released twice;
* `cancels`: a tombstone removes its victim, found by order *and* trace, and nothing else;
* `refused`: input that no stream may bring is refused with the error that names it;
* `legal`: input that a stream may bring is not.

The kit imports no test runner. `FLAMESTREAM_DRAW=1` in the environment has other seeds of simulated runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from flamecore.abc.operator import OutputBuffer
from flamecore.errors import (
    ConsistencyError,
    DuplicateItemError,
    FlameError,
    NoInvalideeError,
    OrderViolationError,
    TimeRegressionError,
)
from flamecore.model.meta import GlobalTime, Meta, decode_time
from flamecore.testing.draws import seeds
from flamecore.testing.laws import LawBroken

__all__ = ["BarrierTests", "LawBroken", "Make", "check_barrier", "check_misuse", "check_simulations", "check_small"]

Make = Callable[[], OutputBuffer]
"""Function that makes an empty barrier. Called anew for every run."""

Batch = list[tuple[bytes, Any]]


class Bench:
    """A barrier beside its model.

    Attributes:
        alive: Payload of every item that is held, by (order, trace).
        limit: The last minimum time.
    """

    def __init__(self, make: Make, seed: int | None = None) -> None:
        self.barrier = make()
        self.seed = seed
        self.alive: dict[tuple[bytes, int], Any] = {}
        self.limit = -(2**63)
        self._cancelled: set[Any] = set()
        self._released: set[Any] = set()

    def broken(self, law: str, what: str) -> LawBroken:
        return LawBroken(law, what, self.seed)

    def insert(self, meta: Meta, payload: Any) -> None:
        """Insert an item, whose payload must differ from all others."""
        self.alive[meta.order, meta.trace] = payload
        self._call(meta, payload)

    def cancel(self, meta: Meta) -> None:
        """Insert the tombstone of an item."""
        payload = self.alive.pop((meta.order, meta.trace))
        self._cancelled.add(payload)
        self._call(meta._replace(tombstone=True), payload)

    def _call(self, meta: Meta, payload: Any) -> None:
        with self._legal(f"{meta} with trace {meta.trace}"):
            self.barrier.step(meta.order, meta.trace, not meta.tombstone, payload)

    @contextmanager
    def _legal(self, what: str) -> Iterator[None]:
        try:
            yield
        except FlameError as error:
            raise self.broken("legal", f"{what} was refused: {error}") from error

    def release(self, time: int) -> None:
        """Release at a new minimum time, and compare the released items with the model."""
        self.limit = time
        below = {identity: payload for identity, payload in self.alive.items() if decode_time(identity[0]) < time}
        wanted = sorted(((order, payload) for (order, _), payload in below.items()), key=lambda item: item[0])
        for identity in below:
            del self.alive[identity]
        with self._legal(f"release at {time}"):
            batch = self.barrier.release(time)
        self._compare(time, batch, wanted)
        self._released.update(payload for _, payload in wanted)

    def _compare(self, time: int, batch: Batch, wanted: Batch) -> None:
        for order, payload in batch:
            if decode_time(order) >= time:
                raise self.broken("strict", f"release at {time} gave {payload!r} of {Meta.decode(order)}")
            if payload in self._released:
                raise self.broken("once", f"release at {time} gave {payload!r} of {Meta.decode(order)} again")
            if payload in self._cancelled:
                raise self.broken("cancels", f"release at {time} gave {payload!r}, which a tombstone had cancelled")
        payloads = [payload for _, payload in batch]
        if len(set(payloads)) < len(payloads):
            raise self.broken("once", f"release at {time} gave something twice: {payloads}")
        if batch == wanted:
            return
        if sorted(batch, key=repr) == sorted(wanted, key=repr):
            raise self.broken("order", f"release at {time} gave {payloads}, not sorted by meta")
        raise self.broken("complete", f"release at {time} gave {payloads}, not {[payload for _, payload in wanted]}")


def _meta(time: int, *children: int, trace: int = 0, front: int = 1) -> Meta:
    return Meta(GlobalTime(time, front), children, trace)


def check_small(make: Make) -> None:
    """Check small cases that one can follow by hand.

    Raises:
        LawBroken: `strict`, `complete`, `order`, `once`, `cancels` or `legal`.
    """
    bench = Bench(make)
    bench.release(-5)  # nothing is held; times may be negative
    for time in (3, 1, 2):
        bench.insert(_meta(time), time)
    for time in (1, 3, 3, 4, 4):
        bench.release(time)

    line = [_meta(1), _meta(1, 0), _meta(1, 0, 0), _meta(1, 0, 1), _meta(1, 1), _meta(1, front=2), _meta(2)]
    for arrivals in (line, line[::-1], line[::2] + line[1::2]):
        bench = Bench(make)
        for meta in arrivals:
            bench.insert(meta, str(meta))
        bench.release(3)

    bench = Bench(make)
    for number, meta in enumerate((_meta(1, trace=7), _meta(1, 0, trace=7), _meta(2, trace=7))):
        bench.insert(meta, number)
    bench.cancel(_meta(1, trace=7))
    bench.release(2)
    bench.cancel(_meta(2, trace=7))
    bench.insert(_meta(2, trace=7), "the identity is free again")
    bench.release(3)

    for first, second in ((5, 6), (6, 5)):  # a recomputation that came by another worker, before the tombstone
        for cancelled in (5, 6):
            bench = Bench(make)
            bench.insert(_meta(1, trace=first), f"trace {first}")
            bench.insert(_meta(1, trace=second), f"trace {second}")
            bench.insert(_meta(1, trace=7), "trace 7")
            bench.cancel(_meta(1, trace=cancelled))
            bench.cancel(_meta(1, trace=7))
            bench.release(2)


def check_misuse(make: Make) -> None:
    """Check that illegal input is refused, by the next release at the latest.

    Raises:
        LawBroken: `refused`.
    """
    one, other = _meta(1, trace=5), _meta(1, trace=6)
    tombstone, stranger = one._replace(tombstone=True), other._replace(tombstone=True)
    cases: list[tuple[str, type[ConsistencyError], Sequence[Meta | int]]] = [
        ("a second live item of one identity", DuplicateItemError, (one, one, 2)),
        ("a second live item of one identity, beside another trace", DuplicateItemError, (other, one, one, 2)),
        ("a tombstone that comes before its victim", NoInvalideeError, (tombstone, one, 2)),
        ("a second tombstone of one item", NoInvalideeError, (one, tombstone, tombstone, 2)),
        ("a tombstone of another trace", NoInvalideeError, (one, stranger, 2)),
        ("a tombstone of what was released", NoInvalideeError, (one, 2, tombstone, 3)),
        ("a minimum time that goes back", TimeRegressionError, (one, 2, 1)),
        ("an item below the minimum time", OrderViolationError, (2, one, 3)),
        ("two valid items of one order", OrderViolationError, (one, other, 2)),
    ]
    for what, error, steps in cases:
        barrier = make()
        try:
            for step in steps:
                if isinstance(step, int):
                    barrier.release(step)
                else:
                    barrier.step(step.order, step.trace, not step.tombstone, "payload")
        except error:
            continue
        except FlameError as wrong:
            raise LawBroken("refused", f"{what} must raise {error.__name__}, not {wrong!r}") from wrong
        raise LawBroken("refused", f"{what} must raise {error.__name__}")


def simulate(make: Make, seed: int) -> None:
    """Simulate one run of items, recomputations, tombstones and releases, from a seed.

    Raises:
        LawBroken: With the seed.
    """
    random = Random(seed)
    bench = Bench(make, seed)
    bench.limit = random.choice((0, 0, -10, 1_700_000_000_000_000))
    for number in range(random.randint(1, 60)):
        if random.random() < 0.15:
            time = bench.limit + random.choice((0, 1, 1, 2, 5))
            _settle(bench, time, random)
            bench.release(time)
        elif bench.alive and random.random() < 0.3:
            order, trace = random.choice(list(bench.alive))
            bench.cancel(Meta.decode(order, trace))
        else:
            children = [random.choice((0, 1, 300)) for _ in range(random.randint(0, 2))]
            time, trace = bench.limit + random.randint(0, 4), random.randint(0, 3)
            meta = _meta(time, *children, trace=trace, front=random.randint(1, 2))
            if (meta.order, meta.trace) not in bench.alive:
                bench.insert(meta, number)
    time = bench.limit + 10
    _settle(bench, time, random)
    bench.release(time)


def _settle(bench: Bench, time: int, random: Random) -> None:
    """Cancel all items of each order below a time but one, as every repair ends."""
    by_order: dict[bytes, list[int]] = {}
    for order, trace in bench.alive:
        if decode_time(order) < time:
            by_order.setdefault(order, []).append(trace)
    for order, traces in by_order.items():
        random.shuffle(traces)
        for trace in traces[1:]:
            bench.cancel(Meta.decode(order, trace))


def check_simulations(make: Make, runs: int = 300) -> None:
    """Check simulated runs, as many seeds as `runs`, those of the draw (see `flamecore.testing.draws`).

    Raises:
        LawBroken: With the seed: `simulate(make, seed)` repeats the run.
    """
    for seed in seeds(runs):
        simulate(make, seed)


def check_barrier(make: Make, runs: int = 300) -> None:
    """Check a barrier against every law of its contract.

    Args:
        make: Makes an empty barrier.
        runs: Simulated runs, a millisecond each.

    Raises:
        LawBroken: With the law, the event, and the seed of the run.
    """
    check_small(make)
    check_misuse(make)
    check_simulations(make, runs)


class BarrierTests:
    """The checks as a class for pytest. Must be given: `make`.

    Example:
        class TestMine(BarrierTests):
            def make(self) -> OutputBuffer:
                return MyBarrier("out")
    """

    runs: int = 300

    def make(self) -> OutputBuffer:
        """Make an empty barrier."""
        raise NotImplementedError("give `make(self)` in your class")

    def test_small_cases(self) -> None:
        check_small(self.make)

    def test_refuses_misuse(self) -> None:
        check_misuse(self.make)

    def test_simulated_runs(self) -> None:
        check_simulations(self.make, self.runs)
