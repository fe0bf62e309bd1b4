"""The command `flamestream verify-output`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flamecore.abc.sink import Verified
from flamecore.cli.app import Options, load_app_flow, read_app
from flamecore.cli.exits import Exit
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.cli.partitions import sink_of_folder
from flamecore.cli.stored import JOB_FILE
from flamecore.model.plan import DEAD_LETTERS
from flamecore.runtime.config import defaults

if TYPE_CHECKING:
    from flamecore.abc.sink import Damage, Sink


@click.command("verify-output", short_help="Compare outputs in files with their checksums.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--app", metavar="APP", help=f"Job file, script or module. Default: {JOB_FILE}, if no file is given.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Set any key of the configuration, such as sink.counts.path=counts.txt.",
)
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, files: tuple[Path, ...], app: str | None, settings: tuple[str, ...]) -> None:
    """Compare outputs in files with the checksums beside them.

    Prints the bytes that are not as they were written.

    Looks at FILES, or at all sinks of a job, while it runs or after; a folder in partitions stands for its files.
    Nothing is changed. Outputs without checksums, of another sink, are not covered, which is no error.

    Dead letters may be edited: where those of a job have changed, that is said, and is no damage.

    The exit code is 1 if anything is damaged.
    """
    if files and app is None:
        sinks, editable = _of_files(files), ""  # nothing says which are dead letters
    else:
        sinks, editable = _of_job(app or JOB_FILE, settings)
    found = {name: sink.verify() for name, sink in _in_partitions(sinks)}
    if wants_json(ctx):
        print_json({"outputs": {name: _facts(verified) for name, verified in found.items()}})
    else:
        for name, verified in found.items():
            say(*_lines(name, verified, edited=name == editable))
    if any(verified is not None and verified.damages for name, verified in found.items() if name != editable):
        ctx.exit(Exit.FAILED)


def _in_partitions(sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Sink]]:
    """Yield sinks, and the partitions of those that have some, by name and partition."""
    from flamecore.abc.sink import PartitionedSink

    for name, sink in sinks.items():
        if isinstance(sink, PartitionedSink):
            yield from ((f"{name}/{partition}", each) for partition, each in sink.stored().items())
        else:
            yield name, sink


def _of_files(files: tuple[Path, ...]) -> dict[str, Sink]:
    """Make a sink for each file, and for each folder of partitions.

    Checksums do not depend on the format.
    """
    from flamecore.abc.source import EdgeContext
    from flamecore.runtime.config.options import options_of
    from flamecore.runtime.config.plugins import PluginRegistry

    for file in files:
        if file.is_dir():
            continue
        if not file.parent.is_dir() or not any(path.is_file() for path in file.parent.glob(f"{file.name}*")):
            raise click.BadParameter(f"there is no file {file}", param_hint="FILES")
    driver = PluginRegistry().get("sink", defaults.FILE_OF_RECORDS)
    return {
        str(file): sink_of_folder(file, "FILES")
        if file.is_dir()
        else driver(options_of(driver, {"path": str(file)}, "sink"), EdgeContext(file.name))
        for file in files
    }


def _of_job(app: str, settings: tuple[str, ...]) -> tuple[dict[str, Sink], str]:
    """Make the sinks of a job, and return them.

    Return also the name of the sink of dead letters, if there is one.

    Raises:
        ConfigError: One cannot be made, or there is no job.
    """
    from flamecore.runtime.config.resolve import resolve

    config = read_app(app, Options(settings=settings))
    spec = resolve(config, load_app_flow(app, config))
    if spec.graph is None or len(spec.sinks) < len(spec.graph.sinks):  # other problems do not matter here
        spec.problems.raise_first()
    return spec.all_sinks, "" if spec.dead_letter is None else DEAD_LETTERS


def _facts(verified: Verified | None) -> dict[str, object]:
    if verified is None:
        return {"covered": None, "damages": []}
    damages = [damage._asdict() for damage in verified.damages]
    return {"place": verified.place, "size": verified.size, "covered": verified.covered, "damages": damages}


def _lines(name: str, verified: Verified | None, *, edited: bool) -> list[str]:
    if verified is None:
        return [f"{name}: not covered: outputs of this sink have no checksums"]
    place = verified.place if verified.place == name else f"{name}: {verified.place}"
    if verified.damages:
        found = "changed (dead letters may be edited)" if edited else "DAMAGED"
        return [f"{place}: {found}: {_bytes_of(damage)}{damage.what}" for damage in verified.damages]
    if not verified.covered and verified.size:
        return [f"{place}: not covered: {verified.size:,} bytes without checksums"]
    rest = verified.size - verified.covered
    more = f"; {rest:,} more are not covered" if rest > 0 else ""
    return [f"{place}: whole: {verified.covered:,} bytes are as they were written{more}"]


def _bytes_of(damage: Damage) -> str:
    return f"bytes {damage.start} to {damage.end - 1}: " if damage.start < damage.end else ""
