"""The table of operators: one row for each kind of vertex.

Plugins add theirs when a job is put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flamecore.abc.operator import Build
from flamecore.model.drift import Drift
from flamecore.model.vertices import Broadcast, Grouping, KeyedLoop, Map, Merge, Sink, Vertex
from flamecore.runtime.operators.barrier import sink_operator
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.runtime.operators.map import BroadcastOperator, MapOperator, MergeOperator

Operators = Mapping[type[Vertex], Build]
"""Class of vertices → function that builds its operator."""

OPERATORS: Final[Operators] = {
    Map: MapOperator,
    Broadcast: BroadcastOperator,
    Merge: MergeOperator,
    KeyedLoop: MergeOperator,
    Grouping: GroupingOperator,
    Drift: DriftOperator,
    Sink: sink_operator,
}
