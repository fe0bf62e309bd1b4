"""Story of a grouping: its elements, watermark and panes, in processing order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from flamecore.abc.operator import Work
from flamecore.model.ordered import Now, Outcome, Timer
from flamestream_windows.flows.stamps import DROPPED, LATE
from flamestream_windows.flows.work import GroupingWork, Stamp
from flamestream_windows.model.panes import Pane

Fate = Literal["in time", "late", "dropped"]


class Element(NamedTuple):
    """An element of a grouping.

    Attributes:
        key: Its key.
        time: The global time at which it was worked on.
        at: Its event time.
        value: Its value.
        fate: Whether it came in time, came late and was taken, or was dropped.
    """

    key: Any
    time: int
    at: int
    value: Any
    fate: Fate


class Given(NamedTuple):
    """A pane, and the global time at which it was given."""

    time: int
    pane: Pane[Any, Any]


@dataclass(slots=True)
class Story:
    """Events of a grouping on one worker, for a picture.

    Attributes:
        elements: The elements, in order.
        panes: The panes, in order.
        watermarks: (global time, watermark) of each call before which the watermark has risen.
    """

    elements: list[Element] = field(default_factory=list)
    panes: list[Given] = field(default_factory=list)
    watermarks: list[tuple[int, int]] = field(default_factory=list)

    def keys(self) -> list[Any]:
        """Return the keys of all elements, in the order in which they came."""
        return list(dict.fromkeys(element.key for element in self.elements))

    def watched(self, work: GroupingWork) -> Work:
        """Return the same work; the story notes what it does."""
        return _Watched(work, self)

    def note(self, now: Now, outputs: Iterable[Stamp]) -> None:
        """Note the watermark and the panes of a call."""
        if not self.watermarks or self.watermarks[-1][1] < now.watermark:
            self.watermarks.append((now.time, now.watermark))
        self.panes += [Given(now.time, value) for _, _, value in outputs if isinstance(value, Pane)]


class _Watched(Work):
    """The work of a grouping, one item at a time."""

    def __init__(self, work: GroupingWork, story: Story) -> None:
        self._work, self._story = work, story

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        outcome = self._work.process(key, state, payload, now)
        outputs = [*outcome.outputs]
        kinds = {kind for kind, _, _ in outputs}
        fate: Fate = "late" if LATE in kinds else "dropped" if DROPPED in kinds else "in time"
        at, value = self._work.timed(payload)
        self._story.elements.append(Element(key, now.time, at, value, fate))
        self._story.note(now, _told(outputs))
        return outcome._replace(outputs=outputs)

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        outcome = self._work.on_time(key, state, timer, now)
        outputs = [*outcome.outputs]
        self._story.note(now, _told(outputs))
        return outcome._replace(outputs=outputs)


def _told(outputs: Iterable[Stamp]) -> list[Stamp]:
    """Return the panes, without late and dropped elements.

    A late or dropped element that is itself a pane is recorded separately.
    """
    return [output for output in outputs if output[0] not in (LATE, DROPPED)]
