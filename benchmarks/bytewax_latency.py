"""Latency job in Bytewax: a source that reads stdin, a sink that notes arrivals.

A source of Bytewax is polled: by default again at once after a batch, and a millisecond after it had nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

from benchmarks.latency import Arrivals, count_word, numbered_words, stdin_lines


class _Reader(StatelessSourcePartition[str]):
    def __init__(self, ready: Callable[[], None]) -> None:
        self.lines = stdin_lines()
        ready()

    def next_batch(self) -> list[str]:
        lines = self.lines()
        if lines is None:
            raise StopIteration
        return lines


class _Stdin(DynamicSource[str]):
    def __init__(self, ready: Callable[[], None]) -> None:
        self.ready = ready

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Reader:
        return _Reader(self.ready)


class _Writer(StatelessSinkPartition[Any]):
    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals

    def write_batch(self, items: list[Any]) -> None:
        self.arrivals.note(items, lambda keyed: int(keyed[1][2]))


class _Noting(DynamicSink[Any]):
    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Writer:
        return _Writer(self.arrivals)


def run(arrivals: Arrivals, ready: Callable[[], None]) -> None:
    """Count the words of stdin to its end."""
    flow = Dataflow("latency")
    words = op.flat_map("split", op.input("lines", flow, _Stdin(ready)), numbered_words)
    keyed = op.key_on("key", words, lambda item: item[0])
    counts = op.stateful_flat_map("count", keyed, lambda seen, item: count_word(seen or 0, item))
    op.output("out", counts, _Noting(arrivals))
    run_main(flow)  # type: ignore[no-untyped-call]  # Bytewax has no hints there
