"""Records that operations have failed on without ending the job, each counted once.

Operations on workers and those behind them may both fail on items of one record. So workers say which records they have
left out, even if nobody wants their dead letters.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, ClassVar

import msgspec

from flamecore.abc.config import Edge, JobConfig
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.model.failure import Failure
from flamecore.model.meta import GLOBAL_TIME_BYTES, MIN_TIME, encode_time
from flamecore.model.plan import DEAD_LETTERS
from flamecore.runtime.config.defaults import FILE_OF_RECORDS


class LeftOut:
    """Records that operations have failed on without ending the job.

    Attributes:
        first: Order and failure of the first one; None: there is none.
        times: Their encoded global times, ascending, one behind another.
    """

    def __init__(self) -> None:
        self.first: tuple[bytes, Failure | None] | None = None
        self.times = bytearray()

    def add(self, failures: Iterable[tuple[bytes, Failure | None]]) -> None:
        """Add failures, in meta order."""
        for failure in failures:
            self.note(failure, failure[0][:GLOBAL_TIME_BYTES])

    def note(self, first: tuple[bytes, Failure | None], times: bytes) -> None:
        """Add records whose first failure is given; the first record may be the last one so far."""
        # A record may fail several times, and its items may be in several pieces.
        known = self.times[-GLOBAL_TIME_BYTES:] == times[:GLOBAL_TIME_BYTES]
        self.times += times[GLOBAL_TIME_BYTES * known :]
        self.first = self.first or first

    def each(self) -> Iterator[bytes]:
        """Yield the times."""
        for start in range(0, len(self.times), GLOBAL_TIME_BYTES):
            yield bytes(self.times[start : start + GLOBAL_TIME_BYTES])


def count_others(known: LeftOut, others: Iterable[LeftOut]) -> int:
    """Return the number of records that are among `others`, and not known."""
    ways = [zip(known.each(), repeat(True)), *(zip(other.each(), repeat(False)) for other in others)]
    records = groupby(heapq.merge(*ways, key=itemgetter(0)), key=itemgetter(0))
    return sum(not any(is_known for _, is_known in entries) for _, entries in records)


def telling(config: JobConfig, *, letters: bool) -> JobConfig:
    """Return a configuration of a job that skips records whose workers say which.

    Args:
        config: The configuration.
        letters: Whether there is a sink of dead letters.
    """
    # The sink is made on each node, and opened in the process of the control alone, which has another one in its place.
    sink = config.dead_letter if letters else Edge(use=FILE_OF_RECORDS, options={"path": os.devnull})
    return msgspec.structs.replace(
        config, job=msgspec.structs.replace(config.job, on_error=DEAD_LETTERS), dead_letter=sink
    )


class ListeningSink(Sink):
    """A sink in front of that of dead letters, which notes what records functions have failed on.

    Args:
        real: The sink of dead letters; None: there is none.
        skips: Whether the job skips these records, so that their letters go nowhere.

    Attributes:
        failed: The records.
        count: Number of letters that have gone on.
    """

    name: ClassVar[str] = "listening"
    wants_orders = True

    def __init__(self, real: Sink | None, *, skips: bool) -> None:
        super().__init__(None if real is None else real.options, EdgeContext(DEAD_LETTERS))
        if real is not None:
            self.context = real.context
        self.failed = LeftOut()
        self.count = 0
        self._real, self._skips = real, skips
        self._held = encode_time(MIN_TIME)

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once" if self._real is None else self._real.guarantee

    @property
    def host(self) -> str:
        return "" if self._real is None else self._real.host

    @property
    def writes_to_stdout(self) -> bool:
        return self._real is not None and self._real.writes_to_stdout

    def writes(self) -> Sequence[str]:
        return () if self._real is None else self._real.writes()

    async def open(self) -> int:
        if self._real is not None:
            self._held = encode_time(await self._real.open())
        return MIN_TIME  # records whose letters are held from an earlier run count, too

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise AssertionError("it wants orders")

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Mapping[str, Any]]) -> None:
        letters = list(zip(orders, payloads, strict=True))
        # A record without an operation could not be read: it has no items behind.
        self.failed.add((order, None) for order, letter in letters if letter["vertex"] is not None)
        if self._real is None:
            return
        del letters[: bisect_left(orders, self._held)]
        if self._skips:
            letters = [(order, letter) for order, letter in letters if letter["vertex"] is None]
        if not letters:
            return
        self.count += len(letters)
        if self._real.wants_orders:
            await self._real.write_ordered(time, [order for order, _ in letters], [letter for _, letter in letters])
        else:
            await self._real.write(time, [letter for _, letter in letters])

    async def aclose(self) -> None:
        if self._real is not None:
            await self._real.aclose()
