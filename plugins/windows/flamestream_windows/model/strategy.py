"""Strategies: everything that decides when a window gives which pane."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

from flamecore.errors import GraphError
from flamestream_windows.model.aggregates import Aggregate, invertible
from flamestream_windows.model.times import MAX, duration, spell
from flamestream_windows.model.triggers import AfterCount, AfterWatermark, Never, Repeatedly, Trigger
from flamestream_windows.model.windows import Same, Sessions, Window, WindowFn

Panes = Literal["accumulating", "discarding", "retracting"]
Time = Literal["end", "earliest", "latest", "shifted"]
Emit = Trigger | Literal["final", "updates"]
Behaviour = Literal["always", "if_any"]

FINAL: Final = Never()
UPDATES: Final = Repeatedly(AfterCount(1))


@dataclass(frozen=True)
class Strategy:
    """A windowing strategy.

    Attributes:
        windows: Which windows elements are in.
        trigger: When a window gives a pane, before it expires.
        panes: Contents of a pane: all of the window, what is new, or all, with the pane before it taken back.
        time: The timestamp of a pane: the window's end, that of its first or last element, or the first as the windows
            shift it.
        lateness: Time after its end for which a window still accepts elements, in microseconds.
        on_time: Whether the pane on time is given though it holds nothing new.
        closing: Whether the last pane is.
        beyond: Whether a pane's time may lie behind its window.
    """

    windows: WindowFn
    trigger: Trigger = FINAL
    panes: Panes = "discarding"
    time: Time = "end"
    lateness: int = 0
    on_time: Behaviour = "always"
    closing: Behaviour = "if_any"
    beyond: bool = False

    def expiry(self, window: Window) -> int:
        """Return the greatest watermark at which a window is still there (`gc_time`)."""
        return min(window.end - 1 + self.lateness, MAX - 1)

    def hold(self, window: Window, at: int) -> int:
        """Return the time at which an element holds the watermark (`t_out`)."""
        if self.time == "end":
            return window.end - 1
        time = self.windows.shift(window, at) if self.time == "shifted" else at
        return time if self.beyond else min(time, window.end - 1)

    def combine(self, first: int, second: int) -> int:
        """Return the hold of two elements."""
        return max(first, second) if self.time == "latest" else min(first, second)

    @property
    def several(self) -> bool:
        """Return whether a window may emit several panes."""
        return self.trigger.often() or (self.lateness > 0 and self.trigger != FINAL)

    @property
    def silent(self) -> bool:
        """Return whether no window gives a pane before the input has ended."""
        return self.windows.endless and not self.trigger.early()

    @property
    def is_final(self) -> bool:
        """Return whether each window gives one pane, at its end, when it expires, and none joins others."""
        return self.trigger == FINAL and self.time == "end" and not self.windows.merging

    @property
    def is_updates(self) -> bool:
        """Return whether each window gives a pane with each element, at its end, and no other."""
        return (
            self.trigger == UPDATES
            and self.time == "end"
            and not self.windows.merging
            and self.panes != "retracting"
            and (self.on_time, self.closing) == ("if_any", "if_any")
        )

    @property
    def is_sessions(self) -> bool:
        """Return whether windows are sessions that give one pane, at their end, and take nothing behind it."""
        return type(self.windows) is Sessions and self.trigger == FINAL and self.time == "end" and self.lateness == 0

    def after(self) -> Strategy:
        """Return the strategy of what comes of a grouping by this one."""
        return replace(self, trigger=self.trigger.continuation())

    def again(self) -> Strategy:
        """Return the strategy that groups the panes of this one in the same windows."""
        return replace(self.after(), windows=Same())

    def __str__(self) -> str:
        late = f", lateness=({spell(self.lateness)})" if self.lateness else ""
        return f"{self.windows}{late}, emit={self.trigger}, panes={self.panes}, time={self.time}"


def strategy(
    windows: WindowFn,
    *,
    lateness: timedelta | int = 0,
    emit: Emit = "final",
    panes: Panes | None = None,
    time: Literal["end", "earliest", "latest"] = "end",
) -> Strategy:
    """Return the strategy of a grouping, as its words say.

    Args:
        windows: Which windows elements are in.
        lateness: Time after its end for which a window still accepts elements.
        emit: Time at which a window emits a pane: once, when it expires (`final`), with each element (`updates`), or
            by a trigger.
        panes: Contents of a pane; needed where a window may give several.
        time: The timestamp of a pane.

    Raises:
        GraphError: An element may come when its window's trigger has finished, or `panes` is missing.
    """
    if emit == "final":
        trigger: Trigger = FINAL
    elif emit == "updates":
        trigger = UPDATES
    elif isinstance(emit, Trigger):
        trigger = emit
    else:
        raise GraphError(
            f"emit={emit!r} says nothing about when a window gives a pane",
            hint="Say 'final', 'updates', or a trigger such as t.at_watermark(late=t.count(1)).",
        )
    if panes not in (None, "accumulating", "discarding", "retracting"):
        raise GraphError(
            f"panes={panes!r} says nothing about what a pane holds",
            hint="Say 'accumulating', 'discarding' or 'retracting'.",
        )
    if time not in ("end", "earliest", "latest"):
        raise GraphError(f"time={time!r} is no time of a pane", hint="Say 'end', 'earliest' or 'latest'.")
    made = Strategy(
        windows,
        trigger,
        panes or "discarding",
        "shifted" if time == "earliest" else time,
        duration(lateness, "lateness"),
        on_time="if_any" if emit == "updates" else "always",
    )
    if trigger.may_lose_data(made.lateness):
        raise GraphError(
            f"the trigger {trigger} may finish while elements of its window can still come, which would be lost",
            hint=_keeping(trigger),
            trigger=str(trigger),
        )
    if made.several and panes is None:
        raise GraphError(
            f"the trigger {trigger} may give several panes of a window, and nothing says what each holds",
            hint="Say panes='accumulating' (all so far), 'discarding' (what is new) or 'retracting' (all so far, and "
            "the pane before it is taken back).",
            trigger=str(trigger),
        )
    return made


def _keeping(trigger: Trigger) -> str:
    if isinstance(trigger, AfterWatermark):
        return "Give at_watermark a late=, such as late=t.count(1)."
    return f"Let it begin again: ({trigger}).repeat(), or wait for the end, with t.at_watermark(early=…, late=…)."


def check_aggregate(strategy: Strategy, aggregate: Aggregate, *, retractions: bool = False) -> None:
    """Refuse an aggregate that a strategy, or what comes in, asks too much of.

    Args:
        strategy: The strategy.
        aggregate: The aggregate.
        retractions: Whether elements may be retractions.

    Raises:
        GraphError: Windows merge and it cannot, or it cannot take elements back.
    """
    if strategy.windows.merging and not aggregate.mergeable:
        raise GraphError(
            f"windows {strategy.windows} may join, and nothing says how their values do",
            hint="Give the fold merge=, a function of two values.",
        )
    if retractions and not invertible(aggregate):
        raise GraphError(
            f"retractions come to {type(aggregate).__name__.lower()}, which cannot take elements back",
            hint="Use count, sum, mean or collect behind a grouping with panes='retracting'.",
        )


def check_emits(strategy: Strategy, *, endless: bool) -> None:
    """Refuse a strategy that can never give a pane.

    Args:
        strategy: The strategy.
        endless: Whether the input never ends: no watermark says that no more will come.

    Raises:
        GraphError: Its windows never end and nothing fires before.
    """
    if endless and strategy.silent:
        raise GraphError(
            f"windows {strategy.windows} with emit={strategy.trigger} never give a pane, for the input has no end",
            hint="Use windows that end, such as w.fixed(minutes=1), or a trigger such as t.count(100).repeat().",
            trigger=str(strategy.trigger),
        )
