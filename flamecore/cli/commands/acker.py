"""The command `flamestream acker`."""

from __future__ import annotations

from typing import Any

import click

from flamecore.cli.commands.worker import serve
from flamecore.cli.joining import join_options
from flamecore.cli.output import log_option


@click.command("acker")
@click.option("--join", "address", required=True, metavar="ADDRESS", help="Address of the job's supervisor.")
@click.option("--name", help="Name of this acker.")
@join_options
@log_option
def command(address: str, name: str | None, **options: Any) -> None:
    """Join a job to host its trackers and nothing else.

    The job says [deploy] acker = "own".
    """
    serve(address, name=name, role="acker", **options)
