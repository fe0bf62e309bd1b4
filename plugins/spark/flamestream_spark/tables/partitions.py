"""Tables cut by the values of some columns, into folders such as `letter=a`.

The folders are named as Spark and Hive name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from flamecore.errors import ConfigError
from flamecore.suggest import suggestion

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}


class Piece(NamedTuple):
    """The rows of one folder.

    Attributes:
        folder: Its path below that of the table; empty: the table has no partitions.
        values: Values of the columns that cut, as a Delta table's log has them.
        table: The rows, without these columns, in their order.
    """

    folder: str
    values: Mapping[str, str | None]
    table: Any


def pieces_of(table: Any, columns: Sequence[str]) -> list[Piece]:
    """Cut a `pyarrow.Table`, into one piece if there are no columns to cut by."""
    if not columns:
        return [Piece("", {}, table)]
    places: dict[tuple[str | None, ...], list[int]] = {}
    for place, row in enumerate(zip(*(table.column(name).to_pylist() for name in columns), strict=True)):
        places.setdefault(tuple(map(_written, row)), []).append(place)
    rest = table.drop_columns(list(columns))
    cut = sorted(places.items(), key=lambda item: [value or "" for value in item[0]])
    return [
        Piece("/".join(map(_folder, columns, values)), dict(zip(columns, values, strict=True)), rest.take(rows))
        for values, rows in cut
    ]


def last_of(table: Any, key: Sequence[str]) -> Any:
    """Keep the last row of each key, in the order of the rows."""
    columns = (table.column(name).to_pylist() for name in key)
    last = {values: place for place, values in enumerate(zip(*columns, strict=True))}
    return table.take(sorted(last.values()))


def check_columns(columns: Sequence[str], schema: Any, where: str) -> None:
    """Make sure that the rows of a sink can be told apart by these columns.

    Args:
        columns: Their names.
        schema: Schema of the rows; a `pyarrow.Schema`.
        where: Path of the option, for errors.

    Raises:
        ConfigError: One is not there, or of a type whose values are no plain texts, numbers, dates or truths; or no
            column would be left.
    """
    for name in columns:
        if name not in schema.names:
            raise ConfigError(f"{where}: there is no column {name!r}", hint=suggestion(name, schema.names), path=where)
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_int64(kind) or pa.types.is_date32(kind)):
            raise ConfigError(
                f"{where}: column {name!r} is of type {kind}",
                hint="Columns of texts, whole numbers and dates tell rows apart; map the payload before the sink.",
                path=where,
            )
    if columns and set(columns) >= set(schema.names):
        raise ConfigError(
            f"{where}: no other column is left in the table", hint="Name fewer columns, or declare more.", path=where
        )


def _written(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _folder(column: str, value: str | None) -> str:
    return f"{_escaped(column)}={_NULL if value is None else _escaped(value)}"


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
