"""Checks of sinks in partitions.

A test class that inherits from `PartitionedSinkTests` and has `make` and `sequence` runs them all.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from flamecore.abc.sink import PartitionedSink, Sink
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME, GlobalTime
from flamecore.testing.checks.sinks import PAYLOADS
from flamecore.testing.checks.sources import EdgeBroken


class PartitionedSinkTests(ABC):
    """Tests of a sink in partitions.

    Class attributes:
        payloads: The payloads to write, at least three.
    """

    payloads: ClassVar[Sequence[Any]] = PAYLOADS

    @abstractmethod
    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> PartitionedSink:
        """Return the sink under test, anew, in the same place of a folder.

        Args:
            folder: An empty folder at first.
            resume: Whether to continue the output that is there; otherwise start afresh.
            fingerprint: For `EdgeContext.fingerprint`.
        """

    @abstractmethod
    def sequence(self, payloads: Sequence[Any]) -> bytes:
        """Return what the sink writes of payloads without partitions."""

    def test_merges(self, tmp_path: Path) -> None:
        asyncio.run(check_merges(self, tmp_path))

    def test_is_cut(self, tmp_path: Path) -> None:
        asyncio.run(check_is_cut(self, tmp_path))

    def test_changes_its_number(self, tmp_path: Path) -> None:
        asyncio.run(check_changes_its_number(self, tmp_path))

    def test_is_fenced(self, tmp_path: Path) -> None:
        asyncio.run(check_is_fenced(self, tmp_path))

    def test_refuses_another_output(self, tmp_path: Path) -> None:
        asyncio.run(check_refuses(self, tmp_path))


class _Output:
    """All outputs of a job: payloads at times 1, 2, …, each dealt to a worker by chance."""

    def __init__(self, tests: PartitionedSinkTests, seed: int = 0) -> None:
        self.tests, self.random = tests, Random(seed)
        self.payloads = list(tests.payloads) * 3
        self.end = len(self.payloads) + 1
        self.opened: list[Sink] = []

    async def divide(self, sink: PartitionedSink, workers: int) -> tuple[int, list[Sink]]:
        """Divide a sink; return the time, and its partitions, open."""
        if sink not in self.opened:
            self.opened.append(sink)
        time, grant = await sink.divide(workers)
        parts = [sink.partition(worker, grant) for worker in range(workers)]
        self.opened += parts
        for part in parts:
            if (held := await part.open()) != time:
                raise EdgeBroken("divides", f"divided at {time}, a partition says that it holds what is below {held}")
        return time, parts

    async def close(self) -> None:
        """Close everything, the newest first: earlier sinks were those of processes that were killed."""
        while self.opened:
            await self.opened.pop().aclose()

    def expect(self, law: str, how: str, sink: PartitionedSink, until: int) -> None:
        """Check that the merged output is the one below a time."""
        found, wanted = b"".join(sink.merged()), self.tests.sequence(self.payloads[: until - 1])
        if found != wanted:
            raise EdgeBroken(law, f"{how}: merged, its partitions have {found!r:.300}, not {wanted!r:.300}")

    async def write(self, parts: Sequence[Sink], start: int, until: int) -> list[int]:
        """Write the outputs of times from `start` to before `until`; return how many each partition got."""
        counts = [0] * len(parts)
        while start < until:
            size, worker = self.random.randint(1, 3), self.random.randrange(len(parts))
            times = range(start, min(start + size, until))
            orders = [GlobalTime(time, 1).encode() for time in times]
            await parts[worker].write_ordered(times[-1] + 1, orders, self.payloads[start - 1 : times[-1]])
            counts[worker] += len(times)
            start = times[-1] + 1
        return counts


async def check_merges(tests: PartitionedSinkTests, folder: Path) -> None:
    """Check that partitions, merged, are the sequence of their orders, up to the time that was told.

    Raises:
        EdgeBroken: `fresh`, `divides`, `merges`.
    """
    output, sink = _Output(tests), tests.make(folder, resume=False, fingerprint="kit")
    if (held := await sink.open()) != MIN_TIME:
        raise EdgeBroken("fresh", f"started afresh, it says that it holds everything below {held}")
    _, parts = await output.divide(sink, 3)
    output.expect("merges", "before the first output", sink, 1)
    counts = await output.write(parts, 1, 8)
    await sink.write(5, counts)
    output.expect("merges", "told of less than it holds", sink, 5)
    await sink.write(output.end, await output.write(parts, 8, output.end))
    output.expect("merges", "at the end", sink, output.end)
    for part in parts:
        await part.aclose()
    await sink.aclose()
    await sink.aclose()
    await output.close()
    output.expect("merges", "after aclose", tests.make(folder, resume=True, fingerprint="kit"), output.end)


async def check_is_cut(tests: PartitionedSinkTests, folder: Path) -> None:
    """Check that after any end of an epoch all partitions are cut at one time, and nothing is lost below it.

    Raises:
        EdgeBroken: `cut`.
    """
    output, sink = _Output(tests), tests.make(folder, resume=False, fingerprint="kit")
    await sink.open()
    reached = durable = 1
    for turn in range(12):
        if turn % 3 == 2:  # another process; the former one was killed
            sink = tests.make(folder, resume=True, fingerprint="kit")
            await sink.open()
        time, parts = await output.divide(sink, 3)
        if not durable <= max(time, 1) <= reached:
            raise EdgeBroken("cut", f"divided at {time}, where {durable} was durable, and {reached} reached")
        start = max(time, 1)
        if time > MIN_TIME:
            await sink.write(time, [0])
        output.expect("cut", f"in turn {turn}", sink, start)
        # Not all workers have come as far as the others.
        reached = min(start + output.random.randint(1, 6), output.end)
        counts = await output.write(parts, start, reached)
        if turn % 2:
            for part in parts:
                await part.sync(reached)
            await sink.sync(reached)
            durable = reached
        else:
            await sink.write(reached, counts)
        output.expect("cut", f"at the end of turn {turn}", sink, reached)
    await output.close()


async def check_changes_its_number(tests: PartitionedSinkTests, folder: Path) -> None:
    """Check that outputs stay, in order, when there are more partitions, and when there are fewer.

    Raises:
        EdgeBroken: `number`.
    """
    output, at = _Output(tests), 1
    for turn, workers in enumerate((1, 3, 2, 4)):
        sink = tests.make(folder, resume=turn > 0, fingerprint="kit")
        held = await sink.open()
        time, parts = await output.divide(sink, workers)
        if turn and (time != at or held != at):
            raise EdgeBroken("number", f"with {workers} partitions it is divided at {time}, and was closed at {at}")
        until = min(at + 5, output.end)
        await sink.write(until, await output.write(parts, at, until))
        at = until
        for part in parts:
            await part.aclose()
        await sink.aclose()
        output.expect("number", f"after {workers} partitions", sink, at)
    await output.close()


async def check_is_fenced(tests: PartitionedSinkTests, folder: Path) -> None:
    """Check that partitions of an earlier epoch, and the sink of an earlier run, are refused.

    Raises:
        EdgeBroken: `fenced`.
    """
    output, older = _Output(tests), tests.make(folder, resume=False, fingerprint="kit")
    await older.open()
    _, before = await output.divide(older, 2)
    grant = (await older.divide(2)).grant
    await _refused("partition of an epoch that has ended", output.write(before, 1, 2))
    newer = tests.make(folder, resume=True, fingerprint="kit")
    await newer.open()
    _, parts = await output.divide(newer, 2)
    await _refused("late partition", older.partition(0, grant).open())
    await _refused("division by an earlier run", older.divide(3))
    await _refused("time of an earlier run", older.write(9, [1]))
    await _refused("snapshot of an earlier run", older.sync(9))
    await older.aclose()
    await newer.write(5, await output.write(parts, 1, 5))
    output.expect("fenced", "with an older run that came back", newer, 5)
    await output.close()


async def _refused(what: str, called: Awaitable[object]) -> None:
    try:
        await called
    except SinkError:
        return
    raise EdgeBroken("fenced", f"a {what} was let through")


async def check_refuses(tests: PartitionedSinkTests, folder: Path) -> None:
    """Check that the output of another job is not continued.

    Raises:
        EdgeBroken: `foreign`.
    """
    output, sink = _Output(tests), tests.make(folder, resume=False, fingerprint="kit")
    await sink.open()
    _, parts = await output.divide(sink, 2)
    await sink.write(4, await output.write(parts, 1, 4))
    await sink.aclose()
    await output.close()
    other = tests.make(folder, resume=True, fingerprint="another")
    try:
        await other.open()
    except SinkError:
        await other.aclose()
        output.expect("foreign", "after a refused resumption", sink, 4)
        return
    await other.aclose()
    raise EdgeBroken("foreign", "the output of a job with another fingerprint was resumed")
