"""The trace of a simulated run: what came where, item by item."""

from __future__ import annotations

from typing import NamedTuple

from flamecore.model.item import DataItem


class Arrival(NamedTuple):
    """An item that came to a vertex of a worker."""

    worker: int
    vertex: str
    item: DataItem
