"""The policy of placement: it lowers the greatest load, and comes to rest."""

from __future__ import annotations

import asyncio
import operator
from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.model.hashing import KEY_GROUPS, owners
from flamecore.model.meta import FrontId
from flamecore.model.plan import Placement, Plan
from flamecore.model.settings import JobSettings
from flamecore.runtime.cluster.balance import (
    MARGIN,
    Choice,
    Loads,
    chosen,
    grown,
    hot_groups,
    measured,
    predicted,
    proposed,
    set_apart,
)
from flamecore.runtime.cluster.balancer import Balancer, Experience
from flamecore.runtime.parts.counters import NodeStats

FLAT = (0.0,) * KEY_GROUPS


class Truth:
    """The costs of a made-up job, which no measurement sees as a whole.

    Args:
        random: Draws them.
        workers: Number of workers.
        fronts: Number of fronts.
    """

    def __init__(self, random: Random, workers: int, fronts: int) -> None:
        self.workers = workers
        self.rests = [random.uniform(0, 1) for _ in range(workers)]
        self.fronts = [random.choice((0.0, random.uniform(0, 3))) for _ in range(fronts)]
        self.groups = [random.choice((0.0, random.uniform(0, 0.1), random.expovariate(5))) for _ in range(KEY_GROUPS)]
        # Seconds that a front costs besides, on a worker that owns keys or on one that does not.
        self.beside = random.uniform(0, 1), random.uniform(0, 1)

    def loads(self, place: Placement) -> Loads:
        """Return the loads that a job would measure, if the busiest worker limits it."""
        spent = list(self.rests)
        for cost, host in zip(self.fronts, place.hosts, strict=True):
            spent[host] += cost + self.beside[host in place.owners] * (cost > 0)
        for cost, owner in zip(self.groups, place.owners, strict=True):
            spent[owner] += cost
        most = max(spent)
        return Loads(
            tuple(one / most for one in spent),
            tuple((cost / most,) * self.workers for cost in self.fronts),
            tuple(cost / most for cost in self.groups),
            most,
        )


def loads_of(random: Random) -> tuple[Truth, Placement]:
    workers = random.randint(1, 5)
    truth = Truth(random, workers, random.randint(0, 6))
    hosts = tuple(random.randrange(workers) for _ in truth.fronts)
    return truth, Placement(hosts, owners(workers, random.randint(1, workers)))


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_a_proposal_never_raises_the_greatest_load_and_is_at_rest(seed: int) -> None:
    truth, now = loads_of(Random(seed))
    loads = truth.loads(now)
    then = proposed(loads, now)
    then.check(truth.workers)
    assert set(then.owners) == set(now.owners), "the number of owners stays"
    after = predicted(loads, now, then)
    assert max(after) <= max(loads.busy) + 1e-6
    assert sum(after) == pytest.approx(sum(loads.busy))
    assert proposed(loads._replace(busy=after), then) == then
    assert proposed(loads, now) == then, "the same loads give the same placement"


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_a_job_comes_to_rest_where_no_placement_that_it_has_tried_is_clearly_better(seed: int) -> None:
    truth, now = loads_of(Random(seed))
    experience, visited = Experience(), [now]
    for _ in range(50):
        loads = truth.loads(now)
        experience.learn(now, loads)
        choice = chosen(loads, now, experience.known)
        if choice.placement == now:
            break
        experience.expect(loads, choice)
        now = choice.placement
        visited.append(now)
    else:
        raise AssertionError(f"it moves on: {visited}")
    least = min(truth.loads(place).per_record for place in visited)
    assert truth.loads(now).per_record <= least / (1 - MARGIN) + 1e-9
    # Back to a placement only by knowledge, and knowledge is final: no move is made twice.
    moves = list(pairwise(visited))
    assert len(set(moves)) == len(moves)


def test_a_border_moves_past_groups_without_load() -> None:
    now = Placement((), owners(2))
    groups = [0.0] * KEY_GROUPS
    groups[10] = groups[50] = 0.4
    then = proposed(Loads((0.8, 0.0), (), tuple(groups), 1.0), now)
    assert then.owners == (0,) * 50 + (1,) * (KEY_GROUPS - 50)


def test_a_group_that_is_a_load_of_its_own_stays_and_is_named() -> None:
    now = Placement((), owners(2))
    groups = [0.001] * KEY_GROUPS
    groups[70] = 0.8
    loads = Loads((0.064, 0.863), (), tuple(groups), 1.0)
    then = proposed(loads, now)
    assert predicted(loads, now, then)[then.owners[70]] < 0.863, "the others leave its owner"
    assert hot_groups(loads, now) == [70]


