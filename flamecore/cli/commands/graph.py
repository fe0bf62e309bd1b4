"""The command `flamestream graph`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flamecore.abc.config import JobConfig
from flamecore.cli.app import Options, app_argument, load_app_flow, read_app
from flamecore.cli.output import json_option, print_json, verbose_option, wants_json
from flamecore.cli.render import FORMATS, Format, Places, drawn, places_of
from flamecore.model.flow import FlowGraph
from flamecore.model.graph import Graph


@click.command("graph")
@app_argument
@click.option("--format", "format", type=click.Choice(FORMATS), help="Default: by the output's suffix, or mermaid.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, not to stdout.")
@click.option("--on", metavar="HOST", help="Show where each operation would run on this host.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, app: str, format: Format | None, output: Path | None, on: str | None) -> None:
    """Draw the graph of a flow.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    SVG and PNG need Graphviz: its program `dot`, and pip install 'flamestream[graphviz]'.
    """
    config = read_app(app, Options(on=on))
    flow = load_app_flow(app, config)
    graph = flow.graph()
    places = {} if on is None else _places(config, flow, graph)
    chosen = format or _format_of(output)
    if wants_json(ctx) and output is None:
        print_json(_described(graph, places))
        return
    if chosen in ("svg", "png") and output is None and sys.stdout.isatty():
        raise click.UsageError(f"a terminal cannot show {chosen}; give --output graph.{chosen}", ctx)
    picture = drawn(graph, chosen, places)
    if output is None:
        click.echo(picture, nl=False)
        return
    output.write_bytes(picture)
    if wants_json(ctx):
        print_json({**_described(graph, places), "output": str(output), "format": chosen})
    else:
        click.echo(f"wrote {output}", err=True)


def _format_of(output: Path | None) -> Format:
    suffix = output.suffix.removeprefix(".") if output else ""
    endings: dict[str, Format] = {"svg": "svg", "png": "png", "dot": "dot", "gv": "dot"}
    return endings.get(suffix, "mermaid")


def _places(config: JobConfig, flow: FlowGraph, graph: Graph) -> Places:
    """Return the operations that run in each place.

    Raises:
        FlameError: There is no such host, or it cannot be used.
    """
    from flamecore.runtime.config.resolve import resolve

    spec = resolve(config, flow)
    if not spec.has_host:
        spec.problems.raise_first()
    return places_of(graph, spec.ahead)


def _described(graph: Graph, places: Places) -> dict[str, object]:
    feedback = graph.feedback()
    where = {vertex: {"place": place} for place, vertices in places.items() for vertex in vertices}
    return {
        "name": graph.name,
        "vertices": [{"name": vertex.name, "kind": vertex.kind, **where.get(vertex, {})} for vertex in graph.vertices],
        "edges": [
            {"from": start.name, "to": end.name, "feedback": (start, end) in feedback} for start, end in graph.edges
        ],
    }
