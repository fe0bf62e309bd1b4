"""The position file beside an output: four lines, each valid by itself.

Lines 1 and 2 are written in turn, one for each batch; lines 3 and 4 in turn whenever the output has been forced to the
disk. So one line is always whole, whenever the process ends (one of the first two), and whenever the machine does (one
of the last two). Lines have a fixed width. Each begins with a checksum of the rest of it; the rest is JSON.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

if sys.platform != "win32":
    import fcntl

SUFFIX: Final = ".position"

OF_FOLDER: Final = f".partitions{SUFFIX}"
"""Name of the position file in a folder of partitions."""

NOBODY: Final = ""
"""Owner of an output that was closed."""

WIDTH: Final = 512
_LINES: Final = 4
_DIGEST: Final = 16
_TRIES: Final = 500
_PAUSE_S: Final = 0.01


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a line.

    Attributes:
        number: Number of the line; the greatest is the newest.
        time: All batches up to this time are stored,
        length: in this many first bytes of the output.
        fingerprint: Fingerprint of the outputs: the job's state, or flow and inputs.
        owner: Id of the object that wrote it; the newest one that opened the output owns it. `NOBODY` once it has
            closed the output: what is beyond the length then is others'.
        durable: Number of the bytes that have been forced to the disk.
        digest: XXH3-64 of the bytes from there to `length`, in hexadecimal.
    """

    number: int
    time: int
    length: int
    fingerprint: str
    owner: str
    durable: int
    digest: str


_DECODER: Final = msgspec.json.Decoder(Position)


class PositionFile:
    """An open position file.

    Raises:
        OSError: By all methods.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        self._image = b""
        self._number = 0
        self._turn = [0, 0]

    @property
    def descriptor(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Lock the file against other objects, in this process and in others.

        Raises:
            TimeoutError: Another object has held the lock for five seconds.
        """
        if sys.platform != "win32":
            for _ in range(_TRIES):
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_PAUSE_S)
            else:
                raise TimeoutError(f"another process has been in the midst of a write for {_TRIES * _PAUSE_S:g} s")
        try:
            yield
        finally:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def unchanged(self) -> bool:
        """Return whether only this object has written the file."""
        return self._read() == self._image

    def positions(self) -> list[Position]:
        """Return the positions to resume from, best first.

        First come those written since the output was last forced to the disk, then the one of that moment.
        """
        image = self._read()
        self._number = max((line.number for line in _lines(image) if line is not None), default=0)
        return positions_in(image)

    def adopt(self) -> Position | None:
        """Go on with what another object has written; return its position, None if there is none."""
        found = self.positions()
        self._image = self._read()
        return found[0] if found else None

    def is_empty(self) -> bool:
        """Return whether nothing was ever written to it."""
        return not self._read()

    def begin(self, position: Position) -> None:
        """Replace all lines by a position, durably before this returns."""
        self._number += 1
        self._write(0, _line(position, self._number) * _LINES)
        self._file.truncate(WIDTH * _LINES)
        os.fsync(self.descriptor)

    def note(self, position: Position) -> None:
        """Write a position, which counts from now on."""
        self._put(0, position)

    def settle(self, position: Position) -> None:
        """Write a position that counts after a crash of the machine, once fsynced."""
        self._put(1, position)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _put(self, pair: int, position: Position) -> None:
        self._number += 1
        self._turn[pair] ^= 1
        self._write((2 * pair + self._turn[pair]) * WIDTH, _line(position, self._number))

    def _write(self, offset: int, data: bytes) -> None:
        self._file.seek(offset)
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._image = self._image[:offset] + data + self._image[offset + len(data) :]

    def _read(self) -> bytes:
        self._file.seek(0)
        return self._file.read(WIDTH * _LINES + 1)


def positions_in(image: bytes) -> list[Position]:
    """Return the positions in a file's bytes; see `PositionFile.positions`."""
    lines = _lines(image)
    known = [line for line in lines if line is not None]
    forced = max((line for line in lines[2:] if line is not None), key=_number, default=None)
    if forced is None:
        return sorted(known, key=_number, reverse=True)
    mine = [line for line in lines[:2] if line is not None and line.owner == forced.owner]
    since = [line for line in mine if _reach(line) > _reach(forced)]
    return [*sorted(since, key=_reach, reverse=True), forced]


def _lines(image: bytes) -> list[Position | None]:
    return [_parsed(image[start : start + WIDTH]) for start in range(0, WIDTH * _LINES, WIDTH)]


def _number(position: Position) -> int:
    return position.number


def _reach(position: Position) -> tuple[int, int]:
    return position.time, position.length


def _line(position: Position, number: int) -> bytes:
    text = msgspec.json.encode(msgspec.structs.replace(position, number=number))
    if len(text) > WIDTH - _DIGEST - 2:
        raise ValueError(f"{position} does not fit {WIDTH} bytes")
    return b"%s %s\n" % (xxh3_64_hexdigest(text).encode(), text.ljust(WIDTH - _DIGEST - 2))


def _parsed(line: bytes) -> Position | None:
    """Parse a line; return None if it is not as it was written."""
    text = line[_DIGEST + 1 :].rstrip()
    if xxh3_64_hexdigest(text).encode() != line[:_DIGEST]:
        return None
    try:
        return _DECODER.decode(text)
    except ValueError:
        return None  # of another version of this module, or edited
