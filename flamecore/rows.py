"""Tuples of a run, noted place by place: made only where somebody looks at one.

What counts, folds or reduces gives a pair for each item. Nobody looks at these pairs on their way to a sink that writes
lines, or to another process, where values travel as columns anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload


class Rows(Sequence[tuple[Any, ...]]):
    """Tuples of one width, at least 1. Equal to any sequence of the same ones.

    Args:
        columns: For each place what stands there, as many each; not changed by anybody from now on.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: int | slice) -> tuple[Any, ...] | Rows:
        found = [column[index] for column in self.columns]
        return Rows(found) if isinstance(index, slice) else tuple(found)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.columns, strict=True)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))


def chained(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The payloads of several runs, one after the other; rows stay rows if they all are, and of one width."""
    if len(parts) == 1:  # by far the most frequent
        return parts[0]
    rows = [part.columns for part in parts if type(part) is Rows]
    if len(rows) == len(parts) and len(set(map(len, rows))) == 1:
        return Rows([list(chain.from_iterable(columns)) for columns in zip(*rows, strict=True)])
    return list(chain.from_iterable(parts))
