"""The layout of encoded values: what the numbers mean, and the limits that are checked before anything is parsed.

    version 1 byte | MessagePack array of byte strings: schema, column, column, …

The schema is a MessagePack array `[table, node]`. A node says what the values at one place of the value are, and which
columns they take, in the order of a walk through the tree of nodes: parents first, children from left to right. The
table holds the names of classes, each once: nodes refer to them by number.

A column is a MessagePack array with one plain value for each value of its node. How many there must be is known from
the parent before the column is looked at: one at the root, and below a list the sum of the lengths.

These numbers are in snapshots: they may be added to, and never be changed. A change that older readers cannot see is a
new version; readers keep reading all versions there have been.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from flamecore.errors import CodecError

VERSION: Final = 1

NOTHING: Final = 0
"""No values: no column."""
NONE, BOOL, INT, FLOAT, STR, BYTES = range(1, 7)
"""Plain values: one column."""
SIMPLE: Final = 7
"""Lists and dictionaries that are made of nothing but lists, dictionaries and plain values, as MessagePack has them."""
TUPLE: Final = 8
"""[TUPLE, node, …]: tuples of one length; a node for each place."""
LIST, TUPLES, SET, FROZENSET = range(9, 13)
"""[LIST, node]: a column of lengths, then all elements one after the other; TUPLES are tuples of several lengths."""
DICT: Final = 13
"""[DICT, node, node]: a column of lengths, then all keys, then all values."""
SHAPE: Final = 14
"""[SHAPE, [key, …], node, …]: dictionaries of the same texts as keys, in the same order; a node for each key."""
UNION: Final = 15
"""[UNION, node, …]: a column that says which of the nodes each value belongs to, then the values of each."""
RECORD: Final = 16
"""[RECORD, number in the table, node, …]: a class with fields; the table has its name and the names of the fields.
Without fields: a column of nils, so that no value comes of no bytes."""
ENUM: Final = 17
"""[ENUM, number in the table]: a column of names of members, each once, and one that says which each value is."""
FLAGS: Final = 18
"""[FLAGS, number in the table, node]: members of an enum.Flag and combinations of them, as numbers."""
CODED: Final = 19
"""[CODED, number in the table, node]: what a codec of the type has made; the table has its name and version."""
PACKED: Final = 20
"""[PACKED, data type]: numpy scalars; the column is the bytes of an array of them."""
ITEMS, RELEASED = 21, 22
"""[ITEMS, node], [RELEASED, node, node]: messages of the engine that carry payloads, at the root only."""
TOLD: Final = 23
"""[TOLD, name]: messages of the engine that carry none, at the root only: one column, the message as an array."""
LINES: Final = 24
"""Texts of which each ends with a newline, and has no other, as payloads of a message: one column, the UTF-8 of all."""

MAX_DEPTH: Final = 200
"""Deepest nesting of nodes."""
MAX_COLUMNS: Final = 2**18
"""Most columns in one value."""

UNIT_BYTES: Final = 64
"""Memory that one unit of a budget stands for. A plain value costs one; what is larger, or slower to make, more."""


class Limits(NamedTuple):
    """Budget of one value: what its bytes may cost whoever decodes them, counted before anything is made of them.

    Attributes:
        units: Most units of `UNIT_BYTES` that the values cost.
        schema_bytes: Longest schema.
        size_bytes: Most bytes of all columns, where a writer could have sent less at once.
    """

    units: int
    schema_bytes: int
    size_bytes: int = 2**40


MESSAGE: Final = Limits(11 * 2**18, 2**18)
"""Budget of what comes from other processes: with what is not counted of a small message, less than 256 MiB."""
TOGETHER: Final = Limits(MESSAGE.units // 2, MESSAGE.schema_bytes // 2, 2**23)
"""Budget of several payloads in one message. One payload by itself may cost what a message may."""
STORED: Final = Limits(2**28, 2**21)
"""Budget of what this job has stored itself."""

LARGE_BYTES: Final = 2**20
"""Longest message of which only the values are counted: all else that comes of so few bytes is small."""
MAX_TOLD_BYTES: Final = 2**22
"""Longest column of a message that carries no payloads."""

RECORD_UNITS, CONTAINER_UNITS = 4, 4
"""Cost of an object with fields and of a container, without what they hold. A tuple of known width is a plain value."""
ELEMENT_UNITS: Final = 2
"""Cost of the place of an element in a set, or of an entry in a dictionary."""
UNION_UNITS: Final = 3
"""Cost of telling one value's kind."""
MADE_UNITS: Final = 16
"""Cost of a value that a function makes."""
PACKED_UNITS: Final = 2
"""Cost of a scalar of numpy."""
SIMPLE_UNITS: Final = 2
"""Cost of a byte of what is written as SIMPLE: it may be an empty container."""
ORDER_UNITS: Final = 5
"""Cost of spelling out an order that is noted as made of another."""

