"""The display of a job's progress, always on stderr.

A live table on a terminal, one structured line per interval elsewhere.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from flamecore import escapes, events
from flamecore.cli.output import say
from flamecore.logs import as_json, logger
from flamecore.model.clock import moment
from flamecore.runtime.parts.counters import JobStats, meanings
from flamecore.runtime.tasks.stats import wasteful

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

REDRAW_S: Final = 0.25
"""Seconds between two drawings of the live table."""

_MOST_UNFINISHED: Final = 3
"""Most partitions whose unfinished records the last line names."""


_AT_THE_END: Final = frozenset({"replays", "calls", "messages", "min_time"})
"""Counters of which only the last line tells: they say how the work was done, not how far it is."""


class Progress(ABC):
    """A display of the progress of a job.

    Attributes:
        interval: Seconds from one look to the next; None: it does not look.
        draws: Whether it draws something that other prints would run into.
    """

    interval: float | None = None
    draws: bool = False

    @abstractmethod
    def show(self, stats: JobStats) -> None:
        """Show the counters of a running job."""

    def clear(self) -> None:
        """Remove the drawing; called before anything else is printed."""
        return

    @abstractmethod
    def end(self, event: str, stats: JobStats, outputs: Mapping[str, str] = {}, **more: object) -> None:
        """Show that the job has ended.

        Args:
            event: One of `flamecore.events`.
            stats: Its counters.
            outputs: The output of each sink, in words.
            more: Further keys of a log line.
        """


class Silence(Progress):
    """A display of nothing but, at the end, what was left out, or to a later run.

    Args:
        job: Name of the job.
    """

    def __init__(self, job: str) -> None:
        self._job = job

    def show(self, stats: JobStats) -> None:
        """Show nothing."""

    def end(self, event: str, stats: JobStats, outputs: Mapping[str, str] = {}, **more: object) -> None:
        """Print what was left out or unfinished, unless the job has failed."""
        # Also with --quiet: a job that has left out records must not end silently.
        parts = []
        if stats.left_out:
            kept = f", {stats.dead_letters:,} dead letters" if stats.dead_letters else ""
            parts.append(
                f"{stats.left_out:,} of {stats.records:,} records left out "
                f"({stats.rejected:,} rejected, {stats.failed:,} failed){kept}"
            )
        if unfinished := _unfinished(stats):
            parts.append(unfinished)
        if parts and event != events.JOB_FAILED:
            say(f"{self._job}: {'; '.join(parts)}", err=True)


class Lines(Progress):
    """One structured line per interval, and one at the end.

    Args:
        job: Name of the job; part of each line.
        interval: Seconds between lines.
    """

    def __init__(self, job: str, interval: float) -> None:
        self.interval = interval
        self._job = job

    def show(self, stats: JobStats) -> None:
        """Log how far the job is, in a line that fits a screen."""
        told = {name: value for name, value in stats.rows() if value and name not in _AT_THE_END}
        self._log(events.JOB_PROGRESSED, _flat(told))

    def end(self, event: str, stats: JobStats, outputs: Mapping[str, str] = {}, **more: object) -> None:
        """Log all of the last look."""
        said = {f"output.{name}": text for name, text in outputs.items()}
        self._log(event, {**_flat(dict(stats.rows())), **said}, **more)

    def _log(self, event: str, counters: Mapping[str, object], **more: object) -> None:
        logger().info(event, job=self._job, **counters, **more)


class Screen(Progress):
    """A live table; it goes away at the end and leaves one line.

    Args:
        job: Name of the job; its title.
        live: Whether to draw the table, or only say how it ended.
    """

    def __init__(self, job: str, *, live: bool = True) -> None:
        self.interval = REDRAW_S if live else None
        self.draws = live
        self._job = job
        self._live: Live | None = None
        self._last = JobStats()

    def show(self, stats: JobStats) -> None:
        """Redraw the table."""
        if self._live is None:
            # Imported late, because only a terminal needs it.
            from rich.console import Console
            from rich.live import Live

            # Without a thread of its own: it is drawn after each query, and nothing else changes it.
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._table(stats), refresh=True)
        self._last = stats

    def clear(self) -> None:
        """Remove the table."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, event: str, stats: JobStats, outputs: Mapping[str, str] = {}, **more: object) -> None:
        """Print one line."""
        words = {events.JOB_ENDED: "done", events.JOB_DRAINED: "drained", events.JOB_FAILED: "failed"}
        line = summary(stats)
        if event == events.JOB_ENDED:  # where reading was stopped, all may still come
            line = "; ".join([line, *held(stats)])
        line = "; ".join([line, *(f"{name}: {text}" for name, text in outputs.items())])
        say(f"{self._job} {words[event]}: {line}", err=True)

    def _table(self, stats: JobStats) -> Table:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column(justify="right")
        table.add_column(justify="right", style="dim")
        passed = max(stats.elapsed_s - self._last.elapsed_s, 1e-9)
        table.add_row(escapes.line(self._job), f"{stats.elapsed_s:.1f} s", "")
        table.add_row("in", f"{stats.items_in:,}", f"{(stats.items_in - self._last.items_in) / passed:,.0f}/s")
        for sink, count in stats.items_out.items():
            table.add_row(f"out {sink}", f"{count:,}", f"{(count - self._last.items_out.get(sink, 0)) / passed:,.0f}/s")
        held_back = f"{stats.held_back} held back" if stats.held_back else ""
        table.add_row("in flight", f"{stats.in_flight:,}", held_back)
        for name, count in stats.waiting.items():
            table.add_row(f"waiting before {name}", f"{count:,}", "")
        if stats.calls:
            table.add_row("calls", f"{stats.total_calls:,}", _in_vain(stats))
        if (latency := _latency(stats)) is not None:
            table.add_row("latency p50, p99", latency, "")
        for name, watermark in stats.watermarks.items():
            table.add_row(f"watermark {name}", moment(watermark), f"held by {stats.held_by.get(name, '')}")
        for name, count in stats.pending.items():
            table.add_row(f"pending {name}", f"{count:,}", "")
        for name, count in _counted(stats):
            table.add_row(name, f"{count:,}", "")
        for name, value in stats.where.items():
            table.add_row(name, str(value), "")
        return table


