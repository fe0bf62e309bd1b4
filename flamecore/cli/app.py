"""The configuration and the flow that APP and its options stand for.

Shared by run, check and graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from flamecore.abc.config import JobConfig
from flamecore.errors import ConfigError
from flamecore.model.flow import FlowGraph
from flamecore.runtime.config import defaults, layers
from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.config.paths import FLOW, base_of
from flamecore.runtime.config.read import read_config
from flamecore.runtime.config.validate import Problems

F = TypeVar("F", bound=Callable[..., object])


def app_argument(function: F) -> F:
    """Add the argument APP to a command."""
    return click.argument("app")(function)


def config_options(function: F) -> F:
    """Add the options that make a configuration to a command."""
    for option in reversed(
        (
            click.option(
                "-w",
                "--workers",
                type=click.IntRange(min=1),
                help="Number of workers. In one process they take turns and make no function faster, "
                "neither one that computes nor one that waits; --on "
                f"{defaults.HOST} gives each a process of its own.",
            ),
            click.option(
                "--on",
                metavar="HOST",
                help="The host of the job: here, in this process; on processes of this machine; on another host that "
                "flamestream plugins lists. Default: the host of its data, or here.",
            ),
            click.option(
                "--source", "sources", multiple=True, metavar="NAME=DRIVER", help="Read source NAME by DRIVER."
            ),
            click.option("--sink", "sinks", multiple=True, metavar="NAME=DRIVER", help="Write sink NAME by DRIVER."),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="TABLE.KEY=VALUE",
                help="Set any key of the configuration, such as source.lines.path=book.txt.",
            ),
            click.option(
                "--config",
                "config_file",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="A job file for a flow that APP names.",
            ),
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `config_options`, and `--take-over` of `run`."""

    workers: int | None = None
    on: str | None = None
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    config_file: Path | None = None
    take_over: bool = False


def read_app(app: str, options: Options, problems: Problems | None = None) -> JobConfig:
    """Read the configuration of APP and the options.

    Its `job.flow` names the flow to load.

    Args:
        app: A job file (.toml), a script, or a module, the latter two with `:flow` if there are several.
        options: Options of the command line.
        problems: Takes the errors of single keys; without it the first one is raised.
    """
    file = options.config_file
    command = layers.from_command(
        options.settings,
        sources=options.sources,
        sinks=options.sinks,
        workers=options.workers,
        on=options.on,
        take_over=options.take_over,
    )
    if app.endswith(".toml"):
        if file is not None:
            raise ConfigError(f"{app} is a job file itself; --config {file} cannot be given too", path="")
        return read_config(Path(app), command=command, problems=problems)
    command.put(("job", "flow"), app, app)
    return read_config(file, command=command, problems=problems)


def load_app_flow(app: str, config: JobConfig) -> FlowGraph:
    """Load the flow of a configuration.

    Raises:
        ConfigError: There is none, or it cannot be loaded.
        GraphError: It cannot work.
    """
    if not config.job.flow:
        hint = 'Write [job] flow = "file.py:flow" (relative to the job file) or "package.module:flow".'
        raise ConfigError(f"{app} names no flow", hint=hint, path="job.flow")
    return load_flow(config.job.flow, base_of(config, FLOW))
