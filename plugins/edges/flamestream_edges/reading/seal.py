"""Seals, which tell whether a file is still the one that was read.

A seal is part of every position, and is checked before reading on. It is a text `LENGTH-HASH-HASH`: the number of bytes
the file began with when it was opened, 64 KiB at most, and their hash; and the hash of the 1 KiB before the position.
So it costs the same however long the file is. A file that has only grown keeps its seals; a change between the two
places is not seen. The first hash is compared at the end of the file too.

A fourth part, `-HASH`, is that of the facts that the system keeps of the file, as they were before any of it was read:
device, inode, size, and the times of its last changes, of which programs cannot set one. While they are the same, the
file is, and need not be opened to be checked. The part is left out of a file that was changed so shortly before that
the clock of its system may give the next change the same time.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

from flamecore.errors import SourceError

HEAD_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 1024

SETTLED_NS: Final = 2_000_000_000
"""Age from which on a change has another time than the next one: the coarsest file system counts in two seconds."""

_SEAL = re.compile(r"((\d+)-[0-9a-f]{16})-([0-9a-f]{16})(?:-([0-9a-f]{16}))?")


class Seals:
    """Seals of one file.

    Args:
        descriptor: Descriptor of the open file.
        offset: Offset at which reading begins.

    Attributes:
        before: The bytes before that offset, at most `TAIL_BYTES`.
        facts: Hash of the facts that the system keeps of the file; empty if they may stay the same in a change.
        size: Size of the file.
        ahead: The bytes from the offset on that were read with the first ones; who reads the file takes them.

    Raises:
        OSError: It cannot be read.
    """

    __slots__ = ("_head", "ahead", "before", "facts", "size")

    def __init__(self, descriptor: int, offset: int) -> None:
        found = os.fstat(descriptor)  # before the first byte is read: a later change has other facts
        self.facts, self.size = facts_of(found), found.st_size
        head = read_at(descriptor, 0, HEAD_BYTES)
        self._head = _sealed(head)
        self.before = _before(descriptor, offset)
        self.ahead = head[offset:]

    def is_unchanged(self, found: os.stat_result) -> bool:
        """Return whether the facts that the system keeps say that nobody has changed the file since."""
        return bool(self.facts) and facts_of(found) == self.facts

    def begins_alike(self, descriptor: int) -> bool:
        """Return whether the file begins as it did when it was opened."""
        return _sealed_head(descriptor, int(self._head.partition("-")[0])) == self._head

    def seal(self, before: bytes) -> str:
        """Return the seal of a place, given the `TAIL_BYTES` before it, or all there are."""
        seal = f"{self._head}-{xxh3_64_hexdigest(before)}"
        return f"{seal}-{self.facts}" if self.facts else seal

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
    found = _parsed(position, length)
    if found is None:
        raise SourceError(
            f"source {source!r}: {position!r} is no position in {name}",
            hint=f"A position here is {length} numbers, offset and lines, and a seal; take it from the reader.",
            source=source,
            position=position,
        )
    numbers = position[:length]
    offset, (head, head_length, tail, _) = numbers[0], found.groups()
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


def is_read(name: str, position: Any, length: int) -> bool:
    """Return whether a file ends at a position, and is known to be unchanged without being opened.

    Args:
        name, position, length: As for `check_seal`.
    """
    sealed = _parsed(position, length)
    if sealed is None or sealed[4] is None:
        return False
    try:
        found = os.stat(name)  # noqa: PTH116 - for each of many files
    except OSError:
        return False  # the error is that of opening it
    return found.st_size == position[0] and facts_of(found) == sealed[4]


def facts_of(found: os.stat_result) -> str:
    """Return a hash of the facts that the system keeps of a file; empty if a change may leave them the same."""
    if max(found.st_mtime_ns, found.st_ctime_ns) > time.time_ns() - SETTLED_NS:
        return ""
    facts = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return xxh3_64_hexdigest(repr(facts).encode())


def _parsed(position: Any, length: int) -> re.Match[str] | None:
    """Return the parts of the seal of a position; None if it is none."""
    if not isinstance(position, tuple | list) or len(position) != length + 1:
        return None
    *numbers, seal = position
    if not isinstance(seal, str) or not all(type(number) is int and number >= 0 for number in numbers):
        return None
    return _SEAL.fullmatch(seal)


def _sealed_head(descriptor: int, size: int) -> str:
    return _sealed(read_at(descriptor, 0, size))


def _sealed(data: bytes) -> str:
    return f"{len(data)}-{xxh3_64_hexdigest(data)}"


def _before(descriptor: int, offset: int) -> bytes:
    return b"" if not offset else read_at(descriptor, max(offset - TAIL_BYTES, 0), min(offset, TAIL_BYTES))


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Read bytes of a file at an offset, without moving the descriptor's own."""
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
