"""The writer of columns.

All values at one place are handled together, so the work is done by loops in C. This makes batches cheap: the types of
a thousand pairs are checked twice, once for each place, and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec

from flamecore.errors import CodecError, TooLargeError
from flamecore.model.batch import Lines, Rows
from flamecore.model.failure import user_lines
from flamecore.model.type_codec import TypeCodec
from flamecore.runtime.codec import numpy as arrays
from flamecore.runtime.codec import wire as lay
from flamecore.runtime.codec.classes import Dataclasses, Enumeration, FieldCodec, Structs, Tuples, unset
from flamecore.runtime.codec.stdlib import INTEGERS, TEXTS, Standard
from flamecore.runtime.codec.types import TypeTable

Path = tuple[()] | tuple["Path", int | str | tuple[str]]
"""A place in a value: its parent's path, and the place in it. Formatted only for errors."""
Node = object
"""A number, or a list that begins with one: see `flamecore.runtime.codec.wire`."""

_PLAIN: Final = {type(None): lay.NONE, bool: lay.BOOL, int: lay.INT, float: lay.FLOAT, str: lay.STR, bytes: lay.BYTES}
_SCALARS: Final = frozenset(_PLAIN)
PLAIN: Final = _SCALARS
"""Types of plain values."""
_SIMPLE_CONTAINERS: Final = frozenset((list, dict))
_SIMPLE: Final = _SCALARS | _SIMPLE_CONTAINERS
_SORTED_AS_THEY_ARE: Final = ({int}, {str}, {bytes})

_NARROW, _WIDE = 4, 64
"""Tuples get a column for each place if they are narrow, or many and not wide."""
_FEW: Final = 4
"""Fewer dictionaries than this are not worth a column for each key."""

_SHORT, _FEW_COLUMNS = 4096, 256
"""Length of a schema and number of columns that are below every limit, so need no check."""
_LARGE_BYTES: Final = lay.LARGE_BYTES

_LONGEST_PATH: Final = 80
"""Longest path in the text of an error, in characters."""

_VERSION: Final = bytes((lay.VERSION,))
_encode: Final = msgspec.msgpack.Encoder().encode


class PlainList:
    """A list whose values are known to be plain: it is written like a list, but they are not looked at before.

    Args:
        values: Values of exact types in `PLAIN`.
    """

    __slots__ = ("values",)

    def __init__(self, values: list[Any]) -> None:
        self.values = values


