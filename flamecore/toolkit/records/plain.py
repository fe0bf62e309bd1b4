"""Payloads as JSON, in the way of all sinks here.

Same as msgspec, except: NamedTuples become objects, like dataclasses; elements of sets are sorted, so that one
payload has one text; subclasses of `str`, `int` and `float`, and numbers of numpy, are written as these. A
`msgspec.Struct` is written by its own rules, with all its contents. JSON has no bytes, which become base64, and no
NaN and no infinities, which are refused: msgspec writes null, as if nothing had been there. Text of a time has no
seconds in the offset of its zone: a datetime with such an offset (local mean time) is written in UTC, a time of day
is refused.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import chain
from math import isfinite
from typing import Any, Final

import msgspec

from flamecore.toolkit.records.shapes import SCALARS

_ENCODER: Final = msgspec.json.Encoder()
_REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""Errors of values that cannot be written."""
_DEEPEST: Final = 20
"""Most steps to a part that an error names."""
_WIDTH: Final = 120
"""Most characters of a payload that an error shows."""


class Unencodable(Exception):
    """A payload that cannot be written. Arguments: the payload, and why.

    Its text shows the payload. It is made when asked for, as most are caught, and the `repr` of a payload may fail.
    """

    def __init__(self, payload: object, reason: str) -> None:
        super().__init__(payload, reason)
        self.payload = payload
        self._reason = reason

    def __str__(self) -> str:
        what = f"a payload of type {type(self.payload).__name__} cannot be written: {self._reason}"
        return f"{what}\n    It is {_shown(self.payload)}"


