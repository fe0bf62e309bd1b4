"""Payloads as rows of a table of PostgreSQL.

Numbers, text, bytes, dates and the like stay as they are; the rest is JSON.
"""

from __future__ import annotations

import datetime
import types
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, Union, get_args, get_origin

from flamecore.toolkit.records.plain import Unencodable, encode, scalar
from flamecore.toolkit.records.tables import Table

JSON: Final = "jsonb"

Column = tuple[str, str]
"""Name and type, as PostgreSQL itself calls it."""

_TYPES: Final[dict[Any, str]] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    str: "text",
    bytes: "bytea",
    Decimal: "numeric",
    datetime.date: "date",
    datetime.datetime: "timestamp with time zone",
    datetime.time: "time without time zone",
    datetime.timedelta: "interval",
    uuid.UUID: "uuid",
}


_PARTS_OF_MOMENTS: Final = ("date", "time without time zone")


def type_of(declared: Any) -> str:
    """Return the type of a column.

    >>> type_of(int | None), type_of(float), type_of(list[int]), type_of(int | str)
    ('bigint', 'double precision', 'jsonb', 'jsonb')
    """
    if get_origin(declared) in (Union, types.UnionType):
        kinds = {type_of(part) for part in get_args(declared) if part is not type(None)}
        if kinds == {"bigint", "double precision"}:
            return "double precision"
        return kinds.pop() if len(kinds) == 1 else JSON
    return _TYPES.get(declared, JSON)


class Rows:
    """Makes rows of payloads of a declared type.

    Attributes:
        columns: Name and type of each column, in order.
    """

    def __init__(self, declared: Any) -> None:
        self._table = Table.of(declared)
        self.columns = [(column.name, type_of(column.type)) for column in self._table.columns]
        self._json = [place for place, (_, kind) in enumerate(self.columns) if kind == JSON]
        self._parts = [place for place, (_, kind) in enumerate(self.columns) if kind in _PARTS_OF_MOMENTS]

    def of(self, payloads: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Return a row for each payload.

        Raises:
            flamecore.toolkit.records.plain.Unencodable: A payload is not of the declared type, or cannot be written as
            JSON.
        """
        rows = self._table.taken_apart(payloads)
        return [self._cells(payload, row) for payload, row in zip(payloads, rows, strict=True)]

    def _cells(self, payload: object, row: Sequence[Any]) -> Sequence[Any]:
        cells = [*map(scalar, row)]
        for place in self._parts:
            if isinstance(cells[place], datetime.datetime):
                name, kind = self.columns[place]
                raise Unencodable(
                    payload, f"column {name!r} is a {kind}, and PostgreSQL would cut {cells[place]} to it"
                )
        for place in self._json:
            if cells[place] is not None:
                cells[place] = encode(cells[place]).decode()
        return cells
