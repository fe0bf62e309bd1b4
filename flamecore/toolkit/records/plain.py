"""Payloads as JSON, the way every sink here writes them.

As msgspec does it, but for: NamedTuples, which become objects as dataclasses do; sets, whose elements are sorted, so
that one payload has one text; and subclasses of `str`, `int` and `float`, which are written as these. A
`msgspec.Struct` is written by its own rules, whatever it holds. JSON knows no NaN, no infinities and no bytes: the
former become null, the latter base64.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flamecore.toolkit.records.shapes import SCALARS

_ENCODER: Final = msgspec.json.Encoder()


class Unencodable(Exception):
    """A payload that cannot be written. Arguments: the payload, and why."""

    def __init__(self, payload: Any, reason: str) -> None:
        super().__init__(f"a payload of type {type(payload).__name__} cannot be written: {reason}")
        self.payload = payload


def plain(value: Any) -> Any:
    """The value with everything in it that JSON is to show in another way than msgspec replaced."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is tuple or kind is list:
        return value if SCALARS.issuperset(map(type, value)) else [plain(inner) for inner in value]
    if kind is dict:
        if SCALARS.issuperset(map(type, value.values())):
            return value
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {name: plain(inner) for name, inner in zip(kind._fields, value, strict=True)}
    if dataclasses.is_dataclass(kind):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(kind)}
    if isinstance(value, set | frozenset):
        return _sorted([plain(inner) for inner in value])
    if isinstance(value, enum.Enum):
        return value
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value) if base is not str else str.__str__(value)
    return value


def _sorted(values: list[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:  # of several types, or such as have no order: any fixed order will do
        return sorted(values, key=_ENCODER.encode)


def encode_lines(payloads: Sequence[Any]) -> bytes:
    """One line of JSON for each payload.

    Raises:
        Unencodable: One of them cannot be written.
    """
    try:
        return _ENCODER.encode_lines([plain(payload) for payload in payloads])
    except (TypeError, ValueError, OverflowError, RecursionError):
        for payload in payloads:
            encode(payload)
        raise  # each alone can be written; then this is none of their faults


def encode(payload: Any) -> bytes:
    """One payload as JSON, without line end. Raises as `encode_lines`."""
    try:
        return _ENCODER.encode(plain(payload))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unencodable(payload, str(error)) from error


def cell(value: Any) -> Any:
    """A value as a cell of a table holds it: scalars as they are, what JSON shows as text as that text (dates, enums,
    decimals), everything else as JSON. Raises as `encode_lines`."""
    if type(value) in SCALARS:
        return value
    text = encode(value)
    return msgspec.json.decode(text) if text[:1] not in (b"{", b"[") else text.decode()
