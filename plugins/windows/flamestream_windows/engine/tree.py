"""Open windows of a key, in the order of (end, start): a tuple of a few, a B+ tree of many.

Both are immutable. A tree with one window changed shares all nodes but those on the way to it with the tree before, so
that a step costs the logarithm of the number of windows, and so does each record that a log of steps keeps. Each node
knows of its windows what a step asks for: the least hold, the least start, and the states of triggers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast, overload

from flamestream_windows.engine.values import Cell
from flamestream_windows.model.triggers import State
from flamestream_windows.model.windows import Window

Rank = tuple[int, int]
"""(end, start) of a window, by which the windows of a key are ordered."""

Row = Sequence[Cell]
"""Open windows in order: a tuple or a `Tree`."""

WIDTH: Final = 32
"""Most entries of a node, and most windows that are a plain tuple: to copy so few costs less than a tree."""

_STATES: Final = 8
"""Most states of triggers that a node notes of its windows. Those of one with more are looked at one by one."""


class Group(NamedTuple):
    """Windows of one state of the trigger.

    Attributes:
        state: The state.
        end: The end of the first of them.
        start: Its start.
        least: The least start of all.
    """

    state: State
    end: int
    start: int
    least: int


class Tree(Sequence[Cell]):
    """A node of a B+ tree, with all below it: windows, or other nodes. It is never changed.

    Args:
        parts: Its windows or nodes, in order, at least one.
        is_leaf: Whether these are windows.

    Attributes:
        last: The rank of the last window.
        hold: The least hold of the windows, or None.
        start: The least start.
    """

    __slots__ = ("_count", "_every", "_groups", "_is_leaf", "_parts", "hold", "last", "start")

    def __init__(self, parts: Sequence[Any], *, is_leaf: bool) -> None:
        self._parts: Sequence[Any] = parts
        self._is_leaf = is_leaf
        self._groups: Mapping[State, Group] | bool | None = False  # not known yet
        self._every: tuple[Callable[[Cell], bool], bool] | None = None  # what was asked for last
        if is_leaf:
            self.last: Rank = rank(parts[-1])
            self.hold: int | None = least_hold(parts)
            self.start: int = min([cell.window.start for cell in parts])
            self._count = len(parts)
        else:
            self.last = parts[-1].last
            self.hold = min([part.hold for part in parts if part.hold is not None], default=None)
            self.start = min([part.start for part in parts])
            self._count = sum([len(part) for part in parts])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Cell]:
        if self._is_leaf:
            yield from self._parts
        else:
            for part in self._parts:
                yield from part

    @overload
    def __getitem__(self, place: int) -> Cell: ...
    @overload
    def __getitem__(self, place: slice) -> Row: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return tuple(self)[place]
        if place < 0:
            place += self._count
        if not 0 <= place < self._count:
            raise IndexError(place)
        node = self
        while not node._is_leaf:
            for part in node._parts:
                if place < len(part):
                    node = part
                    break
                place -= len(part)
        return node._parts[place]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def leaf_of(self, place: Rank) -> Sequence[Cell]:
        """Return the windows of the leaf in which a window of a rank is, if it is anywhere."""
        node = self
        while not node._is_leaf:
            parts = node._parts
            node = parts[min(bisect_left(parts, place, key=_LAST), len(parts) - 1)]
        return node._parts

    def put(self, cell: Cell) -> list[Tree]:
        """Return one or two nodes with a window, in the place of one of its rank if there is one."""
        parts, place = self._parts, rank(cell)
        if self._is_leaf:
            return self._parted((*_with(parts, cell),))
        at = min(bisect_left(parts, place, key=_LAST), len(parts) - 1)
        return self._parted((*parts[:at], *parts[at].put(cell), *parts[at + 1 :]))

    def _parted(self, parts: Sequence[Any]) -> list[Tree]:
        if len(parts) <= WIDTH:
            return [Tree(parts, is_leaf=self._is_leaf)]
        half = len(parts) // 2
        return [Tree(some, is_leaf=self._is_leaf) for some in (parts[:half], parts[half:])]

    def without(self, place: Rank) -> Tree | None:
        """Return the node without the window of a rank, which is there; None: it has no other."""
        parts = self._parts
        if self._is_leaf:
            at = bisect_left(parts, place, key=rank)
            left = (*parts[:at], *parts[at + 1 :])
        else:
            at = bisect_left(parts, place, key=_LAST)
            part = parts[at].without(place)
            left = (*parts[:at], *(() if part is None else (part,)), *parts[at + 1 :])
        return Tree(left, is_leaf=self._is_leaf) if left else None

    def behind(self, end: int) -> Iterator[Cell]:
        """Yield the windows that end behind a time, in order."""
        parts = self._parts
        if self._is_leaf:
            yield from islice(parts, bisect_right(parts, end, key=_end_of), None)
        else:
            for part in islice(parts, bisect_right(parts, end, key=_last_end_of), None):
                yield from part.behind(end)

    def over(self, to: int) -> Iterator[Group]:
        """Yield groups of all windows that end up to a time, by the state of their triggers."""
        for part in self._parts:
            if self._is_leaf:
                if part.window.end > to:
                    return
                yield _group_of(part)
                continue
            groups = part.groups() if part.last[0] <= to else None
            yield from part.over(to) if groups is None else groups.values()
            if part.last[0] > to:
                return

    def chosen(self, to: int, chosen: Callable[[State], bool]) -> Iterator[Cell]:
        """Yield the windows that end up to a time and whose triggers are in a chosen state, in order."""
        for part in self._parts:
            if self._is_leaf:
                if part.window.end > to:
                    return
                if chosen(part.trigger):
                    yield part
                continue
            groups = part.groups()
            if groups is None or any(map(chosen, groups)):
                yield from part.chosen(to, chosen)
            if part.last[0] > to:
                return

    def every(self, holds: Callable[[Cell], bool]) -> bool:
        """Return whether a property holds for all windows."""
        if self._every is None or self._every[0] != holds:
            parts = self._parts
            found = all(map(holds, parts)) if self._is_leaf else all(part.every(holds) for part in parts)
            self._every = (holds, found)
        return self._every[1]

    def groups(self) -> Mapping[State, Group] | None:
        """Return all windows by the state of their triggers; None: there are too many states."""
        if self._groups is False:
            self._groups = self._grouped()
        return cast("Mapping[State, Group] | None", self._groups)

    def _grouped(self) -> Mapping[State, Group] | None:
        found: dict[State, Group] = {}
        for part in self._parts:
            if self._is_leaf:
                groups: Mapping[State, Group] | None = {part.trigger: _group_of(part)}
            else:
                groups = part.groups()
            if groups is None:
                return None
            for state, group in groups.items():
                first = found.get(state)
                if first is None:
                    found[state] = group
                elif group.least < first.least:
                    found[state] = first._replace(least=group.least)
            if len(found) > _STATES:
                return None
        return found


def rank(cell: Cell) -> Rank:
    """Return the place of a window among those of its key."""
    start, end = cell[0]
    return (end, start)


_LAST: Final = attrgetter("last")


def _end_of(cell: Cell) -> int:
    return cell.window.end


def _last_end_of(node: Tree) -> int:
    return node.last[0]


def _group_of(cell: Cell) -> Group:
    start, end = cell.window
    return Group(cell.trigger, end, start, start)


def least_hold(row: Row) -> int | None:
    """Return the least time at which a window holds the output watermark, or None."""
    if isinstance(row, Tree):
        return row.hold
    return min([time for cell in row for time in (cell.hold, cell.expiry_hold) if time is not None], default=None)


def find(row: Row, window: Window) -> Cell | None:
    """Return the state of a window, or None."""
    some: Row = row.leaf_of((window.end, window.start)) if isinstance(row, Tree) else row
    cell: Cell
    for cell in reversed(some):  # mostly the last one, and of a few others none is far
        if cell.window == window:
            return cell
    return None


def put(row: Row, cell: Cell) -> Row:
    """Return windows with one more, or with it in the place of one of its rank."""
    if isinstance(row, Tree):
        nodes = row.put(cell)
        return nodes[0] if len(nodes) == 1 else Tree(tuple(nodes), is_leaf=False)
    cells = _with(row, cell)
    return cells if len(cells) <= WIDTH else row_of(cells)


def remove(row: Row, window: Window) -> Row:
    """Return windows without one that is there."""
    place = (window.end, window.start)
    if not isinstance(row, Tree):
        at = bisect_left(row, place, key=rank)
        return (*row[:at], *row[at + 1 :])
    left = row.without(place)
    assert left is not None
    return left if len(left) > WIDTH // 2 else (*left,)


def behind(row: Row, end: int) -> Iterator[Cell]:
    """Yield the windows that end behind a time, in order."""
    return row.behind(end) if isinstance(row, Tree) else islice(row, bisect_right(row, end, key=_end_of), None)


def chosen(row: Row, to: int, chosen: Callable[[State], bool]) -> Iterator[Cell]:
    """Yield the windows that end up to a time and whose triggers are in a chosen state, in order."""
    if isinstance(row, Tree):
        return row.chosen(to, chosen)
    return (cell for cell in islice(row, bisect_right(row, to, key=_end_of)) if chosen(cell.trigger))


def every(row: Row, holds: Callable[[Cell], bool]) -> bool:
    """Return whether a property, always the same one, holds for all windows."""
    return row.every(holds) if isinstance(row, Tree) else all(map(holds, row))


def row_of(cells: Sequence[Cell]) -> Row:
    """Return windows that are in order as few or many are kept."""
    if isinstance(cells, Tree) or len(cells) <= WIDTH:
        return cells
    parts: Sequence[Any] = cells
    is_leaf = True
    while is_leaf or len(parts) > 1:
        half = max(WIDTH // 2, 2)
        parts = tuple([Tree(parts[at : at + half], is_leaf=is_leaf) for at in range(0, len(parts), half)])
        is_leaf = False
    return cast("Tree", parts[0])


def _with(cells: Sequence[Cell], cell: Cell) -> tuple[Cell, ...]:
    if cells and cells[-1][0] == cell[0]:  # mostly it is the last one
        return (*cells[:-1], cell)
    place = rank(cell)
    at = bisect_left(cells, place, key=rank)
    there = at < len(cells) and rank(cells[at]) == place
    return (*cells[:at], cell, *cells[at + there :])
