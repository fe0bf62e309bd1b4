"""A file that takes every batch exactly once.

The batch is appended; then a line in a small side file makes it count. The format of the side file is in
`flamestream_edges.position`. Bytes beyond its length are a batch that was cut short, and are dropped when the file is
continued. Bytes that were never forced to the disk are trusted only if they still match their digest; otherwise the
file goes on from the last length forced to the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Final, Literal

import msgspec
from xxhash import xxh3_64

from flamecore.abc.paths import FilePath
from flamecore.abc.sink import (
    Damage,
    Guarantee,
    Mode,
    PartitionedSink,
    Sink,
    Verified,
    check_time,
    goes_on,
    taken_over,
    would_replace,
)
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME
from flamecore.toolkit.places import place_of
from flamecore.toolkit.records.plain import Unencodable
from flamestream_edges.checksums import SUFFIX as CHECKSUMS
from flamestream_edges.checksums import Checksums, Piece, chunks, digest_of, recorded, split
from flamestream_edges.durable import force_folder
from flamestream_edges.files import empty_path, output_file, unwritable
from flamestream_edges.orders import SUFFIX as ORDERS
from flamestream_edges.orders import DamagedOrdersError, OrdersFile, batches, frames, length_below
from flamestream_edges.position import NOBODY, OF_FOLDER, SUFFIX, Position, PositionFile, positions_in

_CHUNK: Final = 2**20
_LOOKS: Final = 3
"""Times that a file with a damage is looked at while it is written: it may have been cut meanwhile."""
_NEWLINE: Final = re.compile(b"\n")


class FileSinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of every sink that writes a file.

    Attributes:
        path: The file; its directory must be there.
        mode: Treatment of a file that is there: `replace` it, `append` to it, or `resume` the run that wrote it. A job
            that keeps state resumes its own file, whatever this says; with `append` it goes on at the end of a file
            that others have changed since.
        sync: When to force data to the disk: at `close` and for every snapshot of the job, or after every `batch`.
            Without it a batch survives the end of the process, but not that of the machine.
    """

    path: FilePath
    mode: Mode = "replace"
    sync: Literal["close", "batch"] = "close"


