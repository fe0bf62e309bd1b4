"""Where items go: the contract of sink drivers (paper 000, "rear").

A rear delivers what the barrier releases: batches in meta order, each with the time below which everything has
now been delivered. A sink that stores the batch and the time in one atomic step is exactly-once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from flamecore.front import API, EdgeContext
from flamecore.meta import MIN_TIME

Guarantee = Literal["exactly_once", "at_least_once"]


class Sink(ABC):
    """A sink driver. One object for each sink of a flow.

    Class attributes: as for `flamecore.front.Source`. Calls come one after another, never at once.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None

    def __init__(self, options: Any, context: EdgeContext) -> None:
        self.options = options
        self.context = context

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """`exactly_once`: stores a batch and its time atomically, or is keyed so that a repeat changes nothing."""

    def continues(self, identity: str, *, continued: bool) -> None:
        """Called before `open` in a job that keeps state.

        Args:
            identity: Identifies that state; takes the place of the context's fingerprint.
            continued: The job has run before: what this sink holds of that identity is resumed, and nothing replaced.
        """
        self.context = replace(self.context, fingerprint=identity, continued=continued)

    def rehearse(self) -> None:
        """What `open` would refuse, as far as that can be known without touching anything. For `flamestream check`.

        Raises:
            SinkError: It would refuse.
        """
        return

    async def open(self) -> int:
        """Make ready to take batches.

        Returns:
            The time of the last batch held from an earlier run that is being resumed: batches are filtered so
            that nothing below it is written again. `MIN_TIME` when there is none.

        Raises:
            SinkError: It cannot be opened, or what is there cannot be resumed.
        """
        return MIN_TIME

    @abstractmethod
    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        """Store a batch and its time, both or neither.

        Args:
            time: Everything with a time below it has been delivered once this returns. Grows from call to call.
            payloads: What to deliver, in meta order; never empty.

        Raises:
            SinkError: It could not be stored. The job stops; nothing of this batch is left behind.
        """

    async def sync(self, time: int) -> None:
        """Make durable what was written, and that it is complete below `time`: a snapshot of that time is about to be
        recorded, and nothing below it will be written again. `open` returns at least `time` from then on.

        Raises:
            SinkError: It cannot be made durable.
        """
        return

    async def aclose(self) -> None:
        """Make durable what was written and release what is held. May be called twice."""
        return
