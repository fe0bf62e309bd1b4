"""Draw the windows of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from flamecore.abc.hooks import hookimpl
from flamecore.cli.app import Options, app_argument, config_options, load_app_flow, read_app
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.errors import ConfigError

if TYPE_CHECKING:
    from flamecore.model.graph import Graph
    from flamestream_windows.flows.vertices import Grouped

CHARTS: Final = 4
"""Most keys that are drawn unless one is named."""


@click.command("windows", short_help="Draw the windows of a run.")
@app_argument
@config_options
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the picture to this file, not to stdout.",
)
@click.option("--of", "name", metavar="NAME", help="The windows to draw, by the operation's name. Default: the first.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="A key to draw. May be given several times.")
@click.option(
    "--records",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Read the first N records of each source.",
)
@json_option
@verbose_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    app: str,
    output: Path | None,
    name: str | None,
    keys: tuple[str, ...],
    records: int,
    **options: Any,
) -> None:
    """Run a flow on its first records, and draw its windows as SVG.

    Event time is across, the order of records downwards: elements are dots, panes are boxes as wide as their windows,
    and a line is the watermark. Sinks and state are left alone.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    """
    from flamecore.cli.sample import run_sample
    from flamecore.runtime.config.resolve import resolve
    from flamestream_windows.picture.story import Story
    from flamestream_windows.picture.svg import draw

    config = read_app(app, Options(**options))
    spec = resolve(config, load_app_flow(app, config))
    spec.problems.raise_first()
    called, story = _grouped(spec.checked_graph, name).name, Story()

    def watch(graph: Graph) -> None:
        _grouped(graph, called).watch = story.watched

    run_sample(spec, records, watch)
    found = story.keys()
    shown = _chosen(found, keys) if keys else found[:CHARTS]
    picture = draw(story, called, shown, counts=spec.settings.clock != "wall")
    if output is not None:
        try:
            output.write_text(picture, "utf-8")
        except OSError as error:
            raise ConfigError(
                f"the picture cannot be written to {output}: {error.strerror or error}",
                hint="Give --output a file in a folder that is there, or leave it out.",
                path="output",
            ) from error
    if wants_json(ctx):
        counts = {"elements": len(story.elements), "panes": len(story.panes), "keys": len(found), "drawn": len(shown)}
        print_json({"name": called, **counts, **({"svg": picture} if output is None else {"output": str(output)})})
        return
    if output is None:
        click.echo(picture, nl=False)
    else:
        say(f"wrote {output}", err=True)
    if not keys and len(shown) < len(found):
        say(f"drew the first {len(shown)} of {len(found)} keys; --key draws another", err=True)


def _grouped(graph: Graph, name: str | None) -> Grouped:
    """Return the windows to draw.

    Raises:
        click.UsageError: There are none, or none of that name.
    """
    from flamestream_windows.flows.vertices import Grouped

    known = {vertex.name: vertex for vertex in graph.vertices if isinstance(vertex, Grouped)}
    if not known:
        raise click.UsageError(f"the flow {graph.name!r} has no windows: nothing in it comes of .window(…)")
    if name is None:
        return next(iter(known.values()))
    if name not in known:
        raise click.BadParameter(f"no windows are called {name!r}; there are {', '.join(known)}", param_hint="--of")
    return known[name]


def _chosen(found: list[Any], wanted: tuple[str, ...]) -> list[Any]:
    """Return the keys that are wanted, by their texts.

    Raises:
        click.BadParameter: One has no elements.
    """
    by_text = {str(key): key for key in found}
    for text in wanted:
        if text not in by_text:
            known = ", ".join(list(by_text)[:10]) + (", …" if len(by_text) > 10 else "")
            raise click.BadParameter(
                f"no element has the key {text!r}; there are {known or 'none'}", param_hint="--key"
            )
    return [by_text[text] for text in dict.fromkeys(wanted)]


@hookimpl
def flamestream_command() -> click.Command:
    return command
