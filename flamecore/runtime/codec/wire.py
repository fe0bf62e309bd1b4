"""The layout of encoded values: node numbers, and limits checked before parsing.

    version 1 byte | MessagePack array of byte strings: schema, column, column, …

The schema is a MessagePack array `[table, node]`. A node gives the kind of the values at one place, and the columns
that they take, in the order of a walk through the tree of nodes: parents first, children from left to right. The table
holds the name of each class once; nodes refer to it by number.

A column is a MessagePack array with one plain value for each value of its node. The parent gives the number of values
before the column is read: one at the root, and below a list the sum of the lengths.

These numbers are in snapshots: add new ones, never change one. A change that older readers cannot detect needs a new
version.
"""

from __future__ import annotations

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
"""Lists and dictionaries of only lists, dictionaries and plain values, as MessagePack writes them."""
TUPLE: Final = 8
"""[TUPLE, node, …]: tuples of one length; a node for each place."""
LIST, TUPLES, SET, FROZENSET = range(9, 13)
"""[LIST, node]: a column of lengths, then all elements one after the other; TUPLES are tuples of several lengths."""
DICT: Final = 13
"""[DICT, node, node]: a column of lengths, then all keys, then all values."""
SHAPE: Final = 14
"""[SHAPE, [key, …], node, …]: dictionaries with the same text keys in the same order; a node for each key."""
UNION: Final = 15
"""[UNION, node, …]: a column with the number of each value's node, then the values of each node."""
RECORD: Final = 16
"""[RECORD, number in the table, node, …]: a class with fields; the table has its name and the names of the fields.
Without fields: a column of nils, so that each value takes bytes."""
ENUM: Final = 17
"""[ENUM, number in the table]: a column with the name of each member used, and one with each value's place in it."""
FLAGS: Final = 18
"""[FLAGS, number in the table, node]: members of an enum.Flag and combinations of them, as numbers."""
CODED: Final = 19
"""[CODED, number in the table, node]: output of the type's codec; the table has the codec's name and version."""
PACKED: Final = 20
"""[PACKED, data type]: numpy scalars; the column is the bytes of an array of them."""
ITEMS, RELEASED = 21, 22
"""[ITEMS, node], [RELEASED, node, node]: messages of the engine that carry payloads, at the root only."""
TOLD: Final = 23
"""[TOLD, name]: messages of the engine without payloads, at the root only: one column, the message as an array."""
LINES: Final = 24
"""Texts with one newline each, at the end, as payloads of a message: one column, the UTF-8 of all of them."""

MAX_DEPTH: Final = 200
"""Deepest nesting of nodes."""
MAX_COLUMNS: Final = 2**18
"""Most columns in one value."""

UNIT_BYTES: Final = 64
"""Memory of one unit of a budget. A plain value costs one unit; larger values, or slower to make, cost more."""


class Limits(NamedTuple):
    """Budget of one value, checked before anything is decoded.

    Attributes:
        units: Highest cost of the values, in units of `UNIT_BYTES`.
        schema_bytes: Longest schema.
        size_bytes: Most bytes of all columns, checked by the writer only.
    """

    units: int
    schema_bytes: int
    size_bytes: int = 2**40