def test_a_front_stays_where_its_source_can_be_read() -> None:
    now = Placement((0, 0), owners(3))
    there = Loads((0.9, 0.1, 0.0), ((0.4, 0.4, inf), (0.4, inf, inf)), FLAT, 1.0)
    assert proposed(there, now).hosts == (1, 0)


def test_fronts_beside_keys_are_set_apart_once() -> None:
    now = Placement((0, 1), owners(2, 1))
    loads = Loads((0.3, 1.0), ((0.3, 0.02), (0.3, 0.02)), FLAT, 1.0)
    apart = Placement((0, 0), now.owners)
    assert set_apart(loads, now) == apart
    assert chosen(loads, now, {now: 1.0}).placement == apart
    assert chosen(loads, now, {now: 1.0, apart: 0.95}).placement == now, "that has been tried"
    costly = Loads((0.6, 1.0), ((0.6, 0.5), (0.6, 0.5)), FLAT, 1.0)
    assert set_apart(costly, now) == now, "the other worker has no room"


def test_a_known_cost_stands_against_a_prediction() -> None:
    now, before = Placement((0, 0), owners(2)), Placement((0, 1), owners(2))
    loads = Loads((0.9, 0.8), ((0.0, 0.0), (0.0, 0.0)), FLAT, 2.0)
    assert chosen(loads, now, {now: 2.0, before: 1.0}) == (before, 0.5)
    assert chosen(loads, now, {now: 2.0, before: 1.9}).placement == now


def test_no_known_cost_stands_against_loads_that_contradict_it() -> None:
    now, before = Placement((), owners(2)), Placement((), owners(2, 1))
    groups = (0.9 / KEY_GROUPS,) * KEY_GROUPS
    loads = Loads((0.45, 0.45), (), groups, 2.0)
    assert chosen(loads, now, {now: 2.0, before: 1.0}).placement == now, "it was the cost of another load"


def test_fronts_of_a_small_load_stay() -> None:
    now = Placement((0, 0, 1), owners(2))
    groups = [0.9 / 64] * 64 + [0.3 / 64] * 64
    loads = Loads((0.91, 0.3), ((0.005, 0.005), (0.005, 0.005), (0.0, 0.0)), tuple(groups), 1.0)
    then = proposed(loads, now)
    assert then.hosts == now.hosts
    assert max(predicted(loads, now, then)) < 0.63


def test_disappointments_are_counted_in_a_row() -> None:
    places = [Placement((0,), (*[0] * first, *[1] * (KEY_GROUPS - first))) for first in range(4)]
    loads, experience = Loads((1.0, 0.0), ((1.0, 1.0),), FLAT, 1.0), Experience()
    experience.learn(places[0], loads)
    for place, after, expected in zip(places[1:], (0.9, 1.0, 0.5), (1, 2, 0), strict=True):
        experience.expect(loads, Choice(place, 0.5))
        experience.learn(place, loads._replace(per_record=after))
        assert experience.disappointments == expected
    experience.disappointments = 1
    experience.expect(loads, Choice(places[0], 0.5))
    experience.learn(places[0], loads._replace(per_record=0.1))
    assert experience.disappointments == 1, "the way back is no prediction"


def test_a_slower_processor_is_no_other_load_and_another_load_is_learned_anew() -> None:
    one, two, three = (Placement((front,), owners(3)) for front in range(3))
    loads = Loads((1.0, 0.2, 0.0), ((1.0, 1.0, 1.0),), FLAT, 1.0)
    experience = Experience()
    experience.learn(one, loads)
    experience.learn(two, loads._replace(busy=(0.5, 1.0, 0.0), per_record=0.8))
    experience.learn(three, loads._replace(per_record=0.6))
    experience.learn(one, loads._replace(per_record=2.0))
    assert experience.known == {one: 2.0, two: pytest.approx(1.6), three: pytest.approx(1.2)}
    experience.learn(one, loads._replace(busy=(1.0, 0.4, 0.0), per_record=2.0))
    assert experience.known == {one: 2.0}


def plan_of(workers: int = 2, fronts: int = 3) -> Plan:
    flow = fc.Flow("words")
    # A function of the user's before the key, so that all workers host fronts.
    flow.source("lines", str).map(lambda line: line).key_by(str.lower).reduce(operator.add).sink("out")
    settings = JobSettings(workers=workers, owners=1)
    names = tuple(FrontId("lines", number) for number in range(fronts))
    return Plan(flow.graph(), names, settings, partitions=tuple("abc"[:fronts]))


