"""Bytes of values as a script says: well-formed, and nearly what the codec would have written, but seldom quite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flamecore.runtime.codec import wire as lay

if TYPE_CHECKING:
    from tests.fuzz.targets import Script

_encode: Final = msgspec.msgpack.Encoder().encode
_DEEPEST: Final = 6
_MOST: Final = 12
_TEXTS: Final = (
    "", "x", "RED", "READ", "blue", "name", "at", "1.5", "NaN", "1e999999", "2020-01-02", "2020-01-02T03:04:05|1",
    "2020-01-02T03:04:05+01:00|0=X", "2020-01-02T03:04:05|0@Europe/Berlin", "03:04", "/tmp/x", "<f8", ">M8[s]", "Cw",
)  # fmt: skip
_NUMBERS: Final = (0, 1, -1, 2, 3, 255, 2**31, 2**63 - 1, -(2**63), 2**64 - 1)


class Maker:
    """Makes the bytes of one value.

    Args:
        script: Bytes that decide each choice.
        names: Names of classes as they are in bytes, with their fields.
    """

    def __init__(self, script: Script, names: dict[str, tuple[str, ...]]) -> None:
        self._script = script
        self._names = list(names.items())
        self._table: list[list[Any]] = []
        self._columns: list[bytes] = []

    def bytes(self) -> bytes:
        """Return the bytes: version, schema, columns."""
        root = self._root()
        columns = self._columns
        for _ in range(self._script.number() % 8 if self._odd() else 0):  # something that does not belong
            place = self._script.number() % (len(columns) + 1)
            columns[place : place + 1] = [self._script.some()]
        return bytes((lay.VERSION,)) + _encode([_encode([self._table, root]), *columns])

    def _odd(self) -> bool:
        """Now and then."""
        return self._script.number() >= 240

    def _root(self) -> Any:
        kind = self._script.number() % 12
        if kind == 0:
            self._columns.append(_encode([[[0, 1, 2]], [[0, 5, True, self._orders(self._count())]]]))
            return [lay.ITEMS, self._payloads(1)]
        if kind == 1:
            self._columns.append(_encode([0, 5, self._orders(1), []]))
            return [lay.RELEASED, self._payloads(1), self._node(0, 1)]
        if kind == 2:
            self._columns.append(_encode([self._plain() for _ in range(self._count())]))
            return [lay.TOLD, ("Report", "MinTimes", "Delivered", "Items", 5)[self._script.number() % 5]]
        return self._node(1, 0)

    def _orders(self, count: int) -> Any:
        """Return `count` orders, perhaps in their packed form."""
        if self._script.number() % 2:
            return [[b"o"] * count, None, 0, b""]
        return [[b"o"], [count], self._script.number() - 8, b"t" * self._script.number()]

    def _payloads(self, count: int) -> Any:
        if self._script.number() % 4:
            return self._node(count, 1)
        self._columns.append(b"line\n" * count)
        return lay.LINES

    def _count(self) -> int:
        return self._script.number() % _MOST

    def _node(self, count: int, depth: int) -> Any:
        """Return a node of `count` values, with their columns behind the others."""
        kind = self._script.number() % 24
        if kind >= 21 or (depth >= _DEEPEST and kind > lay.SIMPLE):
            kind %= 7
        if self._odd():
            count += 1
        if kind <= lay.SIMPLE:
            return self._leaf(kind, count)
        return [kind, *self._parts(kind, count, depth + 1)]

    def _parts(self, kind: int, count: int, depth: int) -> list[Any]:
        if kind == lay.TUPLE:
            return [self._node(count, depth) for _ in range(1 + self._script.number() % 3)]
        if kind in (lay.LIST, lay.TUPLES, lay.SET, lay.FROZENSET):
            return [self._node(self._lengths(count), depth)]
        if kind == lay.DICT:
            total = self._lengths(count)
            return [self._node(total, depth), self._node(total, depth)]
        if kind == lay.SHAPE:
            keys = [self._plain() if self._odd() else str(number) for number in range(1 + self._script.number() % 3)]
            return [keys, *[self._node(count, depth) for _ in keys]]
        if kind == lay.UNION:
            width = 1 + self._script.number() % 3
            labels = [self._script.number() % width for _ in range(count)]
            self._columns.append(_encode(labels))
            return [self._node(labels.count(label), depth) for label in range(width)]
        if kind == lay.ENUM:
            texts = [_TEXTS[self._script.number() % len(_TEXTS)] for _ in range(1 + self._script.number() % 3)]
            self._columns += (_encode(texts), _encode([self._script.number() % len(texts) for _ in range(count)]))
            return [self._class(())]
        if kind == lay.FLAGS:
            return [self._class(()), self._node(count, depth)]
        if kind == lay.CODED:
            return [self._class((1,)), self._node(count, depth)]
        if kind == lay.RECORD:
            number = self._class(None)
            fields = self._table[number][1:]
            if not fields:
                self._columns.append(_encode([None] * count))
            return [number, *[self._node(count, depth) for _ in fields]]
        self._columns.append(self._script.some())
        return [_TEXTS[self._script.number() % len(_TEXTS)]]

    def _class(self, facts: tuple[Any, ...] | None) -> int:
        name, fields = self._names[self._script.number() % len(self._names)]
        if facts is None:
            facts = fields[: self._script.number()] if self._odd() else fields
        self._table.append([name, *facts])
        return len(self._table) - 1

    def _lengths(self, count: int) -> int:
        lengths = [self._script.number() % 4 for _ in range(count)]
        total = sum(lengths)
        if lengths and self._odd():
            lengths[0] = _NUMBERS[self._script.number() % len(_NUMBERS)]
        self._columns.append(_encode(lengths))
        return total

    def _leaf(self, kind: int, count: int) -> int:
        make: Callable[[], Any] | None = {
            lay.NONE: lambda: None,
            lay.BOOL: lambda: self._script.number() % 2 == 1,
            lay.INT: lambda: _NUMBERS[self._script.number() % len(_NUMBERS)],
            lay.FLOAT: lambda: float(self._script.number()) / (self._script.number() or 1),
            lay.STR: lambda: _TEXTS[self._script.number() % len(_TEXTS)],
            lay.BYTES: self._script.some,
            lay.SIMPLE: lambda: [self._plain(), {"k": self._plain()}],
        }.get(kind)
        if make is not None:
            self._columns.append(_encode([self._plain() if self._odd() else make() for _ in range(count)]))
        return kind

    def _plain(self) -> Any:
        at = self._script.number()
        return (*_TEXTS, *_NUMBERS, None, True, 1.5, b"x", [], {}, [1], {"a": 1})[
            at % (len(_TEXTS) + len(_NUMBERS) + 8)
        ]
