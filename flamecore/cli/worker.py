"""flamestream worker"""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import click

from flamecore.cli.joining import bootstrap_of, join_options


@click.command("worker")
@click.option("--join", "address", required=True, metavar="ADDRESS", help="Where the job's supervisor listens.")
@click.option("--name", help="Name of this worker; its place among the workers goes by it.")
@join_options
def command(address: str, name: str | None, **options: Any) -> None:
    """Join a job as one of its workers, and run until the job ends.

    The supervisor is `flamestream run` with [deploy] start = "join". The flow must be importable here as it is there.
    """
    serve(address, name=name, role="worker", **options)


def serve(address: str, *, name: str | None, role: str, **options: Any) -> None:
    """Run a node of a job until it ends. Options as of `join_options`."""
    from flamecore.job import collector_at_rest
    from flamecore.process import Process

    bootstrap = bootstrap_of(address, name=name, role=role, **options)
    try:
        with collector_at_rest():
            asyncio.run(Process(bootstrap).run())
    finally:
        shutil.rmtree(bootstrap["folder"], ignore_errors=True)
