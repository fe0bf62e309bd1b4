"""Balancing: process-independent hashes, ranges of the int32 space, key groups.

See paper 004, section 2.3. Every process must send equal keys to one place, and a tombstone must follow its victim.
Python's own hash of a text differs from process to process, so keys are hashed from a canonical encoding instead.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import chain, repeat
from numbers import Number
from operator import add
from struct import Struct
from typing import Any, Final, get_origin
from uuid import UUID

import xxhash

INT32_MIN: Final = -(2**31)

# Fixed, and not the number of workers: state is stored by key group, so that any number of workers
# can load it.
KEY_GROUPS: Final = 128
"""Number of key groups, the small ranges of state; a power of two, fixed for the life of a job's state."""

ALIKE: Final = frozenset({str, bytes, int, type(None)})
"""Types of which equal values do not differ, and equal none of another of these types; unlike 0.0 and -0.0, or 1 and
True. Neither do tuples of them."""

_GROUPS: Final = bytes(byte * KEY_GROUPS >> 8 for byte in range(256))
"""Key group of each value of the highest byte of a hash."""

_SIGNED: Final = Struct(">q")
_LENGTH: Final = Struct(">I")


def _number(value: object) -> bytes:
    # Equal numbers of different types are one key in Python (1 == 1.0 == True), and the language gives them one hash
    # that is the same in every process, unlike that of texts.
    if value != value:
        raise TypeError("NaN is not equal to itself and cannot be a key")
    return b"i" + hash(value).to_bytes(8, "big", signed=True)


def _sequence(tag: bytes, parts: Iterable[bytes]) -> bytes:
    return tag + b"".join(map(_with_length, parts))


def _with_length(part: bytes) -> bytes:
    # With lengths: otherwise ("a", "bc") and ("ab", "c") would be one key.
    return len(part).to_bytes(4, "big") + part


def _moment(value: datetime) -> bytes:
    # Aware datetimes of different zones are equal if they are the same instant; those of one zone if their clocks show
    # the same, even in the hour that comes twice.
    value = value.replace(fold=0)
    offset, clock = value.utcoffset(), value.replace(tzinfo=None)
    if offset is None:
        return b"d" + clock.isoformat().encode()
    try:
        return b"z" + value.astimezone(UTC).isoformat().encode()
    except OverflowError:  # the instant is before year 1 or after year 9999 in UTC
        return b"z" + repr(clock - datetime.min - offset).encode()


def _time_of_day(value: time) -> bytes:
    # Aware times are equal when they are the same distance from midnight in UTC, which may lie outside of the day.
    offset = value.replace(fold=0).utcoffset()
    if offset is None:
        return b"T" + value.replace(tzinfo=None).isoformat().encode()
    clock = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return b"Z" + repr(clock - offset).encode()


_Encoder = Callable[[Any], bytes]

_PLAIN: Final[Mapping[type, _Encoder]] = {
    type(None): lambda _: b"n",
    str: lambda value: b"s" + value.encode("utf-8", "surrogatepass"),
    bytes: lambda value: b"b" + value,
    int: _number,
    bool: _number,
    float: _number,
    complex: _number,
    Decimal: _number,
    Fraction: _number,
    tuple: lambda value: _sequence(b"t", map(canonical, value)),
    # Sorted by their bytes: the sequence of a set differs from process to process, and elements
    # need not be comparable.
    frozenset: lambda value: _sequence(b"f", sorted(map(canonical, value))),
    datetime: _moment,
    date: lambda value: b"y" + value.isoformat().encode(),
    time: _time_of_day,
    timedelta: lambda value: b"D" + repr((value.days, value.seconds, value.microseconds)).encode(),
    UUID: lambda value: b"u" + value.bytes,
}

_ALWAYS_KEYS: Final = frozenset({type(None), str, bytes, int, bool, Fraction, date, timedelta, UUID})
"""Plain types whose every value can be a key. The others have values that cannot, such as NaN or a part of any type."""