MESSAGE: Final = Limits(11 * 2**18, 2**18)
"""Budget of messages from other processes: less than 256 MiB, with the uncounted parts of small messages."""
TOGETHER: Final = Limits(MESSAGE.units // 2, MESSAGE.schema_bytes // 2, 2**23)
"""Budget of several payloads in one message. One payload by itself may cost what a message may."""
STORED: Final = Limits(2**28, 2**21)
"""Budget of stored values of this job."""

LARGE_BYTES: Final = 2**20
"""Longest message that is charged for its values only: everything else in so few bytes is small."""
MAX_TOLD_BYTES: Final = 2**22
"""Longest column of a message that carries no payloads."""

RECORD_UNITS, CONTAINER_UNITS = 4, 4
"""Cost of an object with fields and of a container, without contents. A tuple of known width is a plain value."""
ELEMENT_UNITS: Final = 2
"""Cost of the place of an element in a set, or of an entry in a dictionary."""
UNION_UNITS: Final = 3
"""Cost of one value's kind in a union."""
MADE_UNITS: Final = 16
"""Cost of a value that a decode function makes."""
PACKED_UNITS: Final = 2
"""Cost of a scalar of numpy."""
SIMPLE_UNITS: Final = 2
"""Cost of one byte of a SIMPLE column: it may be an empty container."""
ORDER_UNITS: Final = 5
"""Cost of spelling out one derived order."""

MAX_SIMPLE_DEPTH: Final = 100
MAX_SIMPLE_BYTES: Final = 2**24
"""Greatest depth and length of SIMPLE values; deeper and longer ones take another form."""

_WIDE: Final = 0xF0
"""First byte of characters that take four bytes in memory, at least; from 0xC4 on they take two."""
_NARROW: Final = bytes(byte for byte in range(256) if not 0xC4 <= byte <= 0xF4)
_LONG_TEXTS: Final = {b"\xd9": 2, b"\xda": 3, b"\xdb": 5}
"""First byte of a text of more than 31 bytes → length of its head."""

_VERSION: Final = bytes((VERSION,))
_encode: Final = msgspec.msgpack.Encoder().encode
_split: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def frame(schema: bytes, columns: Sequence[bytes]) -> bytes:
    """Return the bytes of an encoded schema and its columns."""
    return _VERSION + _encode([schema, *columns])


def split(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the schema and the columns of encoded bytes.

    Raises:
        CodecError: The bytes are of another version, or beyond a limit.
        Exception: The bytes are damaged.
    """
    if not data or data[0] != VERSION:
        found = f"bytes of version {data[0]}" if data else "no bytes"
        raise unreadable(f"{found}, and version {VERSION} is read here")
    # Usually there are few columns, and one byte shows it.
    if data[1:2] > b"\x9f" and array_length(data, 1) > MAX_COLUMNS + 1:
        raise unreadable(f"bytes that claim {array_length(data, 1)} columns; {MAX_COLUMNS} is the limit")
    # A view, so that the whole is not copied to leave out one byte.
    schema, *columns = _split(memoryview(data)[1:])
    return schema, columns


def is_text(column: bytes) -> bool:
    """Return whether a column is an array of texts, or one text."""
    start = _first(column)
    return start == 0 or b"\xa0" <= column[start : start + 1] <= b"\xbf" or column[start : start + 1] in _LONG_TEXTS


def text_units(column: bytes) -> int:
    """Return the cost of a column's texts beyond its bytes.

    Wide characters take two or four bytes each in memory.
    """
    start = _first(column)
    start += _LONG_TEXTS.get(column[start : start + 1], 1) if start else 0
    # Not by a search for a pattern, which takes twenty times as long: this is done for all texts of a message.
    wide = b"" if column.isascii() else column[start:].translate(None, _NARROW)
    if not wide:
        return 0
    # Python stores a text by its widest character, so one emoji makes all of them four bytes wide.
    return (3 if max(wide) >= _WIDE else 1) * len(column) // UNIT_BYTES


def _first(column: bytes) -> int:
    """Return the offset of a column's first element; 0 if it is not an array."""
    return 0 if array_length(column) < 0 else {0xDC: 3, 0xDD: 5}.get(column[0], 1)


def array_head(length: int) -> bytes:
    """Return the first bytes of a MessagePack array of that length."""
    if length < 16:
        return bytes((0x90 | length,))
    return b"\xdc" + length.to_bytes(2, "big") if length < 2**16 else b"\xdd" + length.to_bytes(4, "big")


def array_length(data: bytes, start: int = 0) -> int:
    """Return the claimed length of the MessagePack array at `start`; -1 if none."""
    first = data[start] if start < len(data) else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    if not width or len(data) < start + 1 + width:
        return -1
    return int.from_bytes(data[start + 1 : start + 1 + width], "big")


def unreadable(what: str, *, hint: str = "", type_name: str = "", path: str = "") -> CodecError:
    """Return the error of a reader."""
    return CodecError(what, hint=hint, type_name=type_name, path=path)
