"""Plain data as records of declared types: JSON, and rows with named columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_origin

import msgspec

from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError
from flamecore.toolkit.records.objects import arrays_for, parts_of
from flamecore.toolkit.records.shapes import is_named_tuple, record_columns, twin

Decode = Callable[[bytes], object]
"""Function that makes a record of bytes. Raises ValueError or RecursionError with the reason as text."""

Convert = Callable[[Sequence[object]], object]
"""Function that makes a record of a row. Raises ValueError."""


def can_be_made(type_: object) -> bool:
    """Return whether records of a type can be made of plain data."""
    if type_ is object:
        return True
    try:
        kind = msgspec.inspect.type_info(twin(type_) if is_named_tuple(type_) else type_)
    except (TypeError, NameError):
        return False
    return not isinstance(kind, msgspec.inspect.CustomType)


def json_decoder(context: EdgeContext) -> Decode:
    """Return a decoder into the declared type.

    It makes plain values for `object`, and a NamedTuple, wherever in the type, from an object or an array.

    Raises:
        ConfigError: Nothing can be decoded into that type.
    """
    wanted = Any if context.type is object else context.type
    try:
        nested = any(arrays_for(part) for part in parts_of(wanted)) if is_named_tuple(wanted) else arrays_for(wanted)
        if nested:
            return _nested_decoder(wanted)
        if not is_named_tuple(wanted):
            decoder = msgspec.json.Decoder(wanted)
            if not can_be_made(wanted):
                raise TypeError(f"nothing is known of how to make a {wanted.__name__}")
            return decoder.decode
        return _named_tuple_decoder(wanted)
    except (TypeError, NameError) as error:
        raise ConfigError(
            f"source {context.name!r}: JSON cannot be decoded into {context.type!r}: {error}",
            hint="Declare a NamedTuple, dataclass, TypedDict or msgspec.Struct, or nothing, and convert in a map.",
            path=f"source.{context.name}.use",
        ) from error


def _nested_decoder(type_: object) -> Decode:
    """Return a decoder of a type that contains NamedTuples.

    msgspec alone reads these from arrays only.
    """
    msgspec.json.Decoder(type_)  # which refuses a type that it does not know
    decode, change, convert = msgspec.json.Decoder().decode, arrays_for(type_), msgspec.convert
    assert change is not None
    return lambda line: convert(change(decode(line)), type_, str_keys=True)


def _named_tuple_decoder(type_: Any) -> Decode:
    named = twin(type_)
    decode = msgspec.json.Decoder(type_ | named).decode
    values = msgspec.structs.astuple

    def decode_named_tuple(line: bytes) -> object:
        found = decode(line)
        return type_(*values(found)) if type(found) is named else found

    return decode_named_tuple


def row_converter(type_: Any, columns: Sequence[str]) -> Convert:
    """Return a function that makes records of rows with these columns.

    For `object` it makes a `dict` of them, for a record type a record by its field names, for a tuple type a tuple in
    their order, and for any other type a value of the only column.
    """
    if type_ in (object, Any) or (get_origin(type_) or type_) is dict:
        return lambda row: dict(zip(columns, row, strict=True))
    if record_columns(type_) is None:
        if len(columns) == 1 and (get_origin(type_) or type_) is not tuple:
            return lambda row: msgspec.convert(row[0], type_, strict=False)
        return lambda row: msgspec.convert(row, type_, strict=False)
    if not is_named_tuple(type_):
        return lambda row: msgspec.convert(dict(zip(columns, row, strict=True)), type_, strict=False)
    named, values = twin(type_), msgspec.structs.astuple
    return lambda row: type_(*values(msgspec.convert(dict(zip(columns, row, strict=True)), named, strict=False)))