def report(worker: int, busy: float, run: float, read: dict[int, int], groups: dict[int, int]) -> NodeStats:
    return NodeStats(
        busy_s={worker: busy},
        cpu_s={worker: busy / 2},
        up_s={worker: 10.0},
        run_s={"lines": run},
        read_s=dict.fromkeys(read, 0.5),
        read=read,
        key_groups=groups,
        taken={worker: sum(groups.values())},
    )


def test_loads_are_those_of_reports() -> None:
    plan = plan_of()
    assert plan.placed.hosts == (0, 1, 0)
    reports = [report(0, 4.0, 1.0, {1: 300, 3: 100}, {}), report(1, 10.0, 2.0, {2: 400}, {5: 300, 9: 100})]
    loads = measured(plan, reports, lambda number, worker: (number, worker) != (3, 1))
    assert loads.busy == pytest.approx((0.4, 1.0))
    # All that worker 0 does is for its fronts, which took 1 s to read, and 1 s to run, of the 4 s.
    assert loads.fronts[0][0] == pytest.approx((0.5 + 0.75) * 2 / 10)
    assert loads.fronts[2] == (pytest.approx((0.5 + 0.25) * 2 / 10), inf)
    # A front has the cost of a record where it would go: 4 s for 400 records there, 2.5 s here.
    assert loads.fronts[1] == (pytest.approx(0.4), pytest.approx(0.25))
    assert loads.fronts[0][1] == pytest.approx(0.25 * 2.5 / 4)
    assert (loads.groups[5], loads.groups[9]) == (pytest.approx(0.75 * 3 / 4), pytest.approx(0.75 / 4))
    assert loads.per_record == pytest.approx(5.0 / 800)
    few = [reports[0], report(1, 10.0, 2.0, {2: 400}, {5: 3})]
    assert measured(plan, few, lambda *_: True) is None, "a few samples say nothing"


def test_loads_are_of_processor_time_where_all_workers_wait_for_a_processor() -> None:
    reports = [report(0, 9.0, 1.0, {1: 400}, {}), report(1, 9.8, 1.0, {2: 400}, {5: 500})]
    reports = [replace(reports[worker], cpu_s={worker: cpu_s}) for worker, cpu_s in enumerate((1.0, 4.0))]
    loads = measured(plan_of(), reports, lambda *_: True)
    assert loads is not None
    assert loads.busy == pytest.approx((0.98 / 4, 0.98)), "the job waits for the busiest one, which is never idle"
    assert loads.per_record == pytest.approx(4.0 / 800)


@pytest.mark.parametrize(("more", "enough"), [(300, False), (100, True), (-100, True), (-500, False)])
def test_fronts_that_read_ahead_count_for_the_records_that_were_done(more: int, enough: bool) -> None:
    reports = [report(0, 4.0, 1.0, {1: 400}, {}), report(1, 10.0, 2.0, {2: 400}, {5: 500})]
    reports[0] = replace(reports[0], in_flight=more)
    loads = measured(plan_of(), reports, lambda *_: True)
    assert (loads is not None) == enough
    if loads is not None:
        assert loads.busy[0] / loads.busy[1] == pytest.approx(0.4 * (pace := 1 - more / 800) / (0.75 + 0.25 * pace))


def test_a_key_group_has_the_load_that_its_items_take() -> None:
    reports = [report(0, 4.0, 1.0, {1: 400}, {}), report(1, 10.0, 2.0, {2: 400}, {5: 500, 9: 500})]
    reports[1] = replace(reports[1], group_s={5: 0.5, 9: 1.5})
    loads = measured(plan_of(), reports, lambda *_: True)
    assert loads is not None
    # Of its 5 s the fronts took 1.25 s, functions the 2 s that are known by group; the rest is that of any items.
    assert (loads.groups[5], loads.groups[9]) == (pytest.approx((1.0 + 1.75) / 10), pytest.approx((3.0 + 1.75) / 10))


def test_the_host_of_a_front_sends_its_items_and_that_is_no_load_of_key_groups() -> None:
    flow = fc.Flow("words")
    flow.source("lines", str).map(lambda line: line).key_by(str.lower).reduce(operator.add).sink("out")
    plan = Plan(flow.graph(), (FrontId("lines", 0),), JobSettings(workers=2, owners=2), partitions=("a",))
    reports = [report(0, 10.0, 3.5, {1: 800}, {5: 500}), report(1, 4.0, 0.0, {}, {90: 1000})]
    loads = measured(plan, reports, lambda *_: True)
    assert loads is not None
    assert loads.groups[90] == pytest.approx(0.4), "so it takes 0.4 ms of load to process an item"
    assert loads.groups[5] == pytest.approx(0.2)
    assert loads.fronts[0][0] == pytest.approx(1.0 - 0.2)


