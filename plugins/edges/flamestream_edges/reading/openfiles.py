"""A bounded pool of open files, which readers of files borrow from.

A job may read more files than a process may have open. So a reader holds none: it borrows the descriptor of its file
for as long as it reads a piece, and the pool closes those that were borrowed longest ago once there are too many. When
a file is opened again, it must be the same one (device and inode), and begin as before if its size or time differs.

The pool bounds the bytes that all readers together read ahead, too: of many files each is read in smaller pieces.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from threading import RLock
from typing import Final, TypeAlias
from weakref import ReferenceType, ref

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Most bytes that all files of a process are read ahead, but for `LEAST_BYTES` of each."""

LEAST_BYTES: Final = 1024
"""Bytes that each file may be read ahead, however many there are."""

_MOST_OPEN: Final = 4096
"""Most files that are kept open where the system sets no limit, or does not tell it."""

_GONE: Final = (errno.ENOENT, errno.ENOTDIR)
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)

Look: TypeAlias = tuple[int, int]
"""Size and time of last modification of a file."""


class MovedError(OSError):
    """Another file, or none, has the name of one that was closed for a while."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.ESTALE, "it was removed, renamed or replaced while it was read", name)


class OpenFiles:
    """A pool of open files.

    Args:
        most: Function that returns how many may be open, those not counted that others borrow at the moment.
    """

    def __init__(self, most: Callable[[], int] | None = None) -> None:
        self._most = most or most_open
        # The collector may call `forget` within the block of another call.
        self._lock = RLock()
        self._idle: OrderedDict[ReferenceType[PooledFile], None] = OrderedDict()
        """Files that are open and not borrowed, from the one that was given back first."""
        self._ahead: dict[ReferenceType[PooledFile], int] = {}
        """Size of the last piece of each file that has not ended."""
        self._sum = 0

    def ahead(self, file: ReferenceType[PooledFile], size: int) -> int:
        """Return the size of a file's next piece, at most `size`; the one before has been used up."""
        with self._lock:
            self._sum -= self._ahead.get(file, 0)
            self._ahead[file] = 0
            rest = min(AHEAD_BYTES // len(self._ahead), AHEAD_BYTES - self._sum)
            piece = self._ahead[file] = min(size, max(rest, LEAST_BYTES))
            self._sum += piece
        return piece

    def forget(self, file: ReferenceType[PooledFile]) -> None:
        """Count a file no more among those that are read."""
        with self._lock:
            self._sum -= self._ahead.pop(file, 0)
            self._idle.pop(file, None)

    def register(self, file: ReferenceType[PooledFile]) -> None:
        """Count a file among those that are read."""
        with self._lock:
            self._ahead[file] = 0

    def take(self, file: PooledFile) -> FileIO | None:
        """Return the open file, which nobody closes until it is given back; None: it is not open."""
        with self._lock:
            self._idle.pop(file.ref, None)
            opened, file.opened = file.opened, None
            return opened

    def give_back(self, file: PooledFile, opened: FileIO) -> None:
        """Keep a file open until others need the place."""
        with self._lock:
            if file.closed or file.opened is not None:
                opened.close()
                return
            file.opened = opened
            self._idle[file.ref] = None

    def open(self, name: str) -> FileIO:
        """Open a file, and close others if need be.

        Raises:
            OSError: It cannot be opened.
        """
        with self._lock:
            self._keep(self._most() - 1)
            try:
                return open(name, "rb", buffering=0)
            except OSError as error:
                if error.errno not in _EXHAUSTED or not self._idle:
                    raise
            # The rest of the process has more files open than expected.
            self._keep(len(self._idle) // 2)
            return open(name, "rb", buffering=0)

    def _keep(self, count: int) -> None:
        """Close the files that were given back first, but for so many."""
        while len(self._idle) > max(count, 0):
            file = self._idle.popitem(last=False)[0]()
            if file is not None:
                file.leave()


def most_open() -> int:
    """Return how many files a process should have open to be read: half of those that it may.

    The other half is for all else that it opens.
    """
    if resource is None:
        return _MOST_OPEN
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_OPEN if limit == resource.RLIM_INFINITY else limit // 2


OPEN_FILES: Final = OpenFiles()
"""The pool of the process."""


class PooledFile:
    """A file that is read in pieces, and may be closed between any two of them.

    Args:
        name: Its path.
        pool: The pool.

    Attributes:
        begins_alike: Function that returns whether an open file begins as this one did.
    """

    __slots__ = ("__weakref__", "_identity", "_look", "_pool", "begins_alike", "closed", "name", "opened", "ref")

    def __init__(self, name: str, pool: OpenFiles = OPEN_FILES) -> None:
        self.name = name
        self.opened: FileIO | None = None
        """The open file, while it is in the pool."""
        self.closed = False
        self.begins_alike: Callable[[int], bool] | None = None
        self._pool = pool
        self._identity: tuple[int, int] | None = None
        self._look: Look = 0, 0
        self.ref = ref(self, pool.forget)
        pool.register(self.ref)

    @contextmanager
    def borrowed(self) -> Iterator[int]:
        """Lend the descriptor; its place in the file is any.

        Raises:
            MovedError: The file has been closed meanwhile, and its name is that of another, or of none.
            OSError: It cannot be opened.
            ValueError: It has been closed for good.
        """
        opened = self._pool.take(self)
        if opened is None:
            opened = self._open()
        try:
            yield opened.fileno()
        finally:
            self._pool.give_back(self, opened)

    def ahead(self, size: int) -> int:
        """Return how many bytes of the file may be read ahead, at most `size`."""
        return self._pool.ahead(self.ref, size)

    def read(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes from an offset on, fewer if so many have been read ahead; none at the end.

        Raises:
            OSError: As `borrowed`.
        """
        with self.borrowed() as descriptor:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, self._pool.ahead(self.ref, size))

    def end(self) -> None:
        """Close the file as it is not expected to be read any more, which is allowed none the less."""
        opened = self._pool.take(self)
        if opened is not None:
            self._note(opened)
            opened.close()
        self._pool.forget(self.ref)

    def leave(self) -> None:
        """Close the file for others, until it is borrowed again."""
        opened, self.opened = self.opened, None
        if opened is not None:
            self._note(opened)
            opened.close()

    def close(self) -> None:
        """Close the file for good; a second call does nothing."""
        self.closed = True
        self.end()

    def _note(self, opened: FileIO) -> None:
        self._look = _look(os.fstat(opened.fileno()))

    def _open(self) -> FileIO:
        if self.closed:
            raise ValueError(f"{self.name} has been closed")
        try:
            opened = self._pool.open(self.name)
        except OSError as error:
            if self._identity is not None and error.errno in _GONE:
                raise MovedError(self.name) from error
            raise
        try:
            self._check(opened.fileno())
        except BaseException:
            opened.close()
            raise
        return opened

    def _check(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        identity, look = (found.st_dev, found.st_ino), _look(found)
        if self._identity is None:
            self._identity = identity
            return
        # A new file may have got the inode of one that was removed. One that is shorter is found so at its end.
        others = look != self._look and look[0] >= self._look[0] and self.begins_alike is not None
        if identity != self._identity or (others and not self.begins_alike(descriptor)):  # type: ignore[misc]
            raise MovedError(self.name)


def _look(found: os.stat_result) -> Look:
    return found.st_size, found.st_mtime_ns
