"""Partitions that nothing comes of: with `idle_after` they hold no watermark back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.abc.source import Batch, Reader, Source, SourceCapabilities
from flamecore.errors import SourceError
from flamecore.testing import override
from flamestream_windows import watermarks

Record = tuple[int, int]
WALL: dict[str, Any] = {"job.clock": "wall"}
SHORT = timedelta(milliseconds=300)


class Talk:
    """Two sources: the left one falls silent until the flow has given a pane, and goes on before the right one does."""

    def __init__(self, **settings: Any) -> None:
        self.panes: list[Any] = []
        self.came: list[Record] = []
        self.flow = fc.Flow("talk")
        left, right = (self.timed(name, settings) for name in ("left", "right"))
        counted = left.merge(right).key_by(lambda r: r[1]).window(w.fixed(microseconds=10), lateness=timedelta(0))
        found = counted.count()
        found.inspect(self.panes.append).sink("out")
        found.dropped.sink("dropped")

    def timed(self, name: str, settings: dict[str, Any]) -> w.Timed[Record]:
        stream: fc.Stream[Record] = self.flow.source(name, tuple)
        return w.event_time(
            stream.inspect(self.came.append),
            lambda r: r[0],
            unit="us",
            watermark=watermarks.monotonic(),
            name=f"{name}-times",
            **settings,
        )

    async def left(self) -> AsyncIterator[Record]:
        yield (1, 0)
        while not self.panes:
            await asyncio.sleep(0.01)
        yield (2, 0)
        yield (50, 0)

    async def right(self) -> AsyncIterator[Record]:
        for record in ((3, 1), (12, 1), (25, 1)):
            yield record
        # By the wall clock a record has its place when it has been read: both sources wake up at the same pane, and
        # which one is read first is open. The last record on the left stands before the one that ends its window.
        while (50, 0) not in self.came:
            await asyncio.sleep(0.01)
        yield (60, 1)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_windows_end_without_a_source_that_is_idle_and_its_next_record_counts_again(workers: int) -> None:
    talk = Talk(idle_after=SHORT)
    inputs: dict[str, Any] = {"left": talk.left(), "right": talk.right()}
    made = talk.flow.run(inputs, workers=workers, settings=WALL)
    panes = [(pane.key, pane.window.start, pane.value) for pane in made["out"]]
    assert sorted(panes[:3]) == [(0, 0, 1), (1, 0, 1), (1, 10, 1)], "before the left source went on"
    assert [dropped.value for dropped in made["dropped"]] == [(2, 0)], "which came too late then"
    assert sorted(panes[3:]) == [(0, 50, 1), (1, 20, 1), (1, 60, 1)]


def test_a_source_that_waits_because_the_job_is_slower_is_not_idle() -> None:
    # No more than one record is under way, so all fronts wait most of the time, for each other.
    talk = Talk(idle_after=timedelta(microseconds=1))
    slow = [(at, at % 3) for at in range(0, 300, 7)]
    settings = WALL | {"job.max_in_flight": 2}
    made = talk.flow.run({"left": slow, "right": slow}, workers=2, settings=settings)
    assert not made["dropped"]
    assert sum(pane.value for pane in made["out"]) == 2 * len(slow)


# -- a job that goes on ------------------------------------------------------------------------------------------------

RECORDS: dict[str, list[Record]] = {
    "left": [(1, 0), (2, 0), (50, 0)],
    "right": [(3, 1), (12, 1), (25, 1), (60, 1)],
}


class Talks(Source):
    """Records one by one. In the first run the left source is idle until there is output; then the right one fails."""

    name: ClassVar[str] = "talks"
    Options: ClassVar[Any] = None
    output: ClassVar[Path | None] = None  # in the first run

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    def fingerprint(self) -> str:
        return f"talks {self.context.name}"

    async def open(self, partition: str, position: Any = None) -> Reader:
        return TalksReader(RECORDS[self.context.name], self.context.name, position or 0)


class TalksReader(Reader):
    def __init__(self, records: list[Record], name: str, position: int) -> None:
        self.records, self.name, self.position = records, name, position

    async def read(self, limit: int) -> Batch | None:
        if Talks.output is not None and self.position == {"left": 1, "right": 3}[self.name]:
            while not (Talks.output.is_file() and Talks.output.read_text("utf-8").count("\n") >= 3):
                await asyncio.sleep(0.005)
            if self.name == "left":
                await asyncio.sleep(3600)
            raise SourceError("the power is off", source=self.name)
        if self.position == len(self.records):
            return None
        self.position += 1
        return Batch([self.records[self.position - 1]], [self.position])


@pytest.mark.parametrize(("interval_s", "workers"), [(3600, 1), (0.01, 1), (0.01, 3), (3600, 2)])
def test_a_job_that_goes_on_has_the_same_idleness_at_the_same_place(
    tmp_path: Path, interval_s: float, workers: int
) -> None:
    def run(workers: int) -> None:
        flow = fc.Flow("goes-on")
        left, right = (
            w.event_time(
                flow.source(name, tuple),
                lambda r: r[0],
                unit="us",
                name=f"{name}-times",
                idle_after=SHORT,
                at_end="close",
            )
            for name in ("left", "right")
        )
        found = left.merge(right).key_by(lambda r: r[1]).window(w.fixed(microseconds=10)).count()
        found.map(lambda pane: [pane.key, pane.window.start, pane.value]).sink("out")
        found.dropped.map(lambda dropped: dropped.value).sink("dropped")
        settings = WALL | {f"source.{name}.use": "talks" for name in RECORDS}
        settings |= {"state.interval_s": interval_s}
        for name in ("out", "dropped"):
            settings |= {f"sink.{name}.use": "jsonl", f"sink.{name}.path": str(tmp_path / name)}
        with override("source", "talks", Talks):
            flow.run(workers=workers, state=tmp_path / "state", settings=settings)

    Talks.output = tmp_path / "out"
    try:
        with pytest.raises(SourceError, match="the power is off"):
            run(workers)
    finally:
        Talks.output = None
    run(workers % 3 + 1)
    panes = [json.loads(line) for line in (tmp_path / "out").read_text("utf-8").splitlines()]
    assert sorted(panes[:3]) == [[0, 0, 1], [1, 0, 1], [1, 10, 1]]
    assert sorted(panes[3:]) == [[0, 50, 1], [1, 20, 1], [1, 60, 1]]
    assert (tmp_path / "dropped").read_text("utf-8") == "[2,0]\n"
