"""Tables cut by the values of some columns, into folders such as `letter=a`.

The folders are named as Spark and Hive name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from flamecore.errors import ConfigError
from flamecore.suggest import suggestion
from flamecore.toolkit.records.plain import Unencodable

LONGEST_BYTES: Final = 255
"""Most bytes in the name of a folder on a disk, and in HDFS."""
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


class FoldedNameError(Exception):
    """A folder has another name than it was made by. Argument: its path."""


class Folders:
    """The folders of pieces below that of their table.

    Args:
        table: The table's.
    """

    def __init__(self, table: Path) -> None:
        self._table = table
        self._checked: set[str] = set()

    def make(self, folder: str) -> Path:
        """Make the folder of a piece, if it is not there.

        Args:
            folder: Its path below the table's.

        Raises:
            FoldedNameError: The file system gives it another name: it does not distinguish case, say, or leaves
                out a blank at the end. It would hold rows of several values.
            OSError: It cannot be made.
        """
        path = self._table / folder
        path.mkdir(parents=True, exist_ok=True)
        if folder not in self._checked:
            made = self._table
            for name in folder.split("/") if folder else ():
                if name not in [entry.name for entry in made.iterdir()]:
                    raise FoldedNameError(made / name)
                made /= name
            self._checked.add(folder)
        return path


def pieces_of(table: Any, columns: Sequence[str], longest_bytes: int | None = None) -> list[Piece]:
    """Cut a `pyarrow.Table`, into one piece if there are no columns to cut by.

    Args:
        table: The table.
        columns: The columns to cut by.
        longest_bytes: Most bytes in the name of a folder; None: it is not limited.

    Returns:
        The pieces. No two have the same folder, and Spark reads the values of the columns from the folder's name.

    Raises:
        Unencodable: The name of a folder is too long.
    """
    if not columns:
        return [Piece("", {}, table)]
    places: dict[tuple[str | None, ...], list[int]] = {}
    for place, row in enumerate(zip(*(table.column(name).to_pylist() for name in columns), strict=True)):
        places.setdefault(tuple(map(_written, row)), []).append(place)
    rest = table.drop_columns(list(columns))
    cut = sorted(places.items(), key=lambda item: [value or "" for value in item[0]])
    for values, _ in cut:
        for column, value in zip(columns, values, strict=True):
            size = len(_folder(column, value).encode())
            if longest_bytes is not None and size > longest_bytes:
                what = f"the folder of its column {column!r} would have a name of {size} bytes, {longest_bytes} at most"
                raise Unencodable(value, what)
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
    if value == _NULL:  # with its first letter escaped it is read as a text
        return f"{_escaped(column)}=%{ord(value[0]):02X}{value[1:]}"
    return f"{_escaped(column)}={_NULL if value is None else _escaped(value)}"


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
