"""The command `flamestream upgrade`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from flamecore.cli.app import Options, app_argument, config_options, load_app_flow, read_app
from flamecore.cli.joining import joining
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json

_LIMIT_S = 600.0


@click.command("upgrade")
@click.argument("address")
@app_argument
@config_options
@click.option("--job", help="Name of the job; default: as APP configures it, or that of its flow.")
@click.option("--accept", is_flag=True, help="Drop the state that the new version cannot use.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, address: str, app: str, job: str | None, accept: bool, **options: Any) -> None:
    """Switch a running job that keeps state to another version of its flow.

    Prints the downtime of the job.

    APP is a job file, a script or a module, on the supervisor's host. The job reads on with the new version from where
    the former has done all that it has read. A version that cannot be imported, that changes what a running job cannot
    change, or that would lose state, is refused, and the job goes on as it was.
    """
    from flamecore.model.messages import Upgrade
    from flamecore.runtime.cluster.client import Client
    from flamecore.runtime.config.options import node_options
    from flamecore.runtime.config.read import encode_config

    if options["workers"] is not None:
        raise click.UsageError("an upgrade keeps the number of workers; change it with flamestream rescale", ctx)
    config = read_app(app, Options(**options))
    if not job and "#" not in address:
        job = config.job.name or load_app_flow(app, config).name
    file = Path(app) if app.endswith(".toml") else options["config_file"]
    asked = Upgrade(encode_config(config), accept)
    with joining(
        address, job=job, name=None, role="operator", settings=options["settings"], config_file=file
    ) as bootstrap:
        # The job listens on the configured port, so this process takes another.
        bootstrap["options"] = node_options(bootstrap["options"])
        facts = asyncio.run(Client(bootstrap).ask(asked, _LIMIT_S))
    if wants_json(ctx):
        print_json(facts)
        return
    for line in facts["plan"]:
        say(line)
    say(f"the new version runs; the job stood still for {facts['pause_ms']:.0f} ms")
