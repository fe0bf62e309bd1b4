"""Panes, as users see them, and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Literal, TypeVar

from flamestream_windows.model.windows import Window

K = TypeVar("K")
V = TypeVar("V")
E = TypeVar("E")


class Timing(IntEnum):
    """Whether a pane came before the end of its window, first after it, or later."""

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
        """Whether no pane of this window came before."""
        return self.index == 0


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