_USABLE: Final = "use text, bytes, numbers, dates, enums, or tuples and frozen dataclasses of these"
_INSTEAD: Final[Mapping[type, str]] = {
    list: "use a tuple",
    set: "use a frozenset",
    bytearray: "use bytes",
    dict: "use a tuple of its items",
}

_ENCODERS: Final[dict[type, _Encoder]] = dict(_PLAIN)
"""Plain encoders, and those found for other classes. A class found here does not count for its subclasses: the order in
which a process sees classes must not matter."""


def _encoder_for(kind: type[Any]) -> _Encoder:
    """Return the encoder of a class that is new here.

    The class is derived from a plain class, an enum, or a frozen record. Its name does not count: the class may be
    renamed, moved, or run as a program, and its stored keys must still be found.
    """
    for base in kind.__mro__[1:]:  # also for an enum whose members equal plain values (IntEnum, StrEnum)
        if base in _PLAIN:
            return _PLAIN[base]
    hashed: object = kind.__hash__
    by_value = hashed is not None and hashed is not object.__hash__
    if by_value and issubclass(kind, Number):  # numbers of other libraries follow Python's rule for hashes
        return _number
    if issubclass(kind, enum.Enum):
        return lambda value: b"e" + str(value.name).encode()
    if dataclasses.is_dataclass(kind) and by_value:
        fields = [field.name for field in dataclasses.fields(kind) if field.compare]
    elif hasattr(kind, "__struct_fields__") and by_value and kind.__struct_config__.eq:
        fields = list(kind.__struct_fields__)
    else:
        instead = next((text for base, text in _INSTEAD.items() if issubclass(kind, base)), _USABLE)
        raise TypeError(f"a key of type {kind.__qualname__} has no hash that is the same in every process; {instead}")
    return lambda value: _sequence(b"r", [canonical(getattr(value, field)) for field in fields])


def canonical(value: object) -> bytes:
    """Return bytes that are equal for equal keys, the same in every process.

    Unequal keys have unequal bytes, except some numbers (-1 and -2, and those beyond 2^61), mixtures of types that
    Python itself gives one hash, and records or enums of two classes with the same contents.

    Raises:
        TypeError: A key of this type has no process-independent hash; the text says what to use instead.
    """
    kind = type(value)
    encoder = _ENCODERS.get(kind)
    if encoder is None:
        encoder = _ENCODERS[kind] = _encoder_for(kind)
    return encoder(value)


def stable_hash(value: Hashable) -> int:
    """Return the hash of a key: signed 32 bits, the same on every machine and version.

    >>> stable_hash("word") == stable_hash("word") and stable_hash(1) == stable_hash(1.0)
    True
    """
    # Fast, not keyed: keys that are made to collide cost an even load, and nothing else.
    return int(xxhash.xxh3_64_intdigest(canonical(value)) & 0xFFFFFFFF) - 2**31


def can_differ(keys: Collection[Any]) -> bool:
    """Return whether a key may be equal to one of some keys, and differ from it."""
    kinds = set(map(type, keys))
    if tuple in kinds:
        parts = keys if len(kinds) == 1 else [key for key in keys if type(key) is tuple]
        kinds = kinds - {tuple} | set(map(type, chain.from_iterable(parts)))
    return not kinds <= ALIKE


def check_key(value: Hashable) -> None:
    """Refuse a key that could not be routed, even if there is only one worker.

    One worker must fail as several do.

    Raises:
        TypeError: A key of this type has no process-independent hash; the text says what to use instead.
    """
    kind = type(value)
    if kind is tuple:
        for part in value:  # type: ignore[attr-defined]  # a tuple
            if type(part) not in _ALWAYS_KEYS:
                check_key(part)
    elif kind not in _ALWAYS_KEYS:
        canonical(value)


def check_keys(values: Collection[object]) -> None:
    """Refuse keys as `check_key` does, if there is one among these.

    Raises:
        TypeError: One has no process-independent hash.
    """
    kinds = [*map(type, values)]
    if kinds and kinds.count(kinds[0]) == len(kinds) and kinds[0] in _ALWAYS_KEYS:
        return  # mostly all are of one type, and to count it takes half the time of looking each of them up
    if not _ALWAYS_KEYS.issuperset(kinds):
        for value in values:
            check_key(value)


