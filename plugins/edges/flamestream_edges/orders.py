"""The file of orders beside a partition, which tells the place of each of its rows among those of all partitions.

It consists of frames, one for each batch. A frame has a head of fixed width: the offset of the batch's first byte in
the partition, the time of its last row, the length of the body, and the XXH3-64 of all that; the body has the orders of
the rows, as `flamecore.model.batch.pack` makes them, in MessagePack.

A frame covers the rows from its offset to that of the next frame, or to the end of the partition. It may have more
orders than there are rows: the partition was cut within the batch, and the first orders count. Frames at or beyond the
end of the partition are those of batches that were cut off, or cut short.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from flamecore.model.batch import Note, Orders, pack, unpack
from flamecore.model.meta import decode_time, encode_time

SUFFIX: Final = ".orders"

_HEAD: Final = Struct(">QqI")
_DIGEST: Final = Struct(">Q")
_WIDTH: Final = _HEAD.size + _DIGEST.size
_AHEAD: Final = 2**20
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(Note).decode

RowEnds = Callable[[bytes], list[int]]
"""Function that returns where each row of some bytes ends."""


class Frame(NamedTuple):
    """A frame.

    Attributes:
        start: Offset of the batch in the partition.
        time: Time of its last row.
        at: Offset of the frame in this file.
        body: The orders, encoded.
    """

    start: int
    time: int
    at: int
    body: bytes

    @property
    def orders(self) -> Orders:
        """Return the orders of the batch."""
        return unpack(_DECODE(self.body))


class DamagedOrdersError(Exception):
    """Orders do not match the rows."""


def frames(path: Path, length: int) -> Iterator[Frame]:
    """Yield the frames of the first `length` bytes of a partition.

    It ends before a frame that is not as written: those of a batch that was cut short, or damage.

    Args:
        path: The partition.
        length: Number of its bytes that count.

    Raises:
        OSError: They cannot be read; FileNotFoundError if there are none.
    """
    with open(path.with_name(path.name + SUFFIX), "rb", buffering=_AHEAD) as file:
        at = 0
        while len(head := file.read(_WIDTH)) == _WIDTH:
            start, time, size = _HEAD.unpack_from(head)
            if start >= length:
                return
            body = file.read(size)
            (digest,) = _DIGEST.unpack_from(head, _HEAD.size)
            if len(body) < size or xxh3_64_intdigest(head[: _HEAD.size] + body) != digest:
                return
            yield Frame(start, time, at, body)
            at += _WIDTH + size


def batches(
    path: Path, length: int, row_ends: RowEnds, since: int = 0
) -> Iterator[tuple[Frame, Orders, bytes, list[int]]]:
    """Yield (frame, orders, bytes, ends of rows) of the first `length` bytes of a partition.

    Args:
        path, length: As for `frames`.
        row_ends: Function that finds the rows.
        since: Offset of the first frame to yield.

    Raises:
        DamagedOrdersError: There are rows without an order.
        OSError: They cannot be read.
    """
    found = (frame for frame in frames(path, length) if frame.at >= since)
    if (frame := next(found, None)) is None:
        return
    with open(path, "rb", buffering=_AHEAD) as file:
        file.seek(frame.start)
        while frame is not None:
            following = next(found, None)
            end = length if following is None else following.start
            data, orders = file.read(end - frame.start), frame.orders
            ends = row_ends(data)
            if len(ends) > len(orders) or len(data) < end - frame.start or not ends or ends[-1] < len(data):
                what = f"bytes {frame.start} to {end - 1} of {path} have {len(ends)} rows and {len(orders)} orders"
                raise DamagedOrdersError(what)
            yield frame, orders[: len(ends)], data, ends
            frame = following


def length_below(path: Path, length: int, time: int, row_ends: RowEnds) -> int:
    """Return the length of the rows below a time in the first `length` bytes of a partition.

    Raises:
        DamagedOrdersError, OSError: As `batches`.
    """
    reaching = next((frame for frame in frames(path, length) if frame.time >= time), None)
    if reaching is None:
        return length
    limit = encode_time(time)
    # Its rows of that time may be gone, if the partition was cut there before.
    for frame, orders, _, ends in batches(path, length, row_ends, reaching.at):
        kept = bisect_left(orders, limit)
        if kept < len(orders):
            return frame.start + (ends[kept - 1] if kept else 0)
    return length


class OrdersFile:
    """The orders of a partition that is being written.

    Args:
        path: The partition; its orders are beside it.
        length: Number of its bytes that count: frames of batches beyond are removed.

    Raises:
        OSError: The file cannot be opened or written; by all methods.
    """

    def __init__(self, path: Path, length: int) -> None:
        beside = path.with_name(path.name + SUFFIX)
        self._at = 0
        if beside.exists():
            for frame in frames(path, length):
                self._at = frame.at + _WIDTH + len(frame.body)
        self._file: FileIO = open(beside, "r+b" if beside.exists() else "w+b", buffering=0)  # noqa: SIM115 – see close()
        self._file.truncate(self._at)
        self._before = self._at

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()

    def append(self, start: int, orders: Orders) -> None:
        """Add the orders of a batch that begins at an offset of the partition."""
        body = _ENCODE(pack(orders))
        head = _HEAD.pack(start, decode_time(orders[-1]), len(body))
        data = b"".join((head, _DIGEST.pack(xxh3_64_intdigest(head + body)), body))
        self._file.seek(self._at)
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._before, self._at = self._at, self._at + len(data)

    def undo(self) -> None:
        """Forget the last batch."""
        self._at = self._before

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()
