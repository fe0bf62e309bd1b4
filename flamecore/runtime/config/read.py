"""The configuration of a job: one frozen value of file, environment and options.

    schema = 1
    [job]
    flow = "word_count.py:flow"
    workers = 4
    [transport]
    use = "inproc"
    [transport.inproc]
    serialise = true
    [source.lines]
    use = "lines"
    on_error = "skip"
    path = "book.txt"

Order of precedence: command line, then FLAMESTREAM__SECTION__KEY, then the file, then defaults. Nothing is imported
here: `flamecore.runtime.launch` finds the drivers and checks their options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from flamecore.abc.config import Choice, DeployTable, Edge, JobConfig, PlacementTable, SinkEdge
from flamecore.errors import ConfigError
from flamecore.model.builder import is_writable
from flamecore.model.settings import DriverChoice, JobTable
from flamecore.runtime.config import defaults, layers
from flamecore.runtime.config.options import workers_on
from flamecore.runtime.config.validate import Problems, convert, expand, unknown_key

S = TypeVar("S", bound=msgspec.Struct)
D = TypeVar("D", bound=DriverChoice)
Table = dict[str, object]

SECTIONS: Final = tuple(
    [key for key in JobConfig.__struct_fields__ if key not in ("hosts", "folder", "here", "file", "origins")]
)

_USED: Final = {"registry": defaults.REGISTRY}
"""The drivers of sections that name one, where the configuration names none."""


class _HooksTable(msgspec.Struct, frozen=True):
    use: tuple[str, ...] = ()


def encode_config(config: JobConfig) -> bytes:
    """Encode a configuration for another process, as JSON.

    References to the environment stay as they are written.
    """
    return msgspec.json.encode(config, enc_hook=str)


def config_of_node(config: JobConfig) -> JobConfig:
    """Return a configuration for a node.

    A node starts no others, and need not know the host that it was started on.
    """
    deploy = msgspec.structs.replace(config.deploy, on=defaults.HOST)
    return msgspec.structs.replace(config, deploy=deploy)


def decode_config(data: bytes) -> JobConfig:
    """Decode the configuration of another process."""
    return msgspec.json.decode(data, type=JobConfig, dec_hook=lambda kind, value: kind(value))


def read_config(
    file: Path | None = None,
    *,
    command: layers.Layer | None = None,
    environ: Mapping[str, str] | None = None,
    problems: Problems | None = None,
) -> JobConfig:
    """Read a job's configuration: file, environment and command line.

    Args:
        file: A TOML file; None: there is none.
        command: Settings of the command line (`flamecore.runtime.config.layers.from_command`).
        environ: The environment; that of the process by default.
        problems: Takes the errors of single keys; without it the first one is raised.

    Raises:
        ConfigError: The file cannot be read, or a value cannot be used.
        UnknownKeyError: A key is not known.
    """
    environ = os.environ if environ is None else environ
    layer = layers.from_file(file) if file else layers.Layer()
    layer.overlay(layers.from_environment(environ))
    layer.overlay(command or layers.Layer())
    return make_config(layer, environ=environ, file=file, problems=problems)


def make_config(
    layer: layers.Layer,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    problems: Problems | None = None,
) -> JobConfig:
    """Make a configuration of settings.

    Arguments and errors as for `read_config`; `environ` is for `${NAME}` alone, and `file` is in the settings already.
    """
    found = Problems() if problems is None else problems
    config = _Reading(layer, os.environ if environ is None else environ, found).config(file)
    if problems is None:
        found.raise_first()
    return config


class _Reading:
    """One pass over the merged tables.

    Problems are noted, and the defaults stand in for wrong values.
    """

    def __init__(self, layer: layers.Layer, environ: Mapping[str, str], problems: Problems) -> None:
        self._table = layer.table
        self._origins = layer.origins
        self._environ = environ
        self._problems = problems

    def config(self, file: Path | None) -> JobConfig:
        here = Path.cwd()
        known: tuple[str, ...] = SECTIONS
        if not self._table.keys() <= {*SECTIONS}:
            from flamecore.runtime.config.plugins import PluginRegistry

            known = (*SECTIONS, *PluginRegistry().names("host"))
        for key in self._table:
            if key not in known:
                self._problems.append(unknown_key(key, known, where=self._whence(key)))
        drivers: dict[str, Any] = {name: self._driver(name, type_) for name, type_ in layers.DRIVER_TABLES.items()}
        return JobConfig(
            job=self._job(),
            transport=self._choice("transport", ""),
            acker=self._choice("acker", defaults.ACKER),
            source=self._edges("source", Edge),
            sink=self._edges("sink", SinkEdge),
            dead_letter=self._driver("dead_letter", Edge) if "dead_letter" in self._table else None,
            hooks=self._struct("hooks", self._section("hooks"), _HooksTable).use,
            deploy=self._struct("deploy", self._section("deploy"), DeployTable),
            placement=self._struct("placement", self._section("placement"), PlacementTable),
            hosts={key: self._section(key) for key in self._table if key in known and key not in SECTIONS},
            **drivers,
            folder=here / file.parent if file else here,
            here=here,
            file=str(file) if file else "",
            origins=self._origins,
        )

    def _job(self) -> JobTable:
        """Read [job].

        The table of the host may have a number of workers of its own.
        """
        table = self._section("job")
        on = self._section("deploy").get("on")
        there = self._table.get(on) if isinstance(on, str) and on not in SECTIONS else None
        if (workers := workers_on(there, self._origins)) is not None:
            table = {**table, "workers": workers}
        job = self._struct("job", table, JobTable)
        if is_writable(job.name):
            return job
        what = f"job.name is {job.name!r}, which no encoding can write{self._whence('job.name')}"
        self._problems.append(ConfigError(what, hint="Give it a name in UTF-8.", path="job.name"))
        return msgspec.structs.replace(job, name="")

    def _driver(self, section: str, type_: type[D], name: str = "") -> D:
        """Read the driver of a part.

        The job's own keys are its fields; the other keys are the driver's `options`.
        """
        path = f"{section}.{name}" if name else section
        table = self._as_table(path, self._section(section)[name]) if name else self._section(section)
        own = {key: value for key, value in table.items() if key in layers.OWN_KEYS[section]}
        options = {key: value for key, value in table.items() if key not in own}
        default: Table = {"use": _USED[section]} if section in _USED else {}
        return msgspec.structs.replace(self._struct(path, own, type_, default), options=options)

    def _whence(self, path: str) -> str:
        under = (origin for key, origin in self._origins.items() if key == path or key.startswith(f"{path}."))
        return next((f" ({origin})" for origin in under), "")

    def _section(self, key: str) -> Table:
        return self._as_table(key, self._table.get(key, {}))

    def _as_table(self, path: str, value: object) -> Table:
        if isinstance(value, dict):
            return value
        hint = f"Write [{path}], and its keys below it."
        self._problems.append(ConfigError(f"{path} must be a table{self._whence(path)}", hint=hint, path=path))
        return {}

    def _struct(self, path: str, said: Table, type_: type[S], default: Table | None = None) -> S:
        """Make a struct of the keys under `path`.

        `default` has the required keys that are missing.
        """
        # A wrong key is left out and the rest read again, so that it does not hide the errors of the others.
        said, default = dict(said), default or {}
        while True:
            raw = default | said
            try:
                return convert(expand(raw, path, self._environ), type_, path, raw=raw, origins=self._origins)
            except ConfigError as error:
                self._problems.append(error)
                key = re.split(r"[.\[]", str(getattr(error, "path", "")).removeprefix(f"{path}."))[0]
                if said.pop(key, None) is None:
                    return type_(**default)

    def _choice(self, section: str, default: str) -> Choice:
        table = self._section(section)
        tables = {}
        for name, options in table.items():
            if name == "use":
                continue
            if isinstance(options, dict):
                tables[name] = options
            else:
                hint = f"Options of {section} NAME stand in a table of their own: [{section}.NAME]."
                path = f"{section}.{name}"
                self._problems.append(ConfigError(f"{path} must be a table{self._whence(path)}", hint=hint, path=path))
        keys = self._struct(section, {"use": table.get("use", default)}, DriverChoice)
        return Choice(use=keys.use or default, tables=tables)

    def _edges(self, section: Literal["source", "sink"], type_: type[D]) -> dict[str, D]:
        return {name: self._driver(section, type_, name) for name in self._section(section)}
