"""The parts of PySpark that differ between its releases, from 3.5 to 4.

Each is looked for where it may be, in place of comparing versions: managed services add parts of later releases to the
one that they name.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from flamecore.errors import MissingDependencyError

_ZONE: Final = "UTC"
_SOURCES: Final = "pyspark.sql.datasource"


class _Absent:
    """A type that this PySpark does not have, so no column is of it."""


class _Types:
    """The classes of `pyspark.sql.types`, and one without objects in place of each that is not there.

    3.5 has no `VariantType` and no `CalendarIntervalType`, 4.0 no `SpatialType`.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("pyspark.sql.types"), name, _Absent)


TYPES: Final = _Types()


def javas() -> range:
    """Return the versions of Java that this PySpark runs on; those of 17 and newer if it is not installed."""
    try:
        release = import_module("pyspark.version").__version__
    except ModuleNotFoundError:
        release = "4.3"
    major, minor = (int(part) for part in release.split(".")[:2])
    if major < 4:
        return range(8, 18)
    return range(17, 22 if minor < 2 else 1000)


def collation_of(kind: Any) -> str:
    """Return the collation of a type of text; in 3.5 there is one alone."""
    return str(getattr(kind, "collation", "UTF8_BINARY"))


def arrow_type(kind: Any) -> Any:
    """Return the type of Arrow for one of Spark; times with a zone are in UTC.

    Raises:
        PySparkException, TypeError, ValueError: There is none.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, **_zoned(to_arrow_type))


def arrow_schema(schema: Any) -> Any:
    """Return the schema of Arrow for one of Spark; times with a zone are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_zoned(to_arrow_schema))


def spark_schema(schema: Any) -> Any:
    """Return the schema of Spark for one of Arrow, in which times without a zone stay so."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _zoned(convert: Any) -> dict[str, str]:
    """Return the argument for the zone of times, which is UTC where there is none: before 4.2."""
    return {"timezone": _ZONE} if "timezone" in inspect.signature(convert).parameters else {}


def file_metadata(frame: Any) -> Any:
    """Return the hidden column of a DataFrame that says which file and block a row is of.

    Over Spark Connect 3.5, which has no function for it, a column of the same name comes first.
    """
    from pyspark.sql import Column, functions

    if hasattr(frame, "metadataColumn"):
        return frame.metadataColumn("_metadata")
    java = getattr(frame, "_jdf", None)
    return functions.col("_metadata") if java is None else Column(java.metadataColumn("_metadata"))


def tags_of(session: Any) -> frozenset[str]:
    """Return the tags of a session that this thread has; in 3.5 only sessions of Spark Connect have any."""
    try:
        return frozenset(session.getTags())
    except RuntimeError:
        return frozenset()


def data_sources() -> ModuleType:
    """Return PySpark's module of data sources in Python.

    Raises:
        MissingDependencyError: There is none, as in 3.5, or it does not take Arrow.
    """
    try:
        found = import_module(_SOURCES)
    except ModuleNotFoundError as error:
        if error.name != _SOURCES:
            raise
    else:
        if hasattr(found, "DataSourceArrowWriter"):
            return found
    version = import_module("pyspark").__version__
    raise MissingDependencyError(
        f'format "flamestream" is a data source in Python, which needs Spark 4.0 or newer; this is PySpark {version}',
        hint="Run it on Spark 4. On this one flamestream_spark.run, through and stream work without the format, "
        "and so do sources and sinks of folders: spark.read.parquet(…) reads an output.",
        kind="source",
        name="flamestream",
        distribution="pyspark",
        module=_SOURCES,
        extra="spark",
    )


def register_source(spark: Any, source: type) -> None:
    """Register a data source in a session; before 4.2 Spark refuses one that it has found by itself."""
    try:
        spark.dataSource.register(source)
    except Exception as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def arrow_stream_writer() -> type:
    """Return the class of those writers of streams that get rows as Arrow has them.

    Raises:
        MissingDependencyError: As `data_sources`.
    """
    sources = data_sources()
    found: type | None = getattr(sources, "DataSourceStreamArrowWriter", None)
    # 4.0 has no class for it, and gives Arrow to every writer that is of the class for tables, too.
    return found or type("ArrowWriter", (sources.DataSourceStreamWriter, sources.DataSourceArrowWriter), {})
