"""The contenders: each job as a plain loop, as a flow, and as peers have it.

A contender takes all input in memory and returns every output in memory, so that engines are compared and not disks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import flamecore as fc

ACKERS: Final = ("centralized", "local", "sharded")
WORKERS: Final = (1, 4)

Runner = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run a job.

    Attributes:
        name: Shows in tables, and names it to the process that runs it.
        kind: "plain", "flamestream" or "bytewax".
        ordered: Whether it promises the sequence of outputs, or only the sequence of each key.
        workers, acker: Settings of flamestream.
        batches: Whether Bytewax uses its operators for whole batches.
        collector: Whether Python's cyclic garbage collector runs as it does by default.
    """

    name: str
    kind: str
    ordered: bool = True
    workers: int = 1
    acker: str = "centralized"
    batches: bool = False
    collector: bool = True


PLAIN: Final = Contender("plain loop", "plain")
PLAIN_UNCOLLECTED: Final = Contender("plain loop, no collector", "plain", collector=False)
"""Nothing in Python can be faster. The collector visits every tuple that a loop makes, again and again."""
FLAMESTREAM: Final = tuple(
    Contender(f"flamestream {acker} {workers}w", "flamestream", workers=workers, acker=acker)
    for workers in WORKERS
    for acker in ACKERS
)
BYTEWAX: Final = Contender("bytewax 1w", "bytewax", ordered=False)
BYTEWAX_BATCHES: Final = Contender("bytewax 1w batches", "bytewax", ordered=False, batches=True)
OURS: Final = FLAMESTREAM[0]
"""The one that targets are set for: one worker, centralized acker."""


def contenders(job: str) -> list[Contender]:
    """Everybody who can run the job here."""
    found = [PLAIN, *FLAMESTREAM]
    if job != "latency":
        found.insert(1, PLAIN_UNCOLLECTED)
    if find_spec("bytewax") is not None:
        found.append(BYTEWAX)
        if job == "word_count":
            found.append(BYTEWAX_BATCHES)
    return found


def named(name: str) -> Contender:
    """Return the contender of that name."""
    return next(one for one in (PLAIN, PLAIN_UNCOLLECTED, *FLAMESTREAM, BYTEWAX, BYTEWAX_BATCHES) if one.name == name)


def runner(job: str, contender: Contender) -> Runner:
    """Import what is needed, and return the function that is measured."""
    if contender.kind == "plain":
        return {"word_count": plain_word_count, "index": plain_index}[job]
    if contender.kind == "bytewax":
        from benchmarks import bytewax_jobs

        if job == "index":
            return bytewax_jobs.index
        return bytewax_jobs.word_count_batches if contender.batches else bytewax_jobs.word_count
    flow, source, sink = {"word_count": word_count_flow, "index": index_flow}[job]()

    def run(inputs: Sequence[Any]) -> list[Any]:
        return flow.run({source: inputs}, workers=contender.workers, acker=contender.acker)[sink]

    return run


def plain_word_count(lines: Sequence[str]) -> list[tuple[str, int]]:
    """Return every update of every count, with no framework at all."""
    counts: dict[str, int] = {}
    updates = []
    for line in lines:
        for word in line.split():
            count = counts.get(word, 0) + 1
            counts[word] = count
            updates.append((word, count))
    return updates


def plain_index(pages: Sequence[Any]) -> list[Any]:
    """Return the change log of the inverted index, with no framework at all."""
    from flamestream_demo import testing

    return list(testing.plain_index(pages))


def word_count_flow() -> tuple[fc.Flow, str, str]:
    """Return the flow, its source and its sink."""
    import flamecore as fc

    flow = fc.Flow("word-count")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    return flow, "lines", "counts"


def index_flow() -> tuple[fc.Flow, str, str]:
    """Return the flow of the demo, its source and its sink."""
    from flamestream_demo.inverted_index import flow

    return flow, "pages", "index"
