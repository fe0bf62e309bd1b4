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

from collections.abc import Sequence
from typing import Any, Final

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
MAX_SCHEMA_BYTES: Final = 2**21
"""Longest schema."""
MAX_VALUES: Final = 2**25
"""Most values, counting containers and what they contain, each once."""

MAX_SIMPLE_DEPTH: Final = 100
MAX_SIMPLE_BYTES: Final = 2**24
"""Deepest and longest of what is written as SIMPLE; what is more is written otherwise."""

_VERSION: Final = bytes((VERSION,))
_encode: Final = msgspec.msgpack.Encoder().encode
_split: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def join(schema: Any, columns: Sequence[bytes]) -> bytes:
    """The bytes of a schema and its columns.

    Raises:
        CodecError: They are more than a reader would take.
    """
    head = _encode(schema)
    if len(head) > MAX_SCHEMA_BYTES or len(columns) > MAX_COLUMNS:
        raise CodecError(
            f"a value of too many different parts: {len(columns)} columns, {len(head)} bytes of schema",
            hint=f"Make it of fewer types; {MAX_COLUMNS} columns and {MAX_SCHEMA_BYTES} bytes are the limits.",
        )
    return frame(head, columns)


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
    if len(schema) > MAX_SCHEMA_BYTES:
        raise unreadable(f"bytes with a schema of {len(schema)} bytes; {MAX_SCHEMA_BYTES} is the limit")
    return schema, columns


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
