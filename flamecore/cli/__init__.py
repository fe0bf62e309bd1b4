"""The command line, `flamestream`.

Data goes to stdout; progress, logs and errors go to stderr.
"""

from __future__ import annotations

import click

from flamecore.cli.exits import EPILOG
from flamecore.cli.group import FlameGroup
from flamecore.cli.output import say


def _say_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from flamecore.cli.commands.version import text

        say(text())
        ctx.exit()


main = FlameGroup(
    name="flamestream",
    help="Deterministic, exactly-once, low-latency stream processing, with cycles.",
    epilog=EPILOG,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_say_version,
            help="Print the version.",
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
"""The entry point."""

__all__ = ["main"]