MAX_SIMPLE_DEPTH: Final = 100
MAX_SIMPLE_BYTES: Final = 2**24
"""Deepest and longest of what is written as SIMPLE; what is more is written otherwise."""

_WIDE: Final = re.compile(rb"[\xf0-\xf4]")
_HALF_WIDE: Final = re.compile(rb"[\xc4-\xef]")
_LONG_TEXTS: Final = {b"\xd9": 2, b"\xda": 3, b"\xdb": 5}
"""First bytes of texts of more than 31 bytes, and the lengths of their heads."""

_VERSION: Final = bytes((VERSION,))
_encode: Final = msgspec.msgpack.Encoder().encode
_split: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def frame(schema: bytes, columns: Sequence[bytes]) -> bytes:
    """The bytes of a schema that is bytes already, and its columns."""
    return _VERSION + _encode([schema, *columns])


def split(data: bytes) -> tuple[bytes, list[bytes]]:
    """The schema and the columns of some bytes.

    Raises:
        CodecError: They are of another version, or beyond a limit.
        Exception: They are damaged.
    """
    if not data or data[0] != VERSION:
        found = f"bytes of version {data[0]}" if data else "no bytes"
        raise unreadable(f"{found}, and version {VERSION} is read here")
    # Nearly always there are few columns, and one byte says so.
    if data[1:2] > b"\x9f" and array_length(data, 1) > MAX_COLUMNS + 1:
        raise unreadable(f"bytes that claim {array_length(data, 1)} columns; {MAX_COLUMNS} is the limit")
    schema, *columns = _split(memoryview(data)[1:])
    return schema, columns


def is_text(column: bytes) -> bool:
    """Return whether a column holds texts, or is one."""
    start = _first(column)
    return start == 0 or b"\xa0" <= column[start : start + 1] <= b"\xbf" or column[start : start + 1] in _LONG_TEXTS


def text_units(column: bytes) -> int:
    """Return what the texts of a column cost beyond its bytes: wide characters take two or four bytes each."""
    start = _first(column)
    start += _LONG_TEXTS.get(column[start : start + 1], 1) if start else 0
    if _WIDE.search(column, start):
        return 3 * len(column) // UNIT_BYTES
    return len(column) // UNIT_BYTES if _HALF_WIDE.search(column, start) else 0


def _first(column: bytes) -> int:
    """Return where the first element of a column is; 0 if it is no array."""
    return 0 if array_length(column) < 0 else {0xDC: 3, 0xDD: 5}.get(column[0], 1)


def array_head(length: int) -> bytes:
    """The first bytes of a MessagePack array of that length."""
    if length < 16:
        return bytes((0x90 | length,))
    return b"\xdc" + length.to_bytes(2, "big") if length < 2**16 else b"\xdd" + length.to_bytes(4, "big")


def array_length(data: bytes, start: int = 0) -> int:
    """How many elements the MessagePack array that begins at `start` claims to have; -1 if none begins there."""
    first = data[start] if start < len(data) else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    if not width or len(data) < start + 1 + width:
        return -1
    return int.from_bytes(data[start + 1 : start + 1 + width], "big")


def unreadable(what: str, *, hint: str = "", type_name: str = "", path: str = "") -> CodecError:
    """The error of a reader."""
    return CodecError(what, hint=hint, type_name=type_name, path=path)
