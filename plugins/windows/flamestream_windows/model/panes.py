"""Panes, as users see them, and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, Literal, TypeVar

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


_NEW: Final = object.__new__
_SET: Final = object.__setattr__


def made_pane(key: Any, value: Any, window: Window, timing: Timing, index: int, last: bool) -> Pane[Any, Any]:
    """Return a pane that is no retraction, in a third of the time: a frozen dataclass sets its fields one by one."""
    pane: Pane[Any, Any] = _NEW(Pane)
    fields = {"key": key, "value": value, "window": window, "timing": timing, "index": index, "last": last}
    fields["retraction"] = False
    _SET(pane, "__dict__", fields)
    return pane


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
