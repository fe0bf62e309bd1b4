"""The search for records behind the end of a job: what the control tells all workers, and when."""

from __future__ import annotations

import pytest

import flamecore as fc
from flamecore.model.messages import Found, FoundNothing, FrontEnded, Resume, Searched
from flamecore.model.meta import FrontId
from flamecore.model.ordered import Marking
from flamecore.model.plan import Plan
from flamecore.runtime.parts.search import Search, must_search


def plan(closes: bool | None = None) -> Plan:
    flow = fc.Flow("behind")
    flow.source("n", int).apply(Marking, function=lambda n: n, closes=closes).sink("out")
    return Plan(flow.graph(), tuple(FrontId("n", number) for number in range(3)))


def test_the_first_that_is_found_is_told_once() -> None:
    search = Search(plan())
    assert search.receive(FoundNothing(1)) is None
    assert search.receive(Found(2)) == Searched(found=True)
    for word in (Found(0), FoundNothing(2), FrontEnded(2, 9), FrontEnded(3, 9)):
        assert search.receive(word) is None


@pytest.mark.parametrize("last", [FoundNothing(2), FrontEnded(2, 9)])
def test_nothing_is_found_once_all_fronts_have_looked(last: FoundNothing | FrontEnded) -> None:
    """A front that had ended before has nothing to look for."""
    search = Search(plan())
    assert search.receive(FrontEnded(1, 9)) is None
    assert search.receive(FoundNothing(3)) is None
    assert search.receive(last) == Searched(found=False)
    assert search.receive(FrontEnded(3, 9)) is None


def test_nothing_is_decided_of_a_front_that_was_stopped() -> None:
    """It may find something in the next run, in which those that wait are to look again."""
    search = Search(plan())
    for word in (FoundNothing(1), FrontEnded(2, 7, stopped=True), FoundNothing(3)):
        assert search.receive(word) is None
    assert search.receive(Found(0)) == Searched(found=True), "before it was stopped"


def resume(*fronts: tuple[object, int, bool, int]) -> Resume:
    return Resume("mine", 2, "", (), fronts, 0)


def test_there_is_a_search_where_fronts_go_on_behind_the_end() -> None:
    assert must_search(plan(), resume((3, 7, True, 0), (3, 7, False, 8)))
    assert not must_search(plan(), resume((3, 7, True, 8), (3, 8, False, 8)))
    assert not must_search(plan(), resume((None, 0, False, 0)))


def test_a_front_that_has_gone_on_or_ended_is_not_behind_the_end() -> None:
    assert resume((3, 7, False, 8), (3, 7, True, 8), (3, 8, False, 8), (3, 9, False, 8)).behind_end == {1}


def test_there_is_none_if_ends_are_marks() -> None:
    """A run may be for these alone."""
    assert not must_search(plan(closes=True), resume((3, 7, False, 8)))
