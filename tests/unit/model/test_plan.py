"""The plan of key groups that all workers of a job agree on."""

from __future__ import annotations

import operator
from typing import Any

import pytest

import flamecore as fc
from flamecore.model.meta import FrontId
from flamecore.model.plan import Placement, Plan, owning_workers
from flamecore.model.settings import JobSettings

HOMES = [2, 0, 1, 3]
"""The homes of the first cycles among four workers: state that is stored must be found."""


def words() -> tuple[fc.Flow, fc.KeyedStream[str, str]]:
    flow = fc.Flow("words")
    return flow, flow.source("lines", str).flat_map(str.split).key_by(str.lower)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_one_worker_owns_counts(workers: int) -> None:
    flow, keyed = words()
    keyed.count().sink("counts")
    assert owning_workers(flow.graph(), workers) == 1
    plan = Plan(flow.graph(), (FrontId("lines", 0),), JobSettings(workers=workers))
    assert set(plan.owners) == {workers - 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_hosts_of_fronts_share_all_of_a_limit(workers: int) -> None:
    flow, keyed = words()
    keyed.count().sink("counts")
    plan = Plan(flow.graph(), (FrontId("lines", 0),), JobSettings(workers=workers))
    assert plan.share_of(plan.host_of(1), 8192) == 8192


@pytest.mark.parametrize("how", ["fold", "reduce", "group", "map", "count, then fold", "stateful_map"])
def test_all_workers_share_functions_of_users(how: str) -> None:
    flow, keyed = words()
    if how == "fold":
        keyed.fold(0, lambda state, _: state).sink("out")
    elif how == "reduce":
        keyed.reduce(operator.add).sink("out")
    elif how == "group":
        keyed.group(2).sink("out")
    elif how == "map":
        keyed.map(len).sink("out")
    elif how == "count, then fold":
        keyed.count().key_by(operator.itemgetter(0)).fold(0, lambda state, _: state).sink("out")
    else:
        keyed.stateful_map(0, lambda state, item: (state, [item])).sink("out")
    assert owning_workers(flow.graph(), 4) == 4


def turned(stream: fc.Stream[int], name: str) -> fc.Stream[int]:
    def body(inside: fc.Stream[int]) -> tuple[fc.Stream[int], ...]:
        return inside.key_by(lambda n: n % 3).stateful_map(0, lambda s, n: (s, [n - 1])).branch(lambda n: n > 0)

    return stream.loop(body, name=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("owning", [None, 1, 2])
def test_each_cycle_with_keyed_state_has_one_home(owning: int | None) -> None:
    flow = fc.Flow("cycles")
    numbers = flow.source("numbers", int)
    numbers.key_by(lambda n: n).fold(0, operator.add, name="total").sink("totals")
    for number in range(20):
        turned(numbers, f"cycle {number}").sink(f"out {number}")
    vertices = {vertex.name: vertex for vertex in flow.graph().vertices}
    homes = set()
    plan = Plan(flow.graph(), (FrontId("numbers", 0),), JobSettings(workers=4, owners=owning))
    for cycle in plan.graph.keyed_cycles():
        (home,) = {owner for vertex in cycle for owner in plan.owners_of(vertex)}
        homes.add(home)
    assert homes == set(range(4 - (owning or 4), 4)), "that is one of those that own anything, not the same of all"
    assert set(plan.owners_of(vertices["total"])) == homes, "what is beside them is shared"
    found = {cycle: worker for worker in range(4) for cycle in plan.homes_on(worker)}
    assert set(found) == {f"cycle {number}" for number in range(20)}
    if owning is None:
        assert [found[f"cycle {number}"] for number in range(4)] == HOMES, "in every process and every version"


def test_a_count_beside_a_cycle_is_owned_as_if_it_were_alone() -> None:
    flow, keyed = words()
    keyed.count().sink("counts")
    turned(flow.source("numbers", int), "cycle").sink("out")
    plan = Plan(flow.graph(), (FrontId("lines", 0), FrontId("numbers", 0)), JobSettings(workers=4))
    assert set(plan.owners) == {3}


def test_the_number_of_owners_can_be_set() -> None:
    flow, keyed = words()
    keyed.count().sink("counts")
    fronts = (FrontId("lines", 0),)
    assert set(Plan(flow.graph(), fronts, JobSettings(workers=4, owners=4)).owners) == {0, 1, 2, 3}
    assert set(Plan(flow.graph(), fronts, JobSettings(workers=4, owners=1)).owners) == {3}
    assert set(Plan(flow.graph(), fronts, JobSettings(workers=2, owners=3)).owners) == {0, 1}, "there are no more"


@pytest.mark.parametrize(
    ("split", "of", "owners", "hosts"),
    [
        (str.split, str, None, [0, 1, 2]),
        (str.split, str, 2, [0, 1, 0]),
        (lambda line: line.split(), str, None, [0, 1, 2]),  # what it costs is not known
        (str.split, object, None, [0, 1, 2]),  # nor is it what making a record costs
        (str.split, str, 1, [0, 1, 2]),
        (str.split, str, 4, [0, 1, 2]),
    ],
)
def test_fronts_leave_the_owners_of_keys_alone_if_little_runs_before_these(
    split: Any, of: type, owners: int | None, hosts: list[int]
) -> None:
    flow = fc.Flow("words")
    flow.source("lines", of).flat_map(split).key_by(lambda word: word).count().sink("counts")
    fronts = tuple(FrontId("lines", number) for number in range(3))
    plan = Plan(flow.graph(), fronts, JobSettings(workers=4, owners=owners))
    assert [plan.host_of(number) for number in (1, 2, 3)] == hosts


@pytest.mark.parametrize("before", ["rebalance", "sink", "function"])
def test_fronts_are_shared_if_more_than_light_work_runs_beside_them(before: str) -> None:
    flow = fc.Flow("words")
    lines = flow.source("lines", str)
    if before == "rebalance":
        lines = lines.rebalance()
    elif before == "sink":
        lines.sink("copy")
    else:
        lines = lines.map(lambda line: line)
    lines.flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    fronts = tuple(FrontId("lines", number) for number in range(2))
    plan = Plan(flow.graph(), fronts, JobSettings(workers=2, owners=1))
    assert [plan.host_of(number) for number in (1, 2)] == [0, 1]


def test_a_placement_says_where_fronts_and_key_groups_are() -> None:
    flow, keyed = words()
    keyed.reduce(operator.add).sink("out")
    fronts = tuple(FrontId("lines", number) for number in range(3))
    owned = (2,) * 100 + (0,) * 28
    plan = Plan(flow.graph(), fronts, JobSettings(workers=3), placement=Placement((2, 2), owned))
    assert [plan.host_of(number) for number in (1, 2, 3)] == [2, 2, 2], "the third is dealt out as ever"
    assert plan.owners == owned
    assert plan.placed == Placement((2, 2, 2), owned)


@pytest.mark.parametrize(
    ("hosts", "owned"),
    [
        ((3,), (0,) * 128),
        ((0,), (0,) * 127 + (3,)),
        ((0,), (0,) * 127),
        ((0,), (0,) * 50 + (1,) * 50 + (0,) * 28),
    ],
)
def test_a_placement_must_fit_the_workers(hosts: tuple[int, ...], owned: tuple[int, ...]) -> None:
    flow, keyed = words()
    keyed.count().sink("counts")
    with pytest.raises(ValueError, match=r"workers names|have an owner|not consecutive"):
        Plan(flow.graph(), (), JobSettings(workers=3), placement=Placement(hosts, owned))
