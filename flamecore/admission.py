"""Batches as a worker admits them: malformed records at their places among the others."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from flamecore.clock import Front
from flamecore.failure import Failure, in_words
from flamecore.front import Batch, Rejected
from flamecore.meta import GlobalTime


class Malformed:
    """A malformed record at its place among the others."""

    __slots__ = ("rejected",)

    def __init__(self, rejected: Rejected) -> None:
        self.rejected = rejected

    def failure(self, front: Front, time: int, *, fatal: bool) -> Failure:
        return Failure(
            source=front.name.source,
            vertex=None,
            record=in_words(self.rejected.raw),
            key=None,
            reason=self.rejected.reason,
            fatal=fatal,
            at=GlobalTime(time, front.number),
        )


def split(batch: Batch, first: int) -> tuple[Batch, Batch]:
    """A batch in two: its first records, as many as `first`, and the others."""
    places = sorted([*batch.positions, *(rejected.position for rejected in batch.rejected)])
    last = places[first - 1]
    count = sum(position <= last for position in batch.positions)
    early = [rejected for rejected in batch.rejected if rejected.position <= last]
    late = [rejected for rejected in batch.rejected if rejected.position > last]
    return (
        Batch(batch.values[:count], batch.positions[:count], early),
        Batch(batch.values[count:], batch.positions[count:], late),
    )


def in_place(batch: Batch) -> tuple[list[Any], list[Any]]:
    """Values and malformed records together, in the order of their positions."""
    records = list(zip(batch.positions, repeat(0), batch.values, strict=False))
    records += [(rejected.position, 1, Malformed(rejected)) for rejected in batch.rejected]
    records.sort(key=lambda record: record[:2])
    return [record[2] for record in records], [record[0] for record in records]
