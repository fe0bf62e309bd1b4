"""A worker that opens its sinks by its own fronts delivers what comes before a record that ends the job, and no more.

A function may fail on another worker, on a record whose host has passed it already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flamecore as fc
from flamecore.model.hashing import key_group, owners, stable_hash
from flamecore.model.messages import Released
from flamecore.runtime.parts.collector import Collector
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.simulation.simulation import SimulatedRun, Simulation

pytestmark = pytest.mark.usefixtures("installed")

ACKERS = {name: acker_named(name) for name in ("centralized", "local", "sharded")}
NUMBERS = list(range(40))


def behind_a_key(bad: int) -> fc.Flow:
    """Return a flow whose function fails on the owner of a key."""
    flow = fc.Flow("behind a key")
    counts = flow.source("numbers", int).key_by(lambda n: n % 7).count()
    counts.map(lambda pair: refuse(pair, (bad % 7, bad // 7 + 1)), name="check").sink("out")
    return flow


def in_a_state(bad: int) -> fc.Flow:
    flow = fc.Flow("in a state")
    keyed = flow.source("numbers", int).key_by(lambda n: n % 7)
    keyed.fold(0, lambda total, n: total + refuse(n, bad), name="check").sink("out")
    return flow


def two_sinks(bad: int) -> fc.Flow:
    """Return a flow in which one of two sinks does not lead to the failing function."""
    flow = fc.Flow("two sinks")
    numbers = flow.source("numbers", int)
    numbers.map(lambda n: -n, name="negated").sink("all")
    keyed = numbers.key_by(lambda n: n % 7)
    keyed.fold(0, lambda total, n: total + refuse(n, bad), name="check").sink("out")
    return flow


def two_states(bad: int) -> fc.Flow:
    flow = fc.Flow("two states")
    counts = flow.source("numbers", int).key_by(lambda n: n % 7).count()
    again = counts.key_by(lambda pair: pair[1])
    again.fold(0, lambda total, pair: total + refuse(pair[0], bad % 7), name="check").sink("out")
    return flow


def dealt(bad: int) -> fc.Flow:
    flow = fc.Flow("dealt")
    flow.source("numbers", int).rebalance().map(lambda n: refuse(n, bad), name="check").sink("out")
    return flow


def refuse(value: Any, bad: Any) -> Any:
    if value == bad:
        raise ValueError(f"{value} is refused")
    return value


FLOWS = [behind_a_key, in_a_state, two_sinks, two_states, dealt]


def run(made: Callable[[int], fc.Flow], bad: int, seed: int, *, workers: int = 3) -> SimulatedRun:
    acker = ACKERS[sorted(ACKERS)[seed % 3]]
    return Simulation(
        made(bad).graph(), {"numbers": NUMBERS}, acker=acker, workers=workers, seed=seed, on_error="fail"
    ).run()


@pytest.mark.parametrize("made", FLOWS)
@pytest.mark.parametrize("bad", [3, 17, 30])
def test_a_failure_elsewhere_ends_the_job_where_it_always_does(made: Callable[[int], fc.Flow], bad: int) -> None:
    alone = run(made, bad, 0, workers=1)
    assert alone.failure is not None
    for seed in seeds(40):
        found = run(made, bad, seed)
        assert found.outputs["out"] == alone.outputs["out"], f"seed {seed}"
        assert found.failure is not None
        assert found.failure.at == alone.failure.at


@pytest.fixture
def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Collector.receive
    monkeypatch.setattr(Collector, "receive", lambda self, word: receive(self, word._replace(heard=None, away=())))


@pytest.mark.usefixtures("no_gate")
def test_rears_that_do_not_wait_for_the_host_go_past_the_record() -> None:
    alone = run(in_a_state, 17, 0, workers=1)
    found = [run(in_a_state, 17, seed).outputs["out"] for seed in range(40)]
    assert any(outputs != alone.outputs["out"] for outputs in found)


def added(total: int, n: int) -> int:
    return total + 1 // (n % 2)


@pytest.mark.parametrize("acker", sorted(ACKERS))
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_records_that_are_left_out_are_counted_and_named_in_the_end(acker: str, workers: int) -> None:
    """The last records fail on another worker than the one that hosts their front."""
    others = [n for n in range(2, 1000, 2) if owners(2)[key_group(stable_hash(n))] == 1]
    for last in (1, 5):
        flow = fc.Flow("left out")
        flow.source("numbers", int).key_by(lambda n: n).fold(0, added, name="check").sink("out")
        numbers = [*range(1, 41, 2), *others[:last]]
        out = flow.run({"numbers": numbers}, workers=workers, acker=acker, settings={"job.on_error": "skip"})
        stats = out.report.stats
        assert (len(out["out"]), stats.failed, stats.min_time) == (20, last, 20 + last)
        (first,) = stats.first_failed.values()
        assert "at value 21 of numbers" in first


def test_a_worker_that_hosts_all_fronts_is_ahead_of_the_ackers() -> None:
    ahead = [0]

    def note(message: Any) -> Any:
        if type(message) is Released:
            ahead[0] += message.heard is not None
        return message

    for seed in range(10):
        flow = in_a_state(-1)
        Simulation(flow.graph(), {"numbers": NUMBERS}, acker=ACKERS["centralized"], seed=seed, copy=note).run()
    assert ahead[0] > 20
