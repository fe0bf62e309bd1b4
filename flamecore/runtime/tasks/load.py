"""The load of a worker that has a process to itself, for the job's placement.

Nothing is counted item by item. The kernel knows how long the thread had work; runs of records are timed from the
source to the first states, a batch at a time; and of the items that wait before states a few are looked at, once for
each report.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Final

from flamecore.abc.operator import Run
from flamecore.model.batch import Orders
from flamecore.model.clock import STOPWATCH
from flamecore.model.failure import shorten_repr
from flamecore.model.hashing import key_groups
from flamecore.model.vertices import ByKey
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.tasks.worker_task import WorkerTask

CLOCKS: Final = ("busy_s", "cpu_s", "up_s")
"""Counters that grow while a worker is idle, too."""

_SAMPLE: Final = 64
"""Most items of one operation that are looked at for one report; twice a second that costs nothing."""

_NAMED: Final = 4
_KEYS: Final = 1024
"""Number of key groups of which the most frequent key is told, and of keys that are counted for this."""


def busy_s() -> float:
    """Return the seconds for which the calling thread had work.

    It ran, or waited for a processor. Where the kernel does not count the second, on a machine with more work than
    processors all loads look smaller than they are.
    """
    try:
        ran, waited, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text("ascii").split()
        return max((int(ran) + int(waited)) / 1e9, time.thread_time())
    except (OSError, ValueError):  # not on this system
        return time.thread_time()


class WorkerLoad:
    """The load of one worker, which runs in a thread of its own.

    Args:
        worker_task: Task of the worker, before it has run.
    """

    def __init__(self, worker_task: WorkerTask) -> None:
        worker = worker_task.worker
        compiled, plan = worker.compiled, worker.plan
        self._index = worker.index
        self._clock = STOPWATCH.get()
        self._begun = self._clock()
        self._run_s = dict.fromkeys(compiled.entrances, 0.0)
        for source, entrance in compiled.entrances.items():
            compiled.entrances[source] = entrance._replace(run=self._timed(source, entrance.run))
        routes = {vertex.name: vertex.route for vertex in plan.graph.vertices if vertex not in plan.homes}
        self._buffers = [
            (buffer, route.placed)
            for buffer in compiled.waiting
            if isinstance(buffer, ReorderBuffer) and isinstance(route := routes.get(buffer.name), ByKey)
        ]
        self._groups: Counter[int] = Counter()
        self._keys: Counter[tuple[int, Hashable]] = Counter()

    def _timed(self, source: str, run: Run) -> Run:
        clock, run_s = self._clock, self._run_s

        def timed_run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
            begun = clock()
            run(orders, trace, payloads)
            run_s[source] += clock() - begun

        return timed_run

    def counts(self) -> NodeStats:
        """Return the load so far, with a look at the items that wait now."""
        self._look()
        return NodeStats(
            busy_s={self._index: busy_s()},
            cpu_s={self._index: time.thread_time()},
            up_s={self._index: self._clock() - self._begun},
            run_s=dict(self._run_s),
            key_groups=dict(self._groups),
            hot_keys=self._hot_keys(),
        )

    def _look(self) -> None:
        """Count the key groups of a sample of the items that wait before states."""
        for buffer, key_of in self._buffers:
            try:
                keys = list(map(key_of, buffer.sample(_SAMPLE)))
                groups = key_groups(keys)
            except Exception:  # noqa: BLE001 - the way of the item calls the function again, and reports it
                continue
            self._groups.update(groups)
            self._keys.update(zip(groups, keys, strict=True))
            if len(self._keys) > _KEYS:  # of many keys the frequent ones stay
                self._keys = Counter(dict(self._keys.most_common(_KEYS // 2)))

    def _hot_keys(self) -> dict[int, str]:
        named: dict[int, str] = {}
        most = {group for group, _ in self._groups.most_common(_NAMED)}
        for (group, key), _ in self._keys.most_common():
            if group in most and group not in named:
                named[group] = shorten_repr(key)
        return named