def test_a_stretch_is_the_difference_of_two_reports() -> None:
    before = report(0, 4.0, 1.0, {1: 300}, {5: 1})
    now = report(0, 5.0, 1.5, {1: 400, 2: 7}, {5: 3, 6: 1})
    since = grown(now, before)
    assert (since.busy_s, since.run_s) == ({0: 1.0}, {"lines": 0.5})
    assert (since.read, since.key_groups) == ({1: 100, 2: 7}, {5: 2, 6: 1})


def test_a_front_may_go_back_to_a_worker_that_has_read_its_source() -> None:
    judge, plan = balancer(), plan_of()
    context: Any = judge._nodes.context
    context.plan = plan
    context.spec.sources = {"lines": SimpleNamespace(capabilities=SimpleNamespace(replayable=True))}
    judge._compare(plan_of(fronts=1))
    assert [judge._may_go(2, worker) for worker in (0, 1)] == [True, False]
    judge._compare(plan)
    judge._compare(replace(plan, placement=Placement((0, 0, 0), plan.owners)))
    assert judge._may_go(2, 1)


@pytest.mark.parametrize(
    ("read", "more", "restarts", "verdict"),
    [
        (900, 800, True, "too little"),
        (100, -800, False, "too little"),
        (0, 0, True, "nothing was read lately"),
        (800, 0, False, "no other placement"),
    ],
)
def test_a_measurement_begins_behind_records_that_are_only_read(
    read: int, more: int, restarts: bool, verdict: str
) -> None:
    judge, plan = balancer(), plan_of(fronts=1)
    epoch: Any = SimpleNamespace(plan=plan)
    context: Any = judge._nodes.context
    context.plan = plan
    context.spec.sources = {"lines": SimpleNamespace(capabilities=SimpleNamespace(replayable=False))}
    nodes: Any = judge._nodes
    nodes.members = SimpleNamespace(hosts={"worker/0": "a", "worker/1": "b"}, reports={"a": NodeStats(busy_s={0: 0.0})})
    for which, at in (("b", 0), ("b", 1)):
        assert judge._window is None, "a report is missing"
        asyncio.run(judge._look(epoch))
        nodes.members.reports[which] = NodeStats(busy_s={at: 0.0})
    asyncio.run(judge._look(epoch))
    window: Any = judge._window
    window.since -= 3
    nodes.members.reports = {
        "a": replace(report(0, 0.9, 0.0, {1: read}, {}), in_flight=more, up_s={0: 3.0}),
        "b": replace(report(1, 2.9, 0.0, {}, {5: 800}), up_s={1: 3.0}),
    }
    asyncio.run(judge._look(epoch))
    assert verdict in str(judge.described()["verdict"])
    assert (judge._window is not window) == restarts


def balancer(fixed: bool = False, history: Any = "kept", last_s: float = 1.0) -> Balancer:
    config = SimpleNamespace(placement=SimpleNamespace(fixed=fixed))
    nodes: Any = SimpleNamespace(context=SimpleNamespace(spec=SimpleNamespace(config=config), history=history))
    downtime: Any = SimpleNamespace(last_s=last_s)
    reconfiguration: Any = None
    return Balancer(nodes, reconfiguration, downtime)


@pytest.mark.parametrize(
    ("kind", "busy", "said"),
    [
        ({}, 1.0, ""),
        ({"fixed": True}, 1.0, "fixed is true"),
        ({"history": None}, 1.0, "keeps no state"),
        ({}, 0.4, "no worker limits the job"),
        ({"last_s": 9.0}, 1.0, "a move takes 9.00 s, and would have saved 5.00 s"),
    ],
)
def test_a_reason_is_given_for_what_does_not_move(kind: dict[str, Any], busy: float, said: str) -> None:
    judge = balancer(**kind)
    judge._loads = Loads((busy, 0.0), (), FLAT, 1.0)
    now, then = Placement((), owners(2)), Placement((), owners(2, 1))
    found = judge._judge(chosen(judge._loads, now, {now: 1.0, then: 0.5}), now, 10.0)
    assert said in found
    assert bool(said) == bool(found)
