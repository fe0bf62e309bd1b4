"""What crosses a process boundary, or outlives its process, as bytes.

What is sent is what is received, type for type: a tuple comes back a tuple, an enum member the enum member. Nothing
that is decoded can run code: only classes that the flow declares are made again, from their fields, and types with
codecs that the flow has registered. A payload of any other type is an error at the sender.

Bytes are columns, not trees (`flamecore.runtime.codec.wire`): a message is a batch of like items, so their types are
looked at once for all, and told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Final

import msgspec

from flamecore.errors import CodecError
from flamecore.model.batch import Note, concat, pack, unpack
from flamecore.model.failure import shorten_repr
from flamecore.model.graph import Graph, payload_types
from flamecore.model.messages import Ack, Delivered, Items, MinTime, Released, Report
from flamecore.model.type_codec import TypeCodec
from flamecore.runtime.codec import wire as lay
from flamecore.runtime.codec.decode import ByteCursor, Read, SchemaCompiler
from flamecore.runtime.codec.encode import Writer
from flamecore.runtime.codec.types import NAMES, TypeTable
from flamecore.runtime.codec.wire import unreadable

_MOST_SCHEMAS: Final = 512
_LONGEST_SCHEMA_KEPT: Final = 4096

_encode: Final = msgspec.msgpack.Encoder().encode
_items_head: Final = msgspec.msgpack.Decoder(tuple[tuple[Ack, ...], list[tuple[int, int, bool, Note]]]).decode
_told: Final = {kind: _encode([[], [lay.TOLD, NAMES[kind]]]) for kind in (Report, MinTime, Delivered)}
"""The most frequent messages. They carry no payloads, so their own hints are enough to make them again."""
_tellers: Final = {NAMES[kind]: msgspec.msgpack.Decoder(kind).decode for kind in _told}
_released_head: Final = msgspec.msgpack.Decoder(tuple[int, int, Note, list[bytes]]).decode


class Codec:
    """Encodes payloads, states and messages.

    Args:
        types: Declared classes: dataclasses, NamedTuples, enums, `msgspec.Struct`s. Types they are made of are found by
            their hints; so are the members of unions and generics.
        codecs: Of types that need one.
        own: Classes of the engine that are stored. For each its name in bytes, without the mark of the engine's own,
            and then the complete names that earlier bytes have for it.
    """

    def __init__(
        self,
        types: Iterable[Any] = (),
        codecs: Iterable[TypeCodec] = (),
        own: Mapping[type, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self._types = TypeTable()
        self._vertices: list[tuple[str, str]] = []
        self._readers: dict[bytes, Callable[[ByteCursor], Any]] = {}
        for kind, (name, *formerly) in own.items():
            self._types.reserve(kind, name, formerly)
        for codec in codecs:
            self.register(codec)
        for hint in types:
            self.declare(hint)

    @classmethod
    def of(cls, graph: Graph) -> Codec:
        """The codec of a graph. Raises as `learn`."""
        codec = cls()
        codec.learn(graph)
        return codec

    def learn(self, graph: Graph) -> None:
        """Take the codecs and types of a graph, and the names of its vertices for errors.

        Raises:
            CodecError: Two of its codecs have one name.
        """
        for codec in graph.codecs:
            self.register(codec)
        for hint in payload_types(graph):
            self.declare(hint)
        self._vertices.clear()
        for vertex in graph.vertices:
            before = ", ".join(repr(one.name) for one in graph.predecessors(vertex))
            self._vertices.append((vertex.name, f"{vertex.name!r}, from {before}"))

    def relearn(self, graph: Graph) -> None:
        """Forget all types, and take those of another version of the graph. Raises as `learn`."""
        self._types = TypeTable()
        self._readers.clear()
        self.learn(graph)

    def declare(self, hint: Any) -> None:
        """Let values of a class, and of all classes its hints name, cross."""
        self._types.declare(hint)
        self._readers.clear()

    def register(self, codec: TypeCodec) -> None:
        """Let values of a type cross by its codec.

        Raises:
            CodecError: Its name is another's.
        """
        self._types.register(codec)
        self._readers.clear()

    # -- writing ---------------------------------------------------------------------------------------------------

    def encode(self, value: Any) -> bytes:
        """Bytes of a value.

        Raises:
            CodecError: A type cannot cross; the text names the type and says how to declare it.
        """
        kind = type(value)
        if kind in _told:
            return lay.frame(_told[kind], [_encode(value)])
        if kind is Items:
            return self._guarded(self._items, value)
        if kind is Released:
            return self._guarded(self._released, value)
        return self._guarded(self._value, value)

    def _guarded(self, write: Callable[[Any], bytes], value: Any) -> bytes:
        try:
            return write(value)
        except (RecursionError, UnicodeEncodeError) as error:
            raise CodecError(
                f"a value of type {type(value).__qualname__} cannot cross a process boundary: {shorten_repr(error)}",
                hint="Use names that are valid Unicode, and values that are not nested too deep.",
                type_name=type(value).__qualname__,
            ) from error

    def _value(self, value: Any) -> bytes:
        writer = Writer(self._types)
        return writer.bytes_of(writer.column((value,)))

    def _items(self, message: Items) -> bytes:
        writer = Writer(self._types)
        pieces = message.pieces
        heads = [(*piece[:3], pack(piece[3])) for piece in pieces]
        writer.columns.append(_encode((message.acks, heads)))
        payloads = concat([piece[4] for piece in pieces])
        try:
            return writer.bytes_of([lay.ITEMS, writer.column(payloads)])
        except CodecError as error:
            raise self._at_vertex(message, error) from error

    def _released(self, message: Released) -> bytes:
        writer = Writer(self._types)
        worker, time, orders, payloads, failures = message
        failing, failed = zip(*failures, strict=True) if failures else ((), ())
        writer.columns.append(_encode((worker, time, pack(orders), failing)))
        node = [lay.RELEASED, writer.column(payloads)]
        node.append(writer.column(failed))
        return writer.bytes_of(node)

    def _at_vertex(self, message: Items, error: CodecError) -> CodecError:
        """The error of the first payload that cannot cross, with the vertex it was on its way to."""
        index = message.pieces[0][0]
        for to, _, _, _, payloads in message.pieces:
            for payload in payloads:
                try:
                    self._value(payload)
                except CodecError as first:
                    return first.going_to(*self._vertex(to))
        return error.going_to(*self._vertex(index))  # each of them can, but not all together

    def _vertex(self, index: int) -> tuple[str, str]:
        """The name of a vertex, and what it is in words."""
        return self._vertices[index] if index < len(self._vertices) else (str(index), f"vertex {index}")

    # -- reading ---------------------------------------------------------------------------------------------------

    def decode(self, data: bytes) -> Any:
        """The value of some bytes.

        Raises:
            CodecError: They are no bytes of this codec, name what was not declared, or are beyond a limit.
        """
        try:
            schema, columns = lay.split(data)
            read = self._readers.get(schema) or self._reader(schema)
            cursor = ByteCursor(columns)
            value = read(cursor)
            cursor.end()
        except CodecError:
            raise
        except Exception as error:  # made-up bytes can be wrong in any way, and end in one way
            raise unreadable(f"bytes that cannot be decoded: {error!r}") from error
        return value

    def _reader(self, schema: bytes) -> Callable[[ByteCursor], Any]:
        """What reads the columns of a schema, kept for the next time."""
        compiler = SchemaCompiler(self._types, schema)
        root = compiler.root
        kind = root[0] if type(root) is list else root
        reader: Callable[[ByteCursor], Any]
        if kind == lay.ITEMS:
            reader = _items_reader(*map(compiler.payloads, root[1:]))
        elif kind == lay.RELEASED:
            reader = _released_reader(*map(compiler.payloads, root[1:]))
        elif kind == lay.TOLD:
            reader = _teller(_tellers[root[1]])
        else:
            reader = _value_reader(compiler.compile(root))
        if len(schema) <= _LONGEST_SCHEMA_KEPT:
            if len(self._readers) >= _MOST_SCHEMAS:
                self._readers.clear()
            self._readers[schema] = reader
        return reader


def _value_reader(read: Read) -> Callable[[ByteCursor], Any]:
    return lambda cursor: read(cursor, 1)[0]


def _teller(decode: Callable[[bytes], Any]) -> Callable[[ByteCursor], Any]:
    return lambda cursor: decode(cursor.raw())


def _items_reader(read: Read) -> Callable[[ByteCursor], Items]:
    def read_items(cursor: ByteCursor) -> Items:
        acks, heads = _items_head(cursor.raw())
        pieces = [(*head[:3], unpack(head[3])) for head in heads]
        ends = list(accumulate([len(orders) for _, _, _, orders in pieces], initial=0))
        payloads = read(cursor, ends[-1])
        if len(payloads) != ends[-1]:
            raise ValueError(f"{ends[-1]} orders for {len(payloads)} payloads")
        parts = [payloads] if len(pieces) == 1 else [payloads[start:end] for start, end in pairwise(ends)]
        return Items([(*piece, part) for piece, part in zip(pieces, parts, strict=True)], acks)

    return read_items


def _released_reader(read: Read, read_failures: Read) -> Callable[[ByteCursor], Released]:
    def read_released(cursor: ByteCursor) -> Released:
        worker, time, note, failing = _released_head(cursor.raw())
        orders = unpack(note)
        payloads = read(cursor, len(orders))
        if len(payloads) != len(orders):
            raise ValueError(f"{len(orders)} orders for {len(payloads)} payloads")
        failures = list(zip(failing, read_failures(cursor, len(failing)), strict=True))
        return Released(worker, time, orders, payloads, failures)

    return read_released
