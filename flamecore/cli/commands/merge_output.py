"""The command `flamestream merge-output`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from flamecore.cli.app import Options, load_app_flow, read_app
from flamecore.cli.output import verbose_option
from flamecore.cli.partitions import sink_of_folder
from flamecore.cli.stored import JOB_FILE

if TYPE_CHECKING:
    from flamecore.abc.sink import PartitionedSink


@click.command("merge-output", short_help="Write the output of a sink in partitions as one sequence.")
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True))
@click.option("--app", metavar="APP", help=f"Job file, script or module. Default: {JOB_FILE}, if no folder is given.")
@click.option("--sink", "name", metavar="NAME", help="Sink of the job. Default: the only one in partitions.")
@click.option("-o", "--output", metavar="FILE", type=click.File("wb", lazy=False), default="-", help="Default: stdout.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Set any key of the configuration, such as sink.counts.path=counts.",
)
@verbose_option
def command(
    folder: Path | None, app: str | None, name: str | None, output: BinaryIO, settings: tuple[str, ...]
) -> None:
    """Write the output of a sink in partitions as one sequence, in order.

    It is what the sink would have written with `order = "ordered"`, byte by byte. Reads the files in FOLDER, or those
    of a sink of a job, while it runs or after: then up to where the output is complete. Nothing there is changed.
    """
    if folder is not None and app is None:
        sink = sink_of_folder(folder, "FOLDER")
    else:
        sink = _of_job(app or JOB_FILE, settings, name)
    output.writelines(sink.merged())


def _of_job(app: str, settings: tuple[str, ...], name: str | None) -> PartitionedSink:
    """Return a sink of a job.

    Raises:
        ConfigError: It cannot be made, or there is no job.
        BadParameter: There is no such sink.
    """
    from flamecore.abc.sink import PartitionedSink
    from flamecore.runtime.config.resolve import resolve

    config = read_app(app, Options(settings=settings))
    spec = resolve(config, load_app_flow(app, config))
    if spec.graph is None or len(spec.sinks) < len(spec.graph.sinks):  # other problems do not matter here
        spec.problems.raise_first()
    there = {key: sink for key, sink in spec.sinks.items() if isinstance(sink, PartitionedSink)}
    chosen = there.get(name) if name is not None else next(iter(there.values()), None) if len(there) == 1 else None
    if chosen is None:
        what = f"sinks in partitions: {', '.join(sorted(there)) or 'none'}"
        raise click.BadParameter(
            f"name one of the {what}" if name is None else f"not {name}; {what}", param_hint="NAME"
        )
    return chosen
