"""Today's meta: global time, child ids, trace, tombstone flag.

See paper 000, "Ordering model". Recomputed items have the place of the item that they replace. Items that are no longer
right are cancelled one by one: a tombstone has the identity (order and trace) of its victim, and follows it through the
same instances and channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flamecore.errors import DuplicateItemError, NoInvalideeError
from flamecore.model.meta import TRACE_MASK, DataItem, Meta, encode_child
from flamecore.testing.models.ordering import Instance, Ordering


class Tombstones(Ordering):
    """The rules of today's meta."""

    barriers_by_time: ClassVar[bool] = False  # a tombstone finds its victim wherever that has gone

    def meta(self, item: DataItem) -> Meta:
        return item.meta

    def images(self, instance: Instance, item: DataItem, payloads: Sequence[Any]) -> list[DataItem]:
        trace = item.trace ^ instance.ident
        return [
            DataItem(item.order + encode_child(child), trace, item.alive, payload)
            for child, payload in enumerate(payloads)
        ]

    def copies(self, instance: Instance, item: DataItem, count: int) -> list[DataItem]:
        return [item._replace(order=item.order + encode_child(child)) for child in range(count)]

    def merged(self, instance: Instance, item: DataItem) -> DataItem:
        # Turned by one bit, since the rounds of a cycle must not be exchangeable: two recomputations that saw the same
        # workers in another sequence would have one trace. The engine does so on the edges that close a cycle only.
        return item._replace(trace=(item.trace << 1 | item.trace >> 63) & TRACE_MASK)

    def meet(self, held: list[DataItem], item: DataItem) -> None:
        same = [other for other in held if (other.order, other.trace) == (item.order, item.trace)]
        if item.alive:
            if same:
                raise DuplicateItemError(
                    f"a second live item of one identity came: {item.payload!r} ({item.meta})",
                    hint="A user function, key or hash on its way is not deterministic.",
                    vertex=None,
                    record=item.payload,
                )
            held.append(item)
        else:
            if not same:
                raise NoInvalideeError(
                    f"the item that a tombstone cancels is not there: {item.payload!r} ({item.meta})",
                    hint="A user function, key or hash on its way is not deterministic.",
                    vertex=None,
                    record=item.payload,
                )
            held.remove(same[0])

    def windows(
        self, instance: Instance, gone: Sequence[Sequence[DataItem]], come: Sequence[Sequence[DataItem]]
    ) -> list[DataItem]:
        return [
            DataItem(window[-1].order, window[-1].trace ^ instance.ident, alive, tuple(part.payload for part in window))
            for alive, windows in ((False, gone), (True, come))
            for window in windows
        ]
