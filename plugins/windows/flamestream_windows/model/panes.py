"""Panes, as users see them, and what was dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, Literal, TypeVar

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


@dataclass(frozen=True)
class Pane(Generic[K, V]):
    """The output of a window at one moment.

    Attributes:
        key: The key.
        value: The aggregate of the window's elements.
        window: The window.
        timing: Whether it is early, on time or late.
        index: Number of the pane among those of its window, from 0.
        last: Whether no pane of this window will follow.
        retraction: Whether it takes an equal pane back, one that was given before.
    """

    key: K
    value: V
    window: Window
    timing: Timing
    index: int
    last: bool
    retraction: bool = False

    @property
    def first(self) -> bool:
        """Return whether this is the first pane of its window."""
        return self.index == 0


class _Making(Generic[K, V]):
    """A pane that is being made: its fields can be set."""

    key: K
    value: V
    window: Window
    timing: Timing
    index: int
    last: bool
    retraction: bool


_NEW: Final[Callable[[type[_Making[Any, Any]]], Any]] = object.__new__


def pane_maker(window: Window, timing: Timing, *, last: bool) -> Callable[[Any, Any, int], Pane[Any, Any]]:
    """Return a function that makes panes of a window which are no retractions.

    The function takes key, value and index. It needs a fraction of the time of `Pane`: a frozen dataclass sets its
    fields the long way.
    """
    new, making, done = _NEW, _Making, Pane

    def made(key: Any, value: Any, index: int) -> Pane[Any, Any]:
        pane = new(making)
        pane.key = key
        pane.value = value
        pane.window = window
        pane.timing = timing
        pane.index = index
        pane.last = last
        pane.retraction = False
        pane.__class__ = done
        return pane  # type: ignore[no-any-return]

    return made


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
