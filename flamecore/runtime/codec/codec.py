"""The codec: payloads, states and messages as bytes.

Decoding gives back the same types: a tuple comes back a tuple, an enum member the enum member. Decoding runs no code
from the bytes: it makes only classes that the flow declares, from their fields, and types with registered codecs. A
payload of any other type is an error at the sender.

Bytes are columns, not trees (`flamecore.runtime.codec.wire`): a message is a batch of like items, so types are checked
and written once for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec

from flamecore.errors import CodecError, TooLargeError
from flamecore.model.batch import DerivedOrders, Note, Orders, concat, pack, unpack
from flamecore.model.failure import Failure, shorten_repr
from flamecore.model.graph import Graph, payload_types
from flamecore.model.messages import Ack, Delivered, Items, MinTimes, Released, Report
from flamecore.model.type_codec import TypeCodec
from flamecore.runtime.codec import wire as lay
from flamecore.runtime.codec.checked import MESSAGES, checked
from flamecore.runtime.codec.decode import ByteCursor, CountingCursor, Read, SchemaCompiler
from flamecore.runtime.codec.encode import BatchWriter, StoredWriter, Writer
from flamecore.runtime.codec.types import NAMES, TypeTable
from flamecore.runtime.codec.wire import unreadable

_MESSAGE: Final = lay.MESSAGE
_LARGE_BYTES: Final = lay.LARGE_BYTES
_MAX_TOLD_BYTES: Final = lay.MAX_TOLD_BYTES
_MOST_SCHEMAS: Final = 512
_LONGEST_SCHEMA_KEPT: Final = 4096
_MOST_SCHEMA_BYTES_KEPT: Final = 2**18
_SPELLED_OUT: Final = 4096
"""Most orders that are spelled out without a charge to the budget."""

_encode: Final = msgspec.msgpack.Encoder().encode
_items_head: Final = msgspec.msgpack.Decoder(
    tuple[tuple[Ack, ...], list[tuple[int, int, bool, Note]], int | None]
).decode
_told: Final = {kind: _encode([[], [lay.TOLD, NAMES[kind]]]) for kind in (Report, MinTimes, Delivered)}
"""The most frequent messages. They carry no payloads, so their own hints are enough to decode them."""
_tellers: Final = {NAMES[kind]: msgspec.msgpack.Decoder(kind).decode for kind in _told}
_ReleasedHead = tuple[int, int, Note, list[bytes], int | None, tuple[tuple[int, int], ...]]
_released_head: Final = msgspec.msgpack.Decoder(_ReleasedHead).decode


# Not pickle: bytes from a network or a store could run code. Not MessagePack of the values as they are, which is
# faster: tuples would come back as lists, members of enums as their values. Not Arrow: it is made for data that stay
# columns, and from objects to objects it takes several times as long to encode. docs/explanation/codec.md has the
# figures.
class Codec:
    """Encodes payloads, states and messages.

    Args:
        types: Declared classes: dataclasses, NamedTuples, enums, `msgspec.Struct`s. Types they are made of are found by
            their hints; so are the members of unions and generics.
        codecs: Codecs of types that need one.
        own: Classes of the engine that are stored. Their names in bytes are those of the classes, behind the prefix
            of the engine's names.
    """

    def __init__(
        self,
        types: Iterable[object] = (),
        codecs: Iterable[TypeCodec] = (),
        own: Iterable[type] = (),
    ) -> None:
        self._types = TypeTable()
        self._vertices: list[tuple[str, str]] = []
        self._readers: dict[bytes, Callable[[ByteCursor], object]] = {}
        self._kept_bytes = 0
        for kind in own:
            self._types.reserve(kind)
        for codec in codecs:
            self.register(codec)
        for hint in types:
            self.declare(hint)

    @classmethod
    def of(cls, graph: Graph) -> Codec:
        """Return the codec of a graph.

        Raises:
            CodecError: As `learn`.
        """
        codec = cls()
        codec.learn(graph)
        return codec

    def learn(self, graph: Graph) -> None:
        """Add the codecs and types of a graph; keep its vertex names for errors.

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

    def unable(self, hint: object) -> CodecError | None:
        """Return the error of a declared class no value of which can cross; see `TypeTable.unable`."""
        return self._types.unable(hint)

    def relearn(self, graph: Graph) -> None:
        """Replace all types by those of another version of the graph.

        Raises:
            CodecError: As `learn`.
        """
        self._types = TypeTable()
        self._readers.clear()
        self.learn(graph)

    def declare(self, hint: object) -> None:
        """Allow values of a class, and of all classes that its hints name."""
        self._types.declare(hint)
        self._readers.clear()

    def register(self, codec: TypeCodec) -> None:
        """Register the codec of a type.

        Raises:
            CodecError: Another type has its name.
        """
        self._types.register(codec)
        self._readers.clear()

    # -- writing ---------------------------------------------------------------------------------------------------

    def encode(self, value: object, limits: lay.Limits = lay.MESSAGE) -> bytes:
        """Encode a value.

        Args:
            value: The value to write.
            limits: Budget of the reader, `MESSAGE` or `STORED`. A message with several payloads always has `TOGETHER`.

        Raises:
            CodecError: A type cannot cross; the text names the type and says how to declare it.
            TooLargeError: The value is beyond the budget.
        """
        kind = type(value)
        if kind in _told:
            return lay.frame(_told[kind], [_encode(value)])
        if kind is Items:
            return self._guarded(self._items, value)
        if kind is Released:
            return self._guarded(self._released, value)
        return self._guarded(self._stored if limits is lay.STORED else self._value, value)

    def _guarded(self, write: Callable[[Any], bytes], value: Any) -> bytes:
        try:
            return write(value)
        except (RecursionError, UnicodeEncodeError) as error:
            raise CodecError(
                f"a value of type {type(value).__qualname__} cannot cross a process boundary: {shorten_repr(error)}",
                hint="Use names that are valid Unicode, and values that are not nested too deep.",
                type_name=type(value).__qualname__,
            ) from error

    def _value(self, value: object) -> bytes:
        writer = Writer(self._types)
        return writer.bytes_of(writer.column((value,)))

    def _stored(self, value: object) -> bytes:
        writer = StoredWriter(self._types)
        return writer.bytes_of(writer.column((value,)))

    def _items(self, message: Items) -> bytes:
        pieces = message.pieces
        head = _encode((message.acks, [(*piece[:3], pack(piece[3])) for piece in pieces], message.until))
        # All payloads of a message in one column, whatever pieces they are of: types are checked,
        # and written, once.
        payloads = concat([piece[4] for piece in pieces])
        count = len(payloads)
        writer = Writer(self._types) if count < 2 else BatchWriter(self._types)
        writer.head(head)
        if count > _SPELLED_OUT:
            writer.spend(_spelled_out([piece[3] for piece in pieces]))
        try:
            return writer.bytes_of([lay.ITEMS, writer.column(payloads)])
        except TooLargeError as error:
            if count > 1:  # the caller may send each by itself
                raise
            raise self._at_vertex(message, error) from error
        except CodecError as error:
            raise self._at_vertex(message, error) from error

    def _released(self, message: Released) -> bytes:
        worker, time, orders, payloads, failures, heard, away = message
        writer = Writer(self._types) if len(payloads) < 2 else BatchWriter(self._types)
        failing, failed = zip(*failures, strict=True) if failures else ((), ())
        head = _encode((worker, time, pack(orders), failing, heard, away))
        writer.head(head)
        if len(payloads) > _SPELLED_OUT:
            writer.spend(_spelled_out([orders]))
        node = [lay.RELEASED, writer.column(payloads)]
        node.append(writer.column(failed))
        return writer.bytes_of(node)

    def _at_vertex(self, message: Items, error: CodecError) -> CodecError:
        """Return the error of the first payload that cannot cross, with its vertex."""
        # One by one, and only now: while all is well nobody asks which payload it was.
        index = message.pieces[0][0]
        for to, _, _, _, payloads in message.pieces:
            for payload in payloads:
                try:
                    self._value(payload)
                except CodecError as first:
                    return first.going_to(*self._vertex(to))
        return error.going_to(*self._vertex(index))  # each fits alone, but not all together

    def _vertex(self, index: int) -> tuple[str, str]:
        """Return the name of a vertex and its description."""
        return self._vertices[index] if index < len(self._vertices) else (str(index), f"vertex {index}")

    # -- reading ---------------------------------------------------------------------------------------------------

    def decode(self, data: bytes, limits: lay.Limits = _MESSAGE) -> Any:
        """Decode a value.

        Args:
            data: The encoded value.
            limits: Budget, checked before values are made.

        Raises:
            CodecError: The bytes are not of this codec, name an undeclared type, or are beyond a limit.
        """
        try:
            schema, columns = lay.split(data)
            read = self._readers.get(schema) or self._reader(schema, limits)
            left = iter(columns)
            if len(data) > _LARGE_BYTES or limits is not _MESSAGE:
                value = read(CountingCursor(left, limits.units - 2 * len(data) // lay.UNIT_BYTES))  # columns are copies
            else:
                value = read(ByteCursor(left))
            for _ in left:
                raise unreadable("bytes with a column too many")
        except CodecError:
            raise
        except Exception as error:  # forged bytes fail in any way; callers see one error
            raise unreadable(f"bytes that cannot be decoded: {error!r}") from error
        return value

    def _reader(self, schema: bytes, limits: lay.Limits) -> Callable[[ByteCursor], object]:
        """Return the reader of a schema, and cache it."""
        if len(schema) > limits.schema_bytes:
            raise unreadable(f"bytes with a schema of {len(schema)} bytes; {limits.schema_bytes} is the limit")
        compiler = SchemaCompiler(self._types, schema)
        root = compiler.root
        kind = root[0] if type(root) is list else root
        reader: Callable[[ByteCursor], object]
        if kind == lay.ITEMS:
            reader = _items_reader(*map(compiler.payloads, root[1:]))
        elif kind == lay.RELEASED:
            reader = _released_reader(*map(compiler.payloads, root[1:]))
        elif kind == lay.TOLD:
            reader = _teller(_tellers[root[1]])
        else:
            read, said = compiler.compile(root), compiler.made_of(root)
            reader = _message_reader(read) if said in MESSAGES else _value_reader(read)
        # Long schemas are not kept, and all are dropped when there are many: a peer that makes one
        # up for each message must not fill the memory.
        if len(schema) <= _LONGEST_SCHEMA_KEPT:
            self._kept_bytes += len(schema)
            if len(self._readers) >= _MOST_SCHEMAS or self._kept_bytes > _MOST_SCHEMA_BYTES_KEPT:
                self._readers.clear()
                self._kept_bytes = len(schema)
            self._readers[schema] = reader
        return reader


def _value_reader(read: Read) -> Callable[[ByteCursor], object]:
    return lambda cursor: read(cursor, 1)[0]


def _message_reader(read: Read) -> Callable[[ByteCursor], object]:
    return lambda cursor: checked(read(cursor, 1)[0])


def _teller(decode: Callable[[bytes], object]) -> Callable[[ByteCursor], object]:
    def tell(cursor: ByteCursor) -> object:
        column = cursor.raw()
        if len(column) > _MAX_TOLD_BYTES:
            raise unreadable(f"a message of {len(column)} bytes; {lay.MAX_TOLD_BYTES} are the limit")
        return decode(column)

    return tell


def _failure(value: object) -> Failure:
    if type(value) is not Failure:
        raise unreadable(f"bytes with a {type(value).__name__} where a failure belongs")
    checked(value)
    return value


def _spelled_out(orders: Iterable[Orders]) -> int:
    """Return the cost, in units, of spelling out the derived ones among orders of pieces."""
    return sum([lay.ORDER_UNITS * len(some) for some in orders if type(some) is DerivedOrders])


def _items_reader(read: Read) -> Callable[[ByteCursor], Items]:
    def read_items(cursor: ByteCursor) -> Items:
        acks, heads, until = _items_head(cursor.head())
        pieces = [(*head[:3], unpack(head[3])) for head in heads]
        counts = [len(orders) for _, _, _, orders in pieces]
        count = sum(counts)
        if count > _SPELLED_OUT:
            cursor.spend(_spelled_out([piece[3] for piece in pieces]))
        payloads = read(cursor, count)
        if len(payloads) != count:
            raise ValueError(f"{count} orders for {len(payloads)} payloads")
        parts = [payloads]
        if len(pieces) != 1:
            parts = [payloads[start:end] for start, end in pairwise(accumulate(counts, initial=0))]
        return Items([(*piece, part) for piece, part in zip(pieces, parts, strict=True)], acks, until)

    return read_items


def _released_reader(read: Read, read_failures: Read) -> Callable[[ByteCursor], Released]:
    def read_released(cursor: ByteCursor) -> Released:
        worker, time, note, failing, heard, away = _released_head(cursor.head())
        orders = unpack(note)
        if len(orders) > _SPELLED_OUT:
            cursor.spend(_spelled_out([orders]))
        payloads = read(cursor, len(orders))
        if len(payloads) != len(orders):
            raise ValueError(f"{len(orders)} orders for {len(payloads)} payloads")
        failed = read_failures(cursor, len(failing))
        failures = [(order, _failure(value)) for order, value in zip(failing, failed, strict=True)]
        return Released(worker, time, orders, payloads, failures, heard, away)

    return read_released
