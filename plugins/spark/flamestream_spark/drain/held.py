"""Items that are held until the workers have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter, thread_time
from typing import Any, ClassVar, Final, NamedTuple

from flamecore.abc.sink import Guarantee, Sink
from flamecore.errors import CodecError, SinkError
from flamecore.model.batch import pack, unpack
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED
from flamecore.runtime.parts.suffix import Outcome, SuffixRun
from flamestream_spark.drain.cut import uncut
from flamestream_spark.drain.left_out import LeftOut
from flamestream_spark.storage.place import Place

_PIECE: Final = 64
"""Items of a piece, which a task takes as a whole."""

_FILE_BYTES: Final = 1 << 22
"""Bytes of pieces that are written together, and held in memory until then."""

_SAMPLES: Final = (1, 8, 64)
"""Numbers of items that the suffix is weighed with, until it is found to be costly."""


class Piece(NamedTuple):
    """Some items, as bytes of a file."""

    file: str
    start: int
    size: int


def read_pieces(place: Place, pieces: Iterable[Piece], codec: Codec) -> Iterator[tuple[Any, ...]]:
    """Yield each piece, with spelled-out orders: orders, payloads, and what else was written with them.

    Args:
        place: The place of the files.
        pieces: The pieces, in the order of files.
        codec: The codec that has written them.
    """
    opened, name = None, ""
    try:
        for file, start, size in pieces:
            if name != file:
                if opened is not None:
                    opened.close()
                opened, name = place.open(file), file
            assert opened is not None
            opened.seek(start)
            orders, *rest = codec.decode(bytes(opened.read(size)), STORED)
            yield list(unpack(orders)), *rest
    finally:
        if opened is not None:
            opened.close()


class Items:
    """Items that are written down in a place.

    Args:
        place: Returns the place, which is made when there are items.
        codec: Codec of the items.

    Attributes:
        pieces: Where they are, in their order.
    """

    def __init__(self, place: Callable[[], Place], codec: Codec) -> None:
        self.pieces: list[Piece] = []
        self._place, self._codec = place, codec
        self._orders: list[bytes] = []
        self._payloads: list[Any] = []
        self._buffer = bytearray()
        self._files = 0

    def add(self, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        """Write items down.

        Raises:
            CodecError: One cannot be written.
            OSError: The place takes nothing.
        """
        self._orders += orders
        self._payloads += payloads
        whole = len(self._payloads) // _PIECE * _PIECE
        for start in range(0, whole, _PIECE):
            self._put(self._orders[start : start + _PIECE], self._payloads[start : start + _PIECE])
        del self._orders[:whole], self._payloads[:whole]

    def close(self) -> None:
        """Write down what is left. Raises as `add`."""
        if self._payloads:
            self._put(self._orders, self._payloads)
            self._orders, self._payloads = [], []
        self._flush()

    def _put(self, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        data = self._codec.encode((pack(orders), list(payloads)), STORED)
        self.pieces.append(Piece(f"items-{self._files:06d}", len(self._buffer), len(data)))
        self._buffer += data
        if len(self._buffer) >= _FILE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._place().replace(f"items-{self._files:06d}", bytes(self._buffer))
            self._buffer.clear()
            self._files += 1

    def weigh(self, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        """Write items, and read them, to no end. Raises CodecError as `add`."""
        self._codec.decode(self._codec.encode((pack(orders), payloads), STORED), STORED)

    def read(self) -> Iterator[tuple[Any, ...]]:
        """Yield orders and payloads of each piece."""
        return read_pieces(self._place(), self.pieces, self._codec) if self.pieces else iter(())


class HeldSink(Sink):
    """A sink in front of another one, which holds items until the workers have ended.

    Items go on at once, by way of the suffix, where that costs less than to write them down.

    Args:
        real: The sink that the outputs are for; it is opened with this one, and closed by another hand.
        items: Where items are held.
        suffix: The operations between; None: there are none, and everything is held.
        operations: Their number.
        begin: Called before it is opened.

    Attributes:
        count: Number of outputs that have gone on.
        left_out: Records whose items have not gone on, as the suffix has failed on them.
    """

    name: ClassVar[str] = "held"
    wants_orders = True

    def __init__(
        self, real: Sink, items: Items, begin: Callable[[], None], suffix: SuffixRun | None = None, operations: int = 0
    ) -> None:
        super().__init__(real.options, real.context)
        self.real, self.items = real, items
        self.count = 0
        self.left_out = LeftOut()
        self._begin = begin
        self._suffix, self._operations = suffix, operations
        self._costly: bool | None = None
        self._opened = False

    @property
    def guarantee(self) -> Guarantee:
        return self.real.guarantee

    @property
    def host(self) -> str:
        return self.real.host

    def writes(self) -> Sequence[str]:
        return self.real.writes()

    async def open(self) -> int:
        await asyncio.to_thread(self._begin)
        self._opened = True
        return await self.real.open()

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise AssertionError("it wants orders")

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        if self._suffix is not None and not self._costly:
            orders = uncut(orders, self._operations)
            outcome = await asyncio.to_thread(self._run, orders, payloads)
            if outcome is not None:
                await self.deliver(time, outcome.orders, outcome.payloads)
                return
        elif self._suffix is not None:
            orders = uncut(orders, self._operations)
        try:
            await asyncio.to_thread(self.items.add, orders, payloads)
        except (CodecError, OSError) as error:
            raise self._error(error) from error

    def _run(self, orders: Sequence[bytes], payloads: Sequence[Any]) -> Outcome | None:
        """Run the suffix for a batch; None: this and everything behind it is held."""
        assert self._suffix is not None
        if self._costly is None:
            self._costly = self._is_costly(orders, payloads)
        if self._costly:
            return None
        outcome = self._suffix.run(orders, payloads)
        failures = outcome.failures
        # The position of a record is found when all is over, and it decides what of this batch counts.
        if failures and (self._suffix.wants_letters or any(failure.fatal for _, failure in failures)):
            self._costly = True
            return None
        self.left_out.add(failures)
        return outcome

    def _is_costly(self, orders: Sequence[bytes], payloads: Sequence[Any]) -> bool:
        """Return whether the suffix takes longer than to write items down, and to read them.

        Running is measured by the clock, as a function may wait; the rest by processor time.
        """
        assert self._suffix is not None
        for count in _SAMPLES:
            some = orders[:count], list(payloads[:count])
            for _ in range(2):  # the first time everything is new
                began = perf_counter()
                self._suffix.run(*some)
                ran_s, began = perf_counter() - began, thread_time()
                try:
                    self.items.weigh(*some)
                except CodecError:
                    return False
                written_s = thread_time() - began
            if ran_s > written_s:
                return True
        return False

    async def deliver(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        """Hand outputs on to the sink.

        Args:
            time: Everything with a time below it is among these, or was among earlier ones.
            orders, payloads: The outputs, in meta order.

        Raises:
            SinkError: As the sink's `write`.
        """
        if not payloads:
            return
        if self.real.wants_orders:
            await self.real.write_ordered(time, list(orders), list(payloads))
        else:
            await self.real.write(time, list(payloads))
        self.count += len(payloads)

    async def sync(self, time: int) -> None:
        raise AssertionError("a job that keeps state holds nothing")

    async def aclose(self) -> None:
        try:
            await asyncio.to_thread(self.items.close)
        except (CodecError, OSError) as error:
            raise self._error(error) from error

    async def close_real(self) -> None:
        """Close the sink, if it was opened."""
        if self._opened:
            await self.real.aclose()

    def _error(self, error: Exception) -> SinkError:
        name = self.context.name
        return SinkError(
            f"sink {name!r}: what comes before its last operations cannot be held for them: {error}",
            hint=f"To run these operations on the workers: sink.{name}.suffix = false.",
            sink=name,
        )
