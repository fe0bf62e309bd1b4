"""Tables of a catalogue of Spark over the folders that the sink writes.

A table is a name, columns, and where the files are.

The table is an external one. The sink goes on to write its folder, with all that it promises of that; dropping the
table leaves the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from flamecore.errors import SinkError
from flamestream_spark.compat import spark_schema
from flamestream_spark.session.messages import gist

_OPTIONS: Final[dict[str, dict[str, str]]] = {"csv": {"header": "true"}}
_LOCATION: Final = "Location"
_PROVIDER: Final = "Provider"
_NAME: Final = re.compile(r"\.?(`(``|[^`])*`|[^.`]*)$")
"""The last part of the name of a table, behind its database."""


class Listing:
    """The entry of a folder in the catalogue of a session.

    Args:
        session: The session.
        table: Name of the table, as SQL writes it.
        folder: The folder.
        format: Format of its files.
        schema: Schema of its files, of Arrow.
        sink: Name of the sink, for errors.
    """

    def __init__(self, session: Any, table: str, folder: Path, format: str, schema: Any, sink: str) -> None:
        self._session, self._table, self._folder, self._sink = session, table, folder.absolute(), sink
        self._format, self._columns = format, spark_schema(schema)

    def check(self) -> None:
        """Check that the table can be made, or is one of that folder.

        Raises:
            SinkError: It is another one's, or there is no such database.
        """
        with self._said():
            catalogue, database = self._session.catalog, _NAME.sub("", self._table)
            if catalogue.tableExists(self._table):
                self._compare()
            elif database and not catalogue.databaseExists(database):
                raise self._error(
                    f"there is no database {database} for table {self._table}",
                    f"Make it: CREATE DATABASE {database}; or give another name.",
                )

    def enter(self) -> None:
        """Make the table, unless it is there.

        Raises:
            SinkError: It cannot be made.
        """
        with self._said():
            catalogue = self._session.catalog
            if not catalogue.tableExists(self._table):
                given = _OPTIONS.get(self._format, {})
                catalogue.createTable(self._table, str(self._folder), self._format, self._columns, **given)

    def refresh(self) -> None:
        """Refresh the session's listing, so that it sees new files."""
        self._session.catalog.refreshTable(self._table)

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Turn any error of Spark into one of the sink."""
        try:
            yield
        except SinkError:
            raise
        except Exception as error:
            raise self._error(
                f"Spark cannot make table {self._table}: {gist(str(error))}",
                "Is there such a catalogue, and does the session know the format?",
            ) from error

    def _compare(self) -> None:
        rows = self._session.sql(f"DESCRIBE TABLE EXTENDED {self._table}").collect()
        told = {row.col_name: row.data_type for row in rows}
        place, provider = told.get(_LOCATION, ""), told.get(_PROVIDER, "")
        if not place or Path(unquote(urlsplit(place).path)) != self._folder:
            raise self._error(
                f"table {self._table} is there already, at {place or 'no place that Spark tells'}, "
                f"and the sink writes {self._folder}",
                "Name another table; or give the folder of that one, if it is this sink's.",
            )
        if provider != self._format:
            raise self._error(
                f"table {self._table} reads files of format {provider!r}, and the sink writes {self._format!r}",
                f"Drop it, which leaves the files: DROP TABLE {self._table}.",
            )
        held = [(field.name, field.dataType) for field in self._session.table(self._table).schema.fields]
        ours = [(field.name, field.dataType) for field in self._columns.fields]
        if held != ours:
            raise self._error(
                f"table {self._table} has the columns {_words(held)}, and the sink writes {_words(ours)}",
                f"Drop it, which leaves the files: DROP TABLE {self._table}.",
            )

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self._sink!r}: {what}", hint=hint, sink=self._sink)


def _words(columns: list[tuple[str, Any]]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in columns)
