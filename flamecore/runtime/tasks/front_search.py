"""A worker's side of the search for records behind the end of a job; see `flamecore.runtime.parts.search`."""

from __future__ import annotations

from typing import Protocol

from flamecore.abc.source import Batch
from flamecore.model.messages import CONTROL, Found, FoundNothing
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.tasks.sender import Sender


class Searching(Protocol):
    """A task of fronts (`flamecore.runtime.tasks.front_task`)."""

    def end_waiting(self) -> None: ...

    def wake(self) -> None: ...


class FrontSearch:
    """The search of the fronts of a worker.

    Args:
        worker: The worker.
        sender: Sender of its endpoint.
        is_open: Whether they search: the job goes on behind its end.

    Attributes:
        is_open: Whether no front of the job is known to have found a record, nor all to have found nothing.
        tasks: The tasks of the fronts.
    """

    def __init__(self, worker: Worker, sender: Sender, *, is_open: bool) -> None:
        self.is_open = is_open
        self.tasks: list[Searching] = []
        self._worker, self._sender = worker, sender

    def note(self, batch: Batch, policy: str) -> None:
        """Note a batch that is about to be admitted: with its first record that gets a time, the search is over."""
        if len(batch.values) or (batch.rejected and policy != "skip"):
            self._sender.send(CONTROL, Found(self._worker.index))
            self.end(found=True)

    def must_wait(self, number: int) -> bool:
        """Return whether a front that has nothing more to read waits for what others find."""
        return self.is_open and self._worker.fronts[number].is_behind_end

    def find_nothing(self, number: int) -> None:
        """Note that a front here has found nothing, and waits."""
        self._worker.fronts[number].waits_for_others = True
        self._sender.send(CONTROL, FoundNothing(number))

    def wake(self) -> None:
        """Wake the tasks of fronts: they may use the credit of those that wait."""
        # Else only a minimum time that grows would wake them, and none does before something is found.
        for task in self.tasks:
            task.wake()

    def end(self, *, found: bool) -> None:
        """End the search, and then the fronts that have waited for this."""
        if not self.is_open:
            return
        self.is_open = False
        if found:
            for front in self._worker.fronts.values():
                front.is_behind_end = False
        for task in self.tasks:
            task.end_waiting()
