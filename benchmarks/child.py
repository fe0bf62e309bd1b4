"""One measurement in this process: `python -m benchmarks.child KIND ARGUMENTS`.

Arguments and result are JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def _function(kind: str) -> Callable[..., dict[str, Any]]:
    # Only what is measured is imported: start-up time and memory are among the things measured.
    if kind == "throughput":
        from benchmarks.throughput import one_run

        return one_run
    if kind == "latency":
        from benchmarks.latency import one_run as latency

        return latency
    if kind == "memory":
        from benchmarks.memory import one_run as memory

        return memory
    if kind == "idle":
        from benchmarks.idle import one_run as idle

        return idle
    if kind == "tracking":
        from benchmarks.tracking import one_run as tracking

        return tracking
    if kind == "exactly_once":
        from benchmarks.exactly_once import one_run as exactly_once

        return exactly_once
    if kind == "keeping":
        from benchmarks.keeping import one_run as keeping

        return keeping
    if kind == "large_state":
        from benchmarks.large_state import one_run as large_state

        return large_state
    if kind == "cycles":
        from benchmarks.cycles import one_run as cycles

        return cycles
    if kind == "windows":
        from benchmarks.windows import one_run as windows

        return windows
    if kind == "windows_kept":
        from benchmarks.windows import one_kept

        return one_kept
    if kind == "nexmark":
        from benchmarks.nexmark.measure import one_run as nexmark

        return nexmark
    if kind == "sparkfeed":
        from benchmarks.sparkfeed import run as sparkfeed

        return sparkfeed
    if kind == "sparkhost":
        from benchmarks.sparkhost import one_run as sparkhost

        return sparkhost
    if kind == "sparkindex":
        from benchmarks.sparkindex import run as sparkindex

        return sparkindex
    if kind == "sparkmemory":
        from benchmarks.sparkmemory import run as sparkmemory

        return sparkmemory
    if kind == "sparkstate":
        from benchmarks.sparkstate import one_run as sparkstate

        return sparkstate
    raise SystemExit(f"unknown measurement {kind!r}")


if __name__ == "__main__":
    _, kind, arguments = sys.argv
    print(json.dumps(_function(kind)(**json.loads(arguments))))
