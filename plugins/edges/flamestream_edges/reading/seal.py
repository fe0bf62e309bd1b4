"""Seals, which tell whether a file is still the one that was read.

A seal is part of every position, and is checked before reading on. It is a text `LENGTH-HASH-HASH`: the number of bytes
the file began with when it was opened, 64 KiB at most, and their hash; and the hash of the 1 KiB before the position.
So it costs the same however long the file is. A file that has only grown keeps its seals; a change between the two
places is not seen. The first hash is compared at the end of the file too.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

from flamecore.errors import SourceError

HEAD_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 1024

_SEAL = re.compile(r"((\d+)-[0-9a-f]{16})-([0-9a-f]{16})")


class Seals:
    """Seals of one file.

    Args:
        descriptor: Descriptor of the open file.
        offset: Offset at which reading begins.

    Attributes:
        before: The bytes before that offset, at most `TAIL_BYTES`.

    Raises:
        OSError: It cannot be read.
    """

    __slots__ = ("_head", "before")

    def __init__(self, descriptor: int, offset: int) -> None:
        self._head = _sealed_head(descriptor, HEAD_BYTES)
        self.before = _before(descriptor, offset)

    def begins_alike(self, descriptor: int) -> bool:
        """Return whether the file begins as it did when it was opened."""
        return _sealed_head(descriptor, int(self._head.partition("-")[0])) == self._head

    def seal(self, before: bytes) -> str:
        """Return the seal of a place, given the `TAIL_BYTES` before it, or all there are."""
        return f"{self._head}-{xxh3_64_hexdigest(before)}"

    def seal_at(self, descriptor: int, offset: int) -> str:
        """Return the seal of any offset in the file."""
        return self.seal(_before(descriptor, offset))


def check_seal(source: str, name: str, position: Any, length: int) -> None:
    """Check that a file can be read on from a position: numbers and a seal.

    Args:
        source: Name of the source, for errors.
        name: The file's path.
        position: The position; its first number is an offset.
        length: Number of integers in a position.

    Raises:
        SourceError: It is no such position, or the file is another one, or cut short.
    """
    *numbers, given = position if isinstance(position, tuple | list) and position else (None,)
    found = _SEAL.fullmatch(given) if isinstance(given, str) else None
    if found is None or len(numbers) != length or not all(type(number) is int and number >= 0 for number in numbers):
        raise SourceError(
            f"source {source!r}: {position!r} is no position in {name}",
            hint=f"A position here is {length} numbers, offset and lines, and a seal; take it from the reader.",
            source=source,
            position=position,
        )
    offset, (head, head_length, tail) = numbers[0], found.groups()
    try:
        with open(name, "rb", buffering=0) as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            now_head = _sealed_head(descriptor, int(head_length))
            before = _before(descriptor, offset)
    except OSError as error:
        raise SourceError(
            f"source {source!r}: {name} cannot be read: {error.strerror or error}",
            hint="Check that the file is there, is yours to read, and that its device is well.",
            source=source,
            position=name,
        ) from error
    if size < offset:
        what = f"{name} is {size} bytes long, and has been read up to {offset}"
    elif now_head != head:
        what = f"{name} begins with other bytes than when it was read up to {offset} (now {now_head}, then {head})"
    elif (now := xxh3_64_hexdigest(before)) != tail:
        what = f"{name} has other bytes before offset {offset} than when it was read (now {now}, then {tail})"
    else:
        return
    raise SourceError(
        f"source {source!r}: {what}",
        hint="Put the old file back; or start afresh, without the job's state and output. A file may only grow.",
        source=source,
        position=f"{name} line {numbers[1]}",
    )


def _sealed_head(descriptor: int, size: int) -> str:
    data = read_at(descriptor, 0, size)
    return f"{len(data)}-{xxh3_64_hexdigest(data)}"


def _before(descriptor: int, offset: int) -> bytes:
    return read_at(descriptor, max(offset - TAIL_BYTES, 0), min(offset, TAIL_BYTES))


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Read bytes of a file at an offset, without moving the descriptor's own."""
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
