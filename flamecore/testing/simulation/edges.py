"""Sources and sinks of the simulated world, whose contents outlive processes.

See `flamecore.testing.simulation.world`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar, cast

from flamecore.abc.sink import Division, Guarantee, PartitionedSink, Sink
from flamecore.abc.source import Batch, EdgeContext, Reader, Source, SourceCapabilities
from flamecore.errors import SinkError, SourceError
from flamecore.model.meta import MIN_TIME, encode_time
from flamecore.testing.laws import LawBroken
from flamecore.testing.simulation.world import Mishap, Process


class Records:
    """Contents of a source.

    Attributes:
        records: All records there will ever be.
        there: Number of records that are there already.
        kept_from: Index of the first record kept: a reader has acknowledged those before it.
    """

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = list(records)
        self.there = len(self.records)
        self.kept_from = 0


class SimulatedSource(Source):
    """Records in memory; positions are their indices.

    If it finds ends, a run ends with the last record that is there when it begins.
    """

    name: ClassVar[str] = "simulated"

    def __init__(
        self,
        process: Process,
        name: str,
        type: Any,
        held: Records,
        began: Callable[[], None],
        *,
        finds_ends: bool = False,
    ) -> None:
        super().__init__(None, EdgeContext(name, type))
        self._process, self._held, self._began, self._finds_ends = process, held, began, finds_ends

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    async def find_end(self, partition: str) -> Any:
        if not self._finds_ends:
            return None
        await self._process.wait()
        return self._held.there

    async def open(self, partition: str, position: Any = None) -> Reader:
        return await self.open_until(partition, position, None)

    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        await self._process.wait()
        start = 0 if position is None else position + 1
        if start < self._held.kept_from:
            raise SourceError(
                f"source {self.context.name!r} is to be read from {start}, and was told to forget what is before "
                f"{self._held.kept_from}",
                source=self.context.name,
                position=start,
                forgotten=True,
            )
        return _Reader(self._process, self._held, start, self._began, end)


class _Reader(Reader):
    def __init__(self, process: Process, held: Records, start: int, began: Callable[[], None], end: int | None) -> None:
        self._process, self._held, self._next, self._began, self._end = process, held, start, began, end

    async def read(self, limit: int) -> Batch | None:
        self._began()
        await self._process.wait()
        held, random = self._held, self._process.world.random
        there = held.there if self._end is None else self._end
        count = min(limit, there - self._next, random.choice((1, 2, 3, 3, 20)))
        if count <= 0:
            return None
        start, self._next = self._next, self._next + count
        return Batch(held.records[start : self._next], range(start, self._next))

    async def acknowledge(self, position: Any) -> None:
        await self._process.wait()
        self._held.kept_from = max(self._held.kept_from, position + 1)


class Contents:
    """The contents of a sink: outputs and the time up to which they go.

    Both change together.

    Args:
        grown: Called whenever there are more outputs.
    """

    def __init__(self, grown: Callable[[], None] = lambda: None) -> None:
        self.grown = grown
        self.outputs: list[Any] = []
        self.time = MIN_TIME
        self.owner: object = None
        self.mishap = Mishap()


class PartitionedContents(Contents):
    """The contents of a sink in partitions.

    Attributes:
        partitions: For each worker's partition its outputs with their orders, and the time up to which they go.
        count: Number of partitions that are being written.
        floor: Time below which all of them are durable.
        grant: Grant of the last division.
    """

    def __init__(self, grown: Callable[[], None] = lambda: None) -> None:
        super().__init__(grown)
        self.partitions: dict[int, tuple[int, list[tuple[bytes, Any]]]] = {}
        self.count = 0
        self.floor = MIN_TIME
        self.grant = ""

    def merge(self) -> None:
        """Set the outputs to those below its time, of all partitions."""
        limit = encode_time(self.time)
        items = [item for _, held in self.partitions.values() for item in held if item[0] < limit]
        self.outputs[:] = [payload for _, payload in sorted(items, key=itemgetter(0))]


class SimulatedSink(Sink):
    """A sink that takes every batch exactly once, and belongs to its last opener."""

    name: ClassVar[str] = "simulated"

    def __init__(self, process: Process, name: str, held: Contents) -> None:
        super().__init__(None, EdgeContext(name))
        self._process, self._held = process, held
        self._busy = False

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def open(self) -> int:
        def own() -> int:
            self._held.owner = self
            return self._held.time

        held: int = await self._call(own)
        return held

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        def add() -> None:
            self._grow(time)
            self._held.outputs.extend(payloads)
            self._held.grown()

        if not payloads:
            raise LawBroken("calls", f"sink {self.context.name!r} is given an empty batch")
        await self._call(add)

    async def sync(self, time: int) -> None:
        await self._call(lambda: self._grow(time) if time > self._held.time else self._check())

    def _grow(self, time: int) -> None:
        self._check()
        if time < self._held.time:
            raise LawBroken(
                "calls", f"sink {self.context.name!r} is given a batch of {time} after one of {self._held.time}"
            )
        self._held.time = time

    def _check(self) -> None:
        if self._held.owner is not self:
            raise SinkError(
                f"sink {self.context.name!r} has been taken over by another run", sink=self.context.name, fenced=True
            )

    async def _call(self, do: Callable[[], Any]) -> Any:
        mishap = self._held.mishap
        if self._busy:
            raise LawBroken("calls", f"sink {self.context.name!r} is called while it is at work")
        self._busy = True
        try:
            return await self._process.reach(lambda: mishap.around(do, self._failed))
        finally:
            self._busy = False

    def _failed(self) -> SinkError:
        return SinkError("the simulated sink fails", sink=self.context.name, injected=True)


class SimulatedPartitionedSink(SimulatedSink, PartitionedSink):
    """A sink in partitions, which belongs to its last opener."""

    @property
    def _whole(self) -> PartitionedContents:
        return cast(PartitionedContents, self._held)

    async def divide(self, workers: int) -> Division:
        def cut() -> Division:
            self._check()
            held = self._whole
            times = [max(held.partitions[number][0], held.floor) for number in range(held.count)]
            time = held.floor = held.time = min(times, default=held.floor)
            held.count = workers
            for number in {*held.partitions, *range(workers)}:
                items = held.partitions.get(number, (time, []))[1]
                del items[bisect_left(items, encode_time(time), key=itemgetter(0)) :]
                held.partitions[number] = (time, items)
            held.merge()
            held.grant = f"{self._process.world.random.getrandbits(64)}"
            return Division(time, held.grant)

        return cast(Division, await self._call(cut))

    def partition(self, worker: int, grant: str) -> Sink:
        return _SimulatedPartition(self._process, self.context.name, self._whole, worker, grant)

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        def complete() -> None:
            self._grow(time)
            before = len(self._held.outputs)
            self._whole.merge()
            if len(self._held.outputs) > before:
                self._held.grown()

        await self._call(complete)

    async def sync(self, time: int) -> None:
        def settle() -> None:
            self._grow(max(time, self._whole.time))
            self._whole.floor = self._whole.time

        await self._call(settle)

    def stored(self) -> Mapping[str, Sink]:
        return {}

    def merged(self) -> Iterator[bytes]:
        yield from ()


class _SimulatedPartition(SimulatedSink):
    """One worker's partition."""

    def __init__(self, process: Process, name: str, held: PartitionedContents, number: int, grant: str) -> None:
        super().__init__(process, name, held)
        self._whole, self._number, self._grant = held, number, grant

    async def open(self) -> int:
        def adopt() -> int:
            self._check()
            return self._whole.partitions[self._number][0]

        return cast(int, await self._call(adopt))

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise LawBroken("calls", f"a partition of sink {self.context.name!r} is given outputs without orders")

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        def add() -> None:
            self._check()
            before, items = self._whole.partitions[self._number]
            if time < before or (items and orders[0] <= items[-1][0]):
                raise LawBroken("calls", f"a partition of sink {self.context.name!r} is given outputs twice")
            items.extend(zip(orders, payloads, strict=True))
            self._whole.partitions[self._number] = (time, items)

        if not payloads:
            raise LawBroken("calls", f"a partition of sink {self.context.name!r} is given an empty batch")
        await self._call(add)

    async def sync(self, time: int) -> None:
        await self._call(self._check)

    def _check(self) -> None:
        if self._whole.grant != self._grant:
            raise SinkError(
                f"sink {self.context.name!r} has been taken over by another run", sink=self.context.name, fenced=True
            )
