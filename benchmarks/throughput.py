"""Throughput: every contender runs a whole job in a fresh process.

Outputs are compared before a figure is quoted.

Inputs are in memory, everything is imported, and the job has run once on a little input before the clock starts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import BYTEWAX, BYTEWAX_BATCHES, OURS, PLAIN, Contender, contenders, named, runner
from benchmarks.corpora import dump_pages, synthetic_pages, zipf_lines
from benchmarks.processes import measured
from benchmarks.report import Spread, Table, ratios

_LITTLE = 10


def corpus(job: str, size: int, dump: str) -> list[Any]:
    """Return the input of a job: `size` words, `size` pages, or the pages of a dump."""
    if job == "word_count":
        return list(zipf_lines(size))
    return dump_pages(Path(dump)) if dump else synthetic_pages(size)


def one_run(job: str, contender: str, size: int, dump: str = "") -> dict[str, Any]:
    """Run one contender once, in this process.

    Returns:
        Seconds by the wall and of the processor, how many outputs, digests of their sequence and of their multiset.
    """
    one = named(contender)
    run = runner(job, one)
    inputs = corpus(job, size, dump)
    if job == "index":
        learn_stems(inputs)
    run(inputs[:_LITTLE])
    gc.collect()
    if not one.collector:
        gc.disable()
    start, start_cpu = time.perf_counter(), time.process_time()
    outputs = run(inputs)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    sequence, multiset = digests(outputs)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "outputs": len(outputs),
        "sequence": sequence,
        "multiset": multiset,
    }


def learn_stems(pages: Sequence[Any]) -> None:
    """Fill the stemmer's cache.

    The stemmer is pure Python, and would hide the time of every engine.
    """
    from flamestream_demo.text import stems

    for page in pages:
        stems(page.text)


def digests(outputs: Sequence[Any]) -> tuple[str, str]:
    """Digests of the outputs in their order, and in any order.

    Every output tells its key and which update of the key it is, so equal multisets are equal sequences for each key.
    """
    from xxhash import xxh3_64_intdigest, xxh3_128

    sequence, multiset = xxh3_128(), 0
    for output in outputs:
        text = repr(tuple(output)).encode()
        sequence.update(text)
        multiset += xxh3_64_intdigest(text)
    return sequence.hexdigest(), f"{multiset % 2**64:016x}"


def compare(job: str, title: str, *, size: int, rounds: int, dump: str = "") -> tuple[Table, dict[str, Any]]:
    """Run everybody in turn, several rounds, and compare."""
    field = contenders(job)
    runs: dict[str, list[dict[str, Any]]] = {one.name: [] for one in field}
    for _ in range(rounds):
        for one in field:
            arguments = {"job": job, "contender": one.name, "size": size, "dump": dump}
            runs[one.name].append(measured("throughput", arguments, what=f"{title}: {one.name}"))
    table = Table(title, ("contender", "outputs/s", "x plain loop", "by CPU time", "x bytewax", "outputs"))
    peer = next((one.name for one in (BYTEWAX,) if one.name in runs), None)
    expected = runs[PLAIN.name][0]
    facts: dict[str, Any] = {"size": size, "outputs": expected["outputs"], "contenders": {}}
    for one in field:
        wrong = differences(one, runs[one.name], expected)
        if wrong:
            table.fail(one.name, wrong)
            facts["contenders"][one.name] = {"equal": False, "why": wrong, "runs": runs[one.name]}
            continue
        speed = [run["outputs"] / run["seconds"] for run in runs[one.name]]
        plain = ratios(runs[PLAIN.name], runs[one.name], "seconds")
        cpu = ratios(runs[PLAIN.name], runs[one.name], "cpu_seconds")
        against = ratios(runs[peer], runs[one.name], "seconds") if peer else None
        table.add(one.name, f"{median(speed):,.0f}", plain, cpu, against or "-", "equal")
        facts["contenders"][one.name] = {
            "equal": True,
            "outputs_per_s": Spread.of(speed).facts(),
            "times_plain": plain.facts(),
            "times_plain_cpu": cpu.facts(),
            "times_bytewax": against.facts() if against else None,
            "runs": runs[one.name],
        }
    _judge(job, table, facts, runs)
    return table, facts


def differences(one: Contender, runs: Sequence[dict[str, Any]], expected: dict[str, Any]) -> str:
    """Return the fault in the outputs of a contender; empty if there is none."""
    for run in runs:
        if run["outputs"] != expected["outputs"]:
            return f"{run['outputs']} outputs instead of {expected['outputs']}"
        if run["multiset"] != expected["multiset"]:
            return "other outputs"
        if one.ordered and run["sequence"] != expected["sequence"]:
            return "outputs in another order"
    return ""


def _judge(job: str, table: Table, facts: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> None:
    """Hold the figures against what the project wants to reach."""
    if OURS.name in table.failed or PLAIN.name in table.failed:
        return
    if job == "word_count":
        table.target(
            OURS.name, "a quarter of the plain loop", ratios(runs[PLAIN.name], runs[OURS.name], "seconds"), 0.25
        )
    for peer in (BYTEWAX, BYTEWAX_BATCHES):
        if peer.name in runs and peer.name not in table.failed:
            table.target(OURS.name, f"as fast as {peer.name}", ratios(runs[peer.name], runs[OURS.name], "seconds"), 1.0)
    facts["targets"] = table.targets
