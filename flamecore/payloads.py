"""Payloads of a run that are noted otherwise than one by one, and made only where somebody looks at one.

What counts, folds or reduces gives a pair for each item, and a sink that writes lines makes a line of each pair. Nobody
looks at these on their way through the barrier, to another process and into the file: the pairs are two columns, the
lines are one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Lines(Sequence[str]):
    """Texts of which each ends with a newline, and has no other. Equal to any sequence of the same ones.

    Args:
        text: All of them, one after the other.

    Raises:
        ValueError: It does not end with a newline.
    """

    __slots__ = ("_count", "_each", "text")

    def __init__(self, text: str) -> None:
        if text and text[-1] != "\n":
            raise ValueError(f"lines that end in the midst of one: {text[-80:]!r}")
        self.text = text
        self._count = text.count("\n")
        self._each: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._apart()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._apart())

    def _apart(self) -> list[str]:
        if self._each is None:
            self._each = [f"{line}\n" for line in self.text.split("\n")[:-1]]
        return self._each

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))


def chained(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The payloads of several runs, one after the other; noted as all of the parts are, if these are noted alike."""
    if len(parts) < 2:  # by far the most frequent
        return parts[0] if parts else []
    kind = type(parts[0])
    if kind is Rows:
        rows = [part.columns for part in parts if type(part) is Rows]
        if len(rows) == len(parts) and len(set(map(len, rows))) == 1:
            return Rows([_together(columns) for columns in zip(*rows, strict=True)])
    elif kind is Lines:
        texts = [part.text for part in parts if type(part) is Lines]
        if len(texts) == len(parts):
            return Lines("".join(texts))
    return _together(parts)


def _together(parts: Sequence[Sequence[Any]]) -> list[Any]:
    together: list[Any] = []
    for part in parts:  # lists are copied as they lie there
        together += part
    return together