def summary(stats: JobStats) -> str:
    """Return a look in one line."""
    parts = [f"{stats.items_in:,} in", f"{stats.total_out:,} out", f"{stats.elapsed_s:.2f} s"]
    if (latency := _latency(stats)) is not None:
        parts.append(f"latency p50, p99 {latency}")
    if stats.calls:
        parts.append(", ".join(filter(None, (f"{stats.total_calls:,} calls", _in_vain(stats)))))
    parts += [f"{count:,} {name}" for name, count in _counted(stats)]
    return "; ".join(filter(None, (", ".join(parts), _unfinished(stats))))


def _unfinished(stats: JobStats) -> str:
    """Return what was left to a later run, of a few partitions; empty if nothing was."""
    parts = [text for _, text in sorted(stats.unfinished.items())]
    if len(parts) > _MOST_UNFINISHED:
        parts[_MOST_UNFINISHED:] = [f"and so in {len(parts) - _MOST_UNFINISHED:,} more"]
    return "; ".join(parts)


def held(stats: JobStats) -> Iterator[str]:
    """Yield what each input that has ended holds back, in words."""
    for name, count in stats.held.items():
        front, option = stats.held_for.get(name, "its input"), stats.released_by.get(name)
        items = f"{count:,} item{'s' * (count > 1)} held at {name} for {front}, which has ended"
        yield f"{items} ({option} releases them)" if option else items


def _counted(stats: JobStats) -> Iterator[tuple[str, int]]:
    """Yield the counters that are shown where they are not 0, by their names in words."""
    for name, meaning in meanings(JobStats).items():
        if meaning.shown and (count := getattr(stats, name)):
            if isinstance(count, Mapping):
                yield from ((f"{name.replace('_', ' ')} at {key}", each) for key, each in count.items())
            else:
                yield name.replace("_", " "), count


def _latency(stats: JobStats) -> str | None:
    if stats.latency_p50_ms is None or stats.latency_p99_ms is None:
        return None
    return f"{stats.latency_p50_ms:.3g}, {stats.latency_p99_ms:.3g} ms"


def _in_vain(stats: JobStats) -> str:
    return f"{stats.total_in_vain:,} in vain" if stats.calls_in_vain else ""


def _flat(counters: Mapping[str, object]) -> dict[str, object]:
    """Return counters as keys and plain values.

    Counts by name become `items_out.NAME`.
    """
    flat: dict[str, object] = {}
    for key, value in counters.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": count for name, count in value.items()}
        elif value is not None:
            flat[key] = round(value, 3) if isinstance(value, float) else value
    return flat


def chosen(job: str, *, quiet: bool, interval: float, data_on_stdout: bool) -> Progress:
    """Return the display that fits.

    Nothing when quiet, a table on a terminal, lines elsewhere and where the log is JSON.

    Args:
        job: Name of the job.
        quiet: Whether to show nothing.
        interval: Seconds between lines.
        data_on_stdout: Whether a sink writes to stdout; if that is the same terminal, a table would run into it.
    """
    if quiet:
        return Silence(job)
    if sys.stderr.isatty() and not as_json():
        return Screen(job, live=not (data_on_stdout and sys.stdout.isatty()))
    return Lines(job, interval)


@asynccontextmanager
async def shown(progress: Progress, job: str, look: Callable[[], JobStats]) -> AsyncIterator[None]:
    """Show the progress of a job once per interval, while the block runs.

    Warn once if most calls are in vain.

    Args:
        progress: Shows the looks.
        job: Name of the job.
        look: Takes one.
    """
    said = False

    def warn(stats: JobStats) -> None:
        nonlocal said
        if not said and (operation := wasteful(stats)) is not None:
            said = True
            progress.clear()
            logger().warning(
                events.CALLS_WASTED,
                job=job,
                operation=operation,
                calls=stats.calls[operation],
                calls_in_vain=stats.calls_in_vain[operation],
                hint="Records that belong together come at very different times. With [job] advance = false nothing "
                "goes in before it is known to be next: fewer calls, more latency.",
            )

    async def watch(interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            stats = look()
            warn(stats)
            progress.show(stats)

    task = asyncio.create_task(watch(progress.interval)) if progress.interval is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        progress.clear()
        warn(look())
