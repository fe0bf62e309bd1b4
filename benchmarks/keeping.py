"""The cost of snapshots in throughput: two jobs with and without them.

The jobs are word count and the inverted index.
"""

from __future__ import annotations

import gc
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contenders import index_flow, word_count_flow
from benchmarks.corpora import many_words, synthetic_pages, zipf_lines
from benchmarks.deployed import Run, missing, transport
from benchmarks.processes import measured, say
from benchmarks.report import Spread, Table
from benchmarks.throughput import digests, learn_stems

INTERVAL_S: Final = 0.5
MANY: Final = 1_000_000
"""Words of the large vocabulary."""
WANTED: Final = {"word_count": 0.95, "index": 0.9, "many_words": 0.9}
AWAY_WANTED: Final = 0.85
_LITTLE: Final = 10

Measured = dict[str, Any]


def corpus(job: str, size: int) -> list[Any]:
    """Return `size` words, of a large vocabulary or not, or `size` pages."""
    if job == "index":
        return synthetic_pages(size)
    return list(zipf_lines(size, words=many_words(MANY) if job == "many_words" else None))


def one_run(job: str, size: int, kept: bool) -> Measured:
    """Run a job in this process, on one worker.

    Returns:
        Seconds by the wall and of the processor, how many outputs, the digest of their sequence.
    """
    flow, source, sink = index_flow() if job == "index" else word_count_flow()
    inputs = corpus(job, size)
    if job == "index":
        learn_stems(inputs)

    def run(inputs: Sequence[Any]) -> list[Any]:
        if not kept:
            return flow.run({source: inputs})[sink]
        with tempfile.TemporaryDirectory() as folder:
            return flow.run({source: inputs}, state=folder, settings={"state.interval_s": INTERVAL_S})[sink]

    run(inputs[:_LITTLE])
    gc.collect()
    start, start_cpu = time.perf_counter(), time.process_time()
    outputs = run(inputs)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    sequence, _ = digests(outputs)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "outputs": len(outputs), "sequence": sequence}


def compare(*, words: int, pages: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure every job with and without snapshots, in one process, several rounds."""
    table, facts = _table(""), dict[str, Any]()
    for job, size in {"word_count": words, "index": pages, "many_words": words}.items():
        _alternate(table, facts, f"{job}, 1 worker", partial(_embedded, job, size), rounds, WANTED[job])
    return table, {"jobs": facts, "targets": table.targets}


def compare_away(*, words: int, pages: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Both jobs with and without, on two processes; in turn, several rounds."""
    table, facts = _table(" on 2 processes"), dict[str, Any]()
    if why := missing("socket"):
        table.note(why)
        return table, {"missing": why}
    sizes = {"word_count": words, "index": pages}
    with tempfile.TemporaryDirectory() as folder, transport("socket") as over:
        for job, size in sizes.items():
            full, little = _written(Path(folder), job, size), _written(Path(folder), job, _LITTLE)
            run = partial(_away, job, full, little, over)
            _alternate(table, facts, f"{job}, 2 processes", run, rounds, AWAY_WANTED)
    return table, {"jobs": facts, "targets": table.targets}


def _table(where: str) -> Table:
    columns = ("job", "outputs/s without", "with", "x without", "by CPU time", "by least CPU time")
    return Table(f"Throughput with a snapshot every {INTERVAL_S * 1000:.0f} ms{where}", columns)


def _alternate(
    table: Table, facts: dict[str, Any], name: str, run: Callable[[bool], Measured], rounds: int, wanted: float
) -> None:
    pairs = [(run(False), run(True)) for _ in range(rounds)]
    facts[name] = pairs
    if len({each["sequence"] for pair in pairs for each in pair}) > 1:
        table.fail(name, "with state the outputs are others")
        return
    speeds = [Spread.of([pair[kept]["outputs"] / pair[kept]["seconds"] for pair in pairs]) for kept in (0, 1)]
    wall, cpu = (Spread.of([without[key] / kept[key] for without, kept in pairs]) for key in ("seconds", "cpu_seconds"))
    # Other work on the machine makes a run slower, never faster: the least of several is the nearest to its own.
    least = Spread.of([min(each["cpu_seconds"] for each, _ in pairs) / min(each["cpu_seconds"] for _, each in pairs)])
    table.add(name, *speeds, wall, cpu, least)
    if min(each["seconds"] for each, _ in pairs) < 2 * INTERVAL_S:
        table.note("a run that is over before the second snapshot says nothing")
        return
    table.target(name, f"{name}: times without, by the wall", wall, wanted)
    table.target(name, f"{name}: times without, by least CPU time", least, wanted)


def _embedded(job: str, size: int, kept: bool) -> Measured:
    arguments = {"job": job, "size": size, "kept": kept}
    return measured("keeping", arguments, what=f"keeping: {job}, {'with' if kept else 'without'} state")


def _away(job: str, full: Path, little: Path, over: list[str], kept: bool) -> Measured:
    """Two worker processes, less what starting and ending takes."""
    say(f"keeping: {job} on two processes, {'with' if kept else 'without'} state")
    start, whole = _deployed(job, little, over, kept), _deployed(job, full, over, kept)
    return {**whole, **{key: whole[key] - start[key] for key in ("seconds", "cpu_seconds")}}


def _deployed(job: str, path: Path, over: list[str], kept: bool) -> Measured:
    flow, source, driver, sink = {
        "word_count": ("costly_words", "lines", "lines", "counts"),
        "index": ("index", "pages", "jsonl", "index"),
    }[job]
    edges = ["--source", f"{source}={driver}", "--set", f"source.{source}.path={path}", "--sink", f"{sink}=stdout"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryDirectory() as folder:
        state = ["--set", "state.use=sqlite", "--set", f"state.path={folder}"] if kept else []
        state += ["--set", f"state.interval_s={INTERVAL_S}"] if kept else []
        run = Run(flow, [*edges, "-w", "2", *over, *state], stdout=out)
        summary = run.finish()
        out.seek(0)
        return {
            "seconds": summary["elapsed_s"],
            "cpu_seconds": sum(run.spent.values()),
            "outputs": sum(summary["items_out"].values()),
            "sequence": hashlib.file_digest(out, "sha256").hexdigest(),
        }


def _written(folder: Path, job: str, size: int) -> Path:
    path = folder / f"{job}-{size}"
    records = corpus(job, size)
    lines = records if job == "word_count" else [json.dumps(page._asdict()) for page in records]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
