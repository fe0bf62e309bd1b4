"""flamestream acker"""

from __future__ import annotations

import click

from flamecore.cli.joining import join_options
from flamecore.cli.worker import serve


@click.command("acker")
@click.option("--join", "address", required=True, metavar="ADDRESS", help="Where the job's supervisor listens.")
@click.option("--name", help="Name of this acker.")
@join_options
def command(address: str, name: str | None, job: str, settings: tuple[str, ...]) -> None:
    """Join a job to host its trackers and nothing else; the job says [deploy] acker = "own"."""
    serve(address, job=job, name=name, role="acker", settings=settings)
