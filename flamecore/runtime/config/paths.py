"""The base of relative paths: the folder of the file that has them, or else the working directory.

Drivers say which of their options are paths (`flamecore.abc.paths.FilePath`). Their tables are made whole once, before
anything reads them: drivers, other processes, and listings of a job see whole paths alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec
from msgspec.structs import replace

from flamecore.abc.config import Choice, JobConfig
from flamecore.abc.paths import MARK
from flamecore.errors import ConfigError, FlameError
from flamecore.model.settings import DriverChoice
from flamecore.runtime.config.plugins import Kind, PluginRegistry
from flamecore.runtime.config.validate import expand

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of a value that has a scheme; one letter and a colon are a drive."""

FLOW: Final = "job.flow"
"""The key of the flow, whose file is a path too."""

Table = Mapping[str, object]


def base_of(config: JobConfig, key: str) -> Path:
    """Return the folder that a relative path begins at.

    Args:
        config: The configuration that has it.
        key: Its dotted key.
    """
    while key and key not in config.origins:
        key = key.rpartition(".")[0]
    return config.folder if config.file and config.origins.get(key) == config.file else config.here


def is_relative(text: str) -> bool:
    """Return whether a path begins at a folder that it does not name, or at a home."""
    # Of a Path the slash at its end, and a first dot, would be lost.
    return bool(text) and not _SCHEME.match(text) and not os.path.isabs(text)  # noqa: PTH117


def whole(text: str, base: Path) -> str:
    """Return a path in full; an empty one, and what has a scheme, as it is.

    Dots and slashes stay as they are written: after `..` the way may lead over a link.

    >>> whole("data/*.txt", Path("/jobs")), whole("/tmp/out", Path("/jobs")), whole("s3://bucket/in", Path("/jobs"))
    ('/jobs/data/*.txt', '/tmp/out', 's3://bucket/in')
    """
    return os.path.join(base, os.path.expanduser(text)) if is_relative(text) else text  # noqa: PTH111, PTH118


@lru_cache(maxsize=256)
def path_options(options: Any) -> frozenset[str]:
    """Return the names of the options that are paths, or have paths in them.

    Args:
        options: The `Options` of a driver.
    """
    if options is None:
        return frozenset()
    return frozenset(field.encode_name for field in msgspec.structs.fields(options) if _is_path(field.type))


def _is_path(type_: object) -> bool:
    if get_origin(type_) is Annotated:
        plain, *marks = get_args(type_)
        return any(isinstance(mark, msgspec.Meta) and mark.extra == MARK for mark in marks) or _is_path(plain)
    return any(_is_path(inner) for inner in get_args(type_))


def whole_table(config: JobConfig, table: Table, path: str, names: Iterable[str]) -> dict[str, object]:
    """Return a table in which the options of these names are whole paths.

    `${HOME}/in` is whole already, if that variable is.

    Args:
        config: The configuration that has the table.
        table: The table, as configured.
        path: Its dotted key.
        names: Names of the options that are paths.

    Raises:
        ConfigError: A path refers to a variable that is not set.
    """
    found = dict(table)
    for name in names:
        if name in found:
            key = f"{path}.{name}"
            found[name] = _whole(found[name], key, base_of(config, key))
    return found


def _whole(value: object, key: str, base: Path) -> object:
    if isinstance(value, Mapping):
        return {name: _whole(inner, key, base) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(inner, key, base) for inner in value]
    meant = expand(value, key)
    if not isinstance(value, str) or not isinstance(meant, str) or not is_relative(meant):
        return value
    # References stay as they are written: listings show the name of a variable, which may be secret, and not its value.
    folder = str(base).replace("${", "$${")
    if meant.startswith("~") and not value.startswith("~"):
        return whole(meant, base).replace("${", "$${")
    return whole(value, Path(folder))


def flow_of(config: JobConfig) -> str:
    """Return the reference of the flow, with the whole path if it is that of a file; empty: there is none."""
    place, colon, name = config.job.flow.partition(".py")
    return whole(place, base_of(config, FLOW)) + colon + name if colon and name[:1] in ("", ":") else config.job.flow


