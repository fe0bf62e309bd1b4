"""The order of the rows of a DataFrame: one that is the same whenever the same rows are read.

Global times count rows, so what a flow puts out depends on their order. Spark itself promises none: how rows lie in
partitions depends on the number of cores, on sizes, on who was first. Two orders do not: that of columns, and that of
the files that rows are read from.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from flamecore.errors import SourceError
from flamecore.suggest import suggestion
from flamestream_spark.spool.parts import FILE, PLACE, START
from flamestream_spark.tables.columns import numbered, sortable

_ROW: Final = "__flamestream_row"
_MOST_FILES: Final = 1000
"""Of more files each gives so few rows that they are sorted instead of kept apart."""

_SHUFFLED: Final = ("Exchange", "Sort", "Sample", "Limit", "TakeOrdered", "Window", "Aggregate", "Join")
"""Steps of a plan behind which rows do not lie as they do in their files."""


class UnstableOrderWarning(UserWarning):
    """The rows of a DataFrame come in no order that a second run is sure to repeat."""


class Ordered(NamedTuple):
    """A DataFrame in an order.

    Attributes:
        frame: The rows, with the columns they had, and those in `extra`.
        stable: Whether the order is the same in every run.
        files: The order is that of these files, of the blocks in them, and of the rows in a block as a task reads them,
            whatever the order of tasks; empty: it is that of partitions.
        extra: Columns that were added, `FILE` among them if it is known what file a row is from.
    """

    frame: Any
    stable: bool
    files: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def in_order(frame: Any, order_by: Sequence[str], source: str) -> Ordered:
    """Put the rows of a DataFrame in an order.

    Args:
        frame: The DataFrame; a batch one.
        order_by: Columns to order by. Rows that are equal in these are ordered by the others: then only those are
            exchanged that are the same anyway. Empty: by file and place in the file, if that is where rows come from.
        source: Name of the source, for errors.

    Raises:
        SourceError: A column is not there, or cannot be ordered by.
    """
    if order_by:
        keys = _keys(frame, order_by, source)
        return Ordered(numbered(frame).orderBy(*keys).toDF(*frame.columns), stable=True)
    plan = _plan(frame)
    if "Scan" in plan and not any(step in plan for step in _SHUFFLED):
        by_file = _by_file(frame)
        if by_file is not None:
            return by_file
    warnings.warn(
        f"source {source!r}: the rows have no stable order: global times, and with them the order of outputs, may be "
        'others in the next run; say what orders them: order_by = "COLUMN"',
        UnstableOrderWarning,
        stacklevel=3,
    )
    return Ordered(frame, stable=False)


def _keys(frame: Any, order_by: Sequence[str], source: str) -> list[str]:
    """Return the places of the columns to order by."""
    names = list(frame.columns)
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    for name in order_by:
        if name not in kinds:
            raise SourceError(
                f"source {source!r}: there is no column {name!r} to order by",
                hint=suggestion(name, kinds),
                source=source,
                position=name,
            )
        if not sortable(kinds[name]):
            raise SourceError(
                f"source {source!r}: rows cannot be ordered by column {name!r}, a {kinds[name].simpleString()}",
                hint="Order by columns of numbers, text or times.",
                source=source,
                position=name,
            )
    rest = [name for name, kind in kinds.items() if name not in order_by and sortable(kind)]
    return [str(names.index(name)) for name in (*order_by, *rest)]


def _plan(frame: Any) -> str:
    """The physical plan in words."""
    java = getattr(frame, "_jdf", None)
    if java is not None:
        return str(java.queryExecution().executedPlan().toString())
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain()
    return said.getvalue()


def _by_file(frame: Any) -> Ordered | None:
    """In the order of files, of blocks in a file, and of rows in a block; None if Spark does not know them."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    said = ("file_path", "file_block_start", "file_block_length", "file_size")
    try:
        about = frame.metadataColumn("_metadata")
        placed = frame.select("*", *(about.getField(of).alias(name) for of, name in zip(said, PLACE, strict=True)))
        placed.schema  # noqa: B018 - over Spark Connect it is not known before whether there are such columns
        files = tuple(sorted(frame.inputFiles(), key=str.encode))
    except AnalysisException:
        return None
    if len(files) <= _MOST_FILES:
        return Ordered(placed, True, files, PLACE)
    # Grows within a block: that is read by one task, from its beginning.
    counted = placed.withColumn(_ROW, functions.monotonically_increasing_id())
    return Ordered(counted.orderBy(FILE, START, _ROW), True, (), (*PLACE, _ROW))
