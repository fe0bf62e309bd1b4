"""The command `flamestream run`."""

from __future__ import annotations

from typing import Any

import click

from flamecore.cli.app import Options, app_argument, config_options, load_app_flow, read_app
from flamecore.cli.output import json_option, log_option, verbose_option
from flamecore.cli.running import run_to_the_end
from flamecore.runtime.config.resolve import resolve


@click.command("run")
@app_argument
@config_options
@click.option(
    "--progress-interval",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds between lines of progress, where stderr is not a terminal.",
)
@click.option("--take-over", is_flag=True, help="Take the job over from another run in progress, which then ends.")
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="No progress and no summary; errors, and how many records were left out, are still printed.",
)
@log_option
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, app: str, progress_interval: float, quiet: bool, **options: Any) -> None:
    """Run a flow to the end of its sources.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    Ctrl-C stops reading, delivers what was read, and ends; a second Ctrl-C ends at once.

    With --json a summary is printed at the end: on stdout, or on stderr if a sink writes to stdout.
    """
    config = read_app(app, Options(**options))
    spec = resolve(config, load_app_flow(app, config))
    run_to_the_end(ctx, spec, quiet=quiet, progress_interval=progress_interval)