def whole_paths(config: JobConfig, plugins: PluginRegistry) -> JobConfig:
    """Return a configuration with whole paths in the tables of all drivers that it uses.

    A second call changes nothing. A driver that cannot be found, and a variable that is not set, are left alone: they
    are errors where the driver is made.
    """
    return _Tables(config, plugins).whole()


def misplaced_state(config: JobConfig, plugins: PluginRegistry) -> ConfigError | None:
    """Return the error of a job whose state is elsewhere than where its path leads, or None.

    Earlier versions took the path of the state on a command line as relative to the job's file. The job would start
    anew without a word.

    Args:
        config: The configuration, with paths as they are written.
        plugins: The installed plugins.
    """
    for name in _Tables(config, plugins).options("store", config.state.use):
        said, key = config.state.options.get(name), f"state.{name}"
        base = base_of(config, key)
        if base == config.folder or not isinstance(said, str) or whole(said, base) == whole(said, config.folder):
            continue
        now, before = Path(whole(said, base)), Path(whole(said, config.folder))
        if before.exists() and not now.exists():
            return ConfigError(
                f"{key} = {said!r} is {now}, where nothing is, and the job's folder has {before}",
                hint="A path on a command line, or in the environment, begins at the working directory. If the state "
                f"is there, write --set {key}={before}; if the job is to start anew, make the folder {now}.",
                path=key,
            )
    return None


class _Tables:
    """The tables of drivers of one configuration."""

    def __init__(self, config: JobConfig, plugins: PluginRegistry) -> None:
        self._config = config
        self._plugins = plugins
        self._named: dict[str, set[str]] = {}
        """Options that are paths, by the name of drivers: the table of a transport or host serves all of its name."""

    def whole(self) -> JobConfig:
        config = self._config
        changed: dict[str, Any] = {
            "source": {name: self._part("source", f"source.{name}", edge) for name, edge in config.source.items()},
            "sink": {name: self._part("sink", f"sink.{name}", edge) for name, edge in config.sink.items()},
            "state": self._part("store", "state", config.state),
            "registry": self._part("registry", "registry", config.registry),
        }
        if config.dead_letter is not None:
            changed["dead_letter"] = self._part("sink", "dead_letter", config.dead_letter)
        self.options("transport", config.transport.use)
        self.options("acker", config.acker.use)
        for name in config.hosts:
            if name == config.deploy.on.rpartition(":")[2]:
                self.options("host", config.deploy.on)
        changed["transport"] = self._choice("transport", config.transport)
        changed["acker"] = self._choice("acker", config.acker)
        changed["hosts"] = {name: self._table(name, table, self._of(name)) for name, table in config.hosts.items()}
        return replace(config, **changed)

    def _part(self, kind: Kind, path: str, choice: Any) -> Any:
        assert isinstance(choice, DriverChoice)
        names = self.options(kind, choice.use)
        return replace(choice, options=self._table(path, choice.options, names)) if names else choice

    def _choice(self, section: str, choice: Choice) -> Choice:
        tables = {
            name: self._table(f"{section}.{name}", table, self._of(name.rpartition(":")[2]))
            for name, table in choice.tables.items()
        }
        return replace(choice, tables=tables)

    def _of(self, name: str) -> set[str]:
        return self._named.get(name, set())

    def options(self, kind: Kind, use: str | None) -> frozenset[str]:
        """Return, and remember, the options of a driver that are paths."""
        if not use:
            return frozenset()
        with suppress(FlameError):
            names = path_options(getattr(self._plugins.get(kind, use), "Options", None))
            self._named.setdefault(use.rpartition(":")[2], set()).update(names)
            return names
        return frozenset()

    def _table(self, path: str, table: Table, names: Iterable[str]) -> Table:
        found = table
        for name in names:
            with suppress(ConfigError):
                found = whole_table(self._config, found, path, (name,))
        return found
