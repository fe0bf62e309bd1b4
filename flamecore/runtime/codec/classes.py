"""Codecs of declared classes with fields, and of enums.

Fields go by name, so a class may change. Bytes of an earlier form are read if every field they have is still there; a
new field takes its default. A field that is gone or renamed is an error, because the two cannot be told apart. Values
are made from their fields without calling the class, except `msgspec.Struct`s, which need the call.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, Final

import msgspec

from flamecore.errors import CodecError
from flamecore.model.failure import Cause
from flamecore.runtime.codec.wire import unreadable
from flamecore.suggest import suggestion

Columns = Sequence[Sequence[object]]
_REQUIRED: Final = object()


class FieldCodec(ABC):
    """A class whose values are their fields.

    Args:
        kind: The class.
        name: Its name in bytes.
        fields: For each field the factory of its default, or None if it has no default.
    """

    def __init__(self, kind: type, name: str, fields: dict[str, Callable[[], object] | None]) -> None:
        self.kind = kind
        self.name = name
        self.defaults = fields
        self.fields = tuple(fields)
        self.places = tuple(f".{field}" for field in fields)

    @abstractmethod
    def take_apart(self, values: Sequence[object]) -> Iterable[Sequence[object]]:
        """Return one column for each field, in the order of the fields.

        Raises:
            AttributeError: A field has not been set.
        """

    @abstractmethod
    def make(self, count: int, columns: Columns) -> list[object]:
        """Make `count` values of one column for each field."""

    def reader(self, stored: Sequence[str]) -> Callable[[int, Columns], list[object]]:
        """Return a function that makes values of the stored fields, in their order.

        Raises:
            CodecError: The class lacks a stored field, or a new field has no default.
        """
        if tuple(stored) == self.fields:
            return self.make
        for field in stored:
            if field not in self.defaults:
                raise unreadable(
                    f"stored values of {self.name!r} have a field {field!r}, which the class has no more",
                    hint=f"{suggestion(field, self.fields)} Keep the field, or register a codec for the class that "
                    "reads both forms.",
                    type_name=self.name,
                    path=field,
                )
        places: list[int | Callable[[], object]] = []
        for field, default in self.defaults.items():
            if field in stored:
                places.append(stored.index(field))
            elif default is not None:
                places.append(default)
            else:
                raise unreadable(
                    f"stored values of {self.name!r} have no field {field!r}, and it has no default",
                    hint=f"They have: {', '.join(stored) or 'none'}. Give the new field a default.",
                    type_name=self.name,
                    path=field,
                )
        return partial(self._evolved, places)

    def _evolved(self, places: Sequence[int | Callable[[], object]], count: int, columns: Columns) -> list[object]:
        chosen = [columns[at] if isinstance(at, int) else [at() for _ in range(count)] for at in places]
        return self.make(count, chosen)


class Tuples(FieldCodec):
    """A NamedTuple.

    The cause of a failure crosses without its exception: its texts describe it to other processes.
    """

    def __init__(self, kind: Any, name: str) -> None:
        defaults = kind._field_defaults
        super().__init__(kind, name, {field: _default_of(defaults.get(field, _REQUIRED)) for field in kind._fields})
        # Not by the class: its `__new__` may be code of the flow, and decoding runs none.
        self._make = partial(tuple.__new__, kind)

    def take_apart(self, values: Sequence[Any]) -> Iterable[Sequence[object]]:
        if self.kind is Cause:
            values = [cause._replace(error=None) for cause in values]
        return zip(*values, strict=True)

    def make(self, count: int, columns: Columns) -> list[object]:
        rows: Iterable[object] = zip(*columns, strict=True) if columns else repeat((), count)
        return list(map(self._make, rows))


class Dataclasses(FieldCodec):
    """A dataclass: all its fields, also those that its constructor does not take."""

    def __init__(self, kind: Any, name: str) -> None:
        fields = {}
        for field in dataclasses.fields(kind):
            factory = field.default_factory
            default = _REQUIRED if field.default is dataclasses.MISSING else field.default
            fields[field.name] = factory if factory is not dataclasses.MISSING else _default_of(default)
        super().__init__(kind, name, fields)
        object.__new__(kind)  # a TypeError for classes whose values cannot be made this way

    def take_apart(self, values: Sequence[object]) -> Iterable[Sequence[object]]:
        return [list(map(attrgetter(field), values)) for field in self.fields]

    def make(self, count: int, columns: Columns) -> list[object]:
        # Without `__init__`, which may check, count or register: the value was made once, where it
        # comes from.
        made: list[object] = list(map(object.__new__, repeat(self.kind, count)))
        for field, column in zip(self.fields, columns, strict=True):
            any(map(object.__setattr__, made, repeat(field), column))  # sets it in all; also where the class is frozen
        return made


class Structs(FieldCodec):
    """A `msgspec.Struct`."""

    def __init__(self, kind: Any, name: str) -> None:
        fields = {}
        for field in msgspec.structs.fields(kind):
            factory = field.default_factory
            default = _REQUIRED if field.default is msgspec.NODEFAULT else field.default
            fields[field.name] = factory if factory is not msgspec.NODEFAULT else _default_of(default)
        super().__init__(kind, name, fields)
        parameters = inspect.signature(kind).parameters.values()
        self._by_place = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)

    def take_apart(self, values: Sequence[object]) -> Iterable[Sequence[object]]:
        return [list(map(attrgetter(field), values)) for field in self.fields]

    def make(self, count: int, columns: Columns) -> list[object]:
        kind = self.kind
        rows: Iterable[Any] = zip(*columns, strict=True) if columns else repeat((), count)
        if self._by_place:
            # By place where that is possible, which is faster.
            return [kind(*row) for row in rows]
        return [kind(**dict(zip(self.fields, row, strict=True))) for row in rows]


class Enumeration:
    """An enum. Members go by name, members of a flag and their combinations by value."""

    def __init__(self, kind: Any, name: str) -> None:
        self.kind = kind
        self.name = name
        self.flags = issubclass(kind, enum.Flag)

    def member(self, name: str) -> object:
        """Return the member of a name.

        Raises:
            CodecError: The enum has no such member.
        """
        members = self.kind.__members__
        if name not in members:
            raise unreadable(
                f"stored values of {self.name!r} have a member {name!r}, which it has no more",
                hint=f"{suggestion(name, members)} Keep the old name as an alias of the new one.",
                type_name=self.name,
                path=name,
            )
        return members[name]


def _default_of(value: object) -> Callable[[], object] | None:
    return None if value is _REQUIRED else lambda: value


def entry_for(kind: type, name: str) -> FieldCodec | Enumeration | None:
    """Return the codec of a class with fields or of an enum; None for other classes."""
    if issubclass(kind, enum.Enum):
        return Enumeration(kind, name)
    try:
        if issubclass(kind, tuple):
            return Tuples(kind, name) if hasattr(kind, "_fields") else None
        if issubclass(kind, msgspec.Struct):
            return Structs(kind, name) if kind is not msgspec.Struct else None
        return Dataclasses(kind, name) if dataclasses.is_dataclass(kind) else None
    except TypeError:
        return None  # an abstract class, or one derived from a built-in type


def unset(field_codec: FieldCodec, error: AttributeError) -> CodecError:
    """Return the error of a value with a field that has not been set."""
    return CodecError(
        f"a {field_codec.kind.__qualname__} cannot cross a process boundary: {error}",
        hint="Set every field of it, or give the fields defaults.",
        type_name=field_codec.kind.__qualname__,
    )
