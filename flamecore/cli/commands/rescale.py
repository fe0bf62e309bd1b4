"""The command `flamestream rescale`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from flamecore.cli.joining import join_options, joining
from flamecore.cli.output import json_option, print_json, say, wants_json

_LIMIT_S = 120.0


@click.command("rescale")
@click.argument("address")
@click.option("-w", "--workers", type=click.IntRange(1), required=True, help="The new number of workers.")
@join_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, address: str, workers: int, **options: Any) -> None:
    """Change the number of workers of a running job that keeps state.

    Prints the downtime of the job.

    Key groups move to the workers that are to have them. Nothing is lost, and nothing comes twice.
    """
    from flamecore.model.messages import Rescale
    from flamecore.runtime.cluster.client import Client

    with joining(address, name=None, role="operator", **options) as bootstrap:
        facts = asyncio.run(Client(bootstrap).ask(Rescale(workers), _LIMIT_S))
    if wants_json(ctx):
        print_json(facts)
    else:
        say(f"{facts['workers']} workers; the job stood still for {facts['pause_ms']:.0f} ms")
