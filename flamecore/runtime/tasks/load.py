"""The load of a worker that has a process to itself, for the job's placement.

Nothing is counted item by item. The kernel knows how long the thread had work; runs of records are timed from the
source to the first states, a batch at a time; and of the items that states take a few are timed, each alone.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from random import randrange
from typing import Any, Final

from flamecore.abc.operator import Run
from flamecore.model.batch import Orders
from flamecore.model.clock import STOPWATCH
from flamecore.model.failure import shorten_repr
from flamecore.model.hashing import key_group
from flamecore.model.meta import decode_time, encode_time
from flamecore.model.vertices import ByHash, ByKey
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.tasks.worker_task import WorkerTask

CLOCKS: Final = ("busy_s", "cpu_s", "up_s")
"""Counters that grow while a worker is idle, too."""

_BLOCK: Final = 16
"""Items of a sample in a row: to cut a run costs more than an item alone."""

_BLOCKS: Final = 4
"""Number of blocks for one report, about: twice a second they cost less than a hundredth of the time."""

_STRIDE: Final = 4096
"""Number of items between two blocks, on average, before the first report."""

_CHEAP_S: Final = 5e-6
"""Seconds of an item up to which items are not timed one by one: so long a run has many, and must not be cut."""

_NAMED: Final = 4
_KEYS: Final = 1024
"""Number of key groups of which the most costly key is told, and of keys that are kept for this."""


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


class _Way:
    """The way into one operation, with a sample of the items that take it.

    Args:
        route: Route of the operation.
        run: Function that processes a run.

    Attributes:
        sample: Items of the sample, each with the seconds that it took.
        spent_s: Seconds of other items that were timed, together.
        others: Number of these.
        mean_s: Mean of the seconds of an item, by the last report.
    """

    __slots__ = ("mean_s", "others", "route", "run", "sample", "spent_s")

    def __init__(self, route: ByKey | ByHash, run: Run) -> None:
        self.route, self.run = route, run
        self.sample: list[tuple[object, float]] = []
        self.spent_s, self.others, self.mean_s = 0.0, 0, 0.0

    def run_timed(self, orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        """Process a run, and time it."""
        begun = time.thread_time()
        self.run(orders, trace, payloads)
        self.spent_s += time.thread_time() - begun
        self.others += len(orders)

    def run_block(self, orders: Orders, trace: int, payloads: Sequence[object], block: range, start: int) -> int:
        """Process a run from an item on, up to the end of a block whose items go in alone; return where it ends."""
        # Cut between records: elsewhere all orders of the run would be spelled out.
        low = bisect_left(orders, encode_time(decode_time(orders[block.start])), start)
        high = bisect_left(orders, encode_time(decode_time(orders[block.stop - 1]) + 1), block.stop)
        if start < low:
            self.run_timed(orders[start:low], trace, payloads[start:low])
        places, values = list(orders[low:high]), payloads[low:high]
        first, last = block.start - low, block.stop - low
        if first:
            self.run(places[:first], trace, values[:first])
        for at in range(first, last):
            begun = time.thread_time()
            self.run(places[at : at + 1], trace, values[at : at + 1])
            self.sample.append((values[at], time.thread_time() - begun))
        if last < len(places):
            self.run(places[last:], trace, values[last:])
        return high

    def taken(self) -> list[tuple[object, float]]:
        """Take out the sample: items, each with the seconds that it takes among others."""
        sample, self.sample = self.sample, []
        alone_s = [took_s for _, took_s in sample]
        spent_s, others, self.spent_s, self.others = self.spent_s, self.others, 0.0, 0
        if not others:
            if sample:
                self.mean_s = sum(alone_s) / len(alone_s)
            return sample
        self.mean_s = spent_s / others
        if not any(alone_s):
            return [(payload, self.mean_s) for payload, _ in sample]
        # Alone an item takes longer, by as much for each.
        longer_s = min(max(sum(alone_s) / len(alone_s) - self.mean_s, 0.0), min(alone_s))
        return [(payload, took_s - longer_s) for payload, took_s in sample]


class Sampler:
    """A meter of what the items cost that a worker's states take, with all that follows on this worker.

    A sample of the items goes in one by one, where they are not all cheap.

    Attributes:
        items: Number of items.
    """

    def __init__(self) -> None:
        self.items = 0
        self._reported = 0  # number of items at the last report
        self._stride = _STRIDE
        self._left = randrange(_STRIDE)
        """Number of items before the next one of the sample."""
        self._lacking = _BLOCK
        """Number of items that the next block still lacks."""
        self._taken = 0
        self._ways: list[_Way] = []

    def timed(self, route: ByKey | ByHash, run: Run) -> Run:
        """Return a function that processes a run, and takes a sample of it."""
        way = _Way(route, run)
        self._ways.append(way)

        def timed_run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
            count, at, done = len(orders), self._left, 0
            self.items += count
            if at >= count:
                self._left -= count
                return run(orders, trace, payloads)
            alone = way.mean_s > _CHEAP_S
            while at < count:
                block = range(at, min(at + self._lacking, count))
                if alone:
                    done = way.run_block(orders, trace, payloads, block, done)
                else:
                    way.sample += [(payload, 0.0) for payload in payloads[block.start : block.stop]]
                at = max(block.stop + self._gap(len(block)), done)
            self._left = at - count
            if not done:
                way.run_timed(orders, trace, payloads)
            elif done < count:
                way.run_timed(orders[done:], trace, payloads[done:])
            return None

        return timed_run

    def _gap(self, taken: int) -> int:
        """Return the number of items before the next one of the sample, which has got some."""
        self._taken += taken
        self._lacking -= taken
        if self._lacking:
            return 0
        self._lacking = _BLOCK
        if self._taken > 2 * _BLOCKS * _BLOCK:  # there are suddenly many
            self._stride *= 2
        return randrange(2 * self._stride)

    def report(self, note: Callable[[int, Hashable, float], None]) -> None:
        """Note the sample since the last call, as (key group, key, seconds of all items for which it stands)."""
        items, self._reported = self.items - self._reported, self.items
        scale = items / self._taken if self._taken else 0.0
        if items:
            self._stride = max(items // _BLOCKS - _BLOCK, 1)
            self._left = min(self._left, 2 * self._stride)
        self._taken = 0
        for way in self._ways:
            for payload, took_s in way.taken():
                try:
                    note(key_group(way.route.hash(payload)), way.route.placed(payload), took_s * scale)
                except Exception:  # noqa: BLE001 - the way of the item calls the function again, and reports it
                    continue


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
        self._sampler = Sampler()
        routes: dict[str, Any] = {
            vertex.name: vertex.route for vertex in plan.graph.vertices if vertex not in plan.homes
        }
        for buffer in compiled.waiting:
            if isinstance(buffer, ReorderBuffer) and isinstance(route := routes.get(buffer.name), ByKey | ByHash):
                buffer.work = self._sampler.timed(route, buffer.work)
        self._groups: Counter[int] = Counter()
        self._group_s: defaultdict[int, float] = defaultdict(float)
        self._key_s: defaultdict[tuple[int, Hashable], float] = defaultdict(float)

    def _timed(self, source: str, run: Run) -> Run:
        clock, run_s = self._clock, self._run_s

        def timed_run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
            begun = clock()
            run(orders, trace, payloads)
            run_s[source] += clock() - begun

        return timed_run

    def counts(self) -> NodeStats:
        """Return the load so far."""
        self._sampler.report(self._note)
        return NodeStats(
            busy_s={self._index: busy_s()},
            cpu_s={self._index: time.thread_time()},
            up_s={self._index: self._clock() - self._begun},
            run_s=dict(self._run_s),
            taken={self._index: self._sampler.items},
            key_groups=dict(self._groups),
            group_s=dict(self._group_s),
            hot_keys=self._hot_keys(),
        )

    def _note(self, group: int, key: Hashable, seconds: float) -> None:
        self._groups[group] += 1
        self._group_s[group] += seconds
        self._key_s[group, key] += seconds
        if len(self._key_s) > _KEYS:  # of many keys the costly ones stay
            for pair in sorted(self._key_s, key=self._key_s.__getitem__)[: _KEYS // 2]:
                del self._key_s[pair]

    def _hot_keys(self) -> dict[int, str]:
        named: dict[int, str] = {}
        most = set(sorted(self._group_s, key=self._group_s.__getitem__)[-_NAMED:])
        for group, key in sorted(self._key_s, key=self._key_s.__getitem__, reverse=True):
            if group in most and group not in named:
                named[group] = shorten_repr(key)
        return named
