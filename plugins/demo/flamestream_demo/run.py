"""One run of the inverted index over the topics, with a view kept of what comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from flamecore.cli.progress import Progress, shown
from flamecore.cli.stop import stopping
from flamecore.config import Edge, JobConfig, JobTable
from flamecore.job import Job
from flamecore.launch import prepare
from flamecore.registry import override
from flamecore.stats import JobReport, JobStats
from flamestream_demo.inverted_index import flow
from flamestream_demo.report import Figures
from flamestream_demo.view import IndexView, ViewSink

REDRAW_S: Final = 0.1

MAX_IN_FLIGHT: Final = 4
"""Pages admitted and not yet delivered. A page is hundreds of words, so few are enough to keep workers busy, and the
latency shown is that of a page and not of a queue."""

Draw = Callable[[Iterable[tuple[str, str]]], None]


class Indexed(NamedTuple):
    """What a run has left: the index, the last figures, and whether it was asked to end early."""

    view: IndexView
    figures: Figures
    drained: bool


class Frames(Progress):
    """Draws the figures each time it looks at the job."""

    interval = REDRAW_S

    def __init__(self, draw: Draw, view: IndexView, workers: int) -> None:
        self._draw = draw
        self._view = view
        self._workers = workers

    def show(self, stats: JobStats) -> None:
        self._draw(Figures.of(stats, self._view, self._workers).rows())

    def end(self, event: str, stats: JobStats, **more: Any) -> None:
        self.show(stats)


def index_topics(draw: Draw, *, workers: int = 1, repeat: int = 1) -> Indexed | None:
    """Run to the end of the topics, or until drained by Ctrl-C.

    Args:
        draw: Shows rows of figures; called several times a second.
        workers: How many share the work.
        repeat: How many versions of each page to read.

    Returns:
        What is left of it; None if a second Ctrl-C ended it at once.

    Raises:
        SourceError: This Python came without the topics.
    """
    view = IndexView()
    config = JobConfig(
        job=JobTable(workers=workers, max_in_flight=MAX_IN_FLIGHT),
        source={"pages": Edge(use="pydoc", options={"repeat": repeat})},
        sink={"index": Edge(use=ViewSink.name)},
    )
    with override("sink", ViewSink.name, ViewSink):
        job = prepare(config, flow, given={"index": view})
    report = asyncio.run(_run(job, Frames(draw, view, workers)))
    if report is None:
        return None
    return Indexed(view, Figures.of(report.stats, view, workers), report.drained)


async def _run(job: Job, frames: Frames) -> JobReport | None:
    with stopping(job.drain) as stop:
        try:
            async with shown(frames, job.stats):
                return await job.run()
        except asyncio.CancelledError:
            if stop.count < 2:
                raise
            return None
