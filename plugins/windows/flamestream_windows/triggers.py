"""Triggers in the words of flows: `t.count(100) | t.every(minutes=1)`.

`a | b` fires with the first, `a & b` with the last, `a >> b` first a, then b; `a.repeat()` begins again, and
`a.until(b)` ends with b. `early=` and `late=` repeat by themselves.
"""

from __future__ import annotations

from typing import Any, Final

from flamecore.model.failure import shown_at_caller
from flamestream_windows.model.times import require_whole, units_duration
from flamestream_windows.model.triggers import (
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    Always,
    Default,
    Never,
    Trigger,
)

__all__ = ["Trigger", "always", "at_watermark", "count", "default", "every", "never"]

never: Final[Trigger] = Never()
"""Fires never: a window gives one pane, when it expires."""

always: Final[Trigger] = Always()
"""Fires whenever it is looked at: with each element, and when the watermark passes the end."""

default: Final[Trigger] = Default()
"""Fires when the watermark passes the end of the window, and with each late element."""


@shown_at_caller
def count(elements: int) -> Trigger:
    """Return the trigger that fires once a pane has so many elements.

    Raises:
        ValueError: There is none.
    """
    require_whole("count", "elements", elements)
    if elements < 1:
        raise ValueError(f"a pane has at least one element; count({elements}) would fire without")
    return AfterCount(elements)


@shown_at_caller
def every(*, aligned: bool = False, **units: Any) -> Trigger:
    """Return the trigger that fires a time after the first element of a pane.

    Args:
        aligned: Whether it fires at multiples of that time instead: on the minute, for `minutes=1`.
        units: The processing time, as the keywords of a timedelta.

    Raises:
        ValueError: It is not positive.
    """
    micros = units_duration("every", units, "the time")
    if micros < 1:
        raise ValueError(f"every({units}) has to be a positive time")
    return AfterProcessingTime(0, micros) if aligned else AfterProcessingTime(micros)


@shown_at_caller
def at_watermark(*, early: Trigger | None = None, late: Trigger | None = None) -> Trigger:
    """Return the trigger that fires when the watermark passes the end of the window.

    Args:
        early: When to fire before, again and again.
        late: When to fire behind, again and again.
    """
    for argument, trigger in (("early", early), ("late", late)):
        if not (trigger is None or isinstance(trigger, Trigger)):
            raise TypeError(f"at_watermark: {argument} is a trigger, such as count(1), not {trigger!r}")
    return AfterWatermark(early, late)
