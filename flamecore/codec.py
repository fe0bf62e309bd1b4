"""What crosses a process boundary, and how: MessagePack with a tag for every type MessagePack would forget.

What is sent is what is received, type for type: a tuple comes back a tuple, an enum member an enum member. Nothing
that is decoded can run code: only classes that were declared to the codec are made again, by name, from their
fields. A payload of any other type is an error at the sender.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any, Final, get_args, get_origin
from uuid import UUID

import msgspec

from flamecore import messages
from flamecore.acker import Ack, MinTime, Report
from flamecore.errors import CodecError
from flamecore.failure import Failure, in_words
from flamecore.meta import GlobalTime

_PLAIN: Final = frozenset({type(None), bool, float, str, bytes})
_INT_LIMIT: Final = 2**63
_MESSAGES: Final = (
    *(kind for kind in vars(messages).values() if isinstance(kind, type) and kind.__module__ == messages.__name__),
    Report,
    MinTime,
    Ack,
    Failure,
    GlobalTime,
)

_TUPLE, _DICT, _SET, _FROZENSET, _INT, _RECORD, _TEXT = range(1, 8)
_BYTEARRAY, _COLUMN = 8, 9

_MIXED, _SAME, _TUPLES, _RECORDS = range(4)
_FEW: Final = 8
"""Lists shorter than this are packed one value at a time."""


def _clock(value: datetime | time) -> str:
    """A date with its time, or a time: as in ISO 8601, then which of two it is where clocks go back, then the zone."""
    zone, name = value.tzinfo, ""
    if zone is not None and type(zone) is not timezone:
        name = getattr(zone, "key", None) or ""
        if type(zone).__module__ != "zoneinfo" or not name:
            raise _refusal(value, zone)
        value = value.replace(tzinfo=None)
    return f"{value.isoformat()}|{value.fold}|{name}"


def _from_clock(kind: type[datetime | time], text: str) -> Any:
    stamp, fold, name = text.split("|")
    value = kind.fromisoformat(stamp).replace(fold=int(fold))
    if not name:
        return value
    from zoneinfo import ZoneInfo  # few payloads have one

    return value.replace(tzinfo=ZoneInfo(name))


def _refusal(value: Any, culprit: Any) -> CodecError:
    kind = type(culprit)
    return CodecError(
        f"a value of type {kind.__module__}.{kind.__qualname__} cannot cross a process boundary: {in_words(value)}",
        hint="Use plain values, dataclasses, NamedTuples or enums; declare classes by the hints of the flow.",
        type_name=kind.__qualname__,
        path="",
    )


_AS_TEXT: Final[dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]]] = {
    datetime: (_clock, partial(_from_clock, datetime)),
    date: (date.isoformat, date.fromisoformat),
    time: (_clock, partial(_from_clock, time)),
    timedelta: (
        lambda v: f"{v.days} {v.seconds} {v.microseconds}",
        lambda t: timedelta(*map(int, t.split())),
    ),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
    complex: (repr, complex),
}


class Codec:
    """Encodes payloads and messages.

    Args:
        types: Declared classes: dataclasses, NamedTuples, enums, `msgspec.Struct`s. Types they are made of are found by
            their hints; so are the members of unions and generics.
    """

    def __init__(self, types: Iterable[Any] = ()) -> None:
        self._names: dict[type, str] = {}
        self._classes: dict[str, type] = {}
        for message in _MESSAGES:
            self._names[message] = name = f"!{message.__name__}"
            self._classes[name] = message
        for hint in types:
            self.declare(hint)

    def declare(self, hint: Any) -> None:
        """Let values of a class, and of all classes its hints name, cross.

        Raises:
            CodecError: Another class of that module and name is declared.
        """
        for argument in get_args(hint):
            self.declare(argument)
        hint = get_origin(hint) or hint
        if not isinstance(hint, type) or hint in self._names or not _is_record(hint):
            return
        name = f"{hint.__module__}:{hint.__qualname__}"
        if name in self._classes:
            raise CodecError(
                f"two classes are named {name}",
                hint="Receivers find classes by name: give each of those that cross a name of its own.",
                type_name=hint.__qualname__,
                path="",
            )
        self._names[hint] = name
        self._classes[name] = hint
        for field in _hints(hint).values():
            self.declare(field)

    def encode(self, value: Any) -> bytes:
        """Bytes of a value.

        Raises:
            CodecError: Its type cannot cross; the text names the type and says how to declare it.
        """
        try:
            return _encoder.encode(self._pack(value))
        except (UnicodeEncodeError, RecursionError, OverflowError) as error:
            raise CodecError(
                f"a value of type {type(value).__qualname__} cannot cross a process boundary: {in_words(error)}",
                hint="Use texts that are valid Unicode, and values of moderate size that do not contain themselves.",
                type_name=type(value).__qualname__,
                path="",
            ) from error

    def decode(self, data: bytes) -> Any:
        """The value of some bytes.

        Raises:
            CodecError: They are no bytes of this codec, or name a class that was not declared.
        """
        try:
            return self._unpack(_decoder.decode(data))
        except CodecError:
            raise
        except Exception as error:  # made-up bytes can be wrong in any way, and end in one way
            raise CodecError(f"bytes that cannot be decoded: {error!r}", type_name="", path="") from error

    def _pack(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if -_INT_LIMIT <= value < 2 * _INT_LIMIT else _ext(_INT, _int_bytes(value))
        if kind is list:
            if len(value) < _FEW:
                return [self._pack(part) for part in value]
            return _ext(_COLUMN, self._column(value))
        if kind is tuple:
            return _ext(_TUPLE, [self._pack(part) for part in value])
        if kind is dict:
            return _ext(_DICT, [self._pack(part) for pair in value.items() for part in pair])
        if kind in self._names:
            return _ext(_RECORD, [self._names[kind], *map(self._pack, _fields(value))])
        if kind in _AS_TEXT:
            return _ext(_TEXT, [kind.__name__, _AS_TEXT[kind][0](value)])
        if kind is set or kind is frozenset:
            parts = sorted(_encoder.encode(self._pack(part)) for part in value)
            return _ext(_SET if kind is set else _FROZENSET, parts)
        if kind is bytearray:
            return _ext(_BYTEARRAY, bytes(value))
        raise _refusal(value, value)

    def _column(self, values: Sequence[Any]) -> list[Any]:
        """A list as columns: where all values are of one type, their types are looked at and told once.

        Batches are lists of like items, so nearly all of the work is done by loops in C.
        """
        kinds = set(map(type, values))
        kind = kinds.pop()
        if kinds:
            return [_MIXED, [self._pack(value) for value in values]]
        if kind in _PLAIN or (kind is int and min(values) >= -_INT_LIMIT and max(values) < 2 * _INT_LIMIT):
            return [_SAME, values]
        if kind is tuple and values[0] and len(set(map(len, values))) == 1:
            return [_TUPLES, [self._column(part) for part in zip(*values, strict=True)]]
        if kind in self._names and kind is not Failure:
            parts = zip(*map(_fields, values), strict=True)
            if columns := [self._column(part) for part in parts]:
                return [_RECORDS, self._names[kind], columns]
        return [_MIXED, [self._pack(value) for value in values]]

    def _values(self, column: Sequence[Any]) -> list[Any]:
        """The list that was turned into columns."""
        tag = column[0]
        if tag == _SAME:
            return list(column[1])
        if tag == _MIXED:
            return [self._unpack(value) for value in column[1]]
        if tag == _TUPLES:
            return list(zip(*map(self._values, column[1]), strict=True))
        if tag == _RECORDS:
            make = partial(self._record, column[1])
            return list(map(make, zip(*map(self._values, column[2]), strict=True)))
        raise CodecError(f"bytes with a column of the unknown kind {tag}", type_name="", path="")

    def _unpack(self, value: Any) -> Any:
        kind = type(value)
        if kind is list:
            return [self._unpack(part) for part in value]
        if kind is not msgspec.msgpack.Ext:
            return value
        code, body = value.code, _decoder.decode(value.data)
        if code == _TUPLE:
            return tuple([self._unpack(part) for part in body])
        if code == _COLUMN:
            return self._values(body)
        if code == _DICT:
            parts = [self._unpack(part) for part in body]
            return dict(zip(parts[::2], parts[1::2], strict=True))
        if code == _RECORD:
            return self._record(body[0], [self._unpack(part) for part in body[1:]])
        if code == _INT:
            return int.from_bytes(body, "big", signed=True)
        if code == _TEXT:
            return _FROM_TEXT[body[0]](body[1])
        if code in (_SET, _FROZENSET):
            parts = [self._unpack(_decoder.decode(part)) for part in body]
            return set(parts) if code == _SET else frozenset(parts)
        if code == _BYTEARRAY:
            return bytearray(body)
        raise CodecError(f"bytes with the unknown tag {code}", type_name="", path="")

    def _record(self, name: str, fields: Sequence[Any]) -> Any:
        kind = self._classes.get(name)
        if kind is None:
            raise CodecError(
                f"bytes of class {name!r}, which was not declared",
                hint="Declare it as a type of the flow.",
                type_name=name,
                path="",
            )
        if issubclass(kind, enum.Flag):
            return kind(fields[0])
        if issubclass(kind, enum.Enum):
            return kind[fields[0]]
        if issubclass(kind, tuple):
            return kind(*fields)
        if not dataclasses.is_dataclass(kind):
            return kind(**dict(zip(kind.__struct_fields__, fields, strict=True)))  # type: ignore[attr-defined]
        made = object.__new__(kind)
        for field, part in zip(dataclasses.fields(kind), fields, strict=True):
            object.__setattr__(made, field.name, part)
        return made


_FROM_TEXT: Final = {kind.__name__: decode for kind, (_, decode) in _AS_TEXT.items()}
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _ext(code: int, body: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encoder.encode(body))


def _is_record(kind: type) -> bool:
    return (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, enum.Enum)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or (issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct)
    )


def _hints(kind: type) -> dict[str, Any]:
    from typing import get_type_hints

    try:
        return get_type_hints(kind)
    except (NameError, TypeError):
        return {}


def _fields(value: Any) -> Iterable[Any]:
    if isinstance(value, Failure):
        return (*value[:-1], None)  # an exception does not leave its process; the words for it do
    if isinstance(value, enum.Flag):
        return (value.value,)  # a combination of members has no name
    if isinstance(value, enum.Enum):
        return (value.name,)
    if isinstance(value, tuple):
        return value
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [getattr(value, name) for name in value.__struct_fields__]
