"""JSON objects where a NamedTuple is declared.

msgspec makes a NamedTuple from an array only, and sinks write an object with the names of its fields.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, NewType, Union, get_args, get_origin, is_typeddict

import msgspec

from flamecore.toolkit.records.plain import encode
from flamecore.toolkit.records.shapes import is_named_tuple, record_columns

Change = Callable[[object], Any]
"""Function of plain data that returns it with arrays in the place of such objects."""


# The way is collected while the exception passes each level: a path that is kept up to date on the
# way down would cost every valid record.
class _Missing(Exception):
    """A field that an object lacks. `at` is the way to the object, from its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at: list[str] = []


def arrays_for(type_: object) -> Change | None:
    """Return the change that msgspec needs before it converts plain data to a type.

    None: it needs none. The change raises `msgspec.ValidationError` where an object lacks a field.
    """
    # Made once for a type, and None where no NamedTuple is within it: other types keep msgspec's
    # speed.
    change = _Changes().of(type_)
    if change is None:
        return None

    def changed(value: object) -> object:
        try:
            return change(value)
        except _Missing as missing:
            where = f" - at `${''.join(reversed(missing.at))}`" if missing.at else ""
            raise msgspec.ValidationError(f"Object missing required field `{missing.name}`{where}") from None

    return changed


class _Changes:
    """The changes of the types within one type, which may contain itself."""

    def __init__(self) -> None:
        self._made: dict[object, Change] = {}

    def of(self, type_: object) -> Change | None:
        type_ = _bare(type_)
        if not self._has_one(type_, set()):
            return None
        if type_ not in self._made:
            self._made[type_] = lambda value: self._made[type_](value)  # a type within itself finds this one
            self._made[type_] = self._make(type_)
        return self._made[type_]

    def _has_one(self, type_: object, seen: set[object]) -> bool:
        """Return whether a NamedTuple is somewhere in a type."""
        type_ = _bare(type_)
        if is_named_tuple(type_):
            return True
        if type_ in seen:
            return False
        seen.add(type_)
        return any(self._has_one(part, seen) for part in parts_of(type_))

    def _make(self, type_: object) -> Change:
        origin = get_origin(type_) or type_
        if origin in (Union, types.UnionType):
            return self._one_of([_bare(part) for part in get_args(type_)])
        if is_named_tuple(type_):
            return self._named_tuple(type_)
        if (columns := record_columns(type_)) is not None:
            return self._members({column.name: self.of(column.type) for column in columns})
        arguments = get_args(type_)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _values(self._sure(arguments[1]))
        if origin is tuple and Ellipsis not in arguments:
            return _places([self.of(part) for part in arguments])
        return _elements(self._sure(arguments[0]))

    def _sure(self, type_: object) -> Change:
        return self.of(type_) or (lambda value: value)

    def _named_tuple(self, type_: Any) -> Change:
        columns = record_columns(type_) or ()
        changes = [self.of(column.type) for column in columns]
        members = self._members({column.name: change for column, change in zip(columns, changes, strict=True)})
        places = _places(changes)
        given = type_._field_defaults

        def changed(value: Any) -> Any:
            if type(value) is not dict:
                return places(value)
            value = members(value)
            found = []
            for column in columns:
                if column.name in value:
                    found.append(value[column.name])
                elif column.optional:
                    # msgspec converts the default like any value, so it must be plain data first.
                    found.append(members({column.name: json.loads(encode(given[column.name]))})[column.name])
                else:
                    raise _Missing(column.name)
            return found

        return changed

    def _members(self, changes: Mapping[str, Change | None]) -> Change:
        needed = {name: change for name, change in changes.items() if change is not None}

        def changed(value: object) -> object:
            if type(value) is not dict:
                return value
            # A copy, since the caller may show the record as it was read when it is rejected.
            value = dict(value)
            for name, change in needed.items():
                if name in value:
                    value[name] = _at(f".{name}", change, value[name])
            return value

        return changed

    def _one_of(self, kinds: list[Any]) -> Change:
        """Return the change of a union.

        msgspec supports at most one type for arrays and one for objects in it.
        """
        tuples = [kind for kind in kinds if is_named_tuple(kind)]
        objects = [change for kind in kinds if _is_object(kind) and (change := self.of(kind)) is not None]
        arrays = [change for kind in kinds if not _is_object(kind) and (change := self.of(kind)) is not None]
        other_objects = any(map(_is_object, kinds))

        def changed(value: object) -> object:
            if type(value) is list:
                return arrays[0](value) if arrays else value
            if type(value) is not dict:
                return value
            for kind in tuples:
                # A union may have other objects: then the names decide, and all that is needed must
                # be there.
                if not other_objects or value.keys() <= set(kind._fields) <= value.keys() | kind._field_defaults.keys():
                    return self._sure(kind)(value)
            return objects[0](value) if objects else value

        return changed


def _bare(type_: object) -> object:
    """Return a type without its annotations and new names."""
    while True:
        if get_origin(type_) is Annotated:
            type_ = get_args(type_)[0]
        elif isinstance(type_, NewType):
            type_ = type_.__supertype__
        else:
            return type_


def parts_of(type_: object) -> list[object]:
    """Return the types of the parts of a value, as far as JSON has them.

    A Struct is written by its own rules.
    """
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return []
    if get_origin(type_) is None and (columns := record_columns(type_)) is not None:
        return [column.type for column in columns]
    origin, arguments = get_origin(type_), get_args(type_)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return list(arguments[1:])
    if origin in (Union, types.UnionType, tuple, list) or (
        isinstance(origin, type) and issubclass(origin, AbstractSet)
    ):
        return [part for part in arguments if part is not Ellipsis]
    if isinstance(origin, type) and origin.__module__ == "collections.abc":
        return list(arguments[:1])
    return []


def _is_object(type_: object) -> bool:
    """Return whether JSON has an object for a type that is no NamedTuple."""
    if is_named_tuple(type_):
        return False
    origin = get_origin(type_) or type_
    return (
        is_typeddict(type_) or record_columns(type_) is not None or _is(origin, Mapping) or _is(origin, msgspec.Struct)
    )


def _is(type_: object, base: type) -> bool:
    return isinstance(type_, type) and issubclass(type_, base)


def _elements(change: Change) -> Change:
    def changed(value: object) -> object:
        if type(value) is not list:
            return value
        return [_at(f"[{place}]", change, inner) for place, inner in enumerate(value)]

    return changed


def _values(change: Change) -> Change:
    def changed(value: object) -> object:
        if type(value) is not dict:
            return value
        return {key: _at(f"[{key!r}]", change, inner) for key, inner in value.items()}

    return changed


def _places(changes: list[Change | None]) -> Change:
    def changed(value: object) -> object:
        if type(value) is not list:
            return value
        value = list(value)
        for place, change in enumerate(changes[: len(value)]):
            if change is not None:
                value[place] = _at(f"[{place}]", change, value[place])
        return value

    return changed


def _at(step: str, change: Change, value: object) -> object:
    try:
        return change(value)
    except _Missing as missing:
        missing.at.append(step)
        raise
