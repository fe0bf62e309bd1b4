"""Two inverted indexes into files, on one process and on two over sockets, which write one file or each its own.

Words of the one go to the worker that owns the word; those of the other, whose keys are words on pages, stay with the
worker that is dealt the page.

With one file the process of the control stores the outputs of all workers. The limit of a job is then its busiest
process, so this compares the greatest CPU time of any process of a run, the supervisor included. Start and end are left
out: the same job over a few pages, run in the same round, is subtracted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.corpora import synthetic_pages
from benchmarks.deployed import Run, missing, transport
from benchmarks.processes import say
from benchmarks.report import Spread, Table
from benchmarks.several import NOTHING

WORKERS: Final = 2
WANTED: Final = 1.6
_FILES: Final = 2 * WORKERS
_LITTLE: Final = 10
_ONE: Final = "1 process, one file"
_ORDERED: Final = f"{WORKERS} processes, one file"
_PARTITIONED: Final = f"{WORKERS} processes, partitions"
_SHUFFLED: Final = "by word"
_PLACED: Final = "by page"
_FLOWS: Final = {_SHUFFLED: "tokenized_index", _PLACED: "page_words"}
_SHORT_CPU_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its times in seconds, and the digest of its outputs.

    The times are wall time, CPU time of the supervisor, and CPU time of each other process.
    """

    seconds: float
    supervisor: float
    others: tuple[float, ...]
    digest: str

    def without(self, little: Measured) -> Measured:
        """Return the measures without the cost of starting and ending."""
        others = [spent - start for spent, start in zip(self.others, little.others, strict=True)]
        seconds, supervisor = self.seconds - little.seconds, self.supervisor - little.supervisor
        return Measured(seconds, supervisor, tuple(others), self.digest)

    @property
    def busiest(self) -> float:
        """CPU time of the busiest process."""
        return max(self.supervisor, *self.others, 0.0)

    @property
    def cpu(self) -> float:
        """CPU time of all processes."""
        return self.supervisor + sum(self.others)


def compare(*, pages: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Run each way in turn.

    Args:
        pages: Number of made-up pages.
        rounds: How often.
    """
    columns = (
        "key",
        "way",
        "supervisor, CPU s",
        "busiest, CPU s",
        "all, CPU s",
        "x 1 process",
        "CPU, x 1",
        "by the busiest",
    )
    table = Table(f"Inverted index of {pages:,} made-up pages into files, by CPU time", columns)
    if why := missing("socket"):
        table.note(why)
        return table, {"missing": why}
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, transport("socket") as over:
        folder = Path(name)
        full, little = _written(folder / "full", pages), _written(folder / "little", _LITTLE)
        ways = {
            _ONE: ["-w", "1"],
            _ORDERED: ["-w", str(WORKERS), *over],
            _PARTITIONED: ["-w", str(WORKERS), *over, "--set", "sink.index.order=partitioned"],
        }
        for key, flow in _FLOWS.items():
            runs: dict[str, list[Measured]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, settings in ways.items():
                    say(f"partitioned: {key}, {way}")
                    start = _run(flow, little, folder / "out", settings)
                    runs[way].append(_run(flow, full, folder / "out", settings).without(start))
            facts[key] = _judge(table, key, runs)
    return table, {"pages": pages, "runs": facts, "targets": table.targets}


def _judge(table: Table, key: str, runs: dict[str, list[Measured]]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if len({run.digest for found in runs.values() for run in found}) != 1:
        table.fail(f"{key}, {_PARTITIONED}", "its partitions, merged, are not what one process writes")
        return facts
    for way, found in runs.items():
        if min(run.busiest for run in found) < _SHORT_CPU_S:  # also where the system does not tell
            table.note(NOTHING)
            return facts
        pairs = list(zip(runs[_ONE], found, strict=True))
        times = [Spread.of([getattr(run, of) for run in found]) for of in ("supervisor", "busiest", "cpu")]
        wall = Spread.of([one.seconds / run.seconds for one, run in pairs])
        cpu = Spread.of([run.cpu / one.cpu for one, run in pairs])
        ratio = Spread.of([one.busiest / run.busiest for one, run in pairs])
        table.add(key, way, *times, wall, cpu, ratio)
        facts[way] = {
            **{f"{of}_cpu_s": time.facts() for of, time in zip(("supervisor", "busiest", "all"), times, strict=True)},
            "times_one": wall.facts(),
            "cpu_times_one": cpu.facts(),
            "times_one_by_busiest": ratio.facts(),
        }
        if (key, way) == (_PLACED, _PARTITIONED):
            table.target("2 processes", f"{key}, {way}: busiest process, times 1 process", ratio, WANTED)
    return facts


def _run(flow: str, pages: str, out: Path, settings: list[str]) -> Measured:
    """Run the job into an empty place, and read the sequence of its outputs."""
    source = ["--source", "pages=jsonl", "--set", f"source.pages.path={pages}"]
    sink = ["--sink", "index=jsonl", "--set", f"sink.index.path={out}"]
    run = Run(flow, [*source, *sink, *settings], stdout=subprocess.PIPE)
    summary = run.finish()
    supervisor = run.spent.get(run.process.pid, 0.0)
    others = tuple(spent for pid, spent in sorted(run.spent.items()) if pid != run.process.pid)
    measured = Measured(summary["elapsed_s"], supervisor, others, _digest(out))
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    return measured


def _digest(out: Path) -> str:
    """Return the digest of a file, or of files in partitions in their one order."""
    digest = hashlib.sha256()
    if out.is_dir():
        from flamecore.abc.source import EdgeContext
        from flamestream_edges.jsonl import JsonlSink

        sink = JsonlSink(JsonlSink.Options(path=str(out)), EdgeContext("index")).partitioned()
        for piece in sink.merged():
            digest.update(piece)
    else:
        with out.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    return digest.hexdigest()


def _written(folder: Path, pages: int) -> str:
    """Deal pages out to files; return the pattern of their names."""
    folder.mkdir()
    rows = [f"{json.dumps(page._asdict())}\n" for page in synthetic_pages(pages)]
    for number in range(_FILES):
        (folder / f"{number:03}.jsonl").write_text("".join(rows[number::_FILES]))
    return f"{folder}/*.jsonl"
