"""The data item: a payload and its meta, as they travel (paper 004, section 2.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

from flamecore.meta import Meta


class DataItem(NamedTuple):
    """One item on its way: (order, trace, alive, payload).

    Identity is (order, trace); the payload is no part of it. `alive` is False for a tombstone, which carries
    the identity *and* the payload of the one earlier item that it cancels, and takes the same path.

    Inside a worker an item is never boxed: operations pass these four values as arguments.
    """

    order: bytes
    trace: int
    alive: bool
    payload: Any

    @property
    def meta(self) -> Meta:
        """The meta spelled out."""
        return Meta.decode(self.order, self.trace, tombstone=not self.alive)
