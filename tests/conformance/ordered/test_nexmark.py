"""The queries of Nexmark: the outputs of plain Python over all events, on any number of workers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
QUERIES = ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q11", "q12")


@pytest.fixture(scope="module")
def nexmark() -> Any:
    """Return a function that imports a module of the benchmark, which no distribution has."""
    path = sys.path
    sys.path = [*path, str(ROOT)]

    def find(name: str) -> ModuleType:
        return importlib.import_module(f"benchmarks.nexmark.{name}")

    yield find
    sys.path = path


def test_one_event_in_fifty_is_a_person_and_three_are_auctions(nexmark: Any) -> None:
    made = nexmark("events")
    found = made.events(500)
    kinds = [type(event) for event in found]
    assert [kinds.count(kind) for kind in (made.Person, made.Auction, made.Bid)] == [10, 30, 460]
    assert found == made.events(500)
    assert made.events(300) == found[:300]
    known = {event.id for event in found if type(event) is made.Auction}
    assert {event.auction for event in found if type(event) is made.Bid} <= known | {made.FIRST_ID, made.FIRST_ID + 1}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_plain_python_gives_with_any_number_of_workers(query: str, nexmark: Any) -> None:
    plain = nexmark("plain")
    events = nexmark("events").events(12_000)
    wanted = plain.QUERIES[query](events)
    found = [list(nexmark("queries").flow(query).run({"events": events}, workers=workers)["out"]) for workers in (1, 4)]
    assert wanted
    assert sorted(found[0]) == sorted(wanted)
    assert query not in plain.IN_SEQUENCE or found[0] == wanted
    assert found[1] == found[0]


def test_every_query_is_tested(nexmark: Any) -> None:
    assert tuple(nexmark("queries").QUERIES) == tuple(nexmark("plain").QUERIES) == QUERIES
