"""Aggregations of streams in update mode, and the columns that are their keys.

A row stands for all former ones of its key.

A batch holds the new rows of the keys that have changed, each key once. The flow can tell which of its former rows a
new one stands for as long as the row carries the whole key, and as long as every change of a key arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from flamecore.errors import SourceError

_AGGREGATE: Final = "Aggregate"
_PASSING: Final = frozenset({"Project", "Filter", "SubqueryAlias", "View", "ResolvedHint"})
"""Classes of steps in a plan of Spark behind an aggregation that make one row, or none, of each of its rows."""

_WINDOW: Final = "spark.timeWindow"
"""Key in the metadata of a column that is a window of time: all are of one length, so either end says which it is."""


def keys_of(frame: Any, source: str) -> tuple[str, ...]:
    """Return the key columns of the rows of a streaming DataFrame in update mode.

    Args:
        frame: The DataFrame.
        source: Name of the source, for errors.

    Returns:
        Names of the columns; none: there is no aggregation, or it is one over everything, of a single row.

    Raises:
        SourceError: Rows do not carry their key, or a step behind the aggregation takes changes away.
    """
    java = getattr(frame, "_jdf", None)
    if java is None:
        raise _refused(
            source,
            "over Spark Connect the plan is not known, and so neither are the keys of an aggregation",
            "Use a session of this process's own (SparkSession.builder.master(…)); or aggregate in the flow: "
            "key_by(…).fold(…).",
        )
    node, steps = java.queryExecution().analyzed(), []
    while (name := _class(node)) != _AGGREGATE:
        if name not in _PASSING:
            if not _has_aggregation(node):
                return ()
            raise _refused(
                source,
                f"behind the aggregation comes a {name}, after which rows are no longer one for each of its keys",
                "Give the DataFrame as groupBy(…).agg(…) makes it, and do the rest in the flow.",
            )
        steps.append(node)
        node = node.children().apply(0)
    labels, carried = _grouped(node)
    for step in reversed(steps):
        match _class(step):
            case "Project":
                carried = _projected(step, carried)
            case "Filter":
                _check_filter(step, carried, source)
    columns = reversed(_all([*steps, node][0].output()))
    names = {carried[_id(one)]: str(one.name()) for one in columns if _id(one) in carried}
    for place, label in enumerate(labels):
        if place not in names:
            raise _refused(
                source,
                f"rows lack {label}, by which they are grouped, so that nobody knows which former row each stands for",
                "Keep every column of the groupBy in the select behind it; of rollup and cube also grouping_id().",
                label,
            )
    return tuple(names[place] for place in range(len(labels)))


def _grouped(aggregate: Any) -> tuple[list[str], dict[int, int]]:
    """Return the keys of an aggregation as text, and the key that each column carries."""
    labels, carried = [], {}
    outputs = _all(aggregate.aggregateExpressions())
    for place, key in enumerate(_all(aggregate.groupingExpressions())):
        labels.append(str(key.name()) if _class(key) == "AttributeReference" else str(key.sql()))
        for one in outputs:
            if (one.child() if _class(one) == "Alias" else one).semanticEquals(key):
                carried[_id(one)] = place
    return labels, carried


def _projected(step: Any, carried: dict[int, int]) -> dict[int, int]:
    found = {}
    for one in _all(step.projectList()):
        inner = one.child() if _class(one) == "Alias" else one
        if _class(inner) == "GetStructField" and _is_window(inner.child()):
            inner = inner.child()
        if _class(inner) == "AttributeReference" and _id(inner) in carried:
            found[_id(one)] = carried[_id(inner)]
    return found


def _check_filter(step: Any, carried: dict[int, int], source: str) -> None:
    others = [str(one.name()) for one in _all(step.condition().references().toSeq()) if _id(one) not in carried]
    if others:
        raise _refused(
            source,
            f"behind the aggregation there is a condition on {', '.join(others)}: when a key no longer fulfils it, "
            "nothing says so, and its last row that did stays",
            "Leave the condition out, and filter in the flow; or filter before the aggregation.",
            others[0],
        )


def _is_window(column: Any) -> bool:
    return _class(column) == "AttributeReference" and bool(column.metadata().contains(_WINDOW))


def _has_aggregation(node: Any) -> bool:
    return any(_class(one) == _AGGREGATE and one.isStreaming() for one in _walk(node))


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _all(node.children()):
        yield from _walk(child)


def _all(sequence: Any) -> list[Any]:
    return [sequence.apply(place) for place in range(sequence.size())]


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _id(column: Any) -> int:
    return int(column.exprId().id())


def _refused(source: str, what: str, hint: str, column: str = "") -> SourceError:
    return SourceError(f'source {source!r}, in mode "update": {what}', hint=hint, source=source, position=column)
