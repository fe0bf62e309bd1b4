"""The trace of a simulated run: what goes from one worker to another, spelled out."""

from __future__ import annotations

import flamecore as fc
from flamecore.model.meta import GlobalTime, Meta
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.simulation.simulation import SimulatedRun, Simulation


def run(seed: int, *, trace: bool) -> SimulatedRun:
    flow = fc.Flow("pairs")
    numbers = flow.source("numbers", int).rebalance().map(lambda n: n)
    numbers.key_by(lambda _: 0).group(2).map(lambda pair: pair, name="pair").key_by(sum).map(str).sink("out")
    acker = acker_named("centralized")
    inputs = {"numbers": list(range(12))}
    return Simulation(flow.graph(), inputs, acker=acker, workers=3, seed=seed, trace=trace).run()


def test_the_trace_shows_items_and_their_tombstones() -> None:
    found = [run(seed, trace=True) for seed in range(20)]
    repaired = next(each for each in found if each.replays)
    maps = [arrival.item for arrival in repaired.trace if arrival.vertex == "map:str"]
    tombstones = [item for item in maps if not item.alive]
    assert tombstones
    for tombstone in tombstones:
        victim = tombstone._replace(alive=True)
        assert victim in maps[: maps.index(tombstone)], "a tombstone never overtakes its victim"
    assert tombstones[0].meta.tombstone
    assert {arrival.worker for arrival in repaired.trace} <= {0, 1, 2}


def test_an_item_of_the_trace_has_the_meta_of_its_way() -> None:
    first = min(arrival.item.order for arrival in run(1, trace=True).trace if arrival.vertex == "group")
    meta = Meta.decode(first)
    assert (meta.global_time.front, meta.child_ids) == (1, (0,)), "one map is on the way"
    assert meta.global_time >= GlobalTime(0, 1)


def test_nothing_is_noted_unless_asked_for_and_noting_changes_nothing() -> None:
    without, noted = run(3, trace=False), run(3, trace=True)
    assert without.trace == []
    assert noted.trace != []
    noted.trace.clear()
    assert without == noted
