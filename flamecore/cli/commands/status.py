"""The command `flamestream status`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from flamecore.cli.joining import join_options, joining
from flamecore.cli.output import json_option, print_json, say, wants_json
from flamecore.cli.placement import placement_lines


@click.command("status")
@click.argument("address")
@click.option("--placement", is_flag=True, help="Show how busy each worker is with what, and what would move.")
@join_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, address: str, placement: bool, **options: Any) -> None:
    """Show a running job.

    The report has its nodes and what they host, key groups, homes, minimum time and counts.
    """
    from flamecore.runtime.cluster.client import Client

    with joining(address, name=None, role="observer", **options) as bootstrap:
        facts = asyncio.run(Client(bootstrap).look())
    if wants_json(ctx):
        print_json(facts["placement"] if placement else facts)
        return
    if placement:
        say(*placement_lines(facts["placement"]))
        return
    facts["placement"] = facts["placement"]["verdict"]
    facts["key_groups"] = {worker: f"{first} to {last}" for worker, (first, last) in facts["key_groups"].items()}
    for name, value in facts.items():
        if value is None or value == {}:
            continue  # there is nothing to say yet
        if isinstance(value, dict):
            say(f"{name}")
            for key, detail in value.items():
                say(f"  {key:<24} {_text(detail)}")
        else:
            say(f"{name:<26} {_text(value)}")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key}={_text(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)
