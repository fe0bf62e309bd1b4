"""The one command: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import (
    away,
    codec,
    cycles,
    exactly_once,
    files,
    idle,
    keeping,
    large_state,
    latency,
    machine,
    memory,
    partitioned,
    recovery,
    several,
    skewed,
    sparkfeed,
    sparkhost,
    sparkindex,
    sparkmemory,
    sparkstate,
    start,
    throughput,
    tracking,
    windows,
)
from benchmarks.corpora import default_dump
from benchmarks.nexmark import measure as nexmark
from benchmarks.processes import RunError, say
from benchmarks.report import Table

Measurement = Callable[[], tuple[Table, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amounts to measure."""

    words: int
    pages: int
    lines: int
    costly: int
    tracked: int
    runs: int
    starts: int
    idle_s: float
    payloads: int
    many_words: int
    keys: int
    rows: int
    events: int
    megabytes: float


_FULL = Sizes(
    words=1_000_000,
    pages=10_000,
    lines=5_000,
    costly=500_000,
    tracked=2_000,
    runs=5,
    starts=15,
    idle_s=5.0,
    payloads=20_000,
    many_words=3_000_000,
    keys=1_000_000,
    rows=1_000_000,
    events=200_000,
    megabytes=200,
)
_QUICK = Sizes(
    words=100_000,
    pages=500,
    lines=500,
    costly=5_000,
    tracked=100,
    runs=1,
    starts=3,
    idle_s=0.5,
    payloads=1_000,
    many_words=100_000,
    keys=20_000,
    rows=100_000,
    events=10_000,
    megabytes=5,
)


def measurements(sizes: Sizes, dump: Path | None) -> dict[str, Measurement]:
    """Everything that can be measured here, by name."""
    runs = sizes.runs
    few = min(runs, 3)
    found: dict[str, Measurement] = {
        "word_count": lambda: throughput.compare(
            "word_count", f"Word count, {sizes.words:,} words", size=sizes.words, rounds=runs
        ),
        "index": lambda: throughput.compare(
            "index", f"Inverted index, {sizes.pages:,} made-up pages", size=sizes.pages, rounds=few
        ),
    }
    if dump is not None:
        title = f"Inverted index, dump of {dump.stat().st_size / 1e6:.1f} MB"
        found["index_dump"] = lambda: throughput.compare("index", title, size=0, rounds=runs, dump=str(dump))
    found |= {
        "several": lambda: several.compare(lines=sizes.costly, rounds=few),
        "files": lambda: files.compare(words=sizes.words, rounds=few),
        "partitioned": lambda: partitioned.compare(pages=2 * sizes.pages, rounds=few),
        "skewed": lambda: skewed.compare(lines=2 * sizes.costly, rounds=few),
        "away": lambda: away.compare(lines=sizes.lines, rounds=few),
        "away_pages": lambda: away.compare(lines=sizes.lines // 5, rounds=few, load=away.PAGES),
        "tracking": lambda: tracking.compare(records=sizes.tracked, bulk=10 * sizes.tracked, rounds=few),
        "latency": lambda: latency.compare(lines=sizes.lines, rounds=few),
        "exactly_once": lambda: exactly_once.compare(lines=sizes.lines // 2, rounds=few),
        "keeping": lambda: keeping.compare(words=sizes.many_words, pages=sizes.pages, rounds=few),
        "keeping_away": lambda: keeping.compare_away(words=sizes.many_words // 2, pages=sizes.pages, rounds=few),
        "large_state": lambda: large_state.compare(keys=sizes.keys, rounds=min(runs, 2)),
        "cycles": lambda: cycles.compare(rounds=runs),
        "windows": lambda: windows.compare(records=sizes.words, rounds=few),
        "nexmark": lambda: nexmark.compare(size=sizes.events, rounds=few),
        "recovery": lambda: recovery.compare(keys=sizes.keys, rounds=few),
        "start": lambda: start.compare(rounds=sizes.starts),
        "import": lambda: start.compare_imports(rounds=sizes.starts),
        "memory": lambda: memory.compare(words=sizes.words, rounds=1),
        "idle": lambda: idle.compare(seconds=sizes.idle_s, rounds=1),
        "codec": lambda: codec.compare(rounds=runs, total=sizes.payloads),
    }
    if find_spec("pyspark") is not None:
        found["sparkfeed"] = lambda: sparkfeed.compare(rows=sizes.rows, rounds=few)
        found["sparkstate"] = lambda: sparkstate.compare(rows=sizes.rows // 5, keys=sizes.rows // 200, rounds=few)
        found["sparkmemory"] = lambda: sparkmemory.compare(rows=sizes.rows)
        if dump is not None:
            found["sparkindex"] = lambda: sparkindex.compare(dump=str(dump), megabytes=sizes.megabytes, rounds=few)
        found["sparkhost"] = lambda: sparkhost.compare(lines=sizes.lines, rounds=few)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return 1 if a contender's outputs were wrong, else 0."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small inputs, one round: does everything run, and agree?")
    parser.add_argument("--only", action="append", metavar="NAME", help="one measurement; may be given several times")
    parser.add_argument("--runs", type=int, metavar="N", help="rounds; figures are medians over them")
    parser.add_argument("--words", type=int, metavar="N", help="length of the word count")
    parser.add_argument("--dump", type=Path, metavar="PATH", help="a Wikipedia dump for the inverted index")
    parser.add_argument("--megabytes", type=float, metavar="N", help="how large that dump is made for Spark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    chosen = parser.parse_args(arguments)
    sizes = _QUICK if chosen.quick else _FULL
    given = {"words": chosen.words, "runs": chosen.runs, "starts": chosen.runs, "megabytes": chosen.megabytes}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value is not None})
    available = measurements(sizes, chosen.dump or default_dump())
    unknown = [name for name in chosen.only or () if name not in available]
    if unknown:
        parser.error(f"no measurement {', '.join(unknown)}; there are {', '.join(available)}")
    results: dict[str, Any] = {"machine": machine.facts(), "sizes": asdict(sizes), "results": {}}
    print(_heading(results["machine"]))
    wrong: dict[str, dict[str, str]] = {}
    begin = time.perf_counter()
    for name, measure in available.items():
        if chosen.only and name not in chosen.only:
            continue
        try:
            table, facts = measure()
        except RunError as error:
            say("")
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        say("")
        print(f"\n{table.markdown()}", flush=True)
        results["results"][name] = facts
        if table.failed:
            wrong[name] = table.failed
    results["seconds"] = round(time.perf_counter() - begin, 1)
    results["load_at_the_end"] = machine.load()
    print(f"\n{results['seconds']} s; load {results['machine']['load']} before, {results['load_at_the_end']} after")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if wrong else 0


def _heading(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, "
        f"{machine['python']}, flamestream {machine['flamestream']} on {machine['event_loop']}, "
        f"bytewax {machine['bytewax']}"
    )


if __name__ == "__main__":
    sys.exit(main())
