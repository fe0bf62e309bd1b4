"""The command `flamestream version`."""

from __future__ import annotations

import platform

import click

from flamecore._version import __version__
from flamecore.cli.output import json_option, print_json, say, wants_json
from flamecore.runtime.config.plugins import API_CURRENT, API_FLOOR


@click.command("version")
@json_option
@click.pass_context
def command(ctx: click.Context) -> None:
    """Print the version."""
    if wants_json(ctx):
        versions = {"flamestream": __version__, "python": platform.python_version()}
        print_json({**versions, "platform": platform.platform(), "plugin_api": [API_FLOOR, API_CURRENT]})
    else:
        say(text())


def text() -> str:
    """Return the version in one line."""
    return f"flamestream {__version__}, Python {platform.python_version()}"
