"""Tables of a catalogue of Spark over the folders that the sink writes.

A table is a name, columns, and where the files are.

The table is an external one. The sink goes on to write its folder, with all that it promises of that; dropping the
table leaves the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from flamecore.errors import SinkError
from flamestream_spark.session.messages import gist

_OPTIONS: Final[dict[str, dict[str, str]]] = {"csv": {"header": "true"}}
_LOCATION: Final = "Location"


class Listing:
    """The entry of a folder in the catalogue of a session.

    Args:
        session: The session.
        table: Name of the table, as SQL writes it.
        folder: The folder.
        sink: Name of the sink, for errors.
    """

    def __init__(self, session: Any, table: str, folder: Path, sink: str) -> None:
        self._session, self._table, self._folder, self._sink = session, table, folder.absolute(), sink

    def enter(self, format: str, schema: Any) -> None:
        """Make the table, unless it is there and is of that folder.

        Args:
            format: Format of the files.
            schema: Schema of Arrow.

        Raises:
            SinkError: It is another one's, or cannot be made.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        try:
            catalogue = self._session.catalog
            if catalogue.tableExists(self._table):
                self._check(columns)
            else:
                catalogue.createTable(
                    self._table, path=str(self._folder), source=format, schema=columns, **_OPTIONS.get(format, {})
                )
        except SinkError:
            raise
        except Exception as error:
            raise self._error(
                f"Spark cannot make table {self._table}: {gist(str(error))}",
                "Is there such a catalogue and database, and does the session know the format?",
            ) from error

    def refresh(self) -> None:
        """Refresh the session's listing, so that it sees new files."""
        self._session.catalog.refreshTable(self._table)

    def _check(self, columns: Any) -> None:
        told = self._session.sql(f"DESCRIBE TABLE EXTENDED {self._table}").collect()
        place = next((row.data_type for row in told if row.col_name == _LOCATION), "")
        if not place or Path(unquote(urlsplit(place).path)) != self._folder:
            raise self._error(
                f"table {self._table} is there already, at {place or 'no place that Spark tells'}, "
                f"and the sink writes {self._folder}",
                "Name another table; or give the folder of that one, if it is this sink's.",
            )
        held = [(field.name, field.dataType) for field in self._session.table(self._table).schema.fields]
        if held != [(field.name, field.dataType) for field in columns.fields]:
            raise self._error(
                f"table {self._table} has the columns {_words(held)}, and the sink writes "
                f"{_words([(field.name, field.dataType) for field in columns.fields])}",
                f"Drop it, which leaves the files: DROP TABLE {self._table}.",
            )

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self._sink!r}: {what}", hint=hint, sink=self._sink)


def _words(columns: list[tuple[str, Any]]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in columns)
