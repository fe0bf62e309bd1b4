"""Values of the engine: inputs and outputs of steps, and records. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from flamestream_windows.model.panes import Reason
from flamestream_windows.model.times import MIN
from flamestream_windows.model.triggers import State
from flamestream_windows.model.windows import GLOBAL, Window

Place = tuple[int, ...]
"""Place of an output among those of other keys at the same moment. Equal places are ordered by the hash of the key."""


class Moment(NamedTuple):
    """The watermark and the clock before a step. The output watermark is that of the key, which its record tells.

    Attributes:
        input: The input watermark (`LIWM`).
        clock: Processing time, in microseconds.
    """

    input: int = MIN
    clock: int = MIN


class Element(NamedTuple):
    """An element of a key.

    Attributes:
        value: Its value.
        at: Its timestamp.
        windows: The windows that it has from a grouping before.
        retraction: Whether it takes back an equal element that came before.
    """

    value: Any
    at: int
    windows: tuple[Window, ...] = (GLOBAL,)
    retraction: bool = False


class Watermark(NamedTuple):
    """A step of the input watermark."""

    to: int


class Clock(NamedTuple):
    """A step of processing time."""

    to: int


class Timer(NamedTuple):
    """A look at the trigger of one window, for no other reason."""

    window: Window


Input = Element | Watermark | Clock | Timer


class Firing(NamedTuple):
    """A pane, or a retraction of one.

    Attributes:
        value: The aggregate of its elements.
        window: Its window.
        at: Its timestamp.
        timing: A `Timing`, as a number.
        number: Its number among the panes of its window.
        on_time_number: Its number among those that are not early; -1: it is early (`nonspeculative_index`).
        last: Whether none will follow.
        retraction: Whether it takes one back.
        place: Its place.
    """

    value: Any
    window: Window
    at: int
    timing: int
    number: int
    on_time_number: int
    last: bool
    retraction: bool = False
    place: Place = ()


class Late(NamedTuple):
    """An element that came late and was taken."""

    value: Any
    at: int


class Drop(NamedTuple):
    """An element that a window did not take; `window` is None if it is in none."""

    value: Any
    at: int
    reason: Reason
    window: Window | None


class Emit(NamedTuple):
    """An output of a stateful function."""

    value: Any
    at: int
    place: Place = ()


Output = Firing | Late | Drop | Emit


class Cell(NamedTuple):
    """The state of an open window.

    Attributes:
        window: The window.
        accumulator: The accumulator of its elements; with discarding panes, of those since the last pane.
        fresh: Number of elements since the last pane.
        hold: Time at which its elements hold the output watermark, or None.
        expiry_hold: Time at which data that is too late for that holds it, or None (`gc_hold`).
        trigger: State of the trigger.
        pane: Timing, index and index on time of its last pane, or None.
        late_born: Whether it joined or came into being behind the watermark, so that all its panes are late.
        outstanding: With retracting panes: those given and not yet taken back, each with its accumulator as the value,
            which is immutable where a pane's value need not be.
    """

    window: Window
    accumulator: Any
    fresh: int
    hold: int | None
    expiry_hold: int | None
    trigger: State
    pane: tuple[int, int, int] | None
    late_born: bool
    outstanding: tuple[Firing, ...]


class Record(NamedTuple):
    """State of a grouping for one key.

    Attributes:
        open: Open windows, in the order of (end, start): a tuple where they are stored, or else a tree of many.
        closed: Windows whose trigger has finished and that have not expired, in the same order.
    """

    open: Sequence[Cell] = ()
    closed: tuple[Window, ...] = ()


NOTHING: Final = Record()
"""The record of a key that nothing is known of: it is not stored."""
