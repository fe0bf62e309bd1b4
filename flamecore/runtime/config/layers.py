"""Layers of settings: a file, the environment, the command line.

The later one wins, key by key. Every value remembers its origin, so that an error can name it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Container, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from flamecore.abc.config import JobConfig
from flamecore.errors import ConfigError
from flamecore.model.settings import DriverChoice
from flamecore.runtime.config import defaults

PREFIX: Final = "FLAMESTREAM__"
"""Environment variables that are settings: FLAMESTREAM__SECTION__KEY."""

EDGES: Final = ("source", "sink")
DRIVER_TABLES: Final[Mapping[str, type[DriverChoice]]] = {
    each.name: each.type
    for each in structs.fields(JobConfig)
    if isinstance(each.type, type) and issubclass(each.type, DriverChoice)
}
"""Sections that name one driver, with its options beside the job's own keys: the fields of `JobConfig` say which."""

OWN_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "source": ("use", "phase", "on_error"),
    "sink": ("use", "phase", "order"),
    "dead_letter": ("use",),
    **{
        section: tuple([key for key in table.__struct_fields__ if key != "options"])
        for section, table in DRIVER_TABLES.items()
    },
}
"""Keys of a table that are the job's, by section; all others there are options of the driver."""

Table = dict[str, Any]


@dataclass(slots=True)
class Layer:
    """Nested tables, and the origin of each value, by dotted key."""

    table: Table = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, keys: Iterable[str], value: object, origin: str) -> None:
        """Set one value.

        Raises:
            ConfigError: A key on the way is a value, not a table.
        """
        *parents, last = keys
        table: MutableMapping[str, object] = self.table
        for at, key in enumerate(parents):
            inner = table.setdefault(_match(table, key), {})
            if not isinstance(inner, dict):
                path = ".".join(parents[: at + 1])
                raise ConfigError(f"{path} is a value, not a table ({origin})", path=path)
            table = inner
        table[last] = value
        self.origins[".".join([*parents, last])] = origin

    def overlay(self, upper: Layer) -> None:
        """Put another layer on top of this one.

        A part that gets another driver loses the options of the layers below, which are of the former driver.
        """
        for section, keys in OWN_KEYS.items():
            mine, theirs = self.table.get(section), upper.table.get(section)
            if not isinstance(mine, dict) or not isinstance(theirs, dict):
                continue
            if section not in EDGES:
                self.table[section] = _without_options(mine, theirs, keys)
                continue
            for name, table in theirs.items():
                if (name := _match(mine, name)) in mine:
                    mine[name] = _without_options(mine[name], table, keys)
        self.origins |= {self._named(key): origin for key, origin in upper.origins.items()}
        # Key by key, not table by table: a command line that sets one option keeps the others of
        # the file.
        _merge(self.table, upper.table)

    def _named(self, path: str) -> str:
        """Return a dotted key with the names that the tables of this layer have, as `_match` finds them."""
        table: object = self.table
        names = []
        for key in path.split("."):
            names.append(_match(table, key) if isinstance(table, dict) else key)
            table = table.get(names[-1]) if isinstance(table, dict) else None
        return ".".join(names)


def _without_options(lower: object, upper: object, keys: Container[str]) -> object:
    if not isinstance(lower, dict) or not isinstance(upper, dict):
        return lower
    if "use" not in lower or upper.get("use", lower["use"]) == lower["use"]:
        return lower
    return {key: value for key, value in lower.items() if key in keys}


def _merge(lower: Table, upper: Table) -> None:
    for key, value in upper.items():
        key = _match(lower, key)
        if isinstance(value, dict) and isinstance(lower.get(key), dict):
            _merge(lower[key], value)
        else:
            lower[key] = value


def folded(name: str) -> str:
    """Return a name as the environment can write it: lower case, no hyphens."""
    return name.lower().replace("-", "_")


def _match(table: Mapping[str, object], key: str) -> str:
    # Environment variables have neither case nor hyphens; a key that is there as it stands always wins.
    if key in table:
        return key
    return next((there for there in table if folded(there) == key), key)


