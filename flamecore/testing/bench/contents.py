"""The outputs of an operation that is tested without a barrier."""

from __future__ import annotations

from typing import Any

from flamecore.model.meta import encode_time


class Contents:
    """Outputs that no tombstone has cancelled yet.

    Attributes:
        held: Payloads by order and trace.
        log: All items and tombstones in order of arrival, as (whether it is an item, its order, its payload).
    """

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, int], Any] = {}
        self.log: list[tuple[bool, bytes, Any]] = []

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Take an item, or a tombstone that cancels one.

        Raises:
            AssertionError: There is a live item of that identity already, or none, or one of another payload.
        """
        self.log.append((alive, order, payload))
        if alive:
            assert (order, trace) not in self.held, f"two live outputs of one identity: {payload!r}"
            self.held[order, trace] = payload
        else:
            assert self.held.pop((order, trace)) == payload, "a tombstone carries what its victim did"

    def since(self, time: int) -> list[tuple[bytes, Any]]:
        """Return orders and payloads of the items from a global time on, sorted by order."""
        limit = encode_time(time)
        return [(order, payload) for order, payload in self.sequence if order >= limit]

    @property
    def sequence(self) -> list[tuple[bytes, Any]]:
        """Return the orders and payloads of all items, sorted by order."""
        return sorted(((order, payload) for (order, _), payload in self.held.items()), key=_order)


def _order(item: tuple[bytes, Any]) -> bytes:
    return item[0]
