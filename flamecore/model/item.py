"""The data item: a payload and its meta, as they travel (paper 004, section 2.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

from flamecore.model.meta import Meta


class DataItem(NamedTuple):
    """One item on its way: (order, trace, alive, payload).

    Identity is (order, trace), without the payload. `alive` is False for a tombstone, which carries the identity
    *and* the payload of the one earlier item that it cancels, and takes the same path.

    The engine never makes one: its operations pass these four values as arguments, and its messages hold columns of
    them. Items are for observers of a run: the reference interpreter (`flamecore.testing.interpret`) returns them,
    the executable models (`flamecore.testing.models`) run on them, and the trace of a `Simulation` is made of them.
    """

    order: bytes
    trace: int
    alive: bool
    payload: Any

    @property
    def meta(self) -> Meta:
        """Return the decoded meta.

        Models with another meta have their own: `Ordering.meta`.
        """
        return Meta.decode(self.order, self.trace, tombstone=not self.alive)