def from_file(path: Path) -> Layer:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read, is not TOML, or is of another schema.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path="") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}", path="") from error
    schema = table.pop("schema", None)
    if schema != 1 or isinstance(schema, bool):
        said = "declares no schema" if schema is None else f"follows schema {schema!r}"
        raise ConfigError(
            f"{path} {said}; this version of flamestream reads schema 1",
            hint="Its first line must be: schema = 1",
            path="schema",
        )
    return Layer(table, {key: str(path) for key in table})


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Read the settings of the environment.

    `FLAMESTREAM__SOURCE__PAGES__PATH=…` is `source.pages.path`.
    """
    layer = Layer()
    for variable in sorted(environ):
        if variable.startswith(PREFIX):
            keys = variable.removeprefix(PREFIX).lower().split("__")
            layer.put(keys, parsed(environ[variable]), f"environment variable {variable}")
    return layer


def from_program(settings: Mapping[str, object]) -> Layer:
    """Make a layer of settings by dotted key: `{"source.pages.path": "pages.xml"}`.

    Values are taken as they are.

    Raises:
        ConfigError: A key has a wrong form.
    """
    layer = Layer()
    for key, value in settings.items():
        layer.put(keys_of(key), value, "settings of the program")
    return layer


def from_command(
    settings: Iterable[str] = (),
    *,
    sources: Iterable[str] = (),
    sinks: Iterable[str] = (),
    workers: int | None = None,
    on: str | None = None,
    take_over: bool = False,
) -> Layer:
    """Make a layer of the settings of the command line.

    Args:
        settings: Texts of the form TABLE.KEY=VALUE.
        sources: Texts of the form NAME=DRIVER.
        sinks: Texts of the form NAME=DRIVER.
        workers: Number of workers.
        on: Name of the host that nodes are started on.
        take_over: True to take the job over from a run in progress.

    Raises:
        ConfigError: A text has a wrong form.
    """
    layer = Layer()
    for section, texts in (("source", sources), ("sink", sinks)):
        for text in texts:
            name, equals, driver = text.partition("=")
            if not (name and equals and driver):
                example = f"lines={defaults.EXAMPLE_SOURCE}" if section == "source" else f"counts={defaults.SINK}"
                raise ConfigError(
                    f"--{section} {text!r} is not NAME=DRIVER", hint=f"For example: --{section} {example}"
                )
            layer.put((section, name, "use"), driver, f"--{section} {text}")
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text!r} is not KEY=VALUE", hint="For example: --set job.workers=4")
        layer.put(keys_of(key), parsed(value), f"--set {key}")
    if workers is not None:
        layer.put(("job", "workers"), workers, f"--workers {workers}")
    if on is not None:
        layer.put(("deploy", "on"), on, f"--on {on}")
    if take_over:
        layer.put(("job", "take_over"), take_over, "--take-over")
    return layer


def parsed(text: str) -> object:
    """Return a value as TOML writes it, or the text itself if it is not TOML.

    >>> parsed("4"), parsed("true"), parsed("out.jsonl"), parsed('"4"'), parsed('["a", "b"]')
    (4, True, 'out.jsonl', '4', ['a', 'b'])
    """
    try:
        # As TOML, so that a number on the command line is one; a text needs no quotes there.
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def keys_of(text: str) -> list[str]:
    """Return the keys of a dotted key, which may be quoted as in TOML.

    Raises:
        ConfigError: It is no dotted key, or has no table.
    """
    try:
        table: object = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError as error:
        hint = 'A name with other characters than letters, digits, - and _ needs quotes: source."my pages".path'
        raise ConfigError(f"{text!r} is not a dotted key", hint=hint, path=text) from error
    keys = []
    while isinstance(table, dict):
        key, table = next(iter(table.items()))
        keys.append(key)
    if len(keys) < 2:
        raise ConfigError(
            f"{text!r} names no table", hint="Write TABLE.KEY=VALUE, for example job.workers=4", path=text
        )
    return keys
