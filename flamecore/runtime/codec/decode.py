"""From columns to values. A schema is compiled once into functions; a job has few schemas and many messages.

Whatever the bytes claim is checked against what is there before room is made for it: how many values a column has is
known from its parent, and must be what the column says; lengths must add up to what has room; all of a value's columns
must be used. What comes of bytes that are not the codec's is an error and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, repeat
from typing import Any, Final, NoReturn

import msgspec

from flamecore.errors import CodecError
from flamecore.model.batch import Lines, Rows
from flamecore.model.type_codec import TypeCodec
from flamecore.runtime.codec import numpy as arrays
from flamecore.runtime.codec import wire as lay
from flamecore.runtime.codec.classes import Enumeration, FieldCodec
from flamecore.runtime.codec.stdlib import Standard
from flamecore.runtime.codec.types import TypeTable
from flamecore.runtime.codec.wire import unreadable

Read = Callable[["ByteCursor", int], Sequence[Any]]
"""(where the columns come from, how many values) → the values."""


def _no_extension(code: int, data: memoryview) -> NoReturn:
    raise unreadable(f"bytes with an extension of the unknown type {code}")


_TYPES: Final[dict[int, Any]] = {
    lay.NONE: None,
    lay.BOOL: bool,
    lay.INT: int,
    lay.FLOAT: float,
    lay.STR: str,
    lay.BYTES: bytes,
}
# Kinds that are looked up mean nothing to a type checker.
_decoders: Final = {node: msgspec.msgpack.Decoder(list[kind]).decode for node, kind in _TYPES.items()}  # type: ignore[valid-type]
_simple: Final = msgspec.msgpack.Decoder(list, ext_hook=_no_extension).decode
_integers: Final = _decoders[lay.INT]
_texts: Final = _decoders[lay.STR]
_schema: Final = msgspec.msgpack.Decoder(tuple[list[list[Any]], Any]).decode


_HEADS: Final = tuple(map(lay.array_head, range(100)))


class ByteCursor:
    """Gives out the columns of one value, in order.

    Args:
        columns: All of them.
    """

    def __init__(self, columns: Sequence[bytes]) -> None:
        self._columns = iter(columns)
        self._room = lay.MAX_VALUES

    def enter(self, count: int) -> None:
        """Note that as many values are to be made.

        Raises:
            CodecError: They are too many.
        """
        self._room -= count
        if self._room < 0:
            raise unreadable(f"bytes that claim more than {lay.MAX_VALUES} values")

    def raw(self) -> bytes:
        """The next column, as it is."""
        for column in self._columns:
            return column
        raise unreadable("bytes with a column missing")

    def column(self, count: int) -> bytes:
        """The next column, which must be an array of that length."""
        column = self.raw()
        if not column.startswith(_HEADS[count] if count < len(_HEADS) else lay.array_head(count)):
            raise unreadable(f"bytes with {lay.array_length(column)} values where {count} belong")
        return column

    def lengths(self, count: int) -> list[int]:
        """The next column, which must be lengths of what there is room for."""
        lengths: list[int] = _integers(self.column(count))
        if lengths and (min(lengths) < 0 or sum(lengths) > self._room):
            raise unreadable("bytes with impossible lengths")
        return lengths

    def end(self) -> None:
        """Check that everything has been used."""
        for _ in self._columns:
            raise unreadable("bytes with a column too many")


class SchemaCompiler:
    """Turns one schema into functions that read its columns.

    Args:
        types: What names may stand for.
        schema: From `flamecore.runtime.codec.wire.split`.

    Raises:
        CodecError: It names something that was not declared.
        Exception: It is damaged.
    """

    def __init__(self, types: TypeTable, schema: bytes) -> None:
        self._types = types
        self._table, self.root = _schema(schema)

    def compile(self, node: Any, depth: int = 0) -> Read:
        """What reads the values of a node. Raises as the class does."""
        if depth > lay.MAX_DEPTH:
            raise unreadable(f"bytes with more than {lay.MAX_DEPTH} nested parts")
        if type(node) is int:
            return _LEAVES[node]
        kind, *parts = node
        return _COMPILE[kind](self, parts, depth + 1)

    def _tuple(self, nodes: list[Any], depth: int) -> Read:
        if not nodes:
            raise unreadable("bytes with tuples of no width")
        reads = [self.compile(node, depth) for node in nodes]

        def read(cursor: ByteCursor, count: int) -> list[tuple[Any, ...]]:
            cursor.enter(count)
            return list(zip(*[one(cursor, count) for one in reads], strict=True))

        return read

    def payloads(self, node: Any) -> Read:
        """As `compile`, for the payloads of a message: tuples of one width stay columns, and lines one text."""
        if node == lay.LINES:
            return _read_lines
        if type(node) is not list or node[0] != lay.TUPLE or len(node) < 2:
            return self.compile(node)
        reads = [self.compile(inner, 1) for inner in node[1:]]

        def read(cursor: ByteCursor, count: int) -> Rows:
            cursor.enter(count)
            columns = [one(cursor, count) for one in reads]
            if set(map(len, columns)) != {count}:
                raise ValueError(f"columns of {[*map(len, columns)]} values, not {count}")
            return Rows(columns)

        return read

    def _union(self, nodes: list[Any], depth: int) -> Read:
        reads = [self.compile(node, depth) for node in nodes]

        def read(cursor: ByteCursor, count: int) -> list[Any]:
            labels = _integers(cursor.column(count))
            counts = [0] * len(reads)
            for label in labels:
                counts[label] += 1
            if labels and min(labels) < 0:
                raise unreadable("bytes with values of an unknown kind")
            parts = [iter(one(cursor, many)) for one, many in zip(reads, counts, strict=True)]
            return [next(parts[label]) for label in labels]

        return read

    def _dict(self, nodes: list[Any], depth: int) -> Read:
        read_keys, read_values = [self.compile(node, depth) for node in nodes]

        def read(cursor: ByteCursor, count: int) -> list[dict[Any, Any]]:
            cursor.enter(count)
            lengths = cursor.lengths(count)
            total = sum(lengths)
            keys = read_keys(cursor, total)
            pairs = zip(keys, read_values(cursor, total), strict=True)
            made = [dict(islice(pairs, length)) for length in lengths]
            if sum(map(len, made)) != total:
                raise unreadable("bytes with a dictionary that has a key twice")
            return made

        return read

    def _shape(self, parts: list[Any], depth: int) -> Read:
        keys, *nodes = parts
        reads = [self.compile(node, depth) for node in nodes]
        if not keys or len(set(keys)) != len(keys) or len(keys) != len(nodes) or set(map(type, keys)) != {str}:
            raise unreadable("bytes with impossible keys of dictionaries")

        def read(cursor: ByteCursor, count: int) -> list[dict[str, Any]]:
            cursor.enter(count)
            rows = zip(*[one(cursor, count) for one in reads], strict=True)
            return list(map(dict, map(zip, repeat(keys), rows)))

        return read

    def _record(self, parts: list[Any], depth: int) -> Read:
        number, *nodes = parts
        name, *fields = self._named(number)
        field_codec = self._types.named(name)
        if not isinstance(field_codec, FieldCodec):
            raise _otherwise(name, "field by field")
        make = field_codec.reader(fields)
        reads = [self.compile(node, depth) for node in nodes]
        if len(reads) != len(fields) or len(set(fields)) != len(fields):
            raise unreadable("bytes with a class of impossible fields")

        def read(cursor: ByteCursor, count: int) -> list[Any]:
            cursor.enter(count)
            if not reads:
                cursor.column(count)
            return make(count, [one(cursor, count) for one in reads])

        return read

    def _enum(self, parts: list[Any], depth: int) -> Read:
        kind = self._enumeration(parts[0], flags=False)

        def read(cursor: ByteCursor, count: int) -> list[Any]:
            cursor.enter(count)
            members = list(map(kind.member, _texts(cursor.raw())))
            places = _integers(cursor.column(count))
            if places and min(places) < 0:
                raise unreadable("bytes with an unknown member of an enum")
            return list(map(members.__getitem__, places))

        return read

    def _flags(self, parts: list[Any], depth: int) -> Read:
        number, node = parts
        make = self._enumeration(number, flags=True).kind
        read_values = self.compile(node, depth)
        return lambda cursor, count: list(map(make, read_values(cursor, count)))

    def _enumeration(self, number: int, *, flags: bool) -> Enumeration:
        (name,) = self._named(number)
        kind = self._types.named(name)
        if not isinstance(kind, Enumeration) or kind.flags is not flags:
            raise _otherwise(name, "as a flag" if flags else "as an enum")
        return kind

    def _coded(self, parts: list[Any], depth: int) -> Read:
        number, node = parts
        name, version = self._named(number)
        codec = self._types.named(name)
        if isinstance(codec, Standard):
            decode = codec.decode
            if version != codec.version or codec.made_of not in (node, node[0] if type(node) is list else None):
                raise _otherwise(name, f"in version {version}, or of other parts")
        elif isinstance(codec, TypeCodec):
            decode = _decode_of(codec, version)
        else:
            raise _otherwise(name, "by a codec")
        read_made = self.compile(node, depth)

        def read(cursor: ByteCursor, count: int) -> list[Any]:
            made = read_made(cursor, count)
            try:
                return list(map(decode, made))
            except CodecError:
                raise
            except Exception as error:
                raise unreadable(
                    f"the codec {name!r} failed on stored values: {type(error).__name__}: {error}", type_name=name
                ) from error

        return read

    def _packed(self, parts: list[Any], depth: int) -> Read:
        (description,) = parts
        arrays.restore(description)

        def read(cursor: ByteCursor, count: int) -> list[Any]:
            cursor.enter(count)
            return arrays.unpack(cursor.raw(), description, count)

        return read

    def _named(self, number: int) -> list[Any]:
        if number < 0:
            raise unreadable("bytes with an impossible number of a class")
        return self._table[number]


def _leaf(decode: Callable[[bytes], list[Any]]) -> Read:
    def read(cursor: ByteCursor, count: int) -> list[Any]:
        cursor.enter(count)
        return decode(cursor.column(count))

    return read


def _read_simple(cursor: ByteCursor, count: int) -> list[Any]:
    cursor.enter(count)
    column = cursor.column(count)
    if len(column) > lay.MAX_SIMPLE_BYTES:
        raise unreadable(f"bytes with {len(column)} bytes where {lay.MAX_SIMPLE_BYTES} are the limit")
    values = _simple(column)
    if not set(map(type, values)) <= {list, dict}:
        raise unreadable("bytes with other values where lists and dictionaries belong")
    return values


def _nothing(cursor: ByteCursor, count: int) -> Sequence[Any]:
    if count:
        raise unreadable(f"bytes with {count} values and none of them")
    return ()


def _sequences(
    make: Callable[[Any], Any], *, distinct: bool = False
) -> Callable[[SchemaCompiler, list[Any], int], Read]:
    def compile_(compiler: SchemaCompiler, nodes: list[Any], depth: int) -> Read:
        (node,) = nodes
        read_parts = compiler.compile(node, depth)

        def read(cursor: ByteCursor, count: int) -> list[Any]:
            cursor.enter(count)
            lengths = cursor.lengths(count)
            total = sum(lengths)
            parts = iter(read_parts(cursor, total))
            made = [make(islice(parts, length)) for length in lengths]
            if distinct and sum(map(len, made)) != total:
                raise unreadable("bytes with a set that has an element twice")
            return made

        return read

    return compile_


def _read_lines(cursor: ByteCursor, count: int) -> Lines:
    cursor.enter(count)
    lines = Lines(str(cursor.raw(), "utf-8"))
    if len(lines) != count:
        raise unreadable(f"bytes with {len(lines)} lines where {count} belong")
    return lines


def _decode_of(codec: TypeCodec, version: Any) -> Callable[[Any], Any]:
    decode = codec.decode if version == codec.version else codec.older.get(version)
    if decode is None:
        known = ", ".join(map(str, (*sorted(codec.older), codec.version)))
        raise unreadable(
            f"stored values of {codec.name!r} in version {version!r}, and its codec reads {known}",
            hint="Upgrade what reads them, or give the codec a function for that version: older={version: decode}.",
            type_name=codec.name,
        )
    return decode


def _otherwise(name: str, how: str) -> CodecError:
    return unreadable(
        f"stored values of {name!r} were made {how}, and are read otherwise here",
        hint="Give the class another name where it is made otherwise: flow.codec(Class, name=…).",
        type_name=name,
    )


_LEAVES: Final[dict[int, Read]] = {
    lay.NOTHING: _nothing,
    lay.SIMPLE: _read_simple,
    **{node: _leaf(decode) for node, decode in _decoders.items()},
}
_COMPILE: Final[dict[int, Callable[[SchemaCompiler, list[Any], int], Read]]] = {
    lay.TUPLE: SchemaCompiler._tuple,
    lay.LIST: _sequences(list),
    lay.TUPLES: _sequences(tuple),
    lay.SET: _sequences(set, distinct=True),
    lay.FROZENSET: _sequences(frozenset, distinct=True),
    lay.DICT: SchemaCompiler._dict,
    lay.SHAPE: SchemaCompiler._shape,
    lay.UNION: SchemaCompiler._union,
    lay.RECORD: SchemaCompiler._record,
    lay.ENUM: SchemaCompiler._enum,
    lay.FLAGS: SchemaCompiler._flags,
    lay.CODED: SchemaCompiler._coded,
    lay.PACKED: SchemaCompiler._packed,
}
