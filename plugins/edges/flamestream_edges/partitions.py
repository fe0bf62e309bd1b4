"""A folder of files that workers write, each its own, exactly once.

For each worker there is a file `part-00000.jsonl`, with its position, checksums, and the orders of its rows beside it.
The position file of the folder has the time below which the files together are complete, and the number of files that
are written. `manifest.json` names all files, for readers, and to find that one is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Final

import msgspec

from flamecore.abc.sink import Division, Guarantee, PartitionedSink, Sink, goes_on, taken_over
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamecore.model.meta import MIN_TIME, encode_time
from flamecore.toolkit.places import place_of
from flamestream_edges.checksums import SUFFIX as CHECKSUMS
from flamestream_edges.durable import force, force_folder
from flamestream_edges.files import unwritable
from flamestream_edges.orders import SUFFIX as ORDERS
from flamestream_edges.orders import DamagedOrdersError, batches
from flamestream_edges.outfile import FileSink
from flamestream_edges.position import NOBODY, OF_FOLDER, SUFFIX, Position, PositionFile, positions_in

_MANIFEST: Final = "manifest.json"
_PIECE: Final = 2**20
"""Size of a piece of merged output."""


class _Manifest(msgspec.Struct, frozen=True):
    """Content of the manifest.

    Attributes:
        partitions: Names of all files, in order.
        writing: Those that workers write now.
    """

    partitions: list[str]
    writing: list[str]


class Partition(Sink):
    """One worker's file.

    Args:
        file: The file, not open.
        grant: Its owner.
    """

    def __init__(self, file: FileSink, grant: str) -> None:
        super().__init__(file.options, file.context)
        self._file, self._grant = file, grant

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def open(self) -> int:
        return await self._file.adopt(self._grant)

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise NotImplementedError("a partition keeps the orders of its outputs")

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        await self._file.write_ordered(time, orders, payloads)

    async def sync(self, time: int) -> None:
        await self._file.sync(time)

    async def aclose(self) -> None:
        self._file.release()  # the sink in the process of the control closes all files


class PartitionedFile(PartitionedSink):
    """The folder.

    Args:
        kind: Class of the files.
        options: Options of the sink; its path is that of the folder.
        context: Context of the sink.
    """

    name: ClassVar[str] = "files"

    def __init__(self, kind: type[FileSink], options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        if options.mode == "append":
            path = f"sink.{context.name}.mode"
            raise ConfigError(
                f'{path} is "append", and files in partitions hold the outputs of one job alone',
                hint='Use "replace" or "resume", or another folder.',
                path=path,
            )
        self._kind = kind
        self._folder = Path(options.path).expanduser()
        self._side = self._folder / OF_FOLDER
        self._owner = token_hex(8)
        self._positions: PositionFile | None = None
        self._time = MIN_TIME  # below which the output is complete
        self._count = 0  # number of files that are being written
        self._floor = MIN_TIME  # below which all of them are durable

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    def writes(self) -> Sequence[str]:
        return (place_of(self._folder, folder=True),)

    def rehearse(self) -> None:
        if self._folder.is_dir():
            if problem := unwritable(self._side):
                raise self._error(*problem)
        elif self._folder.exists():
            raise self._not_a_folder()
        elif problem := unwritable(self._folder):
            raise self._error(*problem)

    async def open(self) -> int:
        try:
            if self._folder.exists() and not self._folder.is_dir():
                raise self._not_a_folder()
            self._folder.mkdir(exist_ok=True)
            found = positions_in(self._side.read_bytes()) if self._side.exists() else []
            resumed = self._goes_on(found)  # output that is refused is left as it is
            self._positions = positions = PositionFile(self._side)
            async with positions.locked():
                found = positions.positions()
                if resumed and found:
                    self._count, self._floor = found[0].length, found[-1].time
                positions.begin(self._position(self._floor))
            if not resumed:
                self._clear()
            force_folder(self._folder)
            self._time = await self._take_files(self._owner, range(self._count), cut=False)
        except OSError as error:
            self.release()
            raise self._failed("opened", error) from error
        except BaseException:
            self.release()
            raise
        return self._time

    def _goes_on(self, found: Sequence[Position]) -> bool:
        """Return whether to continue what is there; raises as `goes_on`."""
        files = self._files()
        held = found[0].fingerprint if found else None
        # A run that opened it and died before it wrote anything has left nothing to protect.
        empty = not any(path.stat().st_size for path in files) and not (found and found[0].length)
        return goes_on(self.context, self.options.mode, held, f"{self._folder}/", empty=empty)

    def _clear(self) -> None:
        """Remove the files of an earlier output."""
        (self._folder / _MANIFEST).unlink(missing_ok=True)
        for suffix in ("", SUFFIX, ORDERS, CHECKSUMS):  # those beside a file that is lost too
            for path in self._files(suffix):
                path.unlink()

    async def divide(self, workers: int) -> Division:
        grant = token_hex(8)
        try:
            numbers = sorted({*range(max(workers, self._count)), *map(_number_of, self._files())})
            async with self._mine():
                pass  # files of a newer run are not touched
            self._time = await self._take_files(grant, numbers, cut=True)
            async with self._mine() as positions:
                self._count = workers
                self._floor = self._time  # the files were forced to the disk as they were opened
                self._name_files()  # first: files that are written are named
                positions.begin(self._position(self._time))
        except OSError as error:
            raise self._failed("divided", error) from error
        return Division(self._time, grant)

    async def _take_files(self, owner: str, numbers: Sequence[int], *, cut: bool) -> int:
        """Take files from their writers, and return the time below which they are complete.

        Args:
            owner: Their new owner.
            numbers: Numbers of the files.
            cut: Whether to cut them at that time.
        """
        files: list[FileSink] = []
        try:
            held: list[int] = []
            for path in self._all_files(self._count) if self._floor > MIN_TIME else ():
                if not path.exists():
                    raise self._missing(path)
            for number in numbers:
                file = self._file(number, owner)
                time = await file.open()
                files.append(file)
                if number < self._count:
                    held.append(max(time, self._floor))
            time = min(held, default=self._floor)
            for file in files if cut else ():
                await file.cut(time)
        finally:
            for file in files:
                file.release()
        return time

    def partition(self, worker: int, grant: str) -> Sink:
        return Partition(self._file(worker, grant), grant)

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        try:
            async with self._mine() as positions:
                positions.note(self._position(time))
        except OSError as error:
            raise self._failed("written to", error) from error
        self._time = time

    async def sync(self, time: int) -> None:
        self._time = self._floor = max(self._time, time)
        try:
            async with self._mine() as positions:
                positions.settle(self._position(self._time))
            await asyncio.to_thread(os.fsync, positions.descriptor)
        except OSError as error:
            raise self._failed("forced to the disk", error) from error

    async def aclose(self) -> None:
        positions = self._positions
        if positions is None:
            return
        try:
            if positions.unchanged():  # if not, another object owns the folder
                # What is above was not complete; the next run would make it again.
                await self._close_files()
                async with self._mine():
                    self._owner = NOBODY
                    positions.begin(self._position(self._time))
        except OSError as error:
            raise self._failed("closed", error) from error
        finally:
            self.release()

    async def _close_files(self) -> None:
        for path in self._files():
            file = self._file(_number_of(path), self._owner)
            try:
                await file.open()
                await file.cut(self._time)
                await file.aclose()
            finally:
                file.release()
        self._name_files()

    def stored(self) -> Mapping[str, Sink]:
        try:
            begun = self._side.exists()
            paths = self._all_files(self._told(self._side).length if begun else None)
        except OSError as error:
            raise self._failed("read", error) from error
        if not paths and not begun:
            what = (
                f"{self._folder}/ has no files of it" if self._folder.is_dir() else f"there is no folder {self._folder}"
            )
            raise self._error(what, "Look at the path; a job writes them when it runs.")
        return {path.name: self._file(_number_of(path), NOBODY) for path in paths}

    def merged(self) -> Iterator[bytes]:
        try:
            # First the time: files that grow meanwhile hold more than it says, never less.
            told = self._told(self._side)
            lengths: dict[Path, int] = {}
            for path in self._all_files(told.length):
                if not path.exists():
                    raise self._missing(path)
                if length := self._told(path.with_name(path.name + SUFFIX)).length:
                    lengths[path] = length
            heads = [self._file(_number_of(path), NOBODY).head(length) for path, length in lengths.items()]
            piece = bytearray(next(filter(None, heads), b""))
            limit = encode_time(told.time)
            for _, row in heapq.merge(*[self._rows(path, length, limit) for path, length in lengths.items()]):
                piece += row
                if len(piece) >= _PIECE:
                    yield bytes(piece)
                    piece.clear()
            yield bytes(piece)
        except FileNotFoundError as error:
            raise self._missing(Path(error.filename)) from error
        except OSError as error:
            raise self._failed("read", error) from error
        except DamagedOrdersError as error:
            raise self._error(str(error), "Put the file and the one of its orders back as they were.") from error

    def _told(self, side: Path) -> Position:
        """Return the position in a file; one of nothing if none has been written yet.

        Raises:
            OSError: It cannot be read.
            SinkError: It is damaged.
        """
        image = side.read_bytes()
        if found := positions_in(image):
            return found[0]
        if image:
            raise self._error(f"{side} is damaged", "Put it back as it was.")
        return Position(0, MIN_TIME, 0, "", NOBODY, 0, "")

    def _rows(self, path: Path, length: int, limit: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (order, bytes) of each row below an order in the first `length` bytes of a file."""
        for _, orders, data, ends in batches(path, length, self._file(0, NOBODY).row_ends):
            start = 0
            for order, end in zip(orders, ends, strict=True):
                if order >= limit:
                    return
                yield order, data[start:end]
                start = end

    # -- the files -----------------------------------------------------------------------------------------------------

    def _path(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.{self._kind.name}"

    def _files(self, suffix: str = "") -> list[Path]:
        """Return the files that are there, or those beside them, in order."""
        files = {path.with_name(path.name.removesuffix(suffix)): path for path in self._folder.glob(f"part-*{suffix}")}
        return [files[path] for path in sorted(files) if _is_number(path) and self._path(_number_of(path)) == path]

    def _all_files(self, count: int | None) -> list[Path]:
        """Return the files of the output, in order, those that are missing too.

        Args:
            count: Number of files that are written, as the position of the folder says; None: that is missing.

        Raises:
            SinkError: The manifest is damaged.
        """
        found = self._files()
        if count == 0:  # not divided yet; an earlier output is being removed
            return found
        numbers = {*map(_number_of, found), *range(count or 0), *self._named()}
        return [self._path(number) for number in range(max(numbers, default=-1) + 1)]

    def _named(self) -> list[int]:
        """Return the numbers of the files in the manifest; none if it is missing."""
        manifest = self._folder / _MANIFEST
        try:
            names = msgspec.json.decode(manifest.read_bytes(), type=_Manifest).partitions
            numbers = [_number_of(Path(name)) for name in names]
        except FileNotFoundError:
            return []
        except ValueError:
            numbers, names = [], ["damaged"]
        if [self._path(number).name for number in numbers] != names:
            hint = "Put it back; if no file is missing, take it away: the next run writes it anew."
            raise self._error(f"{manifest} is damaged, or names files of another sink", hint)
        return numbers

    def _file(self, number: int, owner: str) -> FileSink:
        options = msgspec.structs.replace(self.options, path=str(self._path(number)), mode="resume")
        file = self._kind(options, self.context)
        file.keep_orders(owner)
        return file

    def _name_files(self) -> None:
        """Write the manifest."""
        names = [path.name for path in self._all_files(self._count)]
        text = msgspec.json.format(msgspec.json.encode(_Manifest(names, names[: self._count])))
        new = self._folder / f".{_MANIFEST}"
        new.write_bytes(text + b"\n")
        force(new)
        new.replace(self._folder / _MANIFEST)

    # -- errors --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _mine(self) -> AsyncIterator[PositionFile]:
        """Keep other objects out for a moment.

        Raises:
            SinkError: Another object has taken over.
        """
        positions = self._positions
        assert positions is not None, "write before open"
        async with positions.locked():
            if not positions.unchanged():
                raise taken_over(self.context, f"{self._folder}/")
            yield positions

    def _position(self, time: int) -> Position:
        return Position(0, time, self._count, self.context.fingerprint, self._owner, 0, "")

    def release(self) -> None:
        """Close the folder's position file, without a word to later owners."""
        positions, self._positions = self._positions, None
        if positions is not None:
            with contextlib.suppress(OSError):  # the first error is the one reported
                positions.close()

    def _missing(self, path: Path) -> SinkError:
        if not self._folder.is_dir():
            path = self._folder
        what = f"{path} is missing, and holds outputs of this job"
        return self._error(what, "Put it back; or start afresh, without the output and the job's state.")

    def _not_a_folder(self) -> SinkError:
        what = f'{self._folder} is not a folder, and with order = "partitioned" each worker has a file in it'
        return self._error(what, "Give another path, or take it away.")

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self.context.name!r}: {what}", hint=hint, sink=self.context.name)

    def _failed(self, done: str, error: OSError) -> SinkError:
        what = f"{self._folder}/ cannot be {done}: {error.strerror or error}"
        return self._error(what, f"Look at the folder and its device, and whether {self._folder.parent} is there.")


def _is_number(path: Path) -> bool:
    return path.name.removeprefix("part-").partition(".")[0].isdecimal()


def _number_of(path: Path) -> int:
    return int(path.name.removeprefix("part-").partition(".")[0])
