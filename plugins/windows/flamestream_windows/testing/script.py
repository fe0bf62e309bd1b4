"""Scripts: late data, tested in five lines, on the engine alone."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self

from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Drop, Element, Firing, Late
from flamestream_windows.model.aggregates import Aggregate, Collect
from flamestream_windows.model.panes import Dropped, Pane, Timing
from flamestream_windows.model.strategy import Emit, Panes, Strategy, check_aggregate, strategy
from flamestream_windows.model.times import MAX, duration, instant
from flamestream_windows.model.windows import Fixed, WindowFn
from flamestream_windows.testing.keyed import Keyed, Keys


class Script:
    """A grouping, driven by hand, with instants as in a flow.

    As a context manager it fails at the end if there are panes that no call has asked for.

    Args:
        strategy: The strategy.
        aggregate: The aggregate of the elements.
    """

    def __init__(self, strategy: Strategy, aggregate: Aggregate) -> None:
        check_aggregate(strategy, aggregate)
        self.strategy = strategy
        self.keys = Keys(Grouping(strategy, aggregate), clock=0)
        self._panes: list[Pane[Any, Any]] = []
        self._late: list[Any] = []
        self._dropped: list[Dropped[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._panes:
            raise AssertionError(f"panes that nobody has asked for: {self._panes}")

    def add(self, *values: Any, at: datetime | float, key: Hashable = None) -> None:
        """Add elements of one key and timestamp, one after another."""
        for value in values:
            self._take(self.keys.element(key, Element(value, instant(at))))

    def watermark(self, to: datetime | float) -> None:
        """Move the input watermark. One that does not rise says nothing."""
        self._take(self.keys.advance(instant(to)))

    def clock(self, to: float) -> None:
        """Move processing time. An earlier one says nothing."""
        self._take(self.keys.tick(instant(to)))

    def advance(self, by: timedelta) -> None:
        """Move processing time on."""
        self._take(self.keys.tick(self.keys.clock + duration(by)))

    def finish(self) -> None:
        """End the input: no more data will ever come."""
        self._take(self.keys.advance(MAX))

    def panes(self) -> list[Pane[Any, Any]]:
        """Return the panes since the last call, in order."""
        panes, self._panes = self._panes, []
        return panes

    def values(self) -> list[Any]:
        """Return the values of the panes since the last call, in order."""
        return [pane.value for pane in self.panes()]

    def late(self) -> list[Any]:
        """Return the elements that came late and were taken, since the last call."""
        late, self._late = self._late, []
        return late

    def dropped(self) -> list[Dropped[Any]]:
        """Return what was dropped since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    @property
    def output_watermark(self) -> int:
        """Return the output watermark, in microseconds."""
        return self.keys.output

    def _take(self, outputs: list[Keyed]) -> None:
        for key, output in outputs:
            match output:
                case Firing(value, window, _, timing, index, _, last, retraction):
                    self._panes.append(Pane(key, value, window, Timing(timing), index, last, retraction))
                case Late(value):
                    self._late.append(value)
                case Drop(value, at, reason, window):
                    self._dropped.append(Dropped(value, at, reason, window))


def script(
    windows: WindowFn | None = None,
    *,
    lateness: timedelta | int = 0,
    emit: Emit = "final",
    panes: Panes | None = None,
    time: Literal["end", "earliest", "latest"] = "end",
    aggregate: Aggregate | None = None,
) -> Script:
    """Return a script of one grouping, with the words of `window`.

    Args:
        windows: Windows; without any, fixed ones of 10 microseconds.
        lateness: Time after its end for which a window accepts elements.
        emit: When windows give panes.
        panes: Contents of a pane.
        time: The timestamp of a pane.
        aggregate: The aggregate of the elements; by default a list of them.

    Raises:
        GraphError: A flow refuses it, too.
    """
    made = strategy(windows or Fixed(10), lateness=lateness, emit=emit, panes=panes, time=time)
    return Script(made, aggregate or Collect())
