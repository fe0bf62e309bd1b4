"""One run of the inverted index over the topics, with a view of its output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from flamecore.cli.progress import Progress, shown
from flamecore.cli.stop import stopping
from flamecore.runtime.config.layers import Layer
from flamecore.runtime.config.read import make_config
from flamecore.runtime.engine.job import AnyJob
from flamecore.runtime.launch import make_job
from flamecore.runtime.parts.counters import JobStats
from flamecore.runtime.tasks.stats import JobReport
from flamestream_demo.inverted_index import Change, flow
from flamestream_demo.report import Figures
from flamestream_demo.view import IndexView

REDRAW_S: Final = 0.1

MAX_IN_FLIGHT: Final = 4
"""Pages admitted and not yet delivered. A page is hundreds of words, so few are enough to keep workers busy, and the
latency shown is that of a page and not of a queue."""

Draw = Callable[[Iterable[tuple[str, str]]], None]


class Indexed(NamedTuple):
    """Result of a run: the last figures, the index, and whether it was drained early."""

    figures: Figures
    view: IndexView
    drained: bool


class Frames(Progress):
    """Progress that applies the job's output to the view and draws the figures.

    Args:
        draw: Function that shows rows.
        workers: Number of workers.

    Attributes:
        changes: The job's output that is not applied yet.
        view: The index so far.
    """

    interval = REDRAW_S

    def __init__(self, draw: Draw, workers: int) -> None:
        self.changes: list[Change] = []
        self.view = IndexView()
        self._draw = draw
        self._workers = workers

    def figures(self, stats: JobStats) -> Figures:
        """Apply the changes to the view, and return the figures of the moment."""
        self.view.apply(self.changes)
        self.changes.clear()
        return Figures.of(stats, self.view, self._workers)

    def show(self, stats: JobStats) -> None:
        self._draw(self.figures(stats).rows())

    def end(self, event: str, stats: JobStats, outputs: Mapping[str, str] = {}, **more: object) -> None:
        self.show(stats)


def index_topics(draw: Draw, *, workers: int = 1, repeat: int = 1) -> Indexed | None:
    """Run to the end of the topics, or until drained by Ctrl-C.

    Args:
        draw: Function that shows rows of figures; called several times a second.
        workers: Number of workers.
        repeat: Number of versions of each page to read.

    Returns:
        The result; None if a second Ctrl-C ended the run at once.

    Raises:
        SourceError: This Python came without the topics.
    """
    said = {"workers": workers, "max_in_flight": MAX_IN_FLIGHT}
    reads = {"use": "pydoc", "repeat": repeat}
    config = make_config(Layer({"job": said, "source": {"pages": reads}}))
    frames = Frames(draw, workers)
    report = asyncio.run(_run(make_job(config, flow, given={"index": frames.changes}), frames))
    return None if report is None else Indexed(frames.figures(report.stats), frames.view, report.drained)


async def _run(job: AnyJob, frames: Frames) -> JobReport | None:
    with stopping(job.drain) as stop:
        try:
            async with shown(frames, "demo", job.stats):
                return await job.run()
        except asyncio.CancelledError:
            if stop.count < 2:
                raise
            return None
