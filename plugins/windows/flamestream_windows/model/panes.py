"""Panes, as users see them, and what was dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, Literal, TypeVar

from flamestream_windows.model.windows import Window

K = TypeVar("K")
V = TypeVar("V")
E = TypeVar("E")


class Timing(IntEnum):
    """Time of a pane: before its window's end, the first after it, or a later one."""

    EARLY = 0
    ON_TIME = 1
    LATE = 2


Reason = Literal["lateness", "closed window", "no window"]


class _Fields(Generic[K, V]):
    """The fields of a pane, without a dictionary: there may be one pane for each record."""

    __slots__ = ("__weakref__", "index", "key", "last", "retraction", "timing", "value", "window")


@dataclass(frozen=True)
class Pane(_Fields[K, V]):
    """The output of a window at one moment.

    Attributes:
        key: The key.
        value: The aggregate of the window's elements.
        window: The window.
        timing: Whether it is early, on time or late.
        index: Number of the pane among those of its window, from 0.
        last: Whether it is known that no pane of this window will follow. It is of panes at the end of a window and its
            lateness, and not of those that elements or earlier times bring.
        retraction: Whether it takes an equal pane back, one that was given before.
    """

    __slots__ = ()

    key: K
    value: V
    window: Window
    timing: Timing
    index: int
    last: bool
    retraction: bool = field(default_factory=bool)  # a plain default would hide the field of the base

    @property
    def first(self) -> bool:
        """Return whether this is the first pane of its window."""
        return self.index == 0

    # By themselves pickles would set the fields, and those of a frozen class cannot be set.
    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


class _Making(_Fields[K, V]):
    """A pane that is being made: its fields can be set."""

    __slots__ = ()

    key: K
    value: V
    window: Window
    timing: Timing
    index: int
    last: bool
    retraction: bool


def panes_of(
    window: Window,
    timing: Timing,
    keys: Iterable[K],
    values: Iterable[V],
    indexes: Iterable[int],
    *,
    last: bool,
) -> list[Pane[K, V]]:
    """Return panes of a window which are no retractions.

    They need a fraction of the time of `Pane`: a frozen dataclass sets its fields the long way.

    Args:
        window: The window.
        timing: The timing of each pane.
        keys: The key of each.
        values: The value of each.
        indexes: The index of each.
        last: Whether no pane of the window follows for the key.
    """
    making: Callable[[], Any] = _Making
    done = Pane
    panes: list[Pane[K, V]] = []
    add = panes.append
    for key, value, index in zip(keys, values, indexes, strict=False):  # the indexes may be without end
        pane = making()
        pane.key = key
        pane.value = value
        pane.window = window
        pane.timing = timing
        pane.index = index
        pane.last = last
        pane.retraction = False
        pane.__class__ = done
        add(pane)
    return panes


@dataclass(frozen=True)
class Dropped(Generic[E]):
    """An element that one of its windows did not take, or that is in none.

    Attributes:
        value: The element.
        timestamp: Its timestamp.
        reason: Why: its window had expired, its trigger had finished, or there is no window.
        window: The window; None: there is none.
    """

    value: E
    timestamp: int
    reason: Reason
    window: Window | None = None
