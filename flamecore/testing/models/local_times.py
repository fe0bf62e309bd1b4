"""The earlier meta: global time and a trace of local times.

See papers 001 and 004, section 3.

Every operation counts the items that it processes: its logical time. It appends (logical time, child id) to the trace
of each item that it emits, so a recomputed item has a greater trace than the one that it replaces, and the first
difference is in a logical time. Such an item *invalidates* the other: a bucket, and the barrier, keep only the later
one. There are no tombstones: an item is invalidated by a later item of the same element, or not at all.

    order = global time (12 bytes) | logical time (8 bytes) child id (4 bytes) | …

The limit of this meta: it replaces, and cannot retract. A recomputation that gives fewer items, or sends them to
another bucket, brings nothing newer to the place of the old item, which stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

from flamecore.model.meta import GLOBAL_TIME_BYTES, DataItem, GlobalTime
from flamecore.testing.models.ordering import Instance, Ordering

_LOGICAL_BYTES: Final = 8
_CHILD_BYTES: Final = 4
_LOCAL_TIME_BYTES: Final = _LOGICAL_BYTES + _CHILD_BYTES


class LocalTime(NamedTuple):
    """One element of a trace.

    It has the logical time of an operation, and the ordinal of the output within one input.
    """

    logical: int
    child: int = 0

    def encode(self) -> bytes:
        """Return 12 bytes that sort as the pair does."""
        return self.logical.to_bytes(_LOGICAL_BYTES, "big") + self.child.to_bytes(_CHILD_BYTES, "big")


class LocalTimesMeta(NamedTuple):
    """The earlier meta, spelled out: for tests and people."""

    global_time: GlobalTime
    trace: tuple[LocalTime, ...] = ()

    @property
    def order(self) -> bytes:
        """Return the bytes by which items of this meta are compared."""
        return self.global_time.encode() + b"".join(map(LocalTime.encode, self.trace))

    @classmethod
    def decode(cls, order: bytes) -> LocalTimesMeta:
        """Spell out the bytes by which items are compared.

        >>> LocalTimesMeta.decode(LocalTimesMeta(GlobalTime(7, 1), (LocalTime(3, 0),)).order).trace
        (LocalTime(logical=3, child=0),)
        """
        trace = order[GLOBAL_TIME_BYTES:]
        elements = [trace[at : at + _LOCAL_TIME_BYTES] for at in range(0, len(trace), _LOCAL_TIME_BYTES)]
        numbers = [
            (int.from_bytes(part[:_LOGICAL_BYTES], "big"), int.from_bytes(part[_LOGICAL_BYTES:], "big"))
            for part in elements
        ]
        return cls(GlobalTime.decode(order), tuple(LocalTime(*pair) for pair in numbers))

    def invalidates(self, other: LocalTimesMeta) -> bool:
        """Return whether an item of this meta invalidates one of `other`: a partial order.

        >>> start = GlobalTime(1)
        >>> early, late = (LocalTimesMeta(start, (LocalTime(logical, 0),)) for logical in (1, 2))
        >>> late.invalidates(early), early.invalidates(late)
        (True, False)
        >>> LocalTimesMeta(start, (LocalTime(1, 1),)).invalidates(early)  # siblings
        False
        """
        if self.global_time != other.global_time:
            return False
        for ours, theirs in zip(self.trace, other.trace, strict=False):
            if ours != theirs:
                return ours.logical > theirs.logical
        return False  # one is derived from the other

    def __str__(self) -> str:
        elements = " ".join(f"{logical}.{child}" for logical, child in self.trace)
        return f"{self.global_time.time}@{self.global_time.front}[{elements}]"


class LocalTimes(Ordering):
    """The rules of the earlier meta.

    Items have trace 0 and are alive: their orders say all.
    """

    # An item and one that invalidates it may come by different workers, but they have one global time.
    barriers_by_time: ClassVar[bool] = True

    def meta(self, item: DataItem) -> LocalTimesMeta:
        return LocalTimesMeta.decode(item.order)

    def images(self, instance: Instance, item: DataItem, payloads: Sequence[Any]) -> list[DataItem]:
        now = instance.tick()
        return [
            item._replace(order=item.order + LocalTime(now, child).encode(), payload=payload)
            for child, payload in enumerate(payloads)
        ]

    def copies(self, instance: Instance, item: DataItem, count: int) -> list[DataItem]:
        return self.images(instance, item, [item.payload] * count)

    def merged(self, instance: Instance, item: DataItem) -> DataItem:
        (image,) = self.images(instance, item, [item.payload])
        return image

    def meet(self, held: list[DataItem], item: DataItem) -> None:
        meta = self.meta(item)
        moment = item.order[:GLOBAL_TIME_BYTES]
        related = [(other, self.meta(other)) for other in held if other.order.startswith(moment)]
        if any(other.invalidates(meta) for _, other in related):
            return
        for other_item, other in related:
            if meta.invalidates(other):
                held.remove(other_item)
        held.append(item)

    def windows(
        self, instance: Instance, gone: Sequence[Sequence[DataItem]], come: Sequence[Sequence[DataItem]]
    ) -> list[DataItem]:
        # Windows that are gone cannot be retracted: only a later window with the same last item replaces one.
        now = LocalTime(instance.tick()).encode()
        return [DataItem(window[-1].order + now, 0, True, tuple(part.payload for part in window)) for window in come]
