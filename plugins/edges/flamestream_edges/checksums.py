"""The file of checksums beside an output, with a line for each piece of it.

It is written whenever the output is made durable. A line has the offsets of the piece's first byte and of the byte
after its last, the XXH3-64 of its bytes, and that of the line so far together with the link of the line before: no line
can be changed, left out or moved unnoticed. Pieces follow each other; bytes between two of them were written by others,
and are not covered.

Lines of pieces beyond the length in the position file are those of a batch that was cut short: they do not count.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_64, xxh3_64_hexdigest

from flamestream_edges.durable import force, force_folder

SUFFIX: Final = ".checksums"

PIECE_BYTES: Final = 2**20
"""A piece of this length ends with its batch: damage is located to within so much."""

_LINK: Final = "flamestream checksums 1"
"""The link before the first line."""


class Piece(NamedTuple):
    """Some bytes of an output.

    Attributes:
        start: Offset of the first.
        end: Offset of the byte after the last.
        digest: Their XXH3-64, in hexadecimal.
    """

    start: int
    end: int
    digest: str


class Recorded(NamedTuple):
    """The valid lines of a file of checksums, from the first on.

    Attributes:
        pieces: One for each line.
        links: The link of each line.
        whole: Whether all lines are good, but for the last one if it is cut short.
    """

    pieces: Sequence[Piece]
    links: Sequence[str]
    whole: bool


def recorded(path: Path) -> Recorded | None:
    """Read a file of checksums; return None if it does not exist.

    Raises:
        OSError: It cannot be read.
    """
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    pieces: list[Piece] = []
    links: list[str] = []
    link, end = _LINK, 0
    for line in lines:
        said, _, given = line.decode("ascii", "replace").rpartition(" ")
        link = _linked(link, said)
        fields = said.split(" ")
        if given != link or len(fields) != 3 or not (fields[0] + fields[1]).isdecimal() or int(fields[0]) < end:
            return Recorded(pieces, links, whole=False)
        pieces.append(Piece(int(fields[0]), int(fields[1]), fields[2]))
        links.append(link)
        end = pieces[-1].end
    return Recorded(pieces, links, whole=True)


class Checksums:
    """The checksums of an output that is being written.

    Args:
        path: The output; its checksums are beside it.
        length: Number of its bytes that count: lines of pieces beyond are removed.

    Raises:
        OSError: The file cannot be opened or written; by `write` too.
    """

    def __init__(self, path: Path, length: int) -> None:
        beside = path.with_name(path.name + SUFFIX)
        found = recorded(beside) or Recorded((), (), whole=True)
        kept = sum(piece.end <= length for piece in found.pieces)
        self.covered = found.pieces[kept - 1].end if kept else 0
        """Offset of the byte after the last piece in the file."""
        self._link = found.links[kept - 1] if kept else _LINK
        self._at = sum(len(_line(piece, link)) for piece, link in zip(found.pieces[:kept], found.links, strict=False))
        self._file: FileIO = open(beside, "r+b" if beside.exists() else "w+b", buffering=0)  # noqa: SIM115 – see close()
        self._file.truncate(self._at)
        os.fsync(self.descriptor)
        self._ready: list[Piece] = []
        self.begin(length)

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()

    def begin(self, offset: int) -> None:
        """Begin the next piece at an offset."""
        self._start = self._end = offset
        self._digest = xxh3_64()

    def add(self, data: bytes) -> None:
        """Add bytes that have been appended to the output."""
        self._digest.update(data)
        self._end += len(data)
        if self._end - self._start >= PIECE_BYTES:
            self.cut()

    def state(self) -> tuple[int, int, int, xxh3_64]:
        """Return a state to pass to `restore`, which undoes every later `add`."""
        return len(self._ready), self._start, self._end, self._digest.copy()

    def restore(self, state: tuple[int, int, int, xxh3_64]) -> None:
        """Forget the bytes added since `state` was taken, as the output has."""
        ready, self._start, self._end, self._digest = state
        del self._ready[ready:]

    def cut(self) -> int:
        """End the piece here; return the number of pieces that wait to be written."""
        if self._end > self._start:
            self._ready.append(Piece(self._start, self._end, self._digest.hexdigest()))
            self.begin(self._end)
        return len(self._ready)

    def write(self, count: int) -> None:
        """Write the first `count` pieces; they are durable once this file is fsynced."""
        lines = []
        link = self._link
        for piece in self._ready[:count]:
            link = _linked(link, _said(piece))
            lines.append(_line(piece, link))
        data = b"".join(lines)
        self._file.seek(self._at)
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._link, self._at = link, self._at + len(data)
        del self._ready[:count]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def split(path: Path, offset: int) -> None:
    """Divide the piece that reaches over an offset of an output, so that all before it stays covered by a cut there.

    The checksums are not open. If the piece is not as it was written, its halves keep its digest: nor are they then.

    Raises:
        OSError: They cannot be read or written; the old ones are still there.
    """
    beside = path.with_name(path.name + SUFFIX)
    pieces = list((recorded(beside) or Recorded((), (), whole=True)).pieces)
    index = next((index for index, piece in enumerate(pieces) if piece.start < offset < piece.end), None)
    if index is None:
        return
    start, end, digest = pieces[index]
    whole = digest_of(path, start, end) == digest
    halves = [(start, offset), (offset, end)]
    pieces[index : index + 1] = [Piece(*half, (whole and digest_of(path, *half)) or digest) for half in halves]
    link, lines = _LINK, []
    for piece in pieces:
        link = _linked(link, _said(piece))
        lines.append(_line(piece, link))
    new = beside.with_name(f".{beside.name}")
    new.write_bytes(b"".join(lines))
    force(new)
    new.replace(beside)
    force_folder(path.parent)


def digest_of(path: Path, start: int, end: int) -> str | None:
    """Return the XXH3-64 of some bytes of a file; None if it does not have them all.

    Raises:
        OSError: It cannot be read.
    """
    digest = xxh3_64()
    for data in chunks(path, start, end):
        digest.update(data)
        start += len(data)
    return digest.hexdigest() if start == end else None


def chunks(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield some bytes of a file, or what there is of them.

    Raises:
        OSError: It cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while start < end and (data := file.read(min(end - start, PIECE_BYTES))):
            yield data
            start += len(data)


def _said(piece: Piece) -> str:
    return f"{piece.start} {piece.end} {piece.digest}"


def _linked(before: str, said: str) -> str:
    return xxh3_64_hexdigest(f"{before} {said}".encode())


def _line(piece: Piece, link: str) -> bytes:
    return f"{_said(piece)} {link}\n".encode()
