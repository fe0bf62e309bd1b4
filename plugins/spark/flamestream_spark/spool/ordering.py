"""Order of the rows of a DataFrame: the same whenever the same rows are read.

Global times count rows, so what a flow puts out depends on their order. Spark itself promises none: how rows lie in
partitions depends on the number of cores, on sizes, on who was first. Two orders do not: that of columns, and that of
the files that rows are read from.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from flamecore.errors import SourceError
from flamestream_spark.compat import file_metadata
from flamestream_spark.spool.parts import FILE, PLACE, START
from flamestream_spark.tables.columns import column_of, numbered, sortable, told_apart

ORDER_BY: Final = 'Say what orders them: order_by = "COLUMN", which may be several.'
"""The remedy for rows without a stable order."""

_ROW: Final = "__flamestream_row"
_MOST_FILES: Final = 1000
"""Number of files above which each gives so few rows that they are sorted instead of kept apart."""

_FILES: Final = "HadoopFsRelation"
"""The names that Spark has for files that it reads by a format."""

_KEEPING: Final = frozenset(
    {
        "Project",
        "Filter",
        "Generate",
        "SubqueryAlias",
        "ResolvedHint",
        "CollectMetrics",
        "ArrowEvalPython",
        "BatchEvalPython",
    }
)
"""Classes of steps in a plan of Spark behind which rows lie as they do before them."""

_KEEPING_REMOTE: Final = frozenset(
    {
        "Project",
        "Filter",
        "WithColumns",
        "WithColumnsRenamed",
        "Drop",
        "SubqueryAlias",
        "Hint",
        "ToDF",
        "ToSchema",
        "CollectMetrics",
        "NAFill",
        "NADrop",
        "NAReplace",
    }
)
"""The same in a plan of Spark Connect, as the client has it."""


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


def in_order(frame: Any, order_by: Sequence[str], source: str, *, stable: bool = False) -> Ordered:
    """Put the rows of a DataFrame in an order.

    Args:
        frame: The DataFrame; a batch one.
        order_by: Columns to order by. Rows that are equal in these are ordered by the others: then only those are
            exchanged that are the same anyway. Empty: by file and place in the file, if that is where rows come from.
        source: Name of the source, for errors.
        stable: Whether an order that is not the same in every run is refused. Otherwise there is a warning.

    Raises:
        SourceError: A column is not there, or cannot be ordered by; or there is no stable order, and one is needed.
    """
    if order_by:
        keys, alike = sort_keys(frame, order_by, source)
        if alike:
            what = f"rows that differ in column {alike!r} alone, whose type Spark cannot order, are in none"
            _say_unstable(source, what, f"Leave it out: df.drop({alike!r}).", refused=stable)
        return Ordered(numbered(frame).orderBy(*keys).toDF(*frame.columns), stable=not alike)
    placed = _placed(frame)
    if placed is not None:
        return _by_file(placed)
    if stable and frame.isEmpty():
        return Ordered(frame, stable=True)
    _say_unstable(source, _reason(frame) if stable else "", ORDER_BY, refused=stable)
    return Ordered(frame, stable=False)


def _say_unstable(source: str, why: str, hint: str, *, refused: bool) -> None:
    """Raise that rows have no stable order, if it is refused, or else warn."""
    if refused:
        raise SourceError(
            f"source {source!r}: the rows have no stable order, and the job relies on one: {why}",
            hint=hint,
            source=source,
            position="",
        )
    warnings.warn(
        f"source {source!r}: the rows have no stable order{why and f' ({why})'}: global times, and with them the order "
        f"of outputs, may be others in the next run; {hint[0].lower()}{hint[1:].partition(', which')[0].rstrip('.')}",
        UnstableOrderWarning,
        stacklevel=4,
    )


def ordering_column(said: str, names: Collection[str]) -> tuple[str, bool]:
    """Return a column to order by, and whether the order is descending.

    >>> ordering_column("at desc", ["at"]), ordering_column("at", ["at"]), ordering_column("at desc", ["at desc"])
    (('at', True), ('at', False), ('at desc', False))
    """
    name, _, direction = said.rpartition(" ")
    if said in names or direction.lower() not in ("asc", "desc"):
        return said, False
    return name.rstrip(), direction.lower() == "desc"


def sort_keys(frame: Any, order_by: Sequence[str], source: str) -> tuple[list[Any], str]:
    """Return what to order by, as columns of the `numbered` frame, so that only rows that are the same are equal.

    Args:
        frame: The DataFrame.
        order_by: Columns to order by; one with "desc" behind it in descending order.
        source: Name of the source, for errors.

    Returns:
        The keys, and a column by which not all rows are told apart; empty: there is none.

    Raises:
        SourceError: A column is not there, or cannot be ordered by.
    """
    from pyspark.sql import functions

    names = list(frame.columns)
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    keys, first, alike = [], [], ""
    for said in order_by:
        name, descending = ordering_column(said, kinds)
        name = column_of(frame, name, source, " to order by")
        first.append(name)
        if not sortable(kinds[name]):
            raise SourceError(
                f"source {source!r}: rows cannot be ordered by column {name!r}, a {kinds[name].simpleString()}",
                hint="Order by columns of numbers, text or times.",
                source=source,
                position=name,
            )
        key = functions.col(str(names.index(name)))
        keys.append(key.desc() if descending else key)
    for place, (name, kind) in enumerate(kinds.items()):
        plain = f"`{place}`"
        told = told_apart(plain, kind)
        if name not in first and sortable(kind):
            keys.append(functions.col(str(place)))
        if told is None:
            alike = alike or name
        elif told != plain:
            keys.append(functions.expr(told))
    return keys, alike


def has_stable_order(frame: Any) -> bool:
    """Return whether rows come straight from files, in the same order in every run."""
    return _placed(frame) is not None


def _placed(frame: Any) -> Any | None:
    """Return the DataFrame with columns `PLACE`; None: its rows are not in file order."""
    from pyspark.errors import AnalysisException

    if not _from_files(frame, "analyzed"):
        return None
    said = ("file_path", "file_block_start", "file_block_length", "file_size")
    try:
        about = file_metadata(frame)
        placed = frame.select("*", *(about.getField(of).alias(name) for of, name in zip(said, PLACE, strict=True)))
        placed.schema  # noqa: B018 - over Spark Connect it is not known before whether there are such columns
    except AnalysisException:
        return None
    # A subquery in a condition is a join in the end, which may mix the rows.
    return placed if _from_files(placed, "optimizedPlan") else None


def _from_files(frame: Any, stage: str) -> bool:
    """Return whether a plan is one read of files, and steps that keep the row order."""
    java = getattr(frame, "_jdf", None)
    if java is None:
        return _remote_from_files(frame._plan)
    node = getattr(java.queryExecution(), stage)()
    while True:
        name = node.getClass().getSimpleName()
        if name == "LogicalRelation":
            return bool(node.relation().getClass().getSimpleName() == _FILES)
        if name == "LocalRelation":
            return bool(node.data().isEmpty())  # a condition that no row fulfils
        if name not in _KEEPING and not (name == "Repartition" and not node.shuffle()):
            return False
        children = node.children()
        if children.size() != 1:
            return False
        node = children.apply(0)


def _remote_from_files(plan: Any) -> bool:
    """Return whether a plan of Spark Connect is one read of files, and such steps.

    Only the part of the plan in the client is known: no table, no query.
    """
    while type(plan).__name__ in _KEEPING_REMOTE and not getattr(plan, "_references", None):
        plan = plan._child
    return type(plan).__name__ == "DataSource"


def _reason(frame: Any) -> str:
    if getattr(frame, "_jdf", None) is None:
        return "over Spark Connect only rows that are read straight from files are known to have one"
    return "they do not come straight from files"


def _by_file(placed: Any) -> Ordered:
    """Order rows by file, by block in a file, and by row in a block."""
    from pyspark.sql import functions

    # Spark names no files of a frame that is cached; `placed` is not, for its columns.
    files = tuple(sorted(placed.inputFiles(), key=str.encode))
    if len(files) <= _MOST_FILES:
        return Ordered(placed, True, files, PLACE)
    # Grows within a block: that is read by one task, from its beginning.
    counted = placed.withColumn(_ROW, functions.monotonically_increasing_id())
    return Ordered(counted.orderBy(FILE, START, _ROW), True, (), (*PLACE, _ROW))
