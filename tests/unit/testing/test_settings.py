"""Settings of the table `[job]` in simulated runs."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import ConfigError
from flamecore.model.settings import JobSettings
from flamecore.testing.flows.deterministic import acker_named, assert_deterministic
from flamecore.testing.simulation.simulation import Simulation

TWO_SOURCES = {"left": list(range(20)), "right": list(range(100, 115))}


def joined() -> fc.Flow:
    flow = fc.Flow("joined")
    flow.source("left", int).merge(flow.source("right", int)).key_by(lambda n: n % 3).fold((), _add).sink("out")
    return flow


def _add(found: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (*found, n)


def test_a_wall_clock_orders_records_by_their_arrival() -> None:
    counted = assert_deterministic(joined(), TWO_SOURCES, seeds=range(4))
    arrived = assert_deterministic(joined(), TWO_SOURCES, seeds=range(4), settings={"job.clock": "wall"})
    assert counted != arrived
    for key, found in _last(arrived):
        assert sorted(found) == [n for n in [*TWO_SOURCES["left"], *TWO_SOURCES["right"]] if n % 3 == key]


def _last(outputs: dict[str, list[Any]]) -> list[tuple[int, tuple[int, ...]]]:
    return list(dict(outputs["out"]).items())


def test_a_flow_that_depends_on_calls_is_caught_by_the_wall_clock_too() -> None:
    flow, calls = fc.Flow("guesses"), count()
    flow.source("left", int).map(lambda n: (n, next(calls))).sink("out")
    with pytest.raises(AssertionError, match="seed=0, workers=1"):
        assert_deterministic(flow, {"left": [1, 2, 3]}, settings={"job.clock": "wall"})


@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_records_that_fail_are_left_out_if_the_job_skips_them(clock: str) -> None:
    flow = fc.Flow("divides")
    flow.source("left", int).map(lambda n: 12 // (n - 1)).sink("out")
    settings = {"job.on_error": "skip", "job.clock": clock}
    assert assert_deterministic(flow, {"left": [0, 1, 2]}, settings=settings) == {"out": [-12, 12]}
    settings["job.on_error"] = "fail"
    assert assert_deterministic(flow, {"left": [0, 1, 2]}, settings=settings) == {"out": [-12]}


@pytest.mark.parametrize("most", [1, 2, 7])
def test_no_more_records_are_in_flight_than_the_job_allows(most: int) -> None:
    graph, most_seen = joined().graph(), 0
    for seed in range(4):
        simulation = Simulation(
            graph,
            TWO_SOURCES,
            acker=acker_named("centralized"),
            workers=2,
            seed=seed,
            settings=JobSettings(max_in_flight=most),
        )
        while not simulation.done():
            choices = simulation.choices()
            simulation.random.choice(choices)() if choices else simulation.wait()
            fronts = [front for worker in simulation.workers.values() for front in worker.fronts.values()]
            most_seen = max(most_seen, sum(front.in_flight for front in fronts))
        assert len(simulation.outputs["out"]) == 35
    assert most_seen == max(most, 2), "each of two sources may have one"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"job.clokc": "wall"}, "unknown key job.clokc"),
        ({"job.clock": "moon"}, "there is no such choice"),
        ({"job.workers": 3}, "an argument of its own"),
        ({"acker.use": "local"}, "an argument of its own"),
        ({"source.left.use": "jsonl"}, "has no meaning here"),
        ({"job.barrier": False}, "depend on the timing"),
    ],
)
def test_a_setting_without_a_meaning_is_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        assert_deterministic(joined(), TWO_SOURCES, settings=settings)
    assert caught.value.hint
