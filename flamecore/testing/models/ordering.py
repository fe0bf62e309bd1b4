"""The rules in which metas differ: metas of outputs, and replacement on arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flamecore.model.meta import DataItem


@dataclass(slots=True, eq=False)
class Instance:
    """A physical instance: one vertex on one worker.

    Attributes:
        ident: Random unsigned 64-bit number; no other instance has it.
        processed: Number of items that it has processed: its logical time.
    """

    ident: int
    processed: int = 0

    def tick(self) -> int:
        """Count one processed item, and return the new logical time."""
        self.processed += 1
        return self.processed


class Ordering(ABC):
    """The rules of one generation of the meta.

    Attributes:
        barriers_by_time: Whether the global time of an item selects the worker whose barrier holds it. Otherwise the
            barrier is on the worker that the item is on.
    """

    barriers_by_time: ClassVar[bool]

    @abstractmethod
    def meta(self, item: DataItem) -> Any:
        """Return the meta of an item spelled out."""

    @abstractmethod
    def images(self, instance: Instance, item: DataItem, payloads: Sequence[Any]) -> list[DataItem]:
        """Return the images of an item under a map, ascending: one for each payload."""

    @abstractmethod
    def copies(self, instance: Instance, item: DataItem, count: int) -> list[DataItem]:
        """Return copies of an item, ascending.

        They are for the successors of a broadcast, or for all workers.
        """

    @abstractmethod
    def merged(self, instance: Instance, item: DataItem) -> DataItem:
        """Return the image of an item under a merge."""

    @abstractmethod
    def meet(self, held: list[DataItem], item: DataItem) -> None:
        """Add an arriving item to those held by a bucket or barrier.

        `held` is changed; its order may be any.

        Raises:
            ConsistencyError: No right order of arrivals leads to this.
        """

    @abstractmethod
    def windows(
        self, instance: Instance, gone: Sequence[Sequence[DataItem]], come: Sequence[Sequence[DataItem]]
    ) -> list[DataItem]:
        """Return the items that a grouping emits after an arrival, in that order.

        Args:
            instance: The grouping.
            gone: The windows that it has emitted and that are no longer right, in ascending order.
            come: The windows that are right and that it has not emitted yet, in ascending order.
        """
