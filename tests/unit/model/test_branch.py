"""Branches whose predicates fail: a record fails once, whatever the number of ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import flamecore as fc
from flamecore.errors import OperationError

pytestmark = pytest.mark.usefixtures("installed")


Found = tuple[list[list[int]], list[str]]
Ways = Callable[..., Found]


def below(limit: int, bad: int) -> Callable[[int], bool]:
    def predicate(number: int) -> bool:
        if number == bad:
            raise ValueError(f"{number} is refused")
        return number < limit

    return predicate


@pytest.fixture
def ways(tmp_path: Path) -> Ways:
    """Return a function that runs a branch over numbers: what goes each way, and the operations that failed."""

    def run(predicates: list[Callable[[int], object]], workers: int, on_error: str = "dead_letter") -> Found:
        flow = fc.Flow("ways")
        for place, way in enumerate(flow.source("numbers", int).branch(*predicates)):
            way.sink(f"way {place}")
        letters = tmp_path / "dead.jsonl"
        settings = {"job.on_error": on_error, "dead_letter.use": "jsonl", "dead_letter.path": str(letters)}
        found = flow.run({"numbers": range(5)}, workers=workers, settings=settings)
        return list(found.values()), [json.loads(line)["vertex"] for line in letters.read_text().splitlines()]

    return run


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_predicate_that_fails_makes_one_dead_letter_of_the_record(ways: Ways, place: int, workers: int) -> None:
    predicates: list[Callable[[int], object]] = [below(1, -1), below(2, -1), below(4, -1)]
    predicates[place] = below([1, 2, 4][place], 4 if place == 2 else 3)
    found, failed = ways(predicates, workers)
    assert failed == [f"branch.{place}"]
    assert found == ([[0], [1], [2, 3], []] if place == 2 else [[0], [1], [2], [4]])


@pytest.mark.parametrize("workers", [1, 3])
def test_one_predicate_that_fails_makes_one_dead_letter(ways: Ways, workers: int) -> None:
    assert ways([below(2, 2)], workers) == ([[0, 1], [3, 4]], ["branch.0"])


@pytest.mark.parametrize("workers", [1, 3])
def test_a_predicate_that_fails_ends_the_job_by_default(ways: Ways, workers: int) -> None:
    with pytest.raises(OperationError, match=r"'branch\.1' failed: ValueError: 3 is refused"):
        ways([below(1, -1), below(2, 3)], workers, "fail")
