"""The place of a job without one: the host where its data is at home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flamecore.abc.config import HERE, JobConfig
from flamecore.abc.sink import Sink
from flamecore.abc.source import Source
from flamecore.abc.transport import TransportContext
from flamecore.errors import ConfigError, FlameError
from flamecore.runtime.config import defaults
from flamecore.runtime.config.options import options_of, options_table
from flamecore.runtime.config.plugins import PluginRegistry


class Place(NamedTuple):
    """The place where a job runs.

    Attributes:
        on: Name of the host, or the word for this process.
        because: The sources and sinks that have their data there, if that is the reason.
    """

    on: str
    because: tuple[str, ...] = ()


def best_place(
    config: JobConfig,
    sources: Mapping[str, Source],
    sinks: Mapping[str, Sink],
    plugins: PluginRegistry,
    *,
    given: bool,
) -> Place:
    """Choose the place of a job that names none.

    Args:
        config: The rest of the configuration.
        sources: The job's sources.
        sinks: The job's sinks, that of dead letters among them.
        plugins: The installed plugins.
        given: True if a program gives records, or lists for them: those are in this process only.

    Raises:
        ConfigError: Data of the job is at home in several places.
    """
    if given:
        return Place(HERE)
    if config.deploy.start == "join":  # the workers that join decide where they are
        return Place(defaults.HOST)
    said = config.transport.use
    leaves = bool(said) and _leaves_the_process(config, plugins)
    if said and not leaves:
        return Place(HERE)
    homes: dict[str, list[str]] = {}
    for host, part in _homes(sources, sinks):
        homes.setdefault(host, []).append(part)
    if len(homes) > 1:
        known = ", ".join(f"that of {' and '.join(parts)} on {host!r}" for host, parts in homes.items())
        raise ConfigError(
            f"the data of this job is at home in several places: {known}",
            hint=f'Choose where it runs: [deploy] on = "{next(iter(homes))}", or "{HERE}" for this process.',
            path="deploy.on",
        )
    for host, parts in homes.items():
        return Place(host, tuple(parts))
    return Place(defaults.HOST if leaves else HERE)


def _homes(sources: Mapping[str, Source], sinks: Mapping[str, Sink]) -> Iterator[tuple[str, str]]:
    """Yield the hosts with data of the job, each with the source or sink that has it."""
    for name, source in sources.items():
        if host := source.capabilities.host:
            yield host, f"source {name}"
    for name, sink in sinks.items():
        if sink.host:
            yield sink.host, f"sink {name}"


def _leaves_the_process(config: JobConfig, plugins: PluginRegistry) -> bool:
    """Return whether the configured transport reaches other processes.

    One that fails is an error elsewhere.
    """
    use = config.transport.use
    try:
        driver: Any = plugins.guarded("transport", use)
        path = f"transport.{use.rpartition(':')[2]}"
        options = options_of(driver, options_table(config.transport), path, config.origins)
        multi_process: bool = driver(options, TransportContext()).capabilities.multi_process
    except FlameError:
        return True
    return multi_process
