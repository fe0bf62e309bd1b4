"""flamestream check"""

from __future__ import annotations

from typing import Any

import click

from flamecore.cli.app import Options, app_argument, config_options, load_app_flow, read_app
from flamecore.cli.exits import exit_of
from flamecore.cli.output import facts, json_option, print_json, verbose_option, wants_json
from flamecore.launch import lay_out
from flamecore.layout import Layout
from flamecore.strict import Problems


@click.command("check")
@app_argument
@config_options
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, app: str, **options: Any) -> None:
    """Load everything and start nothing: say what would run, and all that is wrong.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    """
    problems = Problems()
    layout = None
    with problems.noted():
        config = read_app(app, Options(**options), problems)
        layout = lay_out(config, load_app_flow(app, config), problems=problems)
        layout.rehearse()
    described = layout.described() if layout else {}
    if wants_json(ctx):
        print_json({"ok": not problems, **described, "problems": [facts(problem) for problem in problems]})
    else:
        for line in _lines(layout, described) if layout else ():
            click.echo(line)
        for number, problem in enumerate(problems, 1):
            notes = getattr(problem, "__notes__", ())
            click.echo("\n".join([f"problem {number} of {len(problems)}: {problem}", *notes]), err=True)
        if not problems:
            click.echo("nothing is wrong", err=True)
    if problems:
        ctx.exit(exit_of(problems[0]))


def _lines(layout: Layout, described: dict[str, Any]) -> list[str]:
    plain = ("job", "flow", "workers", "clock", "guarantee", "on_error", "max_in_flight")
    lines = [f"{key:<14} {described[key]}" for key in plain]
    lines += [f"{key:<14} {_use(described[key])}" for key in ("transport", "acker")]
    if described["registry"]["use"] != "supervisor":
        lines.append(f"registry       {_use(described['registry'])}")
    for name, edge in described["sources"].items():
        promise = ""
        if source := layout.sources.get(name):
            capabilities = source.capabilities
            promise = ", replayable" if capabilities.replayable else ", not replayable"
            promise += "" if capabilities.bounded else ", without end"
        lines.append(f"source         {name}: {_use(edge)}{promise}")
    for name, edge in described["sinks"].items():
        promise = f", {layout.sinks[name].guarantee}" if name in layout.sinks else ""
        lines.append(f"sink           {name}: {_use(edge)}{promise}")
    if described["dead_letter"]:
        lines.append(f"dead letters   {described['dead_letter']}")
    lines += [f"hook           {name}" for name in described["hooks"]]
    return lines


def _use(choice: dict[str, Any]) -> str:
    options = ", ".join(f"{key} = {value!r}" for key, value in choice["options"].items())
    return f"{choice['use'] or '?'}{f' ({options})' if options else ''}"
