"""The journals of a worker: the times that it has given.

They are stored before the outputs of these times are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from flamecore.abc.store import Store
from flamecore.errors import StoreError
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.state.format import Binding, journal_blob
from flamecore.runtime.state.journal import encode_journal, end_of


@dataclass(frozen=True, slots=True)
class EpochStore:
    """The store as one epoch writes to it.

    Attributes:
        store: Store of the blobs.
        number: Number of the epoch.
        binding: Binding of the epoch, for seals.
    """

    store: Store
    number: int
    binding: Binding

    async def create(self, blob: str, data: bytes) -> None:
        """Store a blob.

        Raises:
            StoreError: It is there already: another run has the number of this epoch.
        """
        if not await self.store.create(blob, data):
            raise StoreError(f"there is a blob {blob} already", store=self.store.name, blob=blob)


class JournalWriter:
    """The writer of a worker's journals.

    Args:
        worker: The worker.
        store: Store of the journals.
        flush: Function that sends the worker's messages.
    """

    def __init__(self, worker: Worker, store: EpochStore, flush: Callable[[], None]) -> None:
        self._worker, self._store, self._flush = worker, store, flush
        self._given = asyncio.Event()
        self._kept: list[tuple[int, int]] = []  # (number, end)
        self._number = 0  # number of the last stored journal
        self._needed: dict[int, int] = {}  # numbers that snapshots name as their first, and the latest time of these

    def wake(self) -> None:
        """Write a journal if the worker has given times."""
        if self._worker.ingress.promises.given_times:
            self._given.set()

    async def run(self) -> None:
        """Store all given times at once, after which their outputs may be released.

        Run until cancelled.
        """
        worker = self._worker
        while True:
            await self._given.wait()
            self._given.clear()
            given = worker.ingress.promises.take_given_times()
            if not given:
                continue
            number = self._number + 1
            blob = journal_blob(self._store.number, worker.index, number)
            await self._store.create(blob, encode_journal(given, blob, self._store.binding))
            self._number = number
            self._kept.append((number, end_of(given)))
            worker.confirm_times(given)
            self._flush()

    def needed_from(self, time: int) -> int:
        """Return the number of the first journal that a snapshot at `time` needs; it is there as long as that is."""
        first = next((number for number, end in self._kept if end > time), self._number + 1)
        self._needed[first] = time
        return first

    async def delete_before(self, time: int) -> None:
        """Delete the journals that snapshots from `time` on do not need: their times are all below it."""
        # The oldest first, and none behind one that is needed: a gap among journals would count as a loss. So would one
        # that a snapshot has named before it was stored, whatever its times.
        self._needed = {first: latest for first, latest in self._needed.items() if latest >= time}
        least = min(self._needed, default=self._number + 1)
        old = list(takewhile(lambda journal: journal[0] < least and journal[1] <= time, self._kept))
        del self._kept[: len(old)]
        if old:
            blobs = [journal_blob(self._store.number, self._worker.index, number) for number, _ in old]
            await self._store.store.delete(blobs)
