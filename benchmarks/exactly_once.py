"""The cost of snapshots in latency: the inverted index at a fixed rate.

It runs without state, and with snapshots at several intervals.

Beside it stands what it would cost if outputs waited for the snapshot that covers them, as they do where an engine
cannot make the same outputs twice (paper 000, "Fault tolerance"): the same job, whose sink keeps what it is given until
that snapshot is recorded. A feeder hands over the lines, as in `benchmarks.latency`; each is a page of ten words.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from benchmarks.latency import Arrivals, fed, ready, told
from benchmarks.noting import NOTING, noting
from benchmarks.processes import say
from benchmarks.report import Spread, Table

if TYPE_CHECKING:
    from flamestream_demo.inverted_index import Change
    from flamestream_demo.pages import Page

RATE: Final = 500
"""Pages a second."""
INTERVALS_MS: Final = (50, 500, 1000)
P50_TIMES: Final = 1.25
P99_TIMES: Final = 2.0

_REVISED: Final = 10
_BACK: Final = 5


def page_of(line: str) -> Page:
    """Return the page of a line: its number and its words.

    Every tenth is a newer version of the fifth before it.
    """
    from flamestream_demo.pages import Page

    number, _, text = line.partition(" ")
    page = int(number)
    return Page(page - _BACK if page % _REVISED == _REVISED - 1 else page, "", text)


def line_of(change: Change) -> int:
    """Return the line that an added posting comes from."""
    return change.page + _BACK if change.version > 1 else change.page


def one_run(interval_ms: int, held: bool) -> dict[str, Any]:
    """Index the lines of stdin in this process.

    Args:
        interval_ms: A snapshot so often; 0: no state is kept.
        held: Outputs wait for the snapshot that covers them.
    """
    import flamecore as fc
    from benchmarks.corpora import vocabulary
    from flamecore.runtime.state.format import Binding, decode_manifest
    from flamecore.testing import override
    from flamestream_demo import inverted_index as index
    from flamestream_demo.postings import EMPTY
    from flamestream_demo.text import stems
    from flamestream_stores.sqlite import Sqlite

    arrivals = Arrivals()
    waiting: deque[tuple[int, Sequence[Change]]] = deque()
    taken: list[int] = []
    written = 0

    def arrive(changes: Sequence[Change]) -> None:
        arrivals.note([change for change in changes if change.change == "add"], line_of)

    def take(time: int, payloads: Sequence[Any]) -> None:
        if held:
            waiting.append((time, payloads))
        else:
            arrive(payloads)

    class Telling(Sqlite):
        async def create(self, name: str, data: bytes) -> bool:
            nonlocal written
            written += len(data)
            created = await super().create(name, data)
            if name.startswith("commit/"):
                recorded = decode_manifest(data, name, Binding()).time
                taken.append(recorded)
                while waiting and waiting[0][0] <= recorded:
                    arrive(waiting.popleft()[1])
            return created

    stems(" ".join(vocabulary()))  # the stemmer is pure Python, and would hide the engine behind it
    flow = fc.Flow("index")
    versions = flow.source("lines", str).map(page_of).key_by(index.page_id).stateful_map(0, index.number_version)
    words = versions.flat_map(index.split_page).key_by(index.word_of)
    words.stateful_map(EMPTY, index.index_word).sink("index")
    settings: dict[str, Any] = {"source.lines.use": "stdin", "sink.index.use": NOTING}
    start = time.process_time()
    with (
        tempfile.TemporaryDirectory() as folder,
        noting(take, ready),
        override("store", "told", Telling),
    ):
        if interval_ms:
            settings |= {"state.use": "told", "state.path": folder, "state.interval_s": interval_ms / 1000}
        flow.run(settings=settings)
    busy = time.process_time() - start
    return {
        "last": list(arrivals.last.items()),
        "updates": arrivals.updates,
        "cpu_seconds": busy,
        "snapshots": len(taken),
        "kb_a_snapshot": written / 1e3 / max(len(taken), 1),
    }


def compare(*, lines: int, rounds: int, rate: int = RATE) -> tuple[Table, dict[str, Any]]:
    """Measure all contenders in turn, several rounds."""
    field: dict[str, tuple[int, bool]] = {"no state": (0, False)}
    field |= {f"snapshot every {each} ms": (each, False) for each in INTERVALS_MS}
    field |= {f"release on snapshot, {each} ms": (each, True) for each in INTERVALS_MS}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in field}
    updates: set[int] = set()
    for _ in range(rounds):
        for name, (interval, held) in field.items():
            what = f"exactly_once: {name}"
            say(what)
            arguments = {"interval_ms": interval, "held": held}
            result, handed = fed("exactly_once", arguments, lines=lines, rate=rate, what=what)
            updates.add(result["updates"])
            more = {key: result[key] for key in ("snapshots", "kb_a_snapshot")}
            runs[name].append({**told(result, handed, rate=rate, what=what), **more})
    columns = ("index, 1 worker", "p50", "x no state", "p99", "x no state", "max", "snapshots", "KB each", "CPU share")
    table = Table(f"Release latency in ms at {rate:,} pages/s, with snapshots", columns)
    none = runs["no state"]
    for name, found in runs.items():
        if len(updates) > 1:
            table.fail(name, "not all contenders give as many outputs")
            continue
        spreads = {key: Spread.of([run[key] for run in found]) for key in found[0]}
        times = {
            key: Spread.of([run[key] / base[key] for base, run in zip(none, found, strict=True)])
            for key in ("p50_ms", "p99_ms")
        }
        cells = (spreads["p50_ms"], times["p50_ms"], spreads["p99_ms"], times["p99_ms"])
        table.add(name, *cells, spreads["max_ms"], spreads["snapshots"], spreads["kb_a_snapshot"], spreads["cpu_share"])
        if field[name][0] and not field[name][1]:
            table.target(name, f"p50, {name}, times no state", times["p50_ms"], P50_TIMES, at_most=True)
            table.target(name, f"p99, {name}, times no state", times["p99_ms"], P99_TIMES, at_most=True)
    return table, {"lines": lines, "rate": rate, "contenders": runs, "targets": table.targets}
