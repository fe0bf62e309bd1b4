"""Windows over a folder into which files come from run to run: a file that was read whole holds nothing back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import FlameError

Record = tuple[float, str, int]


def flow(check: Callable[[Any], Any] = lambda record: record) -> fc.Flow:
    flow = fc.Flow("arrivals")
    timed: w.Timed[Any] = w.event_time(flow.source("records", list), lambda record: record[0], unit="s")
    keyed = timed.map(check).key_by(lambda record: record[1])
    sums = keyed.window(w.fixed(seconds=10)).sum(lambda record: record[2])
    sums.map(lambda pane: [pane.key, pane.window.start // 1_000_000, pane.value]).sink("sums")
    return flow


def run(place: Path, *, workers: int = 1, clock: str = "sequence", given: fc.Flow | None = None) -> list[Any]:
    """Run the job over the files that are there, and return all outputs so far."""
    settings = {
        "job.clock": clock,
        "job.guarantee": "exactly_once",
        "state.interval_s": 0.01,
        "source.records.use": "jsonl",
        "source.records.path": str(place / "in"),
        "sink.sums.use": "jsonl",
        "sink.sums.path": str(place / "sums.jsonl"),
    }
    (given or flow()).run(workers=workers, state=place / "state", settings=settings)
    return [json.loads(line) for line in (place / "sums.jsonl").read_text().splitlines()]


def write(place: Path, name: str, *records: Record) -> Path:
    path = place / "in" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)
    return path


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("removed", [False, True], ids=["all files stay", "old files go"])
def test_new_files_close_the_windows_of_old_ones(tmp_path: Path, workers: int, clock: str, removed: bool) -> None:
    for number in range(1, 5):
        path = write(tmp_path, f"{number}.jsonl", (number * 10 + 1, "a", 1), (number * 10 + 8, "a", number))
        found = run(tmp_path, workers=workers, clock=clock)
        assert found == [["a", before * 10, before + 1] for before in range(1, number)]
        if removed:
            path.unlink()


@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_a_start_that_finds_nothing_new_closes_no_window(tmp_path: Path, clock: str) -> None:
    write(tmp_path, "1.jsonl", (11, "a", 1), (15, "b", 2))
    write(tmp_path, "2.jsonl", (12, "a", 3), (48, "b", 4))
    first = run(tmp_path, clock=clock)
    for workers in (1, 2, 3):
        assert run(tmp_path, workers=workers, clock=clock) == first == []
    write(tmp_path, "1.jsonl", (47, "a", 5))
    found = sorted(run(tmp_path, clock=clock))
    assert found == [["a", 10, 4], ["b", 10, 2]], "what is appended to the slower file is not late"


def test_an_empty_file_holds_nothing_back(tmp_path: Path) -> None:
    write(tmp_path, "1.jsonl")
    write(tmp_path, "2.jsonl", (11, "a", 1), (28, "a", 2))
    assert run(tmp_path) == [["a", 10, 1]]
    write(tmp_path, "1.jsonl", (22, "a", 3), (35, "a", 4))
    assert run(tmp_path, workers=2) == [["a", 10, 1], ["a", 20, 5]]


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_run_that_fails_and_goes_on_gives_what_one_without_faults_does(
    tmp_path: Path, fails_at: int, clock: str
) -> None:
    outputs = []
    for name, broken in (("whole", False), ("broken", True)):
        place = tmp_path / name
        place.mkdir()
        write(place, "1.jsonl", (11, "a", 1), (12, "b", 2))
        write(place, "2.jsonl", (14, "a", 3), (19, "b", 4))
        run(place, clock=clock)
        write(place, "2.jsonl", (33, "a", 5), (34, "b", 6))
        write(place, "3.jsonl", *[(20 + 5 * number, "c", number) for number in range(6)])
        seen = 0

        def check(record: Any, *, broken: bool = broken) -> Any:
            nonlocal seen
            seen += 1
            if broken and seen == fails_at:
                raise ValueError("on the way")
            return record

        if broken:
            with pytest.raises(FlameError, match="on the way"):
                run(place, clock=clock, given=flow(check))
        run(place, clock=clock)
        write(place, "4.jsonl", (100, "d", 1), (101, "d", 1))
        outputs.append(run(place, workers=2, clock=clock))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 5
