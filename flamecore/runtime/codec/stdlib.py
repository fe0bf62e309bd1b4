"""Codecs of standard library types, in the form of user codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from operator import attrgetter
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, NamedTuple
from uuid import UUID

from flamecore.errors import CodecError
from flamecore.model.drift import MISSING
from flamecore.model.failure import shorten_repr
from flamecore.runtime.codec.wire import BYTES, MADE_UNITS, NONE, STR, TUPLE

_UTC_OFFSET: Final = "="
_ZONE_KEY: Final = "@"


class Standard(NamedTuple):
    """A codec of the engine, like `TypeCodec`, for a type that needs no declaration.

    `made_of` is the only kind of node whose values `decode` accepts: `bytearray(2**40)` would allocate a terabyte.
    `units` is the cost of making one value.
    """

    type: type
    name: str
    made_of: int
    encode: Callable[[Any], object]
    decode: Callable[[Any], object]
    version: int = 1
    units: int = MADE_UNITS


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _from_clock(kind: type[datetime | time], text: str) -> object:
    stamp, _, rest = text.partition("|")
    value = kind.fromisoformat(stamp)
    if not rest:
        return value
    fold, zone = int(rest[0]), rest[1:]
    return value.replace(fold=fold, tzinfo=_zone_of(zone, value.tzinfo) if zone else value.tzinfo)


def _clock(value: datetime | time) -> str:
    """Return ISO 8601 text, then "|", the fold and the zone's name if needed."""
    zone, told = value.tzinfo, value
    name = ""
    if type(zone) is timezone:
        label = zone.__getinitargs__()[1:]  # type: ignore[attr-defined]  # the explicit name, if any
        name = f"{_UTC_OFFSET}{label[0]}" if label else ""
    elif zone is not None:
        name = f"{_ZONE_KEY}{_zone_key(value, zone)}"
        told = value.replace(tzinfo=None)
    return f"{told.isoformat()}|{value.fold}{name}" if name or value.fold else told.isoformat()


def _zone_key(value: object, zone: tzinfo) -> str:
    key = getattr(zone, "key", None)
    if type(zone).__module__.partition(".")[0] != "zoneinfo" or not key:
        kind = type(zone)
        raise CodecError(
            f"a time zone of type {kind.__module__}.{kind.__qualname__} cannot cross a process boundary: "
            f"{shorten_repr(value)}",
            hint="Use zoneinfo.ZoneInfo(name), datetime.timezone, or times without zones.",
            type_name=kind.__qualname__,
        )
    return str(key)


def _zone_of(name: str, offset: tzinfo | None) -> tzinfo:
    mark, name = name[:1], name[1:]
    if mark == _UTC_OFFSET and offset is not None:
        fixed = offset.utcoffset(None)
        assert fixed is not None
        return timezone(fixed, name)
    if mark != _ZONE_KEY:
        raise ValueError(f"{mark + name!r} is no zone")
    from zoneinfo import ZoneInfo  # few payloads have one

    return ZoneInfo(name)


def _missing(_: None) -> object:
    return MISSING


INTEGERS: Final = Standard(int, "int", BYTES, _int_bytes, partial(int.from_bytes, byteorder="big", signed=True))
"""Codec of integers beyond 64 bits."""

STANDARD: Final = (
    Standard(bytearray, "bytearray", BYTES, bytes, bytearray),
    Standard(datetime, "datetime", STR, _clock, partial(_from_clock, datetime)),
    Standard(date, "date", STR, date.isoformat, date.fromisoformat),
    Standard(time, "time", STR, _clock, partial(_from_clock, time)),
    Standard(
        timedelta, "timedelta", TUPLE, attrgetter("days", "seconds", "microseconds"), lambda parts: timedelta(*parts)
    ),
    Standard(Decimal, "Decimal", STR, str, Decimal),
    Standard(UUID, "UUID", BYTES, attrgetter("bytes"), lambda data: UUID(bytes=data)),
    Standard(complex, "complex", TUPLE, attrgetter("real", "imag"), lambda parts: complex(*parts)),
    Standard(PurePosixPath, "PurePosixPath", STR, str, PurePosixPath),
    Standard(PureWindowsPath, "PureWindowsPath", STR, str, PureWindowsPath),
    Standard(PosixPath, "PosixPath", STR, str, PosixPath),
    Standard(WindowsPath, "WindowsPath", STR, str, WindowsPath),
    Standard(type(MISSING), "!MISSING", NONE, lambda _: None, _missing),
)

Texts = Callable[[Sequence[Any]], Iterable[str]]
"""Function that finds the texts in values that a codec decodes."""


def _texts_among(made: Sequence[Any]) -> Iterable[str]:
    return [part for parts in made for part in parts if type(part) is str]


TEXTS: Final[dict[int, Texts]] = {STR: iter, TUPLE: _texts_among}
"""For each `made_of` whose decoding parses texts, a function that finds these texts. Parsing is charged by length."""
