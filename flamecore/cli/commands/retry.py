"""The command `flamestream retry`."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flamecore.abc.config import HERE
from flamecore.cli.app import Options, load_app_flow, read_app
from flamecore.cli.letters import SUFFIX, LetterFile, Letters, LetterSource
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.cli.running import run_to_the_end
from flamecore.cli.stored import JOB_FILE
from flamecore.errors import ConfigError, TooManyFailedError
from flamecore.model.graph import Graph
from flamecore.model.ordered import Marking
from flamecore.runtime.config import defaults
from flamecore.runtime.config.resolve import resolve

if TYPE_CHECKING:
    from flamecore.abc.sink import Sink
    from flamecore.runtime.config.job_spec import JobSpec


@click.command("retry")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--app", metavar="APP", default=JOB_FILE, help=f"Job file, script or module. Default: {JOB_FILE}.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Set any key of the configuration, such as job.workers=4.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary; errors are still printed.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, file: Path, app: str, settings: tuple[str, ...], quiet: bool) -> None:
    """Read the records of a file of dead letters again, once.

    The job runs in this process, with the records of the letters in the place of its input; its outputs are added to
    those that are there. A job that keeps state goes on with it. FILE.retried says how far a file was read: letters
    that have come since are read by the next retry. Before, they may be edited in any way.
    """
    letter_file = LetterFile(file)
    letters = letter_file.find()
    if letters is None:
        if not quiet:
            say(f"{file}: no letters that were not read again before", err=True)
        if wants_json(ctx):
            print_json({"letters": 0})
        return
    config = read_app(app, Options(settings=settings))
    flow = load_app_flow(app, config)
    # In one process: the letters are few, and no other one has their file.
    chosen = [*settings, f"transport.use={defaults.TRANSPORT}", "deploy.start=local", f"deploy.on={HERE}"]
    # How far the letters were read is state, as any position: that of the job if it keeps any, otherwise one beside
    # them.
    own_state = None if config.state.use else file.with_name(f"{file.name}{SUFFIX}.state").absolute()
    if own_state is not None:
        place = json.dumps(str(own_state))
        chosen += [f"state.use={defaults.STATE_IN_FOLDER}", f"state.path={place}", "job.barrier=true"]
        chosen += _appending(resolve(read_app(app, Options(settings=tuple(chosen))), flow))
    spec = resolve(read_app(app, Options(settings=tuple(chosen))), flow)
    spec.problems.raise_first()
    if own_state is not None:
        _close_at_end(spec.checked_graph)
    wanted = _sources_of(letters, spec, beside=own_state is None)
    if own_state is not None and not letters.begun and own_state.exists():
        shutil.rmtree(own_state)  # left by a retry that was killed at its very end
    if letters.begun and letter_file.has_changed(letters):
        say(f"{file} has changed; a retry that was cut short reads its letters as they were", err=True)
    letters = letter_file.begin(letters)
    spec.sources = {
        name: LetterSource(source, letters, beside=own_state is None, wanted=name in wanted)
        for name, source in spec.sources.items()
    }
    try:
        done = not run_to_the_end(ctx, spec, quiet=quiet, progress_interval=10.0).drained
    except TooManyFailedError:
        _finish(letter_file, letters, own_state, spec)
        raise
    if done:
        _finish(letter_file, letters, own_state, spec)


def _close_at_end(graph: Graph) -> None:
    """Make the ends of fronts marks, unless the flow sets `closes`.

    No later run goes on from the state of a retry.
    """
    for vertex in graph.vertices:
        if isinstance(vertex, Marking) and vertex.closes is None:
            vertex.closes = True


def _appending(spec: JobSpec) -> list[str]:
    """Return the settings with which all sinks append to their outputs.

    Raises:
        ConfigError: A sink holds the outputs of one job alone, such as one in partitions: a retry would replace them.
    """
    for name, sink in spec.sinks.items():
        if not sink.takes_more:
            raise ConfigError(
                f"sink {name!r} takes no outputs but those of its own job, and without its state a retry is another",
                hint="Retry letters of jobs that keep [state]. Or write elsewhere: "
                f"--set sink.{name}.order=ordered --set sink.{name}.path=…",
                path=f"sink.{name}",
            )
    sinks: dict[str, Any] = {f"sink.{json.dumps(name)}": sink for name, sink in spec.sinks.items()}
    if spec.dead_letter is not None:
        sinks["dead_letter"] = spec.dead_letter
    return [
        f"{path}.mode=append"
        for path, sink in sinks.items()
        if "mode" in getattr(type(sink).Options, "__struct_fields__", ())
    ]


def _sources_of(letters: Letters, spec: JobSpec, *, beside: bool) -> Collection[str]:
    """Return the names of the sources that letters are of.

    Args:
        letters: All of them.
        spec: The job.
        beside: Whether the job's own input is read too: the state knows how far that was read.

    Raises:
        ConfigError: The letters are not of this job, or it would not end.
    """
    found: Counter[str] = Counter()
    without = 0
    for _, letter in letters.all():
        if letter.source not in spec.sources:
            raise ConfigError(
                f"{letters.path}: a letter is of source {letter.source!r}, which flow {spec.flow.name!r} has not",
                hint=f"Name the job of the letters: --app APP. The flow has: {', '.join(spec.sources)}.",
                path=f"source.{letter.source}",
            )
        found[letter.source] += 1
        without += letter.record is None
    endless = [name for name, source in spec.sources.items() if not source.capabilities.bounded]
    if beside and endless:
        raise ConfigError(
            f"source {endless[0]!r} has no end, and the job keeps state, so it would be read on",
            hint=f"Give it another source for this run: --set source.{endless[0]}.use=…",
            path=f"source.{endless[0]}.use",
        )
    if without:
        say(f"{letters.path}: {without} of {found.total()} letters have no original, and are left out", err=True)
    return found


def _finish(letter_file: LetterFile, letters: Letters, own_state: Path | None, spec: JobSpec) -> None:
    """Store that the letters were read, and remove the state of the retry."""
    # With another mode the sink would refuse a file that has become shorter.
    appends = spec.dead_letter is not None and getattr(spec.dead_letter.options, "mode", None) == "append"
    if letter_file.finish(letters, shorten=appends) and spec.dead_letter is not None:
        # The sink keeps checksums of what it has written, and makes them anew as it opens a file that has changed.
        asyncio.run(_reopened(type(spec.dead_letter)(spec.dead_letter.options, spec.dead_letter.context)))
    if own_state is not None:
        shutil.rmtree(own_state)


async def _reopened(sink: Sink) -> None:
    await sink.open()
    await sink.aclose()
