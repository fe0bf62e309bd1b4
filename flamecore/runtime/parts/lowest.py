"""The lowest of many values that only grow, without a look at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace


class Lowest:
    """The keys of some values, by the value and then by the key.

    Args:
        keys: The keys.
        value_of: Function that returns the present value of a key, which never shrinks; None: it has none any more.
    """

    __slots__ = ("_heap", "_value_of")

    def __init__(self, keys: Iterable[int], value_of: Callable[[int], int | None]) -> None:
        self._value_of = value_of
        self._heap = [(value, key) for key in keys if (value := value_of(key)) is not None]
        heapify(self._heap)

    def first(self) -> tuple[int, int] | None:
        """Return the lowest (value, key), or None if none is left."""
        # One entry for each key, which is brought up to date once it is the lowest: no value has to be found in a heap,
        # and one that grows often costs nothing meanwhile.
        heap = self._heap
        while heap:
            entry = heap[0]
            value = self._value_of(entry[1])
            if value == entry[0]:
                return entry
            if value is None:
                heappop(heap)
            else:
                heapreplace(heap, (value, entry[1]))
        return None
