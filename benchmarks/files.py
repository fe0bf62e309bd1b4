"""One corpus in 1, 2, 8 and 200 files: the cost of reading many of them together.

The lines are dealt out to the files in turn, so on the sequence clock all jobs have the same outputs, byte for byte.
Start and end are left out: the same job over one line a file, run in the same round, is subtracted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.corpora import zipf_lines
from benchmarks.deployed import missing, transport
from benchmarks.processes import say
from benchmarks.report import Spread, Table
from benchmarks.several import NOTHING, SHORT_S, Measured, run_lines

FILES: Final = (1, 2, 8, 200)
WORKERS: Final = (1, 2)
CLOCKS: Final = ("sequence", "wall")
WANTED: Final = 0.9


def compare(*, words: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Run each number of files in turn, on one worker and on two.

    One worker runs in one process, two run in two processes over sockets.
    """
    columns = ("workers, clock, files", "lines/s", "x 1 file", "by CPU time")
    table = Table(f"Word count in lines/s, {words:,} words in several files", columns)
    if why := missing("socket"):
        table.note(why)
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, transport("socket") as over:
        full, little = ({files: _dealt(Path(folder), kind, files, words) for files in FILES} for kind in ("all", "few"))
        for workers in WORKERS[: 1 if why else None]:
            for clock in CLOCKS:
                settings = ["-w", str(workers), "--set", f"job.clock={clock}", *(over if workers > 1 else [])]
                runs: dict[int, list[Measured]] = {files: [] for files in FILES}
                for _ in range(rounds):
                    for files in FILES:
                        say(f"files: {files}, {workers} workers, {clock}")
                        start = run_lines("words", little[files], settings)
                        runs[files].append(run_lines("words", full[files], settings).without(start))
                _judge(table, facts, f"{workers} {clock}", words // 10, runs)
    return table, {"runs": facts, "targets": table.targets}


def _judge(table: Table, facts: dict[str, Any], way: str, lines: int, runs: dict[int, list[Measured]]) -> None:
    sequence = way.endswith("sequence")
    if sequence and len({run.digest for found in runs.values() for run in found}) != 1:
        table.fail(way, "the outputs depend on the number of files")
        return
    if min(run.seconds for found in runs.values() for run in found) < SHORT_S:
        table.note(NOTHING)
        return
    for files, found in runs.items():
        pairs = list(zip(runs[1], found, strict=True))
        name, speed = f"{way}, {files}", Spread.of([lines / run.seconds for run in found])
        wall = Spread.of([one.seconds / many.seconds for one, many in pairs])
        spent = min(many.busiest for _, many in pairs) > 0  # nothing where nobody tells
        cpu = Spread.of([one.busiest / many.busiest for one, many in pairs]) if spent else None
        table.add(name, speed, wall, cpu or "-")
        facts[name] = {"lines_per_s": speed.facts(), "times_one_file": wall.facts(), "by_cpu": cpu and cpu.facts()}
        table.target("flamestream", f"{name} files, times 1 file", cpu or wall, WANTED)


def _dealt(folder: Path, kind: str, files: int, words: int) -> str:
    """Deal lines out to files; return the pattern of their names.

    Each file gets one line, or its share of all lines.
    """
    place = folder / f"{kind}-{files}"
    place.mkdir()
    lines = [f"{line}\n" for line in zipf_lines(words if kind == "all" else files * 10)]
    for number in range(files):
        (place / f"{number:03}.txt").write_text("".join(lines[number::files]))
    return f"{place}/*.txt"
