"""Side inputs: panes of one stream that elements of another wait for and see.

All keys share one record of the side; the elements that wait are a record for each key.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from flamecore.errors import ConsistencyError
from flamestream_windows.engine.values import Element, Emit, Output
from flamestream_windows.model.times import MIN
from flamestream_windows.model.windows import Window, WindowFn, ordered

Shape = Literal["singleton", "list", "dict"]


class SideRecord(NamedTuple):
    """All that is known of a side input.

    Attributes:
        contents: Windows, in the order of (end, start), and the values of each key in them, in the order in which the
            keys first came.
        watermark: The watermark of the side.
    """

    contents: tuple[tuple[Window, tuple[tuple[Hashable, tuple[Any, ...]], ...]], ...] = ()
    watermark: int = MIN


class Waiting(NamedTuple):
    """An element that waits, and whether it holds the output watermark."""

    at: int
    value: Any
    window: Window
    holds: bool


class WaitRecord(NamedTuple):
    """The elements of a key that wait, in the order in which they came."""

    waiting: tuple[Waiting, ...] = ()


_NOTHING: Final = WaitRecord()


@dataclass(frozen=True)
class Side:
    """A side input.

    Attributes:
        windows: Windows of the side, of which an element of the main input looks at one.
        shape: Its form: the value of the last pane, a list of the values of all keys, or a dict by key.
        panes: Whether a pane takes the place of the one before it of its key, or is put behind it.
        default: The value of a singleton whose window has none.
        whole: Whether a window is ready only when the watermark has passed its end: a pane of one key says nothing of
            those of others.
    """

    windows: WindowFn
    shape: Shape = "singleton"
    panes: Literal["accumulating", "discarding", "retracting"] = "accumulating"
    default: Any = None
    whole: bool = False

    def take(self, side: SideRecord, key: Hashable, value: Any, window: Window, *, retraction: bool) -> SideRecord:
        """Return the side after a pane of it, or the retraction of one."""
        contents = dict(side.contents)
        keys = dict(contents.get(window, ()))
        values = keys.get(key, ())
        if retraction:
            at = values.index(value) if value in values else len(values)
            keys[key] = (*values[:at], *values[at + 1 :])
        elif self.panes == "accumulating":
            keys[key] = (value,)
        else:
            keys[key] = (*values, value)
        contents[window] = tuple((each, held) for each, held in keys.items() if held)
        return side._replace(contents=tuple((each, contents[each]) for each in ordered(contents)))

    def mark(self, side: SideRecord, to: int) -> SideRecord:
        """Return the side after a step of its watermark."""
        return side._replace(watermark=max(to, side.watermark))

    def forget(self, side: SideRecord, before: int) -> SideRecord:
        """Return the side without the windows that end at or before a time."""
        return side._replace(contents=tuple(pair for pair in side.contents if pair[0].end > before))

    def is_ready(self, side: SideRecord, window: Window) -> bool:
        """Return whether a window of the side has had a pane, or will have none.

        If `whole`, return whether the window is over.
        """
        if side.watermark >= window.end:
            return True
        return not self.whole and any(each == window for each, _ in side.contents)

    def view(self, side: SideRecord, window: Window) -> Any:
        """Return what an element sees of a window of the side.

        Raises:
            ConsistencyError: A singleton has several keys.
        """
        keys = next((keys for each, keys in side.contents if each == window), ())
        if self.shape == "dict":
            return {key: list(held) if self.panes == "discarding" else held[-1] for key, held in keys}
        if self.shape == "list":
            return [value for _, held in keys for value in held]
        if len(keys) > 1:
            raise ConsistencyError(
                f"the side input has {len(keys)} keys in {window}, and is to be a single value",
                hint="Take it as a dict, or bring it to one key before.",
            )
        return keys[0][1][-1] if keys else self.default

    @property
    def nothing(self) -> WaitRecord:
        """Return the record of a key of which nothing waits."""
        return _NOTHING

    def hold(self, record: WaitRecord) -> int | None:
        """Return where a key holds the output watermark, or None."""
        return min((each.at for each in record.waiting if each.holds), default=None)

    def element(
        self, record: WaitRecord, element: Element, watermark: int, side: SideRecord
    ) -> tuple[WaitRecord, list[Output]]:
        """Give an element what it looks at, once for each of its windows, or let it wait.

        Args:
            record: The record of its key.
            element: The element.
            watermark: The input watermark before it.
            side: The side.
        """
        held = self.hold(record)
        output = watermark if held is None else min(watermark, held)
        coming = [
            Waiting(element.at, element.value, self.windows.side(window), element.at >= output)
            for window in ordered(element.windows)
        ]
        return self._passed((*record.waiting, *coming), side)

    def release(self, record: WaitRecord, side: SideRecord) -> tuple[WaitRecord, list[Output]]:
        """Release the elements of a key that wait no longer, after a step of the side."""
        return self._passed(record.waiting, side)

    def _passed(self, waiting: tuple[Waiting, ...], side: SideRecord) -> tuple[WaitRecord, list[Output]]:
        left = tuple(each for each in waiting if not self.is_ready(side, each.window))
        outputs: list[Output] = [
            Emit((each.value, self.view(side, each.window)), each.at, (each.at, each.window.end, each.window.start))
            for each in waiting
            if self.is_ready(side, each.window)
        ]
        return (WaitRecord(left) if left else _NOTHING), outputs