class FileSink(Sink):
    """A sink that appends batches to a file, in the driver's format."""

    options: Any
    Options: ClassVar[Any] = FileSinkOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        if not options.path:
            raise empty_path(f"sink.{context.name}.path")
        self._path = Path(options.path).expanduser()
        self._side = Path(f"{self._path}{SUFFIX}")  # the path may be "." if it is that of partitions
        self._owner = token_hex(8)
        self._file: FileIO | None = None
        self._positions: PositionFile | None = None
        self._checksums: Checksums | None = None
        self._time = MIN_TIME
        self._length = 0
        self._durable = (MIN_TIME, 0)
        self._written = xxh3_64()  # the bytes since then
        self._ahead: xxh3_64 | None = None  # those since a sync that is under way
        self._syncing = asyncio.Lock()
        self._keeps_orders = False
        self._orders: OrdersFile | None = None

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    def writes(self) -> Sequence[str]:
        return (place_of(self._path),)

    @abstractmethod
    def encode(self, payloads: Sequence[Any]) -> bytes:
        """Return the bytes of a batch. Raises `Unencodable`."""

    def preamble(self) -> bytes:
        """Return the bytes at the start of an empty file."""
        return b""

    def may_begin(self, head: bytes) -> bool:
        """Return whether some bytes may be before the first row, whatever the options of their writer."""
        return head in (b"", self.preamble())

    def check_others(self) -> None:
        """Check that rows can be added to a file that others have written.

        Raises:
            SinkError: They cannot.
            OSError: It cannot be read.
        """
        return

    def row_ends(self, data: bytes) -> list[int]:
        """Return where each row of some bytes ends; the bytes begin with a row."""
        return [found.end() for found in _NEWLINE.finditer(data)]

    def partitioned(self) -> PartitionedSink:
        from flamestream_edges.partitions import PartitionedFile  # which makes files of this kind

        return PartitionedFile(type(self), self.options, self.context)

    def rehearse(self) -> None:
        self._refuse_other_kinds()
        if problem := unwritable(self._path):
            raise self._error(*problem)
        try:
            if self.options.mode == "append" and self._path.exists():
                self.check_others()
        except OSError as error:
            raise self._failed("read", error) from error

    def _refuse_other_kinds(self) -> None:
        """Refuse a path that is no file's."""
        hint = f"Give the path of a file, such as {self._path / f'out.{self.name}'}. "
        hint += 'With order = "partitioned" it is a folder, and each worker writes a file in it.'
        output_file(self.context, self.options.path, hint)
        if (self._path / OF_FOLDER).exists():
            hint = f'Set [sink.{self.context.name}] order = "partitioned", as its writer did, or give another path.'
            raise self._error(f"{self._path} is a folder of partitions, and one sequence is written to a file", hint)
        if self._path.is_dir():
            raise self._error(f"{self._path} is a folder, and a file is to be written", hint)
        if self._path.exists() and not self._path.is_file():
            raise self._error(f"{self._path} is not a file", "To write to a pipe use the sink stdout: … > PIPE")

    async def replaces(self) -> bool:
        try:
            found = positions_in(self._image()) if self._path.is_file() else []
            held = found[0].fingerprint if found else None
            empty = not self._path.is_file() or not self._size()
        except OSError as error:
            raise self._failed("read", error) from error
        return would_replace(self.context, self.options.mode, held, empty=empty)

    async def open(self) -> int:
        try:
            self._refuse_other_kinds()
            if not self._side.exists():
                self._goes_on([], "missing")  # a refused file is left as it is
            self._positions = PositionFile(self._side)
            async with self._positions.locked():
                self._begin(self._positions)
        except OSError as error:
            self.release()
            raise self._failed("opened", error) from error
        except BaseException:
            self.release()
            raise
        return self._time

    def _begin(self, positions: PositionFile) -> None:
        """Prepare the file for its mode, and make this object its owner."""
        found = positions.positions()
        forced = None
        others = False
        if self._goes_on(found, "" if found or positions.is_empty() else "damaged"):
            if self.options.mode == "append" and (others := self._changed(found)):
                self.check_others()
                end = self._whole_lines()
                at = msgspec.structs.replace(found[0], length=end, durable=end)
            else:
                at = self._whole(found)
            self._time, forced = at.time, at.durable
            self._open("r+b" if self._path.exists() else "wb", at.length)
        elif self.options.mode == "append" and self._path.exists():
            self.check_others()
            self._open("r+b", self._whole_lines())
        else:
            if self._size():  # the old position is withdrawn before its bytes are destroyed
                positions.begin(self._position(MIN_TIME, 0))
            self._open("wb", 0)
        assert self._file is not None
        if self._keeps_orders:
            self._orders = OrdersFile(self._path, self._length)
            os.fsync(self._orders.descriptor)
        if self._length:
            os.fsync(self._file.fileno())
        self._durable = self._time, self._length
        self._begin_checksums(self._length if forced is None else forced, anew=others)
        positions.begin(self._position(self._time, self._length))
        force_folder(self._path.parent)
        if not self._length and (preamble := self.preamble()):
            self._append(preamble)
            positions.note(self._position(self._time, self._length))

    def _begin_checksums(self, forced: int, *, anew: bool) -> None:
        """Continue the checksums: add those of bytes written since the last sync.

        Args:
            forced: Number of bytes that were forced to the disk, or were found; those of them without a checksum get
                none: whether they are still as written is unknown.
            anew: Whether to drop those that are there, as others have changed the bytes.
        """
        sums = self._checksums = Checksums(self._path, 0 if anew else self._length)
        sums.begin(max(sums.covered, forced))
        for data in chunks(self._path, max(sums.covered, forced), self._length):
            sums.add(data)
        sums.write(sums.cut())
        os.fsync(sums.descriptor)

    def verify(self) -> Verified:
        try:
            self._refuse_other_kinds()
            for _ in range(_LOOKS - 1):
                before = self._image()
                if not (found := self._verified()).damages or self._image() == before:
                    return found
            return self._verified()
        except OSError as error:
            raise self._failed("read", error) from error

    def _verified(self) -> Verified:
        before = self._image()
        positions = positions_in(before)
        known = recorded(self._path.with_name(self._path.name + CHECKSUMS))
        size = self._size()
        if self._keeps_orders and (lost := self._lost()):
            length = positions[0].length if positions else size
            return Verified(str(self._path), size, 0, [Damage(0, length, f"{lost.name} is missing")])
        if known is None:  # others wrote it
            return Verified(str(self._path), size, 0)
        length = positions[0].length if positions else max((piece.end for piece in known.pieces), default=0)
        pieces = [(piece, "they are not those that were written") for piece in known.pieces if piece.end <= length]
        last = pieces[-1][0].end if pieces else 0
        for position in positions[:1]:  # bytes not forced to the disk yet have their digest there
            if length > max(position.durable, last):
                start = position.durable
                pieces.append((Piece(start, length, position.digest), "they are not those that were written"))
        damages = [
            Damage(piece.start, piece.end, what)
            for piece, what in pieces
            if piece.end <= size and digest_of(self._path, piece.start, piece.end) != piece.digest
        ]
        if not known.whole:
            damages.append(Damage(last, length, f"{self._path.name}{CHECKSUMS} is damaged where it speaks of them"))
        if size < length:
            damages.append(Damage(size, length, "they are missing: the file was cut short"))
        elif size > length and self._image() == before:  # if not, a job is at work
            what = "they were added by others, or a crash has cut a batch short, which the next run takes away"
            damages.append(Damage(length, size, what))
        if self._keeps_orders and not damages and not self._in_order(length):
            damages.append(Damage(0, length, f"they are not the rows of which {self._orders_path.name} has the orders"))
        covered = reached = 0
        for piece, _ in pieces:
            covered += max(min(piece.end, size) - max(piece.start, reached), 0)
            reached = max(reached, piece.end)
        return Verified(str(self._path), size, covered, _joined(damages))

    def _lost(self) -> Path | None:
        """Return which file of a partition is missing."""
        beside = (self._orders_path,) if self._image() else ()  # if none: it is being opened
        return next((path for path in (self._path, self._side, *beside) if not path.exists()), None)

    @property
    def _orders_path(self) -> Path:
        return self._path.with_name(self._path.name + ORDERS)

    def _in_order(self, length: int) -> bool:
        """Return whether each row of the first `length` bytes has an order."""
        try:
            self.head(length)
            deque(batches(self._path, length, self.row_ends), maxlen=0)
        except (DamagedOrdersError, FileNotFoundError):
            return False
        return True

    def head(self, length: int) -> bytes:
        """Return what is before the first row with an order in the first `length` bytes.

        Raises:
            DamagedOrdersError: There are rows without an order.
            OSError: It cannot be read.
        """
        end = next((frame.start for frame in frames(self._path, length)), length)
        with open(self._path, "rb") as file:
            head = file.read(min(end, _CHUNK))
        if len(head) < end or not self.may_begin(head):
            raise DamagedOrdersError(f"bytes 0 to {end - 1} of {self._path} have rows without an order")
        return head

    def _image(self) -> bytes:
        return self._side.read_bytes() if self._side.exists() else b""

    def _goes_on(self, found: Sequence[Position], trouble: str) -> bool:
        """Return whether to continue the file that is there.

        Args:
            found: Positions in the side file.
            trouble: State of the side file in a word, if it is missing or damaged.

        Raises:
            SinkError: It cannot be continued, and must be.
        """
        held = found[0].fingerprint if found else None
        empty = not self._size() and (not found or not found[0].length)
        if found and found[0].time == MIN_TIME and self._size() <= len(self.preamble()):
            empty = True  # the run that opened it died before there was anything to deliver
        place = f"{self._path} ({self._side.name} is {trouble})" if trouble else str(self._path)
        return goes_on(self.context, self.options.mode, held, place, empty=empty)

    def _changed(self, found: Sequence[Position]) -> bool:
        """Return whether others have changed the file since this job wrote it.

        Bytes behind the last position are others' if the file was closed, or if those before are not as written;
        otherwise a crash has cut a batch short.
        """
        size = self._size()
        if found[0].owner == NOBODY:
            return size != found[0].length or not self._ends_a_line()
        at = next((position for position in found if self._holds(position)), None)
        if at is None:
            return True
        if size == at.length:
            return not self._ends_a_line()
        known = recorded(self._path.with_name(self._path.name + CHECKSUMS))
        pieces = known.pieces if known is not None else ()
        return any(
            digest_of(self._path, piece.start, piece.end) != piece.digest for piece in pieces if piece.end <= at.length
        )

    def _whole(self, found: Sequence[Position]) -> Position:
        """Return the first of the positions whose bytes are as written.

        Raises:
            SinkError: There is none, or others have written to the file after it was closed.
        """
        if found[-1].length and not self._path.exists():
            what = f"{self._path} cannot be resumed: it is missing, and has been {found[-1].length} bytes long"
            hint = "Put it back. To start afresh, take away what the job keeps of its state"
            raise self._error(what, f"{hint}, and {self._side}.")
        hint = "Put it back as it was"
        if not self._keeps_orders:  # a partition is never another's
            hint += '; or add to the end of what others have left: mode = "append"'
        hint += ". To start afresh, take it away, and what the job keeps of its state."
        if found[0].owner == NOBODY and self._size() > found[0].length:  # no batch can have been cut short
            was, now = found[0].length, self._size()
            what = (
                f"{self._path} cannot be resumed: others have changed it since it was closed, from {was} bytes to {now}"
            )
            raise self._error(what, hint)
        for position in found:
            if self._holds(position):
                return position
        if self._keeps_orders and self._size() >= found[-1].length and not self._orders_reach(found[-1].length):
            state = "damaged" if self._orders_path.exists() else "missing"
            what = f"{self._path} cannot be resumed: {self._orders_path} is {state}, which has the orders of its rows"
            raise self._error(what, "Put it back; or start afresh, without the output and the job's state.")
        what = f"{self._path} cannot be resumed: it is {self._size()} bytes long and has been {found[-1].length}"
        raise self._error(what, hint)

    def _holds(self, position: Position) -> bool:
        if self._size() < position.length or (self._keeps_orders and not self._orders_reach(position.length)):
            return False
        if position.length == position.durable:
            return True
        left = position.length - position.durable
        digest = xxh3_64()
        with open(self._path, "rb", buffering=0) as file:
            file.seek(position.durable)
            while left and (data := file.read(min(left, _CHUNK))):
                digest.update(data)
                left -= len(data)
        return not left and digest.hexdigest() == position.digest

    def _orders_reach(self, length: int) -> bool:
        """Return whether the last of the first `length` bytes belong to rows with an order."""
        try:
            *_, last = frames(self._path, length)
            return any(batches(self._path, length, self.row_ends, last.at))
        except (ValueError, FileNotFoundError):  # there are none
            return length <= len(self.preamble())
        except DamagedOrdersError:
            return False

    async def adopt(self, owner: str) -> int:
        """Go on writing, in the place of the object that has opened the file and released it.

        Args:
            owner: Owner of the file then; it stays.

        Returns:
            The time of the file's position.

        Raises:
            SinkError: The file is not there, or has another owner now.
        """
        try:
            if not self._side.exists():
                hint = "All processes of the job write to one folder: put it where each of them has it by this path."
                raise self._error(f"{self._path} is not where this process looks for it", hint)
            self._owner, self._positions = owner, PositionFile(self._side)
            async with self._positions.locked():
                at = self._positions.adopt()
                if at is None or at.owner != owner:
                    raise taken_over(self.context, str(self._path))
                self.context = replace(self.context, fingerprint=at.fingerprint)
                self._time, self._durable = at.time, (at.time, at.length)
                self._open("r+b", at.length)
                self._orders = OrdersFile(self._path, at.length) if self._keeps_orders else None
                self._begin_checksums(at.length, anew=False)
        except OSError as error:
            self.release()
            raise self._failed("opened", error) from error
        except BaseException:
            self.release()
            raise
        return self._time

    def keep_orders(self, owner: str) -> None:
        """Keep the order of each row beside the file; called before it is opened.

        Args:
            owner: Owner of the file from its opening on.
        """
        self._keeps_orders, self._owner = True, owner

    async def cut(self, time: int) -> None:
        """Remove the rows from a time on, and store that all below it are there.

        Raises:
            SinkError: It cannot be done, or the orders of rows are damaged.
        """
        try:
            length = length_below(self._path, self._length, time, self.row_ends)
            async with self._mine() as positions:
                self._force_cut(length)
                self._time, self._durable, self._written = time, (time, length), xxh3_64()
                # First what counts, then the bytes: those beyond are a batch that was cut short.
                positions.begin(self._position(time, length))
                self._close_parts()
                self._open("r+b", length)
                self._orders = OrdersFile(self._path, length)
                self._begin_checksums(length, anew=False)
        except OSError as error:
            raise self._failed("cut", error) from error
        except DamagedOrdersError as error:
            hint = "Put the file and the one of its orders back as they were; or start afresh, without the job's state."
            raise self._error(str(error), hint) from error

    def _force_cut(self, length: int) -> None:
        """Force to the disk what a cut leaves, and its checksums.

        Those of what is cut off stay, for a crash may come before the cut.
        """
        assert self._file is not None
        assert self._checksums is not None
        os.fsync(self._file.fileno())
        self._checksums.write(self._checksums.cut())
        os.fsync(self._checksums.descriptor)
        self._checksums.close()
        split(self._path, length)

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await self._store(time, lambda: self.encode(payloads), None)

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        await self._store(time, lambda: self.encode(payloads), orders)

    async def _store(self, time: int, make: Callable[[], bytes], orders: Sequence[bytes] | None) -> None:
        """Store a batch of which `make` returns the bytes; it raises `Unencodable`."""
        check_time(self.context, time, self._time)
        try:
            data = make()
            async with self._mine() as positions:
                self._add(positions, time, data, orders)
        except Unencodable as error:
            hint = "Map it to text, numbers, tuples, dicts, NamedTuples or dataclasses before the sink."
            raise self._error(f"{self._path}: {error}", hint) from error
        except OSError as error:
            raise self._failed("written to", error) from error
        self._time = time
        if self.options.sync == "batch":
            await self.sync(time)

    def _add(self, positions: PositionFile, time: int, data: bytes, orders: Sequence[bytes] | None) -> None:
        assert self._file is not None
        assert self._checksums is not None
        kept = self._orders if orders is not None else None
        before = self._length, self._written.copy(), self._ahead and self._ahead.copy()
        sums = self._checksums.state()
        try:
            if kept is not None and orders is not None:
                kept.append(self._length, orders)
            self._append(data)
            positions.note(self._position(time, self._length))
        except OSError:
            self._length, self._written, self._ahead = before
            self._checksums.restore(sums)
            if kept is not None:
                kept.undo()
            with contextlib.suppress(OSError):  # bytes that stay are not noted, so they do not count
                self._file.truncate(self._length)
            raise

    async def sync(self, time: int) -> None:
        self._time = max(self._time, time)
        async with self._syncing:
            try:
                await self._sync()
            except OSError as error:
                raise self._failed("forced to the disk", error) from error
            finally:
                self._ahead = None

    async def _sync(self) -> None:
        file, now = self._file, (self._time, self._length)
        sums = self._checksums
        assert file is not None, "sync before open"
        assert sums is not None
        if now == self._durable:
            return
        self._ahead, ready = xxh3_64(), sums.cut()
        if ready:
            async with self._mine():
                sums.write(ready)
            descriptors = [file.fileno(), sums.descriptor]
            if self._orders is not None:
                descriptors.append(self._orders.descriptor)
            await asyncio.gather(*(asyncio.to_thread(os.fsync, one) for one in descriptors))
        async with self._mine() as positions:
            self._durable, self._written, self._ahead = now, self._ahead, None
            positions.settle(Position(0, *now, self.context.fingerprint, self._owner, now[1], _NOTHING))
        await asyncio.to_thread(os.fsync, positions.descriptor)

    async def aclose(self) -> None:
        if self._file is None or self._positions is None:
            return
        try:
            if self._positions.unchanged():  # if not, another object owns the file
                await self.sync(self._time)
                async with self._mine() as positions:
                    positions.begin(msgspec.structs.replace(self._position(self._time, self._length), owner=NOBODY))
        except OSError as error:
            raise self._failed("closed", error) from error
        finally:
            self.release()

    def release(self) -> None:
        """Close the files, without a word to later owners."""
        self._close_parts()
        positions, self._positions = self._positions, None
        if positions is not None:
            with contextlib.suppress(OSError):
                positions.close()

    def _close_parts(self) -> None:
        file, self._file = self._file, None
        sums, self._checksums = self._checksums, None
        orders, self._orders = self._orders, None
        for held in (file, sums, orders):
            if held is not None:
                with contextlib.suppress(OSError):  # the first error is the one reported
                    held.close()

    @contextlib.asynccontextmanager
    async def _mine(self) -> AsyncIterator[PositionFile]:
        """Keep other writers out for a moment.

        Raises:
            SinkError: Another object has written.
        """
        positions = self._positions
        assert positions is not None, "write before open"
        async with positions.locked():
            if not positions.unchanged():
                raise taken_over(self.context, str(self._path))
            yield positions

    def _position(self, time: int, length: int) -> Position:
        digest = self._written.hexdigest()
        return Position(0, time, length, self.context.fingerprint, self._owner, self._durable[1], digest)

    def _open(self, mode: Literal["wb", "r+b"], length: int) -> None:
        self._file = open(self._path, mode, buffering=0)  # noqa: SIM115 – closed by aclose()
        self._file.truncate(length)
        self._length = length

    def _append(self, data: bytes) -> None:
        assert self._file is not None, "write before open"
        self._file.seek(self._length)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._length += len(data)
        self._written.update(data)
        if self._checksums is not None:
            self._checksums.add(data)
        if self._ahead is not None:
            self._ahead.update(data)

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _whole_lines(self) -> int:
        """End the last line of a file to append to, if it has no end; return its length."""
        if self._ends_a_line():
            return self._size()
        with open(self._path, "ab") as file:
            file.write(b"\n")
            return file.tell()

    def _ends_a_line(self) -> bool:
        """Return whether the last line of the file has its end, if there is any."""
        if not self._size():
            return True
        with open(self._path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self.context.name!r}: {what}", hint=hint, sink=self.context.name)

    def _failed(self, done: str, error: OSError) -> SinkError:
        return self._error(f"{self._path} cannot be {done}: {error.strerror or error}", _hint(self._path, error))


def _joined(damages: Sequence[Damage]) -> list[Damage]:
    """Join damages of one kind that follow each other."""
    joined: list[Damage] = []
    for damage in damages:
        if joined and joined[-1].end == damage.start and joined[-1].what == damage.what:
            damage = damage._replace(start=joined.pop().start)
        joined.append(damage)
    return joined


_NOTHING: Final = xxh3_64().hexdigest()


def _hint(path: Path, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "It may be a run of this job that hangs: look who has the file open (fuser FILE), and end that."
    if isinstance(error, FileNotFoundError):
        return f"Make its directory first: mkdir -p {path.parent}"
    if isinstance(error, PermissionError):
        return f"Give another path, or make {path.parent} and the file writable for this user."
    if error.errno == errno.EFBIG:
        return (
            "Raise the limit of this process for the size of a file (ulimit -f), or use a disk that holds larger ones; "
            "what the file held before this batch is still there."
        )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return "Give another path, or see what is wrong with its device."
    free = ""
    with contextlib.suppress(OSError, AttributeError):  # only a hint
        disk = os.statvfs(path.parent)
        free = f" ({disk.f_bavail * disk.f_frsize:,} bytes are free)"
    return f"Make room{free} or give another path; what the file held before this batch is still there."