class Writer:
    """A writer of one value.

    Args:
        types: Types that may cross.

    Attributes:
        limits: Budget of the reader.
    """

    limits = lay.MESSAGE
    _room = limits.units

    def __init__(self, types: TypeTable) -> None:
        self.types = types
        self.columns: list[bytes] = []
        self.table: list[list[object]] = []
        self._numbers: dict[str, int] = {}

    def bytes_of(self, node: Node) -> bytes:
        """Return the encoded value whose root is `node`.

        Raises:
            TooLargeError: The value is beyond a limit.
        """
        schema = _encode([self.table, node])
        if len(schema) > _SHORT or len(self.columns) > _FEW_COLUMNS:
            self._check_parts(len(schema))
        data: bytes = _VERSION + _encode([schema, *self.columns])
        if self._room < 0 or len(data) > _LARGE_BYTES:
            self._check_size(len(data))
        return data

    def _check_parts(self, schema_bytes: int) -> None:
        most = self.limits.schema_bytes
        if schema_bytes > most or len(self.columns) > lay.MAX_COLUMNS:
            raise TooLargeError(
                f"a value of too many different parts: {len(self.columns)} columns, {schema_bytes} bytes of schema",
                hint=f"Make it of fewer types; {lay.MAX_COLUMNS} columns and {most} bytes are the limits.",
            )

    def _check_size(self, size: int) -> None:
        self._room -= 2 * size // lay.UNIT_BYTES + sum(
            [lay.text_units(one) for one in self.columns if lay.is_text(one)]
        )
        if self._room < 0 or size > self.limits.size_bytes:
            raise _too_costly(self.limits)

    def spend(self, units: int) -> None:
        """Deduct `units` from the reader's budget.

        The next `column`, or `bytes_of`, raises if the budget is exceeded.
        """
        self._room -= units

    def head(self, column: bytes) -> None:
        """Write a column of any number of values, which costs its length."""
        self.columns.append(column)
        self.spend(len(column))

    def column(self, values: Sequence[object], depth: int = 0, path: Path = ()) -> Node:
        """Write values that stand at one place of the whole, and return their node.

        Args:
            values: Values in order.
            depth: Nesting depth of the place.
            path: Path of the place, for errors.

        Raises:
            CodecError: A value cannot cross; the text says which, and what to do.
            TooLargeError: The values are beyond the budget.
        """
        self._room -= len(values)
        if self._room < 0 or depth > lay.MAX_DEPTH:
            raise _too_deep(values, path) if depth > lay.MAX_DEPTH else _too_costly(self.limits)
        if type(values) is Lines:
            return self._lines(values, depth, path)
        if type(values) is Rows and values:
            places = enumerate(values.columns)
            return [lay.TUPLE, *[self.column(part, depth + 1, (path, place)) for place, part in places]]
        # Exact types, not `isinstance`: what is sent is what is received, so a subclass needs an
        # entry of its own.
        kinds = set(map(type, values))
        if len(kinds) != 1:
            return self._union(values, depth, path) if kinds else lay.NOTHING
        kind = kinds.pop()
        plain = _PLAIN.get(kind)
        if plain is not None:
            return self._plain(plain, values, depth, path)
        write = _BY_TYPE.get(kind)
        if write is not None:
            return write(self, values, depth, path)
        try:
            entry = self.types.entry(kind, values[0])
        except CodecError as error:
            raise _at(path, error) from None
        return _BY_ENTRY[type(entry)](self, entry, values, depth, path)

    def _plain(self, node: int, values: Sequence[object], depth: int, path: Path) -> Node:
        try:
            self.columns.append(_encode(values))
        except OverflowError:
            return self._coded(INTEGERS, values, depth, path)
        except UnicodeEncodeError as error:
            what = f"a text that is not valid Unicode cannot cross a process boundary: {error}"
            hint = "Clean it where it is read, or hand it on as bytes."
            raise _refused(what, hint, "str", path) from error
        return node

    def _lines(self, lines: Lines, depth: int, path: Path) -> Node:
        try:
            self.columns.append(lines.text.encode())
        except UnicodeEncodeError:
            return self._plain(lay.STR, list(lines), depth, path)  # its error shows the text
        self._room -= len(lines)
        return lay.LINES

    def _union(self, values: Sequence[object], depth: int, path: Path) -> Node:
        kinds = list(map(type, values))
        return self._parted(values, kinds, dict.fromkeys(kinds), depth, path)

    def _parted(
        self, values: Sequence[object], labels: list[Any], known: Iterable[object], depth: int, path: Path
    ) -> Node:
        """Write values of several kinds: one column of labels, then one for each label."""
        parts: dict[object, list[object]] = {label: [] for label in known}
        self._room -= len(values) * lay.UNION_UNITS
        numbers = {label: number for number, label in enumerate(parts)}
        self.columns.append(_encode(list(map(numbers.__getitem__, labels))))
        for label, value in zip(labels, values, strict=True):
            parts[label].append(value)
        return [lay.UNION, *[self.column(part, depth + 1, path) for part in parts.values()]]

    # -- containers ------------------------------------------------------------------------------------------------

    def _tuples(self, values: Sequence[tuple[object, ...]], depth: int, path: Path) -> Node:
        width, count = len(values[0]), len(values)
        narrow = 0 < width <= _NARROW or (_NARROW < width <= _WIDE and count >= 2 * width)
        if not narrow or (count > 1 and len(set(map(len, values))) > 1):
            return self._sequences(lay.TUPLES, values, depth, path)
        parts = enumerate(zip(*values, strict=True))
        return [lay.TUPLE, *[self.column(part, depth + 1, (path, place)) for place, part in parts]]

    def _lists(self, values: Sequence[list[object]], depth: int, path: Path) -> Node:
        lengths = self._lengths(values)
        parts = _joined(values)
        if self._simple(values, parts):
            return lay.SIMPLE
        self._room -= len(values) * lay.CONTAINER_UNITS
        self.columns.append(_encode(lengths))
        return [lay.LIST, self.column(parts, depth + 1, (path, "[…]"))]

    def _plain_lists(self, values: Sequence[PlainList], depth: int, path: Path) -> Node:
        lists = [one.values for one in values]
        self._lengths(lists)
        return lay.SIMPLE if self._simple_column(lists) else self._lists(lists, depth, path)

    def _sequences(self, kind: int, values: Sequence[Sequence[object]], depth: int, path: Path) -> Node:
        lengths = self._lengths(values)
        each = lay.ELEMENT_UNITS if kind in (lay.SET, lay.FROZENSET) else 0
        self._room -= len(values) * lay.CONTAINER_UNITS + (len(values) + sum(lengths)) * each
        self.columns.append(_encode(lengths))
        return [kind, self.column(_joined(values), depth + 1, (path, "[…]"))]

    def _lengths(self, values: Sequence[Any]) -> list[int]:
        lengths = list(map(len, values))
        if sum(lengths) > self._room:  # before joining them: few lists can have many elements
            raise _too_costly(self.limits)
        return lengths

    def _simple(self, values: Sequence[object], parts: Sequence[object]) -> bool:
        """Write containers of plain values as one column; return False if they are not.

        Returns False, and writes nothing, also where another form must carry them: large integers, invalid Unicode, too
        long.
        """
        return self._are_simple(parts) and self._simple_column(values)

    def _simple_column(self, values: Sequence[object]) -> bool:
        try:
            column = _encode(values)
        except (OverflowError, UnicodeEncodeError):  # an integer beyond 64 bits, an invalid text
            return False
        if len(column) > lay.MAX_SIMPLE_BYTES:
            return False
        units = len(column) * lay.SIMPLE_UNITS
        if units > self._room:
            if self.limits is lay.TOGETHER:  # the caller then sends fewer payloads
                raise _too_costly(self.limits)
            return False
        self._room -= units
        self.columns.append(column)
        return True

    def _are_simple(self, level: Sequence[object]) -> bool:
        room = self._room
        for _ in range(lay.MAX_SIMPLE_DEPTH):
            kinds = set(map(type, level))
            if kinds.issubset(_SCALARS):
                return True
            if not kinds.issubset(_SIMPLE):
                return False
            parts: list[object] = []
            for kind in kinds & _SIMPLE_CONTAINERS:
                ones: Sequence[Any] = [one for one in level if type(one) is kind] if len(kinds) > 1 else level
                room -= sum(map(len, ones))
                if room < 0 or (kind is dict and not _SCALARS.issuperset(map(type, chain.from_iterable(ones)))):
                    return False
                parts.extend(chain.from_iterable(ones if kind is list else map(dict.values, ones)))
            level = parts
        return False

    def _sets(self, values: Sequence[set[object]], depth: int, path: Path) -> Node:
        return self._sequences(lay.SET, list(map(self._in_order, values)), depth, path)

    def _frozensets(self, values: Sequence[frozenset[object]], depth: int, path: Path) -> Node:
        return self._sequences(lay.FROZENSET, list(map(self._in_order, values)), depth, path)

    def _in_order(self, value: set[object] | frozenset[object]) -> list[Any]:
        """Return the elements in an order that is the same in every process."""
        if len(value) < 2:
            return list(value)
        if set(map(type, value)) in _SORTED_AS_THEY_ARE:
            return sorted(value)
        # Elements of several types, and records, cannot be compared; their encodings always can.
        return sorted(value, key=self._code)

    def _code(self, value: object) -> bytes:
        writer = Writer(self.types)
        return writer.bytes_of(writer.column((value,)))

    def _dicts(self, values: Sequence[dict[Any, object]], depth: int, path: Path) -> Node:
        lengths = self._lengths(values)
        keys, parts = _joined(values), _joined([*map(dict.values, values)])
        kinds = set(map(type, keys))
        if kinds.issubset(_SCALARS) and self._simple(values, parts):
            return lay.SIMPLE
        # Equal keys may be of several types: 1 and True, a text and a member of an enum.
        some = kinds == {str} and len(values) >= _FEW and len(values[0]) <= _WIDE
        if some and len(set(map(tuple, values))) == 1:
            self._room -= len(values) * (lay.CONTAINER_UNITS + lay.ELEMENT_UNITS * len(values[0]))
            columns = zip(values[0], zip(*map(dict.values, values), strict=True), strict=True)
            nodes = [self.column(part, depth + 1, (path, (key,))) for key, part in columns]
            return [lay.SHAPE, list(values[0]), *nodes]
        self._room -= len(values) * lay.CONTAINER_UNITS + (len(values) + len(keys)) * lay.ELEMENT_UNITS
        self.columns.append(_encode(lengths))
        node = self.column(keys, depth + 1, (path, ".keys()"))
        return [lay.DICT, node, self.column(parts, depth + 1, (path, ".values()"))]

    # -- classes ---------------------------------------------------------------------------------------------------

    def _records(self, field_codec: FieldCodec, values: Sequence[object], depth: int, path: Path) -> Node:
        number = self._number(field_codec.name, *field_codec.fields)
        try:
            parts = field_codec.take_apart(values)
        except AttributeError as error:
            raise _at(path, unset(field_codec, error)) from error
        if not field_codec.fields:  # values without bytes would be free for a forger
            self.columns.append(_encode([None] * len(values)))
        self._room -= len(values) * (lay.RECORD_UNITS + len(field_codec.fields))
        columns = zip(field_codec.places, parts, strict=True)
        return [lay.RECORD, number, *[self.column(part, depth + 1, (path, place)) for place, part in columns]]

    def _members(self, kind: Enumeration, values: Sequence[object], depth: int, path: Path) -> Node:
        number = self._number(kind.name)
        if kind.flags:
            self._room -= len(values) * lay.MADE_UNITS
            return [lay.FLAGS, number, self.column(list(map(attrgetter("_value_"), values)), depth + 1, path)]
        names = list(map(attrgetter("_name_"), values))
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self.head(_encode(list(places)))
        self.columns.append(_encode(list(map(places.__getitem__, names))))
        return [lay.ENUM, number]

    def _coded(self, codec: TypeCodec | Standard, values: Sequence[object], depth: int, path: Path) -> Node:
        assert codec.encode is not None
        try:
            made = list(map(codec.encode, values))
        except CodecError as error:
            raise _at(path, error) from None
        except Exception as error:
            what = f"the codec {codec.name!r} failed on a {codec.type.__qualname__}: {type(error).__name__}: {error}"
            raise _refused(f"{what}{user_lines(error)}", "", codec.type.__qualname__, path) from error
        self._room -= len(values) * (codec.units if isinstance(codec, Standard) else lay.MADE_UNITS)
        if isinstance(codec, Standard) and codec.made_of in TEXTS:
            self.spend(sum(map(len, TEXTS[codec.made_of](made))) // 2)
        return [lay.CODED, self._number(codec.name, codec.version), self.column(made, depth + 1, path)]

    def _scalars(self, scalars: arrays.Scalars, values: Sequence[object], depth: int, path: Path) -> Node:
        try:
            types = scalars.types(values)
        except CodecError as error:
            raise _at(path, error) from None
        known = dict.fromkeys(types)
        if len(known) > 1:
            return self._parted(values, types, known, depth, path)
        self._room -= len(values) * lay.PACKED_UNITS
        self.columns.append(arrays.pack(values))
        return [lay.PACKED, types[0]]

    def _number(self, name: str, *facts: object) -> int:
        """Return the number of a class in the table; add the class if it is new."""
        number = self._numbers.setdefault(name, len(self.table))
        if number == len(self.table):
            self.table.append([name, *facts])
        return number


class BatchWriter(Writer):
    """A writer of several payloads that could be sent one by one."""

    limits = lay.TOGETHER
    _room = limits.units


class StoredWriter(Writer):
    """A writer of stored values of this job."""

    limits = lay.STORED
    _room = limits.units


_BY_TYPE: Final[dict[type, Callable[[Writer, Any, int, Path], Node]]] = {
    tuple: Writer._tuples,
    list: Writer._lists,
    dict: Writer._dicts,
    set: Writer._sets,
    frozenset: Writer._frozensets,
    PlainList: Writer._plain_lists,
}
_BY_ENTRY: Final[dict[type, Callable[[Writer, Any, Any, int, Path], Node]]] = {
    **dict.fromkeys((Tuples, Dataclasses, Structs), Writer._records),
    Enumeration: Writer._members,
    **dict.fromkeys((TypeCodec, Standard), Writer._coded),
    arrays.Scalars: Writer._scalars,
}


def _joined(values: Sequence[Iterable[object]]) -> Sequence[object]:
    first = values[0]
    if len(values) > 1:
        return list(chain.from_iterable(values))
    return first if type(first) is list or type(first) is tuple else list(first)


def _too_deep(values: Sequence[object], path: Path) -> CodecError:
    what = f"a value that is nested more than {lay.MAX_DEPTH} deep, or contains itself,"
    kind = type(values[0]).__qualname__
    return _refused(f"{what} cannot cross a process boundary", "Make it flatter.", kind, path)


def _too_costly(limits: lay.Limits) -> TooLargeError:
    return TooLargeError(
        f"a value cannot cross a process boundary: what is made of it there could take more than "
        f"{limits.units * lay.UNIT_BYTES // 2**20} MiB",
        hint="Make it smaller: hand on its parts one by one, or a large text or table as bytes.",
    )


def _at(path: Path, error: CodecError) -> CodecError:
    """Return the error with a place added."""
    place = _in_words(path)
    what = f"{error.what} (at {place})" if place else error.what
    return CodecError(what, hint=error.hint, type_name=error.type_name, path=place)


def _in_words(path: Path) -> str:
    words: list[str] = []
    while path:
        path, place = path
        words.append(place if isinstance(place, str) else f"[{place}]" if isinstance(place, int) else f"[{place[0]!r}]")
    text = "".join(reversed(words))
    return text if len(text) <= _LONGEST_PATH else f"{text[:_LONGEST_PATH]}…"


def _refused(what: str, hint: str, type_name: str, path: Path) -> CodecError:
    return _at(path, CodecError(what, hint=hint, type_name=type_name))
