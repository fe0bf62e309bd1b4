"""The command `flamestream graph`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flamecore.cli.app import Options, app_argument, load_app_flow, read_app
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.cli.render import FORMATS, Format, drawn
from flamecore.model.graph import Graph


@click.command("graph")
@app_argument
@click.option("--format", "format", type=click.Choice(FORMATS), help="Default: by the output's suffix, or mermaid.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, not to stdout.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, app: str, format: Format | None, output: Path | None) -> None:
    """Draw the graph of a flow.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    SVG and PNG need Graphviz: its program `dot`, and pip install 'flamestream[graphviz]'.
    """
    graph = load_app_flow(app, read_app(app, Options())).graph()
    chosen = format or _format_of(output)
    if wants_json(ctx) and output is None:
        print_json(_described(graph))
        return
    if chosen in ("svg", "png") and output is None and sys.stdout.isatty():
        raise click.UsageError(f"a terminal cannot show {chosen}; give --output graph.{chosen}", ctx)
    picture = drawn(graph, chosen)
    if output is None:
        click.echo(picture, nl=False)
        return
    output.write_bytes(picture)
    if wants_json(ctx):
        print_json({**_described(graph), "output": str(output), "format": chosen})
    else:
        say(f"wrote {output}", err=True)


def _format_of(output: Path | None) -> Format:
    suffix = output.suffix.removeprefix(".") if output else ""
    endings: dict[str, Format] = {"svg": "svg", "png": "png", "dot": "dot", "gv": "dot"}
    return endings.get(suffix, "mermaid")


def _described(graph: Graph) -> dict[str, object]:
    feedback = graph.feedback()
    return {
        "name": graph.name,
        "vertices": [{"name": vertex.name, "kind": vertex.kind} for vertex in graph.vertices],
        "edges": [
            {"from": start.name, "to": end.name, "feedback": (start, end) in feedback} for start, end in graph.edges
        ],
    }