def _shown(payload: object) -> str:
    """Return the `repr` of a payload on one line of at most 120 characters."""
    try:
        text = repr(payload)
    except Exception as error:  # noqa: BLE001 - any error of a user's class is reported
        text = f"a {type(payload).__name__} whose repr fails: {type(error).__name__}"
    text = text.replace("\n", " ")
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def plain(value: Any) -> object:
    """Return the value with all parts replaced that msgspec would write otherwise."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is tuple or kind is list:
        return value if SCALARS.issuperset(map(type, value)) else [plain(inner) for inner in value]
    if kind is dict:
        if SCALARS.issuperset(map(type, value.values())) and SCALARS.issuperset(map(type, value)):
            return value
        return {_key(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {name: plain(inner) for name, inner in zip(kind._fields, value, strict=True)}
    if dataclasses.is_dataclass(kind):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(kind)}
    if isinstance(value, set | frozenset):
        return _sorted([plain(inner) for inner in value])
    if isinstance(value, enum.Enum):
        return value
    if isinstance(value, (datetime, time)):
        return value if value.tzinfo is None else _with_whole_minutes(value)
    if isinstance(value, msgspec.Struct):
        if _has_scalars_only(kind):  # type: ignore[arg-type]  # a class has a hash
            return value
        return plain(msgspec.to_builtins(value, builtin_types=(datetime, time)))
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value) if base is not str else str.__str__(value)
    found = scalar(value)
    return value if found is value else plain(found)


def scalar(value: Any) -> Any:
    """Return a scalar of an array as a value of Python's own, and any other value as it is.

    A time in nanoseconds and a missing time stay as they are: `item` would make a number of the one, None of the other.
    """
    if _is_array_scalar(value):
        return value.item()
    if getattr(getattr(value, "dtype", None), "kind", None) in ("M", "m", "S", "U") and value.shape == ():
        found = value.item()
        return found if isinstance(found, (date, timedelta, bytes, str)) else value
    return value


def _is_array_scalar(value: Any) -> bool:
    """Return whether a value is a number or a truth value as arrays have it: `numpy.int64`, and its kind."""
    return (
        getattr(getattr(value, "dtype", None), "kind", None) in ("b", "i", "u", "f")
        and getattr(value, "shape", None) == ()
    )


def _key(key: object) -> object:
    return plain(key) if isinstance(key, (datetime, time)) or _is_array_scalar(key) else key


def _plain_column(values: Sequence[Any]) -> Sequence[object]:
    """Return `plain` of each value; tuples of one form are looked at by columns, and not one by one."""
    kinds = set(map(type, values))
    if kinds <= SCALARS:
        return values
    kind = kinds.pop()
    names = getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
    if kinds or not (kind is tuple or names):
        return [plain(value) for value in values]
    widths = set(map(len, values))
    if not names and SCALARS.issuperset(map(type, chain.from_iterable(values))):
        return values
    if len(widths) != 1 or (names is not None and widths != {len(names)}):
        return [plain(value) for value in values]
    columns = map(_plain_column, zip(*values, strict=True))
    return list(zip(*columns, strict=True)) if not names else list(map(_object_of(names), *columns))


@lru_cache(maxsize=256)
def _object_of(names: tuple[str, ...]) -> Callable[..., object]:
    """Return what makes an object of JSON of values; it takes a third of the time of a dict."""
    return msgspec.defstruct("Object", names, gc=False)


_MINUTE: Final = timedelta(minutes=1)


def _with_whole_minutes(value: datetime | time) -> object:
    """Return an equal value whose zone is whole minutes from UTC.

    Raises:
        ValueError: There is none.
    """
    offset = value.utcoffset()
    if offset is None or not offset % _MINUTE:
        return value
    # msgspec rounds the offset, and leaves the time as it is: another moment.
    if isinstance(value, time):
        raise ValueError(f"the zone of {value} is not whole minutes from UTC, and a time of day has no other form")
    return value.astimezone(UTC)


@lru_cache(maxsize=256)
def _has_scalars_only(kind: type) -> bool:
    """Return whether a struct holds nothing that may hold a time."""
    return SCALARS.issuperset(field.type for field in msgspec.structs.fields(kind))


def _sorted(values: list[object]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:  # several types, or types without an order: any fixed order will do
        return sorted(values, key=_ENCODER.encode)


def encode_lines(payloads: Sequence[object]) -> bytes:
    """Return one line of JSON for each payload.

    Raises:
        Unencodable: A payload cannot be written.
    """
    try:
        values = _plain_column(payloads)
        text = _ENCODER.encode_lines(values)
        # Few lines have a null, and of those that have one, few have it of a number.
        if b"null" in text:
            for value in values:
                _check_numbers(value)
        return text
    except _REFUSED:
        for payload in payloads:
            encode(payload)
        raise  # each alone can be written, so no payload is at fault


def encode(payload: object) -> bytes:
    """Return one payload as JSON, without line end.

    Raises:
        Unencodable: The payload cannot be written.
    """
    try:
        return _encoded(payload)
    except _REFUSED as error:
        raise Unencodable(payload, f"{_where(payload)}{error}") from error


def _encoded(payload: object) -> bytes:
    """Return one payload as JSON.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: It cannot be written.
    """
    value = plain(payload)
    text = _ENCODER.encode(value)
    if b"null" in text:
        _check_numbers(value)
    return text


def _check_numbers(value: Any) -> None:
    """Make sure that no part of a value that `plain` has returned is a number that JSON has not.

    Raises:
        ValueError: A part is NaN or infinite.
    """
    kind = type(value)
    if kind is float:
        if not isfinite(value):
            raise ValueError(f"JSON has no {value}; let the flow return None in its place, or a text")
    elif kind is dict:
        for inner in value.values():
            _check_numbers(inner)
    elif kind is list or kind is tuple:
        for inner in value:
            _check_numbers(inner)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _check_numbers(getattr(value, name))


def _where(payload: object) -> str:
    """Return where in a payload the innermost part is that cannot be written; nothing if that is the payload itself."""
    way, part = "", payload
    for _ in range(_DEEPEST):  # it may contain itself
        for step, inner in _parts(part):
            try:
                _encoded(inner)
            except _REFUSED:
                way, part = way + step, inner
                break
        else:
            break
    return f"at {way}, of type {type(part).__name__}: " if way else ""


def _parts(value: Any) -> Iterable[tuple[str, object]]:
    """Return the parts of a value, each with the step that leads to it."""
    if isinstance(value, dict):
        return [(f"[{key!r:.40}]", inner) for key, inner in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", inner) for name, inner in zip(value._fields, value, strict=False)]  # of any width
    if isinstance(value, list | tuple):
        return [(f"[{place}]", inner) for place, inner in enumerate(value)]
    if dataclasses.is_dataclass(type(value)):  # and not a class, which is no record
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    return ()


def cell(value: object) -> object:
    """Return a value as a table cell.

    Scalars stay, also floats of another class such as numpy's, values that JSON writes as text become that text (dates,
    enums, decimals), all others JSON.

    Raises:
        Unencodable: The value cannot be written.
    """
    if type(value) in SCALARS:
        return value
    if isinstance(value, float) or _is_array_scalar(value):  # JSON has no inf and no nan, which a cell may have
        return plain(value)
    text = encode(value)
    return msgspec.json.decode(text) if text[:1] not in (b"{", b"[") else text.decode()
