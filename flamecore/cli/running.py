"""A job that a command runs to its end: progress, signals, summary.

Shared by run and retry.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from flamecore import events
from flamecore.abc.config import HERE
from flamecore.cli.exits import Exit
from flamecore.cli.output import leave_stdout, print_json, say, verbosity, wants_json
from flamecore.cli.progress import Progress, chosen, shown
from flamecore.cli.stop import stopping
from flamecore.errors import FlameError
from flamecore.escapes import block
from flamecore.logs import JsonLines, TextLines, as_json, json_line, logger
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.launch import job_of
from flamecore.runtime.parts.counters import JobStats
from flamecore.runtime.tasks.event_loop import run
from flamecore.runtime.tasks.stats import JobReport
from flamecore.runtime.tasks.watch import end_process_by

if TYPE_CHECKING:
    from flamecore.runtime.engine.job import AnyJob


def run_to_the_end(ctx: click.Context, spec: JobSpec, *, quiet: bool, progress_interval: float) -> JobReport:
    """Run a job under signals, show its progress, and print its summary.

    Args:
        ctx: The context of the command; left with an exit code if the job is stopped.
        spec: The job.
        quiet: Whether to show no progress and no summary.
        progress_interval: Seconds between lines of progress, where stderr is not a terminal.

    Raises:
        FlameError: It cannot work, or has failed.
    """
    try:
        job = job_of(spec)
    except FlameError as error:
        error.before_start = True
        raise
    if verbosity(ctx):
        import logging

        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if as_json() else TextLines())
        level = logging.DEBUG if verbosity(ctx) > 1 else logging.INFO
        logging.basicConfig(level=level, handlers=[handler], force=as_json())
        described = spec.described()
        plain = {key: described[key] for key in ("job", "flow", "workers", "clock", "guarantee", "on_error")}
        logger().info(events.JOB_STARTED, **plain, **spec.drivers.names)
    data_on_stdout = writes_to_stdout(spec)
    if data_on_stdout:
        leave_stdout(ctx)
    if not quiet and spec.at_home:
        say_placed(spec)
    if not quiet and spec.config.deploy.start == "join":
        say_awaited(spec)
    progress = chosen(spec.name, quiet=quiet, interval=progress_interval, data_on_stdout=data_on_stdout)
    end_process_by(_end)
    try:
        report = run(_run(spec.name, job, progress, quiet=quiet))
    except (FlameError, MemoryError) as error:
        if getattr(error, "reader_gone", False):
            ctx.exit(Exit.FAILED)  # `| head` has seen enough, which needs no message
        progress.end(events.JOB_FAILED, job.stats(), error=type(error).__name__)
        raise
    finally:
        end_process_by(None)
    if report is None:
        ctx.exit(Exit.STOPPED)
    event = events.JOB_DRAINED if report.drained else events.JOB_ENDED
    progress.end(event, report.stats, outputs_of(spec, report.stats))
    if wants_json(ctx):
        summary = {"job": spec.name, "drained": report.drained, **dict(report.stats.rows())}
        print_json(summary, ctx)
    return report


def _end(text: str) -> None:
    """End the process in the midst of a call of a user's function."""
    told = json_line(events.COMMAND_FAILED, "error", message=text, exit_code=Exit.FAILED) if as_json() else ""
    os.write(2, f"{told or block(f'error: {text}')}\n".encode())
    os._exit(Exit.FAILED)


def writes_to_stdout(spec: JobSpec) -> bool:
    """Return whether data goes to stdout, so that nothing else may."""
    return any(sink.writes_to_stdout for sink in spec.all_sinks.values())


def outputs_of(spec: JobSpec, stats: JobStats) -> dict[str, str]:
    """Return what each sink has been given in this run, and where it is, in words."""
    found = {}
    for name, sink in spec.all_sinks.items():
        count = stats.items_out.get(name, 0)
        form = getattr(sink.options, "format", "") or sink.name
        places = "".join(f" in {place}" for place in sink.writes())
        found[name] = f"{count:,} row{'s' * (count != 1)} to {form}{places}"
    return found


def say_placed(spec: JobSpec) -> None:
    """Print where the job runs and why, if the configuration left it open."""
    on, transport, because = spec.config.deploy.on, spec.config.transport.use, list(spec.at_home)
    if as_json():
        logger().info(events.JOB_PLACED, job=spec.name, on=on, transport=transport, because=because)
        return
    instead = f'deploy.on = "{HERE}" runs it in this process'
    say(f"on {on} over {transport}: the data of {', '.join(because)} is at home there ({instead})", err=True)


def say_awaited(spec: JobSpec) -> None:
    """Print the workers that the job waits for, and the commands that start them."""
    from flamecore.runtime.cluster.dry_run import outlook_of
    from flamecore.runtime.cluster.placement import join_command

    deploy, workers = spec.config.deploy, spec.settings.workers
    address = outlook_of(spec).join
    roles = ["worker", *(["acker"] if deploy.acker == "own" else [])]
    commands = [join_command(role, spec.name, address) for role in roles]
    if as_json():
        logger().info(events.JOB_AWAITED, job=spec.name, start_timeout_s=deploy.start_timeout_s, commands=commands)
        return
    first = f"job {spec.name} waits {deploy.start_timeout_s:g} s for {workers} worker{'s' * (workers > 1)}:"
    say(first, *(f"  {command}" for command in commands), err=True)


async def _run(name: str, job: AnyJob, progress: Progress, *, quiet: bool) -> JobReport | None:
    """Run the job under signals; None if it was stopped at once."""
    clear = progress.clear if progress.draws else None
    with stopping(job.drain, quiet=quiet or as_json(), begun=lambda: job.begun, clear=clear) as stop:
        try:
            async with shown(progress, name, job.stats):
                return await job.run()
        except asyncio.CancelledError:
            if stop.early and stop.count == 1:
                return JobReport(job.stats(), drained=True)
            if stop.count < 2:
                raise
            return None
