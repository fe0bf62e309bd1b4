"""Payload types as columns: named fields of a record, or places of a tuple."""

from __future__ import annotations

import dataclasses
import types
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types whose values a table cell holds unchanged."""


class Column(NamedTuple):
    """One column: its name, type of values, and whether a record may leave it out."""

    name: str
    type: object
    optional: bool = False


def is_named_tuple(type_: object) -> bool:
    """Return whether a type is a class made by `NamedTuple`."""
    return isinstance(type_, type) and issubclass(type_, tuple) and hasattr(type_, "_fields")


def record_columns(type_: object) -> tuple[Column, ...] | None:
    """Return the fields, in order, of a record type; None for other types.

    Record types are NamedTuples, dataclasses, TypedDicts and Structs.
    """
    if not isinstance(type_, type):
        return None
    if issubclass(type_, msgspec.Struct):
        fields = msgspec.structs.fields(type_)
        return tuple(Column(field.encode_name, field.type, not field.required) for field in fields)
    if is_typeddict(type_):
        hints = get_type_hints(type_)
        required = type_.__required_keys__  # type: ignore[attr-defined]  # asked before
        return tuple(Column(name, kind, name not in required) for name, kind in hints.items())
    if is_named_tuple(type_):
        hints = get_type_hints(type_)
        defaults = type_._field_defaults  # type: ignore[attr-defined]  # asked before
        names: tuple[str, ...] = type_._fields  # type: ignore[attr-defined]  # asked before
        return tuple(Column(name, hints.get(name, Any), name in defaults) for name in names)
    if dataclasses.is_dataclass(type_):
        hints = get_type_hints(type_)
        none = dataclasses.MISSING
        return tuple(
            Column(field.name, hints[field.name], field.default is not none or field.default_factory is not none)
            for field in dataclasses.fields(type_)
        )
    return None


def twin(type_: Any) -> Any:
    """Return a Struct class with the fields of a NamedTuple.

    msgspec reads NamedTuples from arrays only, and most data has names. `type_(*msgspec.structs.astuple(value))` makes
    the NamedTuple.
    """
    defaults = type_._field_defaults
    fields: list[Any] = []
    for column in record_columns(type_) or ():
        default = [msgspec.field(default_factory=partial(defaults.get, column.name))] if column.optional else []
        fields.append((column.name, column.type, *default))
    return msgspec.defstruct(type_.__name__, fields, kw_only=True)


def tuple_columns(type_: object) -> tuple[Column, ...] | None:
    """Return the places of a tuple type of fixed length; None for other types.

    Two places are called key and value, other numbers c0, c1, …
    """
    kinds = get_args(type_) if get_origin(type_) is tuple else ()
    if not kinds or Ellipsis in kinds:
        return None
    names = ("key", "value") if len(kinds) == 2 else [f"c{place}" for place in range(len(kinds))]
    return tuple(map(Column, names, kinds))


def scalar_kinds(type_: Any) -> set[type] | None:
    """Return the scalar types a value of this type can have; None if not only those.

    >>> scalar_kinds(int | None) == {int, type(None)}, scalar_kinds(list[int])
    (True, None)
    """
    if type_ in SCALARS:
        return {type_}
    if type_ is None:
        return {type(None)}
    origin = get_origin(type_)
    if origin is Literal:
        return {type(value) for value in get_args(type_)}
    if origin in (Union, types.UnionType):
        kinds = [scalar_kinds(part) for part in get_args(type_)]
        known = [kind for kind in kinds if kind is not None]
        return set().union(*known) if len(known) == len(kinds) else None
    return None
