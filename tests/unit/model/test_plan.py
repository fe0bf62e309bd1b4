"""What all workers of a job agree on: which of them own key groups."""

from __future__ import annotations

import operator

import pytest

import flamecore as fc
from flamecore.model.meta import FrontId
from flamecore.model.plan import Plan, owning_workers


def words() -> tuple[fc.Flow, fc.KeyedStream[str, str]]:
    flow = fc.Flow("words")
    return flow, flow.source("lines", str).flat_map(str.split).key_by(str.lower)


@pytest.mark.parametrize(("workers", "owning"), [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4)])
def test_half_of_the_workers_own_counts(workers: int, owning: int) -> None:
    flow, keyed = words()
    keyed.count().sink("counts")
    assert owning_workers(flow.graph(), workers) == owning
    plan = Plan(flow.graph(), workers, (FrontId("lines", 0),))
    assert set(plan.owners) == set(range(workers - owning, workers))


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


def test_the_number_of_owners_can_be_set() -> None:
    flow, keyed = words()
    keyed.count().sink("counts")
    fronts = (FrontId("lines", 0),)
    assert set(Plan(flow.graph(), 4, fronts, owning=4).owners) == {0, 1, 2, 3}
    assert set(Plan(flow.graph(), 4, fronts, owning=1).owners) == {3}
    assert set(Plan(flow.graph(), 2, fronts, owning=3).owners) == {0, 1}, "there are no more"
