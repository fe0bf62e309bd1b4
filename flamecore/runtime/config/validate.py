"""Strict reading of configuration tables.

Nothing unknown, nothing mistyped, and errors with the dotted path.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar, get_args

import msgspec

from flamecore.errors import ConfigError, FlameError, UnknownKeyError
from flamecore.suggest import nearest, suggestion

T = TypeVar("T", bound=msgspec.Struct)

_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(r"passw|secret|token|credential|nkey|private|(api|access)[-_]?key", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")

HIDDEN: Final = "***"
"""The text shown in the place of a value that looks secret."""


def unknown_key(path: str, known: Iterable[str], *, where: str = "") -> UnknownKeyError:
    """Return the error of an unknown key, with the nearest known one."""
    names = tuple(sorted(known))
    last = path.rpartition(".")[2]
    parent = path[: -len(last)]
    close = nearest(last, names)
    return UnknownKeyError(
        f"unknown key {path}{where}",
        hint=suggestion(last, names),
        path=path,
        known=names,
        nearest=None if close is None else parent + close,
    )


def convert(
    table: object, type_: type[T], path: str, *, raw: object = None, origins: Mapping[str, str] | None = None
) -> T:
    """Make a struct of a table.

    Args:
        table: The value as read, references to the environment replaced.
        type_: A `msgspec.Struct` class.
        path: Dotted key of the table, for errors.
        raw: The table before references were replaced; this is what errors show. Default: `table`.
        origins: Origins of values, by dotted key; part of errors.

    Raises:
        UnknownKeyError: A key that the struct does not have.
        ConfigError: A key that is missing, or a value of a wrong type.
    """
    origins = origins or {}
    _check_keys(table, type_, path, origins)
    try:
        # Strict: a number written as a text is a mistake rather than a wish.
        return msgspec.convert(table, type_, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error), type_, path, table if raw is None else raw, origins) from None


def _fields(type_: object) -> dict[str, object]:
    if not (isinstance(type_, type) and issubclass(type_, msgspec.Struct)):
        return {}
    return {field.encode_name: field.type for field in msgspec.structs.fields(type_)}


def _check_keys(table: object, type_: object, path: str, origins: Mapping[str, str]) -> None:
    if not isinstance(table, Mapping):
        return
    # Before the conversion, which stops at the first wrong value and suggests no nearest key.
    fields = _fields(type_)
    for key, value in table.items():
        full = f"{path}.{key}"
        if key not in fields:
            raise unknown_key(full, fields, where=_from(full, origins))
        if inner := next((t for t in (fields[key], *get_args(fields[key])) if _fields(t)), None):
            _check_keys(value, inner, full, origins)


def _explain(message: str, type_: object, path: str, table: object, origins: Mapping[str, str]) -> ConfigError:
    at = _AT.search(message)
    inside = at["path"] if at else ""
    reason = _AT.sub("", message)
    full = path + inside
    if missing := _MISSING.search(reason):
        key = f"{full}.{missing['name']}"
        return ConfigError(f"{key} is missing", hint=f"Write it in the file, or give --set {key}=…", path=key)
    value: Any = table
    for part in re.findall(r"[^.\[\]]+", inside):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            break
    hint = ""
    if "Invalid enum value" in reason:
        choices = [str(choice) for choice in get_args(_fields(type_).get(inside.strip(".")))]
        reason, hint = "there is no such choice", suggestion(str(value), choices)
    elif "Expected `str`" in reason:
        hint = "A text that looks like a number or a date needs quotes: --set 'KEY=\"…\"'"
    elif "Expected `array`" in reason and isinstance(value, str):
        listed = json.dumps([redacted(value, full)], ensure_ascii=False)
        hint = f"A list has brackets: {full.rpartition('.')[2]} = {listed}, or --set '{full}={listed}'"
    what = f"{full} = {shown(full, value)} cannot be used{_from(full, origins)}: {reason[:1].lower()}{reason[1:]}"
    return ConfigError(what, hint=hint, path=full)


def _from(path: str, origins: Mapping[str, str]) -> str:
    while path:
        if path in origins:
            return f" ({origins[path]})"
        path = path.rpartition(".")[0]
    return ""


def shown(path: str, value: object) -> str:
    """Return a value as errors and listings show it: nothing secret, nothing long."""
    text = repr(redacted(value, path))
    return text if len(text) <= 80 else f"{text[:77]}…"


def redacted(value: object, path: str = "") -> object:
    """Return a copy in which secrets are replaced by `***`.

    Secrets are values whose keys look secret, and credentials in addresses.

    >>> redacted({"user": "ann", "api_token": "s3cret", "server": "nats://ann:s3cret@host"})
    {'user': 'ann', 'api_token': '***', 'server': 'nats://***@host'}
    """
    if isinstance(value, Mapping):
        # By the key, since a secret looks like any text: rather hide one value too many than print
        # a password.
        return {key: redacted(inner, str(key)) for key, inner in value.items()}
    if _SECRET.search(path.rpartition(".")[2]):
        return HIDDEN
    if isinstance(value, list | tuple):
        return [redacted(inner, path) for inner in value]
    return _USERINFO.sub(HIDDEN, value) if isinstance(value, str) else value


def expand(value: object, path: str, environ: Mapping[str, str] | None = None) -> object:
    """Replace every `${NAME}` in a table's texts by that environment variable.

    `$${` stands for `${`.

    Raises:
        ConfigError: The variable is not set.
    """
    environ = os.environ if environ is None else environ
    if isinstance(value, Mapping):
        return {key: expand(inner, f"{path}.{key}", environ) for key, inner in value.items()}
    if isinstance(value, list):
        return [expand(inner, f"{path}[{i}]", environ) for i, inner in enumerate(value)]
    if not isinstance(value, str):
        return value

    def one(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        if name not in environ:
            raise ConfigError(
                f"{path} needs the environment variable {name}, which is not set",
                hint=f"Set {name}, or write $${{{name}}} if the text itself is meant.",
                path=path,
            )
        return environ[name]

    return _VARIABLE.sub(one, value)


class Problems(list[FlameError]):
    """The problems found so far, so that a user can fix them together."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collect an error of the block instead of raising it; collect none twice."""
        try:
            yield
        except FlameError as error:
            if str(error) not in map(str, self):
                self.append(error)

    def raise_first(self) -> None:
        """Raise the first problem, if any, with the others as its notes."""
        if self:
            first, *others = self
            for other in others:
                first.add_note(f"also: {other}")
            raise first
