"""A file that takes every batch exactly once: the batch is appended, then its time is noted in a small side file.

The side file `PATH.position` says how long the file was after the last whole batch, and up to which time that batch
goes. It is replaced in one step (`os.replace`), so it is always one of the two: before the batch or after it. Bytes
beyond the noted length are a batch that was cut short; they are dropped when the file is resumed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import abstractmethod
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec

from flamecore.errors import SinkError, TimeRegressionError
from flamecore.front import EdgeContext
from flamecore.meta import MIN_TIME
from flamecore.rear import Guarantee, Sink
from flamestream_edges.files import unwritable
from flamestream_edges.plain import Unencodable

SIDE_SUFFIX: Final = ".position"

Mode = Literal["replace", "append", "resume"]


class FileSinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of every sink that writes a file.

    Attributes:
        path: The file; its directory must be there.
        mode: What becomes of a file that is there: `replace` it, `append` to it, or `resume` the run that wrote it.
        sync: When to force data to the disk: at `close`, or after every `batch`. Without it a batch survives the end of
            the process, but not that of the machine.
    """

    path: str
    mode: Mode = "replace"
    sync: Literal["close", "batch"] = "close"


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the side file says: everything below `time` is in the first `length` bytes of a file of that fingerprint."""

    time: int
    length: int
    fingerprint: str


class FileSink(Sink):
    """A sink that appends batches to a file. What a batch looks like is the driver's."""

    options: Any
    Options: ClassVar[Any] = FileSinkOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self._path = Path(options.path).expanduser()
        self._side = self._path.with_name(self._path.name + SIDE_SUFFIX)
        self._file: FileIO | None = None
        self._length = 0
        self._time = MIN_TIME

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    @abstractmethod
    def encode(self, payloads: Sequence[Any]) -> bytes:
        """The bytes of a batch. Raises `Unencodable`."""

    def preamble(self) -> bytes:
        """What an empty file starts with."""
        return b""

    def rehearse(self) -> None:
        if self._path.exists() and not self._path.is_file():
            raise self._error(f"{self._path} is not a file", "To write to a pipe use the sink stdout: … > PIPE")
        if problem := unwritable(self._path):
            raise self._error(*problem)

    async def open(self) -> int:
        try:
            if self._path.exists() and not self._path.is_file():
                raise self._error(f"{self._path} is not a file", "To write to a pipe use the sink stdout: … > PIPE")
            if self.options.mode == "resume" and (position := self._resumable()) is not None:
                self._time = position.time
                self._open("r+b", position.length)
                return self._time
            # What the side file of an earlier run promises may go at once, so the promise goes first.
            self._side.unlink(missing_ok=True)
            if self.options.mode == "append" and self._path.exists():
                self._open("r+b", self._whole_lines())
            else:
                self._open("wb", 0)
            if not self._length:
                self._write(self.preamble())
            self._note(MIN_TIME)
        except OSError as error:
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):  # what went wrong first is what is told
                    file.close()
            raise self._failed("opened", error) from error
        return MIN_TIME

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        if time < self._time:
            raise TimeRegressionError(
                f"sink {self.context.name!r}: a batch of time {time} after one of time {self._time}",
                time=time,
                limit=self._time,
            )
        before = self._length
        try:
            self._write(self.encode(payloads))
            self._note(time)
        except Unencodable as error:
            hint = "Map it to text, numbers, tuples, dicts, NamedTuples or dataclasses before the sink."
            raise self._error(f"{self._path}: {error}", hint) from error
        except OSError as error:
            self._length = before
            if self._file is not None:
                with contextlib.suppress(OSError):  # what stays is not noted, so it does not count
                    self._file.truncate(before)
            raise self._failed("written to", error) from error

    async def aclose(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            with file:
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failed("closed", error) from error

    def _open(self, mode: Literal["wb", "r+b"], length: int) -> None:
        self._file = open(self._path, mode, buffering=0)  # noqa: SIM115, PTH123 – closed by aclose()
        self._file.truncate(length)
        self._file.seek(length)
        self._length = length

    def _write(self, data: bytes) -> None:
        assert self._file is not None, "write before open"
        self._file.seek(self._length)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._length += len(data)

    def _note(self, time: int) -> None:
        """Make the bytes written so far count: from here on they are in the file, up to `time`."""
        assert self._file is not None, "write before open"
        durable = self.options.sync == "batch"
        if durable:
            os.fsync(self._file.fileno())
        new = f"{self._side}.new"
        with open(new, "wb", buffering=0) as side:  # noqa: PTH123
            side.write(msgspec.json.encode(Position(time, self._length, self.context.fingerprint)) + b"\n")
            if durable:
                os.fsync(side.fileno())
        os.replace(new, self._side)  # noqa: PTH105 – once a batch, and half the cost of a Path's
        if durable:
            folder = os.open(self._side.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._time = time

    def _resumable(self) -> Position | None:
        """What the side file promises, checked against the file; None if there is nothing to resume."""
        length = self._path.stat().st_size if self._path.exists() else 0
        again = 'Start afresh with mode = "replace", or give another path.'
        if not self._side.exists():
            if not length:
                return None
            raise self._error(
                f"{self._path} cannot be resumed: {self._side.name}, which says what it holds, is missing", again
            )
        try:
            position = msgspec.json.decode(self._side.read_bytes(), type=Position)
        except msgspec.DecodeError as error:
            raise self._error(
                f"{self._path} cannot be resumed: {self._side.name} is damaged: {error}", again
            ) from error
        if position.fingerprint != self.context.fingerprint:
            what = f"{self._path} cannot be resumed: it was written by another flow or from other inputs"
            raise self._error(what, f"Go back to those, or: {again[0].lower()}{again[1:]}")
        if not self._path.exists() and not position.length:
            return None
        if length < position.length:
            what = f"{self._path} cannot be resumed: it is {length} bytes long and has been {position.length}"
            raise self._error(what, again)
        return position

    def _whole_lines(self) -> int:
        """End the last line of a file to be appended to, if it has no end. Returns its length."""
        with open(self._path, "r+b") as file:  # noqa: PTH123
            length = file.seek(0, os.SEEK_END)
            if length:
                file.seek(length - 1)
                if file.read(1) != b"\n":
                    length += file.write(b"\n")
        return length

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self.context.name!r}: {what}", hint=hint, sink=self.context.name)

    def _failed(self, done: str, error: OSError) -> SinkError:
        return self._error(f"{self._path} cannot be {done}: {error.strerror or error}", _hint(self._path, error))


def _hint(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"Make its directory first: mkdir -p {path.parent}"
    if isinstance(error, PermissionError):
        return f"Give another path, or make {path.parent} and the file writable for this user."
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Give another path, or see what is wrong with its device."
    free = ""
    with contextlib.suppress(OSError, AttributeError):  # only a hint
        disk = os.statvfs(path.parent)
        free = f" ({disk.f_bavail * disk.f_frsize:,} bytes are free)"
    return f"Make room{free} or give another path; what the file held before this batch is still there."
