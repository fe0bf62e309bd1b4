"""The state of a job as commands find it: its store, its name, its flow.

Shared by snapshot, state and plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from flamecore.abc.config import JobConfig
from flamecore.cli.app import Options, load_app_flow, read_app
from flamecore.errors import ConfigError
from flamecore.runtime.config import layers
from flamecore.runtime.config.read import read_config

if TYPE_CHECKING:
    from flamecore.abc.store import Store
    from flamecore.model.flow import FlowGraph

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

JOB_FILE: Final = "job.toml"


def state_options(function: F) -> F:
    """Add the options that select a job's state to a command."""
    for option in reversed(
        (
            click.option(
                "--app", metavar="APP", help=f"Job file, script or module. Default: {JOB_FILE}, if it is there."
            ),
            click.option("--job", metavar="NAME", help="Name of the job, if neither APP nor its flow is available."),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="TABLE.KEY=VALUE",
                help="Set any key of the configuration, such as state.path=state.",
            ),
        )
    ):
        function = option(function)
    return function


class Stored:
    """The state of a job that the options of `state_options` select.

    Args:
        app: A job file, script or module; None: the job file of this folder, or nothing.
        job: Name of the job; None: as configured, or its flow's.
        settings: Texts of the form TABLE.KEY=VALUE.
    """

    def __init__(self, app: str | None, job: str | None, settings: tuple[str, ...]) -> None:
        self._app = app or (JOB_FILE if Path(JOB_FILE).is_file() else None)
        self._job = job
        if self._app is None:
            self.config = read_config(command=layers.from_command(settings))
        else:
            self.config = read_app(self._app, Options(settings=settings))

    @property
    def flow(self) -> FlowGraph | None:
        """Return the job's flow; None if its place is not known.

        Raises:
            ConfigError: It cannot be loaded.
        """
        return load_app_flow(self._app, self.config) if self._app is not None and self.config.job.flow else None

    @property
    def job(self) -> str:
        """Return the name of the job.

        Raises:
            ConfigError: It is not known.
        """
        name = self._job or self.config.job.name
        if not name:
            flow = self.flow
            if flow is None:
                hint = f"Name the job: --job NAME; or the file that was run: --app {JOB_FILE}."
                raise ConfigError("the job whose state is meant is not given", hint=hint, path="job.name")
            name = flow.name
        return name

    def use(self, act: Callable[[Store], Awaitable[T]]) -> T:
        """Open the store, which must exist, call `act` with it, and close it.

        Raises:
            ConfigError: No state is configured.
            StoreError: The store is not there, or fails.
        """
        return use_store(self.config, self.job, act)


def use_store(config: JobConfig, job: str, act: Callable[[Store], Awaitable[T]]) -> T:
    """Open a store, call `act` with it, and close it, as `Stored.use` does."""
    from flamecore.abc.store import StoreContext
    from flamecore.runtime.config.options import store_of
    from flamecore.runtime.config.paths import misplaced_state, whole_paths
    from flamecore.runtime.config.plugins import PluginRegistry
    from flamecore.runtime.tasks.deadlines import Deadlines

    plugins = PluginRegistry()
    if (problem := misplaced_state(config, plugins)) is not None:
        raise problem
    driver, options = store_of(whole_paths(config, plugins), plugins)
    store = driver(options, StoreContext(job, config.folder, create=False))

    async def run() -> T:
        try:
            await Deadlines(job).store(store.name, config.state.commit_timeout_s).call(store.open(), "open")
            return await act(store)
        finally:
            await store.aclose()

    return asyncio.run(run())
