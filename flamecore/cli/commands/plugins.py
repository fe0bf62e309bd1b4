"""The command `flamestream plugins`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from flamecore.cli.exits import Exit
from flamecore.cli.output import facts, json_option, print_json, say, verbose_option, wants_json
from flamecore.errors import MissingDependencyError, PluginError
from flamecore.runtime.config.plugins import KINDS, PluginRegistry, Provider


@click.command("plugins")
@click.option("--check", is_flag=True, help="Import each plugin and print whether it works.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, check: bool) -> None:
    """List the plugins that are installed, without importing any.

    With --check the exit code is 3 if any of them cannot be used.
    """
    plugins = PluginRegistry()
    providers = [provider for kind in KINDS for provider in plugins.providers(kind)]
    uses = Counter((provider.kind, provider.name) for provider in providers)
    rows = [_row(plugins, provider, uses[provider.kind, provider.name], check) for provider in providers]
    if wants_json(ctx):
        print_json({"plugins": rows})
    else:
        for line in _table(rows, check):
            say(line)
    # A client that an extra would bring is no trouble as long as nobody asks for that plugin.
    if check and any((row["error"] and not row["missing"]) or row["conflict"] for row in rows):
        ctx.exit(Exit.PLUGIN)


def _row(plugins: PluginRegistry, provider: Provider, uses: int, check: bool) -> dict[str, object]:
    error = None
    if check:
        try:
            plugins.check(provider)
        except PluginError as caught:
            error = caught
    row = {key: getattr(provider, key) for key in ("kind", "name", "distribution", "version", "module")}
    row["conflict"] = uses > 1
    if check:
        row["ok"] = error is None
        row["missing"] = isinstance(error, MissingDependencyError) and error.extra is not None
    return {**row, "error": error and facts(error)}


def _table(rows: list[dict[str, Any]], check: bool) -> list[str]:
    cells = [("KIND", "NAME", "DISTRIBUTION", "MODULE", "STATE")]
    for row in rows:
        state = "ok" if check else ""
        if row.get("missing"):
            state = f"client not installed. {row['error']['hint'].rpartition('. ')[2]}"
        elif row["error"]:
            state = f"{row['error']['message']}. {row['error']['hint']}"
        elif row["conflict"]:
            state = f"two provide it: write {row['distribution']}:{row['name']}"
        cells.append((row["kind"], row["name"], f"{row['distribution']} {row['version']}", row["module"], state))
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[4]]).rstrip()
        for line in cells
    ]
