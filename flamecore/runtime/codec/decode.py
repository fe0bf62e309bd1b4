"""The reader of columns.

A schema is compiled once into functions; a job has few schemas and many messages.

Every claim of the bytes is checked before memory is allocated for it. The number of values in a column is known from
its parent and must match the column; all columns must be used. The cost of values is known from their number and node,
and is deducted from a budget (`flamecore.runtime.codec.wire.Limits`) before they are made. Foreign bytes raise an error
and do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice, repeat
from typing import Any, Final, NoReturn

import msgspec

from flamecore.errors import CodecError
from flamecore.model.batch import Lines, Rows
from flamecore.model.failure import user_lines
from flamecore.model.type_codec import TypeCodec
from flamecore.runtime.codec import numpy as arrays
from flamecore.runtime.codec import wire as lay
from flamecore.runtime.codec.classes import Enumeration, FieldCodec
from flamecore.runtime.codec.stdlib import TEXTS, Standard, Texts
from flamecore.runtime.codec.types import TypeTable
from flamecore.runtime.codec.wire import unreadable

Read = Callable[["ByteCursor", int], Sequence[object]]
"""(cursor, number of values) → the values."""


def _no_extension(code: int, data: memoryview) -> NoReturn:
    raise unreadable(f"bytes with an extension of the unknown type {code}")


_TYPES: Final[dict[int, object]] = {
    lay.NONE: None,
    lay.BOOL: bool,
    lay.INT: int,
    lay.FLOAT: float,
    lay.STR: str,
    lay.BYTES: bytes,
}
# A type checker cannot follow kinds that are looked up.
_decoders: Final = {node: msgspec.msgpack.Decoder(list[kind]).decode for node, kind in _TYPES.items()}  # type: ignore[valid-type]
_simple: Final = msgspec.msgpack.Decoder(list, ext_hook=_no_extension).decode
_integers: Final = _decoders[lay.INT]
_texts: Final = _decoders[lay.STR]
_schema: Final = msgspec.msgpack.Decoder(tuple[list[list[Any]], Any]).decode


_CONTAINER_UNITS, _ELEMENT_UNITS, _SIMPLE_UNITS = lay.CONTAINER_UNITS, lay.ELEMENT_UNITS, lay.SIMPLE_UNITS
_MANY, _EQUAL = 256, 64
"""Sizes up to `_MANY` are not checked; in larger ones at most `_EQUAL` elements per hash, on average."""
_HEADS: Final = tuple(map(lay.array_head, range(100)))


class ByteCursor:
    """The columns of one value, in order, and the budget for its values.

    Args:
        columns: All columns, of at most `LARGE_BYTES` together.
    """

    _units = lay.MESSAGE.units

    def __init__(self, columns: Iterator[bytes]) -> None:
        self._columns = columns

    def spend(self, units: int) -> None:
        """Deduct the cost of the next values from the budget.

        Raises:
            CodecError: The budget is exceeded.
        """
        self._units -= units
        if self._units < 0:
            raise unreadable("bytes of more values than the budget of a message allows")

    def raw(self) -> bytes:
        """Return the next column, unchecked."""
        for column in self._columns:
            return column
        raise unreadable("bytes with a column missing")

    def column(self, count: int) -> bytes:
        """Return the next column, which must be an array of `count` values."""
        column = self.raw()
        if not column.startswith(_HEADS[count] if count < len(_HEADS) else lay.array_head(count)):
            raise unreadable(f"bytes with {lay.array_length(column)} values where {count} belong")
        return column

    text = column
    """Return the next column, which must be an array of `count` texts."""

    lines = raw
    """Return the next column, which must be one text."""

    head = raw
    """Return the next column, of any number of values of known types."""

    def parsed(self, find: Texts, made: Sequence[object]) -> None:
        """Charge for texts that a decode function will parse; no charge for short values.

        Args:
            find: Function that finds the texts.
            made: Values to search.
        """

    def lengths(self, count: int, element_units: int) -> tuple[list[int], int]:
        """Return the next column, lengths of containers, and their sum.

        Deducts the cost of the containers and their elements from the budget.

        Args:
            count: Required number of lengths.
            element_units: Cost of the place of one element.
        """
        # Before anything is made: the number of values alone says little, and 33 MB of empty sets cost 7.9 GB.
        self.spend(count * (_CONTAINER_UNITS + element_units))
        lengths: list[int] = _integers(self.column(count))
        total = sum(lengths)
        if total > self._units or (lengths and min(lengths) < 0):
            raise unreadable("bytes with impossible lengths")
        if element_units:
            self.spend(total * element_units)
        return lengths, total


class CountingCursor(ByteCursor):
    """A cursor for long values or another budget.

    Charges also for texts, heads and the texts that decode functions parse.

    Args:
        columns: As for `ByteCursor`.
        units: The budget.
    """

    def __init__(self, columns: Iterator[bytes], units: int) -> None:
        super().__init__(columns)
        self._units = units

    def text(self, count: int) -> bytes:
        column = self.column(count)
        self.spend(lay.text_units(column))
        return column

    def lines(self) -> bytes:
        column = self.raw()
        self.spend(lay.text_units(column))
        return column

    def head(self) -> bytes:
        column = self.raw()
        self.spend(len(column))
        return column

    def parsed(self, find: Texts, made: Sequence[object]) -> None:
        self.spend(sum(map(len, find(made))) // 2)


class SchemaCompiler:
    """A compiler of one schema into functions that read its columns.

    Args:
        types: Types by name.
        schema: From `flamecore.runtime.codec.wire.split`.

    Raises:
        CodecError: The schema names an undeclared type.
        Exception: The schema is damaged.
    """

    def __init__(self, types: TypeTable, schema: bytes) -> None:
        self._types = types
        self._table, self.root = _schema(schema)

    def compile(self, node: Any, depth: int = 0) -> Read:
        """Return a function that reads the values of a node.

        Raises:
            CodecError: As the class.
        """
        if depth > lay.MAX_DEPTH:
            raise unreadable(f"bytes with more than {lay.MAX_DEPTH} nested parts")
        if type(node) is int:
            return _LEAVES[node]
        kind, *parts = node
        return _COMPILE[kind](self, parts, depth + 1)

    def made_of(self, node: object) -> type | None:
        """Return the class of a record node; None for other nodes."""
        if type(node) is not list or node[0] != lay.RECORD:
            return None
        entry = self._types.named(self._named(node[1])[0])
        return entry.kind if isinstance(entry, FieldCodec) else None

    def _tuple(self, nodes: list[object], depth: int) -> Read:
        # No column would then say how many there are.
        if not nodes:
            raise unreadable("bytes with tuples of no width")
        reads = [self.compile(node, depth) for node in nodes]

        def read(cursor: ByteCursor, count: int) -> list[tuple[object, ...]]:
            cursor.spend(count)
            return list(zip(*[one(cursor, count) for one in reads], strict=True))

        return read

    def payloads(self, node: object) -> Read:
        """Return a reader of the payloads of a message.

        Like `compile`, but keeps tuples of one width as columns, and lines as one text.
        """
        if node == lay.LINES:
            return _read_lines
        if type(node) is not list or node[0] != lay.TUPLE or len(node) < 2:
            return self.compile(node)
        reads = [self.compile(inner, 1) for inner in node[1:]]

        def read(cursor: ByteCursor, count: int) -> Rows:
            cursor.spend(count)
            columns = [one(cursor, count) for one in reads]
            if set(map(len, columns)) != {count}:
                raise ValueError(f"columns of {[*map(len, columns)]} values, not {count}")
            return Rows(columns)

        return read

    def _union(self, nodes: list[object], depth: int) -> Read:
        reads = [self.compile(node, depth) for node in nodes]
        units = lay.UNION_UNITS

        def read(cursor: ByteCursor, count: int) -> list[object]:
            cursor.spend(count * units)
            labels = _integers(cursor.column(count))
            counts = [0] * len(reads)
            for label in labels:
                counts[label] += 1
            # A negative label would count from the end, as Python's indices do.
            if labels and min(labels) < 0:
                raise unreadable("bytes with values of an unknown kind")
            parts = [iter(one(cursor, many)) for one, many in zip(reads, counts, strict=True)]
            return [next(parts[label]) for label in labels]

        return read

    def _dict(self, nodes: list[object], depth: int) -> Read:
        read_keys, read_values = [self.compile(node, depth) for node in nodes]
        made_up = type(nodes[0]) is list

        def read(cursor: ByteCursor, count: int) -> list[dict[object, object]]:
            lengths, total = cursor.lengths(count, _ELEMENT_UNITS)
            keys = read_keys(cursor, total)
            if made_up and any(map(_MANY.__lt__, lengths)):
                _check_hashes(keys, lengths)
            pairs = zip(keys, read_values(cursor, total), strict=True)
            made = [dict(islice(pairs, length)) for length in lengths]
            # No writer makes a key twice: the bytes are forged or damaged, and the sizes counted
            # before would not hold.
            if sum(map(len, made)) != total:
                raise unreadable("bytes with a dictionary that has a key twice")
            return made

        return read

    def _shape(self, parts: list[Any], depth: int) -> Read:
        keys, *nodes = parts
        reads = [self.compile(node, depth) for node in nodes]
        if not keys or len(set(keys)) != len(keys) or len(keys) != len(nodes) or set(map(type, keys)) != {str}:
            raise unreadable("bytes with impossible keys of dictionaries")

        units = lay.CONTAINER_UNITS + lay.ELEMENT_UNITS * len(keys)

        def read(cursor: ByteCursor, count: int) -> list[dict[str, object]]:
            cursor.spend(count * units)
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
        units = lay.RECORD_UNITS + len(field_codec.fields)

        def read(cursor: ByteCursor, count: int) -> list[object]:
            cursor.spend(count * units)
            if not reads:
                cursor.column(count)
            return make(count, [one(cursor, count) for one in reads])

        return read

    def _enum(self, parts: list[Any], depth: int) -> Read:
        kind = self._enumeration(parts[0], flags=False)

        def read(cursor: ByteCursor, count: int) -> list[object]:
            cursor.spend(count)
            members = list(map(kind.member, _texts(cursor.head())))
            places = _integers(cursor.column(count))
            if places and min(places) < 0:
                raise unreadable("bytes with an unknown member of an enum")
            return list(map(members.__getitem__, places))

        return read

    def _flags(self, parts: list[Any], depth: int) -> Read:
        number, node = parts
        make = self._enumeration(number, flags=True).kind
        read_values = self.compile(node, depth)

        def read(cursor: ByteCursor, count: int) -> list[object]:
            cursor.spend(count * lay.MADE_UNITS)
            return list(map(make, read_values(cursor, count)))

        return read

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
        units, texts = lay.MADE_UNITS, None
        if isinstance(codec, Standard):
            decode, units, texts = codec.decode, codec.units, TEXTS.get(codec.made_of)
            if version != codec.version or codec.made_of not in (node, node[0] if type(node) is list else None):
                raise _otherwise(name, f"in version {version}, or of other parts")
        elif isinstance(codec, TypeCodec):
            decode = _decode_of(codec, version)
        else:
            raise _otherwise(name, "by a codec")
        read_made = self.compile(node, depth)

        def read(cursor: ByteCursor, count: int) -> list[object]:
            cursor.spend(count * units)
            made = read_made(cursor, count)
            if texts is not None:
                cursor.parsed(texts, made)
            try:
                return list(map(decode, made))
            except CodecError:
                raise
            except Exception as error:
                what = f"the codec {name!r} failed on stored values: {type(error).__name__}: {error}"
                raise unreadable(f"{what}{user_lines(error)}", type_name=name) from error

        return read

    def _packed(self, parts: list[Any], depth: int) -> Read:
        (description,) = parts
        arrays.restore(description)

        def read(cursor: ByteCursor, count: int) -> list[object]:
            cursor.spend(count * lay.PACKED_UNITS)
            return arrays.unpack(cursor.raw(), description, count)

        return read

    def _named(self, number: int) -> list[Any]:
        if number < 0:
            raise unreadable("bytes with an impossible number of a class")
        return self._table[number]


def _leaf(decode: Callable[[bytes], list[object]]) -> Read:
    def read(cursor: ByteCursor, count: int) -> list[object]:
        cursor.spend(count)
        return decode(cursor.column(count))

    return read


def _read_texts(cursor: ByteCursor, count: int) -> list[str]:
    cursor.spend(count)
    return _texts(cursor.text(count))


def _read_simple(cursor: ByteCursor, count: int) -> list[object]:
    column = cursor.column(count)
    cursor.spend(len(column) * _SIMPLE_UNITS)
    if len(column) > lay.MAX_SIMPLE_BYTES:
        raise unreadable(f"bytes with {len(column)} bytes where {lay.MAX_SIMPLE_BYTES} are the limit")
    values = _simple(column)
    if not {list, dict}.issuperset(map(type, values)):
        raise unreadable("bytes with other values where lists and dictionaries belong")
    return values


def _nothing(cursor: ByteCursor, count: int) -> Sequence[object]:
    if count:
        raise unreadable(f"bytes with {count} values and none of them")
    return ()


def _sequences(
    make: Callable[[Any], Any], element_units: int = 0
) -> Callable[[SchemaCompiler, list[object], int], Read]:
    def compile_(compiler: SchemaCompiler, nodes: list[object], depth: int) -> Read:
        (node,) = nodes
        read_parts = compiler.compile(node, depth)
        made_up = element_units and type(node) is list

        def read(cursor: ByteCursor, count: int) -> list[object]:
            lengths, total = cursor.lengths(count, element_units)
            elements = read_parts(cursor, total)
            if made_up and any(map(_MANY.__lt__, lengths)):
                _check_hashes(elements, lengths)
            parts = iter(elements)
            made = [make(islice(parts, length)) for length in lengths]
            if element_units and sum(map(len, made)) != total:
                raise unreadable("bytes with a set that has an element twice")
            return made

        return read

    return compile_


def _check_hashes(elements: Sequence[object], lengths: Sequence[int]) -> None:
    """Refuse large sets and dictionaries with too many equal hashes.

    Inserting such elements takes quadratic time. Hashes of plain values cannot be made equal, or only few of them;
    those of large integers and of tuples can.

    Raises:
        CodecError: Too many hashes are equal.
    """
    for length, end in zip(lengths, accumulate(lengths), strict=True):
        if length <= _MANY:
            continue
        # Hashed first, not inserted: with elements made for it, inserting a hundred thousand takes minutes, whatever
        # memory they cost.
        hashes = set(map(hash, elements[end - length : end]))
        if len(hashes) * _EQUAL < length:
            raise unreadable(f"bytes with {length} elements or keys of {len(hashes)} hashes")


def _read_lines(cursor: ByteCursor, count: int) -> Lines:
    cursor.spend(2 * count)
    lines = Lines(str(cursor.lines(), "utf-8"))
    if len(lines) != count:
        raise unreadable(f"bytes with {len(lines)} lines where {count} belong")
    return lines


def _decode_of(codec: TypeCodec, version: Any) -> Callable[[object], object]:
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
    lay.STR: _read_texts,
}
_COMPILE: Final[dict[int, Callable[[SchemaCompiler, list[object], int], Read]]] = {
    lay.TUPLE: SchemaCompiler._tuple,
    lay.LIST: _sequences(list),
    lay.TUPLES: _sequences(tuple),
    lay.SET: _sequences(set, lay.ELEMENT_UNITS),
    lay.FROZENSET: _sequences(frozenset, lay.ELEMENT_UNITS),
    lay.DICT: SchemaCompiler._dict,
    lay.SHAPE: SchemaCompiler._shape,
    lay.UNION: SchemaCompiler._union,
    lay.RECORD: SchemaCompiler._record,
    lay.ENUM: SchemaCompiler._enum,
    lay.FLAGS: SchemaCompiler._flags,
    lay.CODED: SchemaCompiler._coded,
    lay.PACKED: SchemaCompiler._packed,
}
