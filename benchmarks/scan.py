"""Word count by scan, on one process and on two over sockets, from two files and from one.

Workers exchange counts of blocks and send no items, so this compares the greatest CPU time of any process of a run, the
supervisor included. Lines of one file are dealt out by blocks. Start and end are left out: the same job over a few
lines, run in the same round, is subtracted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.corpora import zipf_lines
from benchmarks.deployed import missing, transport
from benchmarks.processes import say
from benchmarks.report import Spread, Table
from benchmarks.several import NOTHING, Measured, run_lines

WORKERS: Final = 2
WANTED: Final = {2: 1.5, 1: 1.2}
_FLOWS: Final = {2: "scanned_words", 1: "scanned_lines"}
_LITTLE: Final = 100
_SHORT_CPU_S: Final = 0.5


def compare(*, words: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Run each number of files on one process and on two, in turn.

    Args:
        words: Number of words, ten a line.
        rounds: Number of rounds.
    """
    columns = ("files", "1 process, CPU s", "busiest of 2, CPU s", "all of 2, CPU s", "x 1 process", "by the busiest")
    table = Table(f"Word count by scan of {words:,} words, by CPU time", columns)
    if why := missing("socket"):
        table.note(why)
        return table, {"missing": why}
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, transport("socket") as over:
        folder = Path(name)
        modes = {1: ["-w", "1"], WORKERS: ["-w", str(WORKERS), *over]}
        for files, flow in _FLOWS.items():
            full, little = (_written(folder / f"{count} {files}", count, files) for count in (words, _LITTLE))
            runs: dict[int, list[Measured]] = {workers: [] for workers in modes}
            for _ in range(rounds):
                for workers, settings in modes.items():
                    say(f"scan: {files} files, {workers} workers")
                    arguments = [*settings, "--set", "job.clock=blocks"]
                    start = run_lines(flow, little, arguments)
                    runs[workers].append(run_lines(flow, full, arguments).without(start))
            _judge(table, facts, files, words, runs)
    return table, {"runs": facts, "targets": table.targets}


def _judge(table: Table, facts: dict[str, Any], files: int, words: int, runs: dict[int, list[Measured]]) -> None:
    if len({run.digest for found in runs.values() for run in found}) != 1:
        table.fail(str(files), "two processes give other outputs than one")
        return
    # Also where the system tells no CPU time.
    if min(run.busiest for found in runs.values() for run in found) < _SHORT_CPU_S:
        table.note(NOTHING)
        return
    pairs = list(zip(runs[1], runs[WORKERS], strict=True))
    one = Spread.of([run.busiest for run in runs[1]])
    busiest, cpu = (Spread.of([getattr(run, of) for run in runs[WORKERS]]) for of in ("busiest", "cpu"))
    wall = Spread.of([one.seconds / two.seconds for one, two in pairs])
    ratio = Spread.of([one.busiest / two.busiest for one, two in pairs])
    table.add(files, one, busiest, cpu, wall, ratio)
    facts[str(files)] = {
        "words": words,
        "one_cpu_s": one.facts(),
        "busiest_cpu_s": busiest.facts(),
        "all_cpu_s": cpu.facts(),
        "times_one": wall.facts(),
        "times_one_by_busiest": ratio.facts(),
    }
    table.target("2 processes", f"scan of {files} files: busiest process, times 1 process", ratio, WANTED[files])


def _written(folder: Path, words: int, files: int) -> str:
    """Deal lines out to files in turn; return the pattern of their names."""
    folder.mkdir()
    lines = [f"{line}\n" for line in zipf_lines(words)]
    for number in range(files):
        (folder / f"{number:03}.txt").write_text("".join(lines[number::files]))
    return f"{folder}/*.txt"
