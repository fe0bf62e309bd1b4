"""The table of operators: one row for each kind of vertex.

Plugins add theirs when a job is put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flamecore.abc.operator import Build
from flamecore.model.drift import Drift
from flamecore.model.ordered import Marking, Ordered
from flamecore.model.vertices import Broadcast, Grouping, KeyedLoop, Label, Map, Merge, Placing, Sink, Vertex, WithLabel
from flamecore.runtime.operators.barrier import sink_operator
from flamecore.runtime.operators.columns.cells import ordered_operator
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.exchange import PlacingOperator
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.runtime.operators.labels import LabelOperator, WithLabelOperator
from flamecore.runtime.operators.map import BroadcastOperator, MapOperator, MergeOperator
from flamecore.runtime.operators.marks import MarkingOperator

Operators = Mapping[type[Vertex], Build]
"""Class of vertices → function that builds its operator."""

OPERATORS: Final[Operators] = {
    Map: MapOperator,
    Placing: PlacingOperator,
    Broadcast: BroadcastOperator,
    Merge: MergeOperator,
    KeyedLoop: MergeOperator,
    Grouping: GroupingOperator,
    Drift: DriftOperator,
    Marking: MarkingOperator,
    Label: LabelOperator,
    WithLabel: WithLabelOperator,
    Ordered: ordered_operator,
    Sink: sink_operator,
}


def row_of(kind: type[Vertex]) -> type[Vertex]:
    """Return the class under which the table has the operator of a class of vertices.

    One operator computes all ordered operations, whose vertices bring their work; and one all markings.
    """
    return next((row for row in (Ordered, Marking) if issubclass(kind, row)), kind)