_HASHABLE_BY_DECLARATION = (list, dict, set, bytearray)


def refuse_unhashable(hint: object) -> str | None:
    """Return why values of the declared type `hint` cannot be keys, or None."""
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, _HASHABLE_BY_DECLARATION):
        return f"{kind.__name__} is mutable and cannot be a key"
    if isinstance(kind, type) and kind is not object and kind.__hash__ is None:
        return f"{kind.__qualname__} is not hashable and cannot be a key"
    return None


def key_group(hashed: int) -> int:
    """Return the key group of a 32-bit hash: 0 … KEY_GROUPS − 1, in hash order."""
    return (hashed - INT32_MIN) * KEY_GROUPS >> 32


def key_groups(keys: Sequence[Hashable]) -> list[int]:
    """Return `key_group(stable_hash(key))` for each key.

    Raises:
        TypeError: As `stable_hash`, for any of the keys.
    """
    # In C loops. A digest is 8 bytes, and the highest of its lower four alone decides the group.
    return list(b"".join(map(xxhash.xxh3_64_digest, canonicals(keys)))[4::8].translate(_GROUPS))


def canonicals(keys: Sequence[Hashable]) -> Iterable[bytes]:
    """Return `canonical(key)` for each key.

    Texts, whole numbers, and tuples of one length, are encoded in C loops.

    Raises:
        TypeError: As `canonical`, for any of the keys; perhaps while the result is read.
    """
    # The bytes are those of `canonical`, since stored state depends on them. Made one by one they
    # took 1.2 us for a tuple of a word and a page, for every item.
    kinds = set(map(type, keys))
    if kinds == {int}:
        return map(b"i".__add__, map(_SIGNED.pack, map(hash, keys)))
    if kinds == {str}:
        try:
            return list(map(b"s".__add__, map(str.encode, keys)))  # type: ignore[arg-type]  # all are texts
        except UnicodeEncodeError:  # a lone surrogate
            return map(canonical, keys)
    if kinds == {tuple} and len(lengths := set(map(len, keys))) == 1 and lengths != {0}:  # type: ignore[arg-type]
        return map(b"".join, zip(repeat(b"t"), *map(_column, zip(*keys, strict=True)), strict=False))
    return map(canonical, keys)


def _column(parts: Sequence[Hashable]) -> Iterator[bytes]:
    """Return each part as it stands in the encoding of a tuple.

    Columns of keys repeat themselves, and equal parts have equal bytes: each different one is encoded once.
    """
    different = [*set(parts)]
    encoded = [*canonicals(different)]
    withs = map(add, map(_LENGTH.pack, map(len, encoded)), encoded)  # as `_with_length`
    return map(dict(zip(different, withs, strict=True)).__getitem__, parts)


def owners(workers: int, owning: int | None = None) -> tuple[int, ...]:
    """Return the owner of each key group: consecutive groups, nearly as many each.

    Args:
        workers: Number of workers.
        owning: Number of workers that own key groups, the last ones: the first ones host the fronts. None: all.

    Raises:
        ValueError: There are no workers, or more of them than key groups, or no worker owns any.
    """
    if not 0 < workers <= KEY_GROUPS:
        raise ValueError(f"between 1 and {KEY_GROUPS} workers can share the key groups, not {workers}")
    if owning is not None and owning < 1:
        raise ValueError(f"at least 1 of the workers owns key groups, not {owning}")
    owning = workers if owning is None else min(owning, workers)
    return tuple(workers - owning + group * owning // KEY_GROUPS for group in range(KEY_GROUPS))


def owned_ranges(owned: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return the first and last key group of each owner, by its address.

    Args:
        owned: Owner of each key group.
    """
    return {
        f"worker/{index}": (owned.index(index), len(owned) - 1 - owned[::-1].index(index))
        for index in sorted(set(owned))
    }
