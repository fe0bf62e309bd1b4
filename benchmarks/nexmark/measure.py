"""Measurement: each query in a fresh process, held against plain Python.

Flamestream runs each query, and so does Bytewax.

Processor's time is compared, as the work of all is that of one core.
"""

from __future__ import annotations

import gc
import time
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.contenders import BYTEWAX, Contender
from benchmarks.nexmark import plain
from benchmarks.nexmark.events import events
from benchmarks.processes import measured
from benchmarks.report import Spread, Table, ratios
from benchmarks.throughput import digests

OURS: Final = tuple(Contender(f"flamestream {workers}w", "flamestream", workers=workers) for workers in (1, 4))
LACKING: Final = ("q4", "q6", "q12")
"""The queries that Bytewax's operators cannot say, or not so that its outputs are known."""

_SHOWN: Final = {"q11": 2}
"""Number of compared fields of an output, where it is not all: Bytewax does not show when a session began."""

_LITTLE: Final = 200
_WANTED: Final = {"q0": 0.6, "q1": 0.6, "q2": 0.6, "q5": 4.0, "q7": 4.0, "q8": 4.0, "q11": 2.0}
"""Least ratios beside Bytewax: of queries without state, with windows, and with sessions."""


def one_run(query: str, contender: str, size: int) -> dict[str, Any]:
    """Run a query once, in this process.

    Returns:
        Seconds by the wall and of the processor, how many outputs, digests of their sequence and of their multiset.
    """
    given = events(size)
    if contender == BYTEWAX.name:
        from benchmarks.nexmark import peer

        def run(some: list[Any]) -> list[Any]:
            return peer.run(query, some)

    elif contender == "plain":
        run = plain.QUERIES[query]  # type: ignore[assignment]  # takes any sequence
    else:
        from benchmarks.nexmark.queries import flow

        workers = next(one.workers for one in OURS if one.name == contender)

        def run(some: list[Any]) -> list[Any]:
            return flow(query).run({"events": some}, workers=workers)["out"]

    run(given[:_LITTLE])
    gc.collect()
    start, start_cpu = time.perf_counter(), time.process_time()
    outputs = run(given)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    sequence, multiset = digests([output[: _SHOWN.get(query)] for output in outputs])
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "outputs": len(outputs),
        "sequence": sequence,
        "multiset": multiset,
    }


def compare(*, size: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Run all queries by all, in turn, several rounds, and compare."""
    title = f"Nexmark, {size:,} events"
    table = Table(title, ("query", "outputs", "ns an event, 1w", "4w", "bytewax", "bytewax / 1w", "outputs are"))
    facts: dict[str, Any] = {"size": size, "queries": {}}
    for query in plain.QUERIES:
        peers = [BYTEWAX] if query not in LACKING and find_spec("bytewax") is not None else []
        field = [one.name for one in (*OURS, *peers)]
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in field}
        expected = measured("nexmark", {"query": query, "contender": "plain", "size": size}, what=f"{query}: plain")
        for _ in range(rounds):
            for name in field:
                arguments = {"query": query, "contender": name, "size": size}
                runs[name].append(measured("nexmark", arguments, what=f"{query}: {name}"))
        wrong = _differences(query, runs, expected)
        facts["queries"][query] = {"equal": not wrong, "why": wrong, "runs": runs}
        if wrong:
            table.fail(query, wrong)
            continue
        cost = [Spread.of([run["cpu_seconds"] / size * 1e9 for run in runs[name]]) for name in field]
        ratio = ratios(runs[BYTEWAX.name], runs[OURS[0].name], "cpu_seconds") if peers else None
        shown = [*(f"{each.median:,.0f}" for each in cost), *(["-"] if not peers else [])]
        table.add(query, f"{expected['outputs']:,}", *shown, ratio or "-", "equal")
        if ratio is not None and query in _WANTED:
            table.target(OURS[0].name, f"{query} beside Bytewax", ratio, _WANTED[query])
    facts["targets"] = table.targets
    return table, facts


def _differences(query: str, runs: dict[str, list[dict[str, Any]]], expected: dict[str, Any]) -> str:
    """Return the fault in the outputs of a query; empty if there is none."""
    first = runs[OURS[0].name][0]["sequence"]
    for name, each in runs.items():
        for run in each:
            if run["multiset"] != expected["multiset"]:
                return f"other outputs by {name}"
            if name != BYTEWAX.name and run["sequence"] != first:
                return f"outputs in another order by {name}"
            if name != BYTEWAX.name and query in plain.IN_SEQUENCE and run["sequence"] != expected["sequence"]:
                return f"outputs in another order by {name} than in plain Python"
    return ""
