"""Keys that are records: their state is found again, or missed aloud, when their class has changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import CodecError


@dataclass(frozen=True)
class Town:
    name: str


@dataclass(frozen=True)
class City:
    """A town that was renamed."""

    name: str


@dataclass(frozen=True)
class Place:
    """One that has another field since."""

    name: str
    country: str = "DE"


def flow_of(key: Callable[[str], Any], kind: type[Any]) -> fc.Flow:
    flow = fc.Flow("towns")
    flow.codec(kind, name="town")
    flow.source("lines", str).key_by(key).count(name="count").map(lambda pair: (pair[0].name, pair[1])).sink("out")
    return flow


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[Any]]:
    """Return a function that runs a flow over more lines, for all outputs so far."""
    lines = tmp_path / "lines.txt"

    def run(flow: fc.Flow, workers: int) -> list[Any]:
        with lines.open("a") as file:
            file.writelines(f"w{number % 40}\n" for number in range(200))
        settings = {
            "job.owners": workers,
            "source.lines.use": "lines",
            "source.lines.path": str(lines),
            "sink.out.use": "jsonl",
            "sink.out.path": str(tmp_path / "out.jsonl"),
        }
        flow.run(workers=workers, state=tmp_path / "state", settings=settings)
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    return run


WANTED = [[f"w{number % 40}", 1 + number // 40] for number in range(400)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_class_of_keys_may_be_renamed(run: Callable[..., list[Any]], workers: int) -> None:
    run(flow_of(lambda line: Town(line), Town), 2)
    assert run(flow_of(lambda line: City(line), City), workers) == WANTED


@pytest.mark.parametrize("workers", [2, 3])
def test_a_class_of_keys_that_has_another_form_is_refused(run: Callable[..., list[Any]], workers: int) -> None:
    run(flow_of(lambda line: Town(line), Town), 2)
    with pytest.raises(CodecError, match="not where a key of that hash is stored"):
        run(flow_of(lambda line: Place(line), Place), workers)
