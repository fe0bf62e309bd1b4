"""Origins: fronts or partitions before, and the watermark they agree on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal, NamedTuple

from flamestream_windows.model.times import MAX, MIN

Standing = Literal["running", "idle", "ended"]


class Origin(NamedTuple):
    """The last words of an origin.

    Attributes:
        mark: Its last watermark.
        standing: Whether it counts: one that is idle, or has ended for now, holds nothing back.
    """

    mark: int = MIN
    standing: Standing = "running"


class Origins(NamedTuple):
    """The origins of an operation, an immutable value.

    Attributes:
        by_name: Each origin with its name, in the order of names.
        watermark: The greatest that they have agreed on.
    """

    by_name: tuple[tuple[Hashable, Origin], ...] = ()
    watermark: int = MIN

    @classmethod
    def of(cls, names: Iterable[Hashable], watermark: int = MIN) -> Origins:
        """Return origins that have said nothing yet, above a watermark."""
        return cls(tuple((name, Origin(watermark)) for name in names), watermark)

    def mark(self, name: Hashable, to: int) -> Origins:
        """Return the origins after one has said a watermark; it is not idle then."""
        return self._with(name, Origin(max(to, dict(self.by_name)[name].mark), "running"))

    def idle(self, name: Hashable) -> Origins:
        """Return the origins after one has said that it is idle."""
        return self._with(name, Origin(dict(self.by_name)[name].mark, "idle"))

    def end(self, name: Hashable, *, close: bool) -> Origins:
        """Return the origins after one has ended.

        Args:
            name: The origin.
            close: Whether nothing will ever come of it; otherwise it may go on later, from its last watermark.
        """
        mark = MAX if close else dict(self.by_name)[name].mark
        return self._with(name, Origin(mark, "ended"))

    @property
    def slowest(self) -> Hashable | None:
        """Return the origin that holds the watermark back; None: none does."""
        running = [(origin.mark, at) for at, (_, origin) in enumerate(self.by_name) if origin.standing == "running"]
        return self.by_name[min(running)[1]][0] if running else None

    def _with(self, name: Hashable, new: Origin) -> Origins:
        by_name = tuple((each, new if each == name else origin) for each, origin in self.by_name)
        marks = [origin.mark for _, origin in by_name if origin.standing == "running"]
        # Where all have ended and none is to go on, nothing will come. Where the others are idle it is as if the one of
        # the greatest mark had been the last to be so.
        if not marks:
            idle = [origin.mark for _, origin in by_name if origin.standing == "idle"]
            marks = [max(idle)] if idle else [MAX] if all(origin.mark == MAX for _, origin in by_name) else []
        return Origins(by_name, max([self.watermark, *([min(marks)] if marks else [])]))
