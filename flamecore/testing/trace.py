"""The trace of a simulated run: the arrivals of all items."""

from __future__ import annotations

from typing import NamedTuple

from flamecore.model.meta import DataItem


class Arrival(NamedTuple):
    """An item that has arrived at a vertex of a worker."""

    worker: int
    vertex: str
    item: DataItem
