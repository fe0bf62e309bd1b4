"""A folder of this machine for blobs: one file each, linked once it is whole.

A blob is written to a file apart, which is then linked to its name. A link is made at once, and fails if the name is
taken. A writer holds a lock on its file, which is released when its process ends: so files left by a killed writer
differ from those being written.

    STATE/JOB/epochs=7.blob        the blob epochs/7
    STATE/JOB/=0f3a…               a blob that is being written
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flamecore.errors import StoreError
from flamestream_stores.places import failed, make_folder, store_error, sync_folder

_SUFFIX: Final = ".blob"
_APART: Final = "="
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FULL_SYNC: Final = getattr(fcntl, "F_FULLFSYNC", None)


class Folder:
    """Blocking calls to a folder; any thread may make them.

    Args:
        store: The driver's name, for errors.
        folder: The job's folder.
        sync: Whether created blobs must outlast a loss of power.
    """

    def __init__(self, store: str, folder: Path, *, sync: bool) -> None:
        self.shown = str(folder)
        self._store = store
        self._folder = folder
        self._sync = sync

    def open(self) -> None:
        """Make the folder, and delete the files that killed writers have left.

        Raises:
            StoreError: It cannot be made, read or written to.
        """
        try:
            make_folder(self._folder, sync=self._sync)
            for entry in list(os.scandir(self._folder)):
                if entry.name.startswith(_APART):
                    _clear(entry.path)
            descriptor, apart = self._apart()  # reports now, not at the first blob, whether it can be written to
            os.unlink(apart)
            os.close(descriptor)
        except OSError as error:
            raise self._failed("cannot be used", error) from error

    def create(self, name: str, data: bytes) -> bool:
        """Create a blob, as `Store.create` does; `name` has been checked."""
        path, created = self._path(name), False
        try:
            created = not os.path.lexists(path) and self._write(path, data)
            if self._sync:
                sync_folder(self._folder)  # also for another writer's blob, which that may not have forced yet
        except OSError as error:
            if created:
                with contextlib.suppress(OSError):  # the first error is the one reported
                    os.unlink(path)
            raise self._failed(f"cannot take {len(data)} bytes", error, name) from error
        return created

    def read(self, name: str) -> bytes | None:
        """Read a blob, as `Store.read` does."""
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                return file.readall()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("cannot be read", error, name) from error

    def names(self) -> list[str]:
        """Return the names of all blobs, unordered."""
        try:
            with os.scandir(self._folder) as entries:
                found = [entry.name for entry in entries]
        except OSError as error:
            raise self._failed("cannot be listed", error) from error
        return [
            name.removesuffix(_SUFFIX).replace("=", "/")
            for name in found
            if name.endswith(_SUFFIX) and not name.startswith(_APART)
        ]

    def delete(self, names: Iterable[str]) -> None:
        """Delete blobs, as `Store.delete` does."""
        for name in names:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(name))
            except OSError as error:
                raise self._failed("cannot be cleared", error, name) from error

    def _path(self, name: str) -> str:
        # One folder for all, since `a` and `a/b` are both names.
        return f"{self._folder}/{name.replace('/', '=')}{_SUFFIX}"

    def _write(self, path: str, data: bytes) -> bool:
        descriptor, apart = self._apart()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if self._sync:
                _force(descriptor)
            try:
                os.link(apart, path)
            except FileExistsError:
                # A file server that is asked a second time, since its answer was lost, finds its own first link.
                return os.fstat(descriptor).st_nlink == 2
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                what = f"{self.shown} is on a file system without hard links ({error.strerror})"
                hint = 'Give a path on another one under [state], or use = "sqlite".'
                raise store_error(self._store, what, hint) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(apart)
            os.close(descriptor)
        return True

    def _apart(self) -> tuple[int, str]:
        """Open a new file to write to; return its descriptor and path.

        It is locked as long as it is open.
        """
        while True:
            path = f"{self._folder}/{_APART}{secrets.token_hex(16)}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    return descriptor, path
            except BlockingIOError:
                pass  # another process that clears up has locked it first, and deletes it
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _failed(self, what: str, error: OSError, blob: str = "") -> StoreError:
        return failed(self._store, f"{self.shown} {what}", error, folder=self._folder, blob=blob)


def _clear(path: str) -> None:
    """Delete an unfinished file, unless its writer lives."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(descriptor)


def _force(descriptor: int) -> None:
    """Force a file to the disk, on macOS by the call that does what `fsync` does not."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fsync(descriptor)
