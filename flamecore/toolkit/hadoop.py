"""Hadoop's file system through `hdfs-native`, a client without Java.

HDFS shows a file from its first byte on, and a writer that dies leaves a part of it. So a file is written aside, in a
hidden folder that no reader looks into, and gets its name when it is whole: the NameNode renames in one step, and on
request only if there is none of that name.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final, TypeVar

T = TypeVar("T")

ASIDE: Final = ".aside"
"""The folder, in that of a file, where it is written."""

ANSWER_S: Final = 120.0
"""Seconds within which a server answers; Hadoop's own client waits as long (`ipc.client.rpc-timeout.ms`)."""


class HadoopFiles:
    """Files that are there whole, or not at all; by the methods of fsspec that drivers use.

    Not by fsspec's own class for this client: it writes in place, and takes a folder that the server does not show for
    an empty one. Every method raises the client's errors; FileNotFoundError and FileExistsError are among them, and
    TimeoutError if a server does not answer.

    Args:
        url: A URL of HDFS: its host is a NameNode with its port, or a name service; without one, it is `fs.defaultFS`.
        options: Settings of Hadoop, in addition to those of the files in HADOOP_CONF_DIR.

    Raises:
        ImportError: hdfs-native is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        from hdfs_native import Client

        host = url.partition("://")[2].partition("/")[0]
        self._client: Any = Client(f"hdfs://{host}", {name: str(value) for name, value in options.items()})

    def _strip_protocol(self, path: str) -> str:
        return "/" + (path.partition("://")[2].partition("/")[2] if "://" in path else path).strip("/")

    def ls(self, path: str, detail: bool = False) -> list[str]:
        """Return the paths of what is in a folder."""
        return [one.path for one in self._list(self._strip_protocol(path))]

    def find(self, path: str, maxdepth: int | None = None) -> list[str]:
        """Return the paths of the files below a folder; of those in itself alone if `maxdepth` is 1."""
        top = self._strip_protocol(path)
        files, folders = [], [top]
        while folders:
            folder = folders.pop()
            try:
                found = self._list(folder)
            except FileNotFoundError:
                if folder == top:
                    raise
                continue  # removed since it was listed
            files += [one.path for one in found if not one.isdir]
            folders += [
                one.path for one in found if one.isdir and maxdepth is None and not one.path.endswith(f"/{ASIDE}")
            ]
        return files

    def _list(self, folder: str) -> list[Any]:
        return _answer(lambda: list(self._client.list_status(folder, False)))

    def cat_file(self, path: str) -> bytes:
        """Return what is in a file."""
        return _answer(lambda: bytes(self._client.read(path).read(-1)))

    def open(self, path: str, mode: str, block_size: int) -> io.BufferedReader:
        """Open a file for reading, by blocks of so many bytes."""
        return io.BufferedReader(_Reader(_answer(self._client.read, path)), block_size)

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        """Write a file; with mode `create`, only if there is none of that name."""
        folder, _, name = path.rpartition("/")
        aside = f"{folder}/{ASIDE}/{name}-{token_hex(4)}"
        try:
            file = _answer(self._client.create, aside)
            _answer(file.write, data)
            _answer(file.close)
            _answer(self._client.rename, aside, path, mode != "create")
        except BaseException:
            with suppress(Exception):  # the first error counts
                _answer(self._client.delete, aside, False)
            raise

    def rm_file(self, path: str) -> None:
        """Remove a file, if it is there."""
        _answer(self._client.delete, path, False)

    def rm(self, path: str, recursive: bool) -> None:
        """Remove a folder with all that is in it, if it is there."""
        _answer(self._client.delete, path, recursive)


class _Reader(io.RawIOBase):
    """A file that is read within a limit of time.

    Args:
        file: The client's.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        data = _answer(self._file.read, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _answer(call: Callable[..., T], *arguments: object) -> T:
    """Return the result of a call, which the client itself would wait for without a limit.

    Raises:
        TimeoutError: There is none. A thread waits on; it keeps no process from its end.
        Exception: The call's own.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*arguments))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name="flamestream hdfs", daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except TimeoutError:
        if answer.done():  # its own
            raise
        raise TimeoutError(f"no answer of HDFS within {ANSWER_S:.0f} s") from None
